"""The HTML report as text, and in a real browser."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from kvtrace.analysis import open_study, render_html
from kvtrace.analysis.sample import sample_spans
from kvtrace.analysis.testing import FixedHost, otlp_span, write_otlp
from kvtrace.tracer import attributes as names
from kvtrace.tracer.testing import ManualClock

from .browser import CHROMIUM, Page, browser

AGENTS: Final = 14
NASTY: Final = '<script>alert("x")</script>'


def rendered(tmp_path: Path, spans: Iterable[dict[str, Any]]) -> str:
    path = write_otlp(tmp_path / "spans.jsonl", spans)
    with open_study([path], host=FixedHost()) as study:
        return render_html(study, ManualClock())


def loop(tool: str = "pytest", **more: Any) -> list[dict[str, Any]]:
    return [
        otlp_span("chat", 0, 4, span=1, agent="a", **more),
        otlp_span("execute_tool", 4, 9, span=2, agent="a", attributes={names.GEN_AI_TOOL_NAME: tool}),
    ]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of about 2,000 spans in two bursts an hour apart."""
    folder = tmp_path_factory.mktemp("html")
    spans = list(sample_spans(AGENTS, 68, seed=0, gap_s=4000))
    assert 1900 <= len(spans) <= 2100
    page = folder / "report.html"
    page.write_text(rendered(folder, spans), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if CHROMIUM is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI needs Chromium: .ci/run installs it")
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_2000_spans_stay_under_the_size_limit(sample: Path) -> None:
    assert sample.stat().st_size < 1_200_000


def test_page_says_decision_b_interval_and_multiple(tmp_path: Path) -> None:
    spans = [
        *loop(),
        otlp_span("chat", 0, 8, span=3, agent="b", trace=2),
        otlp_span("execute_tool", 8, 9, span=4, agent="b", trace=2),
    ]
    text = rendered(tmp_path, spans)
    assert "Parking pays: about 1.4 times as many agents share a card of 8 slots." in text
    assert '<p class="figure">0.33</p><p>0.11 to 0.56 at 95 % over agents</p>' in text
    assert '<p class="figure">×1.40</p>' in text
    assert "blocked on pytest, 5.00 s, from 4.00 s" in text
    assert "swap out and back 41 ms, recompute 7.2 s" in text
    assert "queue not visible" in text


def test_foreign_names_are_only_text(tmp_path: Path) -> None:
    label = {names.GEN_AI_AGENT_NAME: NASTY}
    text = rendered(tmp_path, [*loop(NASTY), otlp_span("invoke_agent", 0, 9, span=3, agent="a", attributes=label)])
    assert NASTY not in text
    assert text.count("&lt;script&gt;") >= 3
    assert text.count("<script") == 1


def test_without_gaps_there_is_nothing_to_squeeze(tmp_path: Path) -> None:
    assert 'id="squeeze"' not in rendered(tmp_path, loop())


def test_report_without_waits_leaves_the_strip_out(tmp_path: Path) -> None:
    text = rendered(tmp_path, [otlp_span("chat", 0, 1, span=1)])
    assert 'id="strip"' not in text
    assert 'id="gantt"' in text


def test_calls_of_no_length_still_make_a_page(tmp_path: Path) -> None:
    assert "nothing in these spans took any time" in rendered(tmp_path, [otlp_span("chat", 1, 1, span=1)])


def test_page_names_no_other_address(sample: Path) -> None:
    addresses = set(re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]+)""", sample.read_text(encoding="utf-8")))
    assert addresses == {"data:,", "#hatch", "#idle"}


@pytest.mark.parametrize(
    ("width", "height", "scheme"), [(1280, 900, "light"), (1280, 900, "dark"), (400, 800, "light")]
)
def test_browser_shows_all_figures_without_a_complaint(
    sample: Path, page: Page, tmp_path: Path, width: int, height: int, scheme: str
) -> None:
    page.requests.clear()
    page.open(sample, width, height, scheme)
    assert page.complaints == []
    assert {address.split(":")[0] for address in page.requests} <= {"file", "data"}
    assert page.requests.count(sample.as_uri()) == 1
    assert page.evaluate("document.querySelectorAll('.lane').length") == AGENTS
    assert page.evaluate("document.querySelectorAll('.lane path').length") > 1800
    assert page.evaluate("document.querySelectorAll('#strip .up').length") > 10
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("Math.min(...[...document.querySelectorAll('section')].map(s => s.offsetHeight))") > 20
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000


def test_lane_is_walked_with_the_keyboard(sample: Path, page: Page) -> None:
    page.open(sample)
    page.evaluate("document.querySelector('.lane').focus()")
    assert "tool calls" in page.evaluate("document.querySelector('.details').textContent")
    told = []
    for _ in range(3):
        page.press("ArrowRight")
        told.append(page.evaluate("document.querySelector('.details').textContent"))
    assert re.fullmatch(r"[\w-]+: generating, .* from 0 s", told[0])
    assert re.fullmatch(r"[\w-]+: blocked on \w+, .* from .*", told[2])
    page.press("End")
    assert "generating" in page.evaluate("document.querySelector('path.on title').textContent")
    assert page.evaluate("document.querySelectorAll('path.on').length") == 1
    page.press("Tab")
    assert page.evaluate("document.activeElement === document.querySelectorAll('.lane')[1]")


def test_pointing_at_a_bar_tells_what_it_is(sample: Path, page: Page) -> None:
    page.open(sample)
    page.hover(".lane path:nth-child(2)")
    assert page.evaluate("document.querySelector('.details').textContent").count(",") >= 2


def test_gaps_are_squeezed_until_unticked(sample: Path, page: Page) -> None:
    page.open(sample)
    width = "document.querySelector('.s0').getBoundingClientRect().width"
    gap = "[...document.querySelectorAll('.gap')].map(g => g.getBoundingClientRect().width).filter(w => w > 0)[0]"
    squeezed, small_gap = page.evaluate(width), page.evaluate(gap)
    page.evaluate("document.getElementById('squeeze').focus()")
    page.press(" ")
    assert not page.evaluate("document.getElementById('squeeze').checked")
    assert page.evaluate(width) < squeezed / 3
    assert page.evaluate(gap) > 10 * small_gap


def test_zoom_widens_the_lanes_only(sample: Path, page: Page) -> None:
    page.open(sample)
    width = "document.querySelector('svg.lanes').getBoundingClientRect().width"
    before = page.evaluate(width)
    page.evaluate("document.querySelector('[data-zoom=\"2\"]').click()")
    assert page.evaluate(width) == pytest.approx(2 * before)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_injected_script_would_not_run(tmp_path: Path, page: Page) -> None:
    text = rendered(tmp_path, loop()).replace("</main>", "<script>document.title = 'owned'</script></main>")
    (tmp_path / "owned.html").write_text(text, encoding="utf-8")
    page.open(tmp_path / "owned.html")
    assert "owned" not in page.evaluate("document.title")
    assert page.complaints
    page.complaints.clear()
