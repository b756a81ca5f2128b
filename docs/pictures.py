"""Draws the pictures of the README from a seeded sample: ``python docs/pictures.py`` writes them, ``--check`` compares.

Only the text of a picture is compared, since its drawing differs between versions of rich.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Final

from rich.console import Console

from kvtrace.analysis import build_report, render_terminal
from kvtrace.analysis.sample import sample_spans
from kvtrace.analysis.testing import FixedHost, write_otlp

IMAGES: Final = Path(__file__).parent / "images"
WIDTH: Final = 80
TOP_CELLS: Final = (112, 34)
TOP_INSTANT_NS: Final = 1_790_000_000_000_000_000


def top_svg(*keys: str) -> str:
    """``kvtrace top`` on the seeded demo, after these keys."""
    return asyncio.run(_top_svg(keys))


async def _top_svg(keys: Sequence[str]) -> str:
    from kvtrace.tui.app import TopApp
    from kvtrace.tui.feed.demo import DemoFeed
    from kvtrace.tui.top.settings import MOST_INTERVAL_S, TopSettings

    os.environ.pop("NO_COLOR", None)
    # Time stands still, and nothing but the first sample is collected.
    feed = DemoFeed(12, 503, lambda: TOP_INSTANT_NS)
    app = TopApp(feed, TopSettings(interval_s=MOST_INTERVAL_S), zone=UTC)
    async with app.run_test(size=TOP_CELLS) as pilot:
        while app.shown is None:
            await pilot.pause(0.01)
        await pilot.press(*keys)
        app.interval_s = 1.0
        # Drawn once more, so that the sample is fresh however long all this took.
        app.take([app.shown])
        await pilot.pause()
        return _self_contained(app.export_screenshot(title="kvtrace top --demo"))


def _self_contained(svg: str) -> str:
    """A picture must not fetch fonts from elsewhere: the viewer's own monospace font will do."""
    return re.sub(r"@font-face\s*\{[^}]*\}\s*", "", svg)


def report_svg() -> str:
    """The terminal report of eight imaginary agents."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_otlp(Path(folder) / "sample.jsonl", sample_spans(8, 60, seed=0))
        report = build_report([path], host=FixedHost())
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    render_terminal(report, console)
    return _self_contained(console.export_svg(title="kvtrace report", unique_id="kvtrace"))


def text_of(svg: str) -> str:
    """What a picture says, without white space."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    return "".join(html.unescape("".join(texts)).split())


def main() -> int:
    """Write or check the pictures; 1 where ``--check`` finds one out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only tell whether the pictures are up to date")
    check, stale = parser.parse_args().check, 0
    IMAGES.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        target, fresh = IMAGES / name, draw()
        if not target.exists() or text_of(target.read_text(encoding="utf-8")) != text_of(fresh):
            stale += 1
            if check:
                print(f"{target} is out of date", file=sys.stderr)  # noqa: T201 - a program
            else:
                target.write_text(fresh, encoding="utf-8")
    return 1 if check and stale else 0


PICTURES: Final[Mapping[str, Callable[[], str]]] = {
    "report.svg": report_svg,
    "top.svg": top_svg,
    "top-agent.svg": lambda: top_svg("down", "enter"),
}


if __name__ == "__main__":
    sys.exit(main())
