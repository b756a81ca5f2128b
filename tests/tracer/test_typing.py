"""The types in ``tests/typing/api.py`` as a second checker sees them; mypy reads that file with all others."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
MISUSE = """
from kvtrace.tracer import agent, traced_tool

@traced_tool
def tool(x: int) -> str: return str(x)

@agent("a")
async def run(task: str) -> int: return 1

tool("no")
tool()
number: int = tool(1)
run(3)
traced_tool(3)
"""

needs_pyright = pytest.mark.skipif(
    importlib.util.find_spec("pyright") is None, reason="pyright is not installed (pip install pyright; it needs node)"
)


def pyright(file: Path, folder: Path) -> list[dict[str, Any]]:
    config = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "extraPaths": [str(TESTS / "mypy_path")],
        "reportUnusedFunction": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", str(folder / "pyrightconfig.json"), str(file)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
    )
    if not done.stdout.lstrip().startswith("{"):
        pytest.skip(f"pyright cannot be run here: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return [found for found in json.loads(done.stdout)["generalDiagnostics"] if found["severity"] == "error"]


@needs_pyright
def test_public_names_have_exact_types_in_pyright(tmp_path: Path) -> None:
    api = tmp_path / "api.py"
    api.write_text((TESTS / "typing" / "api.py").read_text())
    assert [(found["range"]["start"]["line"], found["message"]) for found in pyright(api, tmp_path)] == []


@needs_pyright
def test_misuse_is_seen_by_pyright(tmp_path: Path) -> None:
    file = tmp_path / "misuse.py"
    file.write_text(MISUSE)
    lines = {found["range"]["start"]["line"] + 1 for found in pyright(file, tmp_path)}
    assert lines >= {10, 11, 12, 13, 14}
