"""What an import costs: a fresh interpreter shows which heavy modules came along."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("tracer", "engine", "analysis", "tui")
HEAVY = ("torch", "transformers", "duckdb", "textual", "click", "rich", "opentelemetry.exporter", "grpc")


def _heavy_after(statement: str, allowed: tuple[str, ...]) -> list[str]:
    program = f"import sys\n{statement}\nprint('\\n'.join(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split() if name not in allowed]


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import kvtrace.tracer", ()),
        ("from kvtrace.tracer import traced_tool, agent, generation, human_wait, headers, configure", ()),
        ("import kvtrace.engine", ()),
        ("import kvtrace.engine.policy, kvtrace.engine.records, kvtrace.engine.loop", ()),
        ("import kvtrace.analysis", ()),
        ("import kvtrace.tui.cli", ("click",)),
    ],
)
def test_importing_a_package_loads_nothing_heavy(statement: str, allowed: tuple[str, ...]) -> None:
    assert _heavy_after(statement, allowed) == []


def test_help_loads_neither_torch_nor_duckdb_nor_textual() -> None:
    program = (
        "import sys\nfrom kvtrace.tui.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        "print([m for m in ('torch', 'transformers', 'duckdb', 'textual', 'opentelemetry') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for verb in ("demo", "doctor", "report"):
        assert verb in done.stdout


def test_import_contracts_hold() -> None:
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports")], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def _bare_imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [f"{path}:{node.lineno}" for alias in node.names if alias.name.split(".")[0] in FOLDERS]
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] in FOLDERS:
            found.append(f"{path}:{node.lineno}")
    return found


def test_nobody_imports_the_four_folders_by_their_bare_names() -> None:
    """``import engine`` works by accident from the checkout's root, and loads every module a second time."""
    files = [path for folder in (*FOLDERS, "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 20
    assert [place for path in files for place in _bare_imports(path)] == []
