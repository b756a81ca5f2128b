"""The documentation says what is there: every module, every command, every file that a page links to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvtrace.tui.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_lists_of_modules_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "docs/modules.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run `python docs/modules.py`"


def test_readme_names_every_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [verb for verb in COMMANDS if f"kvtrace {verb}" not in readme] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_linked_file_exists(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
