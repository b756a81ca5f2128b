"""The four folders install as one namespace package, whole and beside anybody else's modules."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("tracer", "engine", "analysis", "tui")
SUFFIXES = (".py", ".sql", ".tcss", ".typed", ".j2", ".css", ".js")


def _packages_in_tree() -> set[str]:
    markers = [marker for folder in FOLDERS for marker in (ROOT / folder).rglob("__init__.py")]
    return {".".join(("kvtrace", *marker.parent.relative_to(ROOT).parts)) for marker in markers}


def _data_in_tree() -> set[str]:
    names = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.is_file()]
    wanted = [p for p in names if p.suffix in SUFFIXES and "__pycache__" not in p.parts]
    return {"kvtrace/" + p.relative_to(ROOT).as_posix() for p in wanted}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree, so that no stale build/ folder can slip in."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(out), str(source)], check=True)
    return next(out.glob("*.whl"))


def test_pyproject_lists_every_package_of_the_tree() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(settings["tool"]["setuptools"]["packages"]) == _packages_in_tree()


def test_wheel_holds_every_file_and_no_top_level_folder(wheel: Path) -> None:
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    assert names == _data_in_tree()


def test_installed_package_works_beside_a_users_own_modules(wheel: Path, tmp_path: Path) -> None:
    site, mine = tmp_path / "site", tmp_path / "mine"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    mine.mkdir()
    for name in FOLDERS:
        (mine / f"{name}.py").write_text("MINE = True\n", encoding="utf-8")
    program = (
        "import tracer, engine, analysis, tui; assert tracer.MINE and engine.MINE and analysis.MINE and tui.MINE\n"
        "from kvtrace.tracer import traced_tool\n"
        "import kvtrace.tracer, kvtrace.analysis, kvtrace.engine, kvtrace.tui; print(kvtrace.tracer.__file__)\n"
        "@traced_tool\n"
        "def add(a, b): return a + b\n"
        "assert add(1, 2) == 3\n"
    )
    environment = {
        "PYTHONPATH": str(site),
        "PATH": "/usr/bin:/bin",
        "KVTRACE_DIR": str(tmp_path / "runs"),
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=mine, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site))
