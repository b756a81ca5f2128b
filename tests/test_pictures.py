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
    pictures = list((ROOT / "docs" / "images").glob("*.svg"))
    assert len(pictures) >= 3
    for picture in pictures:
        svg = picture.read_text(encoding="utf-8")
        assert "@font-face" not in svg
        assert "url(http" not in svg
