"""Draws the pictures of the README from a seeded sample: ``python docs/pictures.py`` writes them, ``--check`` compares.

Only the text of a picture is compared, since its drawing differs between versions of rich.
"""

from __future__ import annotations

import argparse
import html
import io
import re
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from kvtrace.analysis import build_report, render_terminal
from kvtrace.analysis.sample import sample_spans
from kvtrace.analysis.testing import FixedHost, write_otlp

IMAGES: Final = Path(__file__).parent / "images"
WIDTH: Final = 80


def report_svg() -> str:
    """The terminal report of eight imaginary agents."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_otlp(Path(folder) / "sample.jsonl", sample_spans(8, 60, seed=0))
        report = build_report([path], host=FixedHost())
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    render_terminal(report, console)
    svg = console.export_svg(title="kvtrace report", unique_id="kvtrace")
    # A picture must not fetch fonts from elsewhere: the viewer's own monospace font will do.
    return re.sub(r"@font-face\s*\{[^}]*\}\s*", "", svg)


def text_of(svg: str) -> str:
    """What a picture says, without white space."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    return "".join(html.unescape("".join(texts)).split())


def main() -> int:
    """Write or check the pictures; 1 where ``--check`` finds one out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only tell whether the pictures are up to date")
    target, fresh = IMAGES / "report.svg", report_svg()
    if parser.parse_args().check:
        same = target.exists() and text_of(target.read_text(encoding="utf-8")) == text_of(fresh)
        return 0 if same else 1
    target.parent.mkdir(exist_ok=True)
    target.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
