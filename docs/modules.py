"""Writes the module list of ``docs/structure.md`` from the modules' own docstrings, so that it cannot go stale.

Usage, from the repository's root: ``python docs/modules.py`` rewrites the list, ``--check`` only tells whether it is right.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "structure.md"
FOLDERS: Final = ("tracer", "analysis", "engine", "tui")
MARK: Final = "<!-- modules: written by docs/modules.py -->"


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".")


def module_list() -> str:
    """One heading a folder, one line a module."""
    lines = [MARK]
    for folder in FOLDERS:
        lines += ["", f"### {folder}/", ""]
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT / folder).as_posix()
            lines.append(f"- `{name}`: {first_sentence(path)}.")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Rewrite or check the page; 1 where ``--check`` finds it out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is out of date")
    check = parser.parse_args().check
    page = PAGE.read_text(encoding="utf-8")
    wanted = page[: page.index(MARK)] + module_list()
    if not check:
        PAGE.write_text(wanted, encoding="utf-8")
    return int(check and page != wanted)


if __name__ == "__main__":
    sys.exit(main())
