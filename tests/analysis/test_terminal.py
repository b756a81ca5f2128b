"""What the terminal shows, read as text at 80 columns."""

from __future__ import annotations

import doctest
import io
from pathlib import Path

import pytest
from rich.console import Console

from kvtrace.analysis import build_report, render_terminal
from kvtrace.analysis.render import bar, words
from kvtrace.analysis.report import Report
from kvtrace.analysis.testing import FixedHost, otlp_span, write_otlp
from kvtrace.tracer import attributes as names


def shown(report: Report, width: int = 80, terminal: bool = False) -> str:
    out = io.StringIO()
    render_terminal(report, Console(file=out, width=width, force_terminal=terminal))
    return out.getvalue()


def usual(tmp_path: Path) -> Report:
    spans = [
        otlp_span("chat", 0, 4, span=1, agent="a"),
        otlp_span("execute_tool", 4, 9, span=2, agent="a", name="execute_tool pytest"),
        otlp_span("chat", 0, 8, span=3, agent="b", trace=2),
        otlp_span("execute_tool", 8, None, span=4, agent="b", trace=2, name="execute_tool hang"),
    ]
    path = write_otlp(tmp_path / "a.jsonl", spans)
    path.write_text(path.read_text() + "not json\n")
    return build_report([path], host=FixedHost())


def test_leads_with_b_and_the_decision(tmp_path: Path) -> None:
    lines = shown(usual(tmp_path)).splitlines()
    assert lines[0] == "18.0 s of agent time · 2 agents · 2 tool calls · 2 model calls"
    assert lines[1] == "blocked fraction b  0.33   ×1.40 agents a card"
    assert lines[2] == "0.29 .. 0.33 with open calls, 0.11 .. 0.56 at 95 % over agents"
    assert lines[3].startswith("Parking pays: about 1.4 times as many agents share a card of 8 slots.")


def test_bar_fills_the_width_by_share(tmp_path: Path) -> None:
    text = shown(usual(tmp_path))
    assert f"{'█' * 27}{'▓' * 53}\n" in text
    assert "█ blocked 33 %  ▓ generating 67 %" in text.replace("\u00a0", " ")


def test_tables_and_caveats_are_all_there(tmp_path: Path) -> None:
    text = shown(usual(tmp_path))
    assert "pytest          1 5.00 s  83 % 5.00 s 5.00 s 5.00 s    0 %" in text
    assert "hang   1 (1 open) 1.00 s  17 %      –      –      –      –" in text
    assert "b     0.00..0.11 9.00 s  1.00 s     8.00 s 1 (1 open)" in text
    assert "- 1 tool call never ended: b is between 0.29 (ended at once) and 0.33" in text
    assert "- queue not visible (its waits count as generation)" in text
    assert "- a.jsonl: 1 unreadable piece, first in line 5: not JSON" in text
    assert text.rstrip().endswith("assumed, not measured: round trip 41 ms, 147,456 B a token, 8 slots")


def test_fits_80_columns_with_the_longest_values(tmp_path: Path) -> None:
    spans = []
    for number in range(30):
        agent = f"{'very-long-agent-name-' * 4}{number}"
        start, parent = number * 1e6, f"{'very-long-agent-name-' * 4}{number - 1}"
        label = {names.GEN_AI_AGENT_NAME: "name " * 9, names.PARENT_AGENT_ID: parent}
        spans += [
            otlp_span("invoke_agent", start, start + 9e5, span=4 * number + 1, agent=agent, attributes=label),
            otlp_span("chat", start, start + 3.7e5, span=4 * number + 2, agent=agent),
            otlp_span(
                "execute_tool", start + 3.7e5, None, span=4 * number + 3, agent=agent, name=f"{'tool' * 20}{number}"
            ),
        ]
    report = build_report([write_otlp(tmp_path / f"{'x' * 90}.jsonl", spans)], host=FixedHost())
    for width in (80, 200):
        text = shown(report, width)
        assert max(map(len, text.splitlines())) <= min(width, 100)
        assert "and 18 more agents" in text
        assert "2 (1 open)" in text
        assert "0.47..0.99" in text


def test_no_color_leaves_plain_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = usual(tmp_path)
    assert "\x1b[" in shown(report, terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    styled = shown(report, terminal=True)
    assert not [code for code in styled.split("\x1b[")[1:] if code[0] in "349"]


def test_markup_in_names_is_only_text(tmp_path: Path) -> None:
    spans = [otlp_span("execute_tool", 0, 1, span=1, agent="a", attributes={names.GEN_AI_TOOL_NAME: "[red]x[/red]"})]
    assert "[red]x[/red]" in shown(build_report([write_otlp(tmp_path / "a.jsonl", spans)], host=FixedHost()))


@pytest.mark.parametrize("start", [0, 1])
def test_report_without_tools_or_time_still_prints(tmp_path: Path, start: float) -> None:
    report = build_report([write_otlp(tmp_path / "a.jsonl", [otlp_span("chat", start, 1, span=1)])], host=FixedHost())
    text = shown(report)
    assert "no tool was called" in text
    assert ("nothing in these spans took any time" in text) == (start == 1)


@pytest.mark.parametrize("module", [words, bar])
def test_examples_in_docstrings_hold(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0
