"""What blocked agents hold, and how idle they are lately, on timelines that can be told by looking at them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis import ReportOptions, build_report
from kvtrace.analysis.published import PUBLISHED
from kvtrace.analysis.report import Report
from kvtrace.analysis.testing import FixedHost, otlp_span, write_otlp
from kvtrace.tracer import attributes as names

TOOL, MODEL = "execute_tool", "chat"


def report(tmp_path: Path, spans: list[dict[str, Any]], **options: Any) -> Report:
    path = write_otlp(tmp_path / "spans.jsonl", spans)
    return build_report([path], options=ReportOptions(**options), host=FixedHost(now_s=500))


def usage(input_tokens: Any, output_tokens: Any = None) -> dict[str, Any]:
    return {names.GEN_AI_USAGE_INPUT_TOKENS: input_tokens, names.GEN_AI_USAGE_OUTPUT_TOKENS: output_tokens}


def test_idle_cache_is_tokens_times_bytes_times_wait(tmp_path: Path) -> None:
    spans = [
        otlp_span(MODEL, 0, 1, span=1, agent="a", attributes=usage(900, 100)),
        otlp_span(TOOL, 1, 3, span=2, agent="a"),
        otlp_span(MODEL, 3, 4, span=3, agent="a", attributes=usage(3000)),
        otlp_span(TOOL, 4, 5, span=4, agent="a"),
    ]
    found = report(tmp_path, spans, bytes_per_token=1_000_000)
    for figures in (found.pooled, found.agents[0]):
        assert figures.context_tokens == 2000
        assert figures.idle_gb_s == pytest.approx(1000 * 2 * 1e-3 + 3000 * 1 * 1e-3)
        assert figures.idle_known == 1


def test_waits_before_any_token_count_are_left_out_and_said(tmp_path: Path) -> None:
    spans = [
        otlp_span(MODEL, 0, 1, span=1, agent="a"),
        otlp_span(TOOL, 1, 4, span=2, agent="a"),
        otlp_span(MODEL, 4, 5, span=3, agent="a", attributes=usage(1000)),
        otlp_span(TOOL, 5, 6, span=4, agent="a"),
    ]
    found = report(tmp_path, spans, bytes_per_token=1_000_000).pooled
    assert (found.context_tokens, found.idle_known) == (1000, 0.25)
    assert found.idle_gb_s == pytest.approx(1.0)


@pytest.mark.parametrize("tokens", [None, -5, "many", 10**12])
def test_unknown_or_senseless_tokens_give_no_figure(tmp_path: Path, tokens: Any) -> None:
    spans = [
        otlp_span(MODEL, 0, 1, span=1, agent="a", attributes=usage(tokens, 7)),
        otlp_span(TOOL, 1, 4, span=2, agent="a"),
    ]
    found = report(tmp_path, spans).pooled
    assert (found.context_tokens, found.idle_gb_s, found.idle_known) == (None, None, 0)


def test_long_context_over_days_does_not_overflow(tmp_path: Path) -> None:
    spans = [
        otlp_span(MODEL, 0, 1, span=1, agent="a", attributes=usage(10**9)),
        otlp_span(TOOL, 1, 10_000_001, span=2, agent="a"),
    ]
    found = report(tmp_path, spans, bytes_per_token=1).pooled
    assert found.idle_gb_s == pytest.approx(1e7)


def test_capped_b_takes_the_excess_out_of_both_sides(tmp_path: Path) -> None:
    spans = [
        otlp_span(MODEL, 0, 40, span=1, agent="a"),
        otlp_span(TOOL, 40, 140, span=2, agent="a"),
        otlp_span(MODEL, 140, 160, span=3, agent="a"),
    ]
    found = report(tmp_path, spans).pooled
    assert found.b == pytest.approx(100 / 160)
    assert found.b_capped_60s == pytest.approx(60 / 120)


def test_idleness_looks_back_five_cycles(tmp_path: Path) -> None:
    spans = []
    for cycle in range(7):
        start_s, wait_s = 20.0 * cycle, 9.0 if cycle < 2 else 1.0
        spans += [
            otlp_span(MODEL, start_s, start_s + 1, span=2 * cycle + 1, agent="a"),
            otlp_span(TOOL, start_s + 1, start_s + 1 + wait_s, span=2 * cycle + 2, agent="a"),
        ]
    (agent,) = report(tmp_path, spans).agents
    # Shares after each wait: 9/10, 18/20, 19/22, 20/24, 21/26, 13/18, 5/10.
    assert agent.idleness_last == pytest.approx(0.5)
    assert agent.idleness_median == pytest.approx(20 / 24)


def test_agent_that_never_waits_has_no_idleness(tmp_path: Path) -> None:
    (agent,) = report(tmp_path, [otlp_span(MODEL, 0, 1, span=1, agent="a")]).agents
    assert (agent.idleness_last, agent.idleness_median, agent.b_capped_60s) == (None, None, 0)


def test_break_even_counts_only_calls_beyond_the_round_trip(tmp_path: Path) -> None:
    spans = [otlp_span(TOOL, 10.0 * i, 10.0 * i + length_s, span=i + 1) for i, length_s in enumerate((0.5, 1, 3, 6))]
    spans.append(otlp_span(TOOL, 60, None, span=9))
    (tool,) = report(tmp_path, spans, round_trip_ms=1000, recompute_s=4).tools
    assert (tool.calls, tool.longer_calls, tool.freed_s) == (5, 2, 7)
    assert (tool.swap_s, tool.recompute_s) == (2, 8)
    assert tool.mean_s == pytest.approx(10.5 / 4)


def test_published_rows_are_shares_and_say_what_is_wrong_with_them() -> None:
    for row in PUBLISHED:
        assert 0 <= row.b_low <= row.b_high <= 1
        assert row.source
        assert row.caveat
