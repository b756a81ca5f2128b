"""Writes the module lists in ``docs/modules/`` from the modules' own docstrings, so that they cannot go stale.

Usage, from the repository's root: ``python docs/modules.py`` rewrites the lists, ``--check`` only tells whether they are right.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("tracer", "analysis", "engine", "tui")
NOTE: Final = (
    "Written by `docs/modules.py` from the modules' own docstrings. [How they work together](../structure.md)."
)


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".")


def module_list(folder: str) -> str:
    """A page of one line a module."""
    lines = [f"# {folder}/", "", NOTE, ""]
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT / folder).as_posix()
        lines.append(f"- `{name}`: {first_sentence(path)}.")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Rewrite or check the pages; 1 where ``--check`` finds one out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    check = parser.parse_args().check
    stale = 0
    for folder in FOLDERS:
        page, wanted = ROOT / "docs" / "modules" / f"{folder}.md", module_list(folder)
        if check:
            stale += not page.is_file() or page.read_text(encoding="utf-8") != wanted
        else:
            page.write_text(wanted, encoding="utf-8")
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
