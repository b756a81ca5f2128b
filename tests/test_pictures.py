"""The pictures in the documentation show what the program prints today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_pictures_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "docs/pictures.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run `python docs/pictures.py`"


def test_pictures_fetch_nothing() -> None:
    svg = (ROOT / "docs" / "images" / "report.svg").read_text(encoding="utf-8")
    assert "@font-face" not in svg
    assert "url(http" not in svg
