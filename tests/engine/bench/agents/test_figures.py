from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.bench.agents.client import TurnRecord
from kvtrace.engine.bench.agents.figures import Spread, figures_of
from kvtrace.engine.bench.agents.watcher import Moved


def turn(agent: str, number: int, sent_s: float, first_s: float, ended_s: float, **more: object) -> TurnRecord:
    record = TurnRecord(agent, number, prompt_tokens=100, sent_s=sent_s, first_token_s=first_s, ended_s=ended_s)
    record.output_ids = [1, 2, 3]
    record.output_tokens = 3
    for name, value in more.items():
        setattr(record, name, value)
    return record


RUN = [
    turn("a", 0, 0.0, 1.0, 2.0, tool_s=3.0, cached_tokens=0),
    turn("b", 0, 0.0, 2.0, 3.0, tool_s=1.0, cached_tokens=0),
    turn("b", 1, 4.0, 4.5, 5.5, cached_tokens=90),
    turn("a", 1, 5.0, 5.1, 6.0, cached_tokens=95),
]


def test_rates_and_first_tokens_of_a_small_run() -> None:
    figures = figures_of(RUN)
    assert (figures.agents, figures.turns, figures.failed) == (2, 4, 0)
    assert figures.makespan_s == 6.0
    assert figures.turns_per_s == pytest.approx(4 / 6)
    assert figures.return_ttft_s.p50 == pytest.approx(0.1)
    assert figures.return_ttft_s.p99 == pytest.approx(0.5)
    assert figures.first_ttft_s.p50 == pytest.approx(1.0)
    assert figures.return_ttft_all_s == pytest.approx((0.1, 0.5))


def test_tokens_are_split_into_cached_and_computed() -> None:
    figures = figures_of(RUN)
    assert (figures.prompt_tokens, figures.cached_tokens, figures.computed_tokens) == (400, 185, 215)


def test_first_token_of_a_return_is_split_into_what_the_server_tells_and_the_rest() -> None:
    told = {"queued_s": 0.2, "restoring_s": 0.1}
    figures = figures_of([*RUN[:2], turn("b", 1, 4.0, 4.5, 5.5, **told)])
    assert (figures.return_queued_s.p50, figures.return_restoring_s.p50) == (0.2, 0.1)
    assert figures.return_starting_s.p50 == pytest.approx(0.2)
    assert figures_of(RUN).return_starting_s == Spread(None, None, None)


def test_token_counts_that_the_server_does_not_tell_are_unknown() -> None:
    figures = figures_of([turn("a", 0, 0.0, 1.0, 2.0)])
    assert figures.cached_tokens is None
    assert figures.computed_tokens is None


def test_b_is_the_share_of_the_agents_own_time_in_tools() -> None:
    # a lives 6 s and waits 3, b lives 5.5 s and waits 1
    assert figures_of(RUN).b == pytest.approx(4 / 11.5)


def test_busy_window_leaves_out_cold_start_and_tail() -> None:
    figures = figures_of(RUN)
    # From the last first token of an agent (2.0) to the 75th percentile of the returns' ends (6.0).
    assert figures.returns_per_s_busy == pytest.approx(2 / 4)
    # b decodes 2-3 and 4.5-5.5, a 5.1-6 in it.
    assert figures.decoding_mean == pytest.approx((1 + 1 + 0.9) / 4)


def test_steady_window_counts_what_ended_in_it() -> None:
    figures = figures_of(RUN, window=(2.5, 5.5))
    assert figures.turns == 2
    assert figures.turns_per_s == pytest.approx(2 / 3)


def test_failures_are_counted_and_named_and_not_in_the_figures() -> None:
    figures = figures_of([*RUN, TurnRecord("c", 0, 5, 0.0, error="HTTP 503: full")])
    assert (figures.turns, figures.failed) == (4, 1)
    assert figures.errors == ("1 × HTTP 503: full",)


def test_run_in_which_nothing_was_answered_has_no_figures_and_no_fault() -> None:
    figures = figures_of([TurnRecord("c", 0, 5, 0.0, error="refused")])
    assert figures.turns_per_s == 0.0
    assert figures.return_ttft_s == Spread(None, None, None)
    assert figures.b is None


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_spread_is_ordered_and_made_of_values_seen(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread.p50 is not None
    assert spread.p95 is not None
    assert spread.p99 is not None
    assert spread.p50 <= spread.p95 <= spread.p99
    assert {spread.p50, spread.p95, spread.p99} <= set(values)


def state(pool_bytes: int, active_bytes: int, *agents: tuple[str, str, int, int]) -> dict[str, Any]:
    return {
        "tiers": {"vram": {"kv_pool_bytes": pool_bytes, "kv_active_bytes": active_bytes}},
        "agents": [
            {"agent": name, "state": what, "vram_bytes": vram, "host_bytes": host} for name, what, vram, host in agents
        ],
    }


def test_idle_kv_that_left_vram_counts_as_freed_and_as_handed_over_where_others_use_the_room() -> None:
    moved = Moved()
    waiting = (("a-1", "parked", 20, 100), ("a-2", "blocked_resident", 50, 50))
    moved.see(state(150, 70, *waiting, ("a-3", "generating", 70, 0)), "a-", seconds=2.0)
    assert (moved.idle_byte_s, moved.freed_byte_s) == (300.0, 160.0)
    assert moved.freed_share == pytest.approx(160 / 300)
    # 70 bytes are held by waiting agents and 70 in use, so 10 lie unused: of the 80 freed, others have 70.
    assert moved.handed_byte_s == 140.0


def test_room_that_nobody_uses_is_freed_but_not_handed_over() -> None:
    moved = Moved()
    moved.see(state(1000, 10, ("a-1", "parked", 0, 100)), "a-", seconds=1.0)
    assert (moved.freed_byte_s, moved.handed_byte_s) == (100.0, 0.0)


def test_agents_of_other_runs_do_not_count() -> None:
    moved = Moved()
    moved.see(state(100, 100, ("b-1", "parked", 0, 100)), "a-", seconds=1.0)
    assert moved.idle_byte_s == 0.0
    assert moved.freed_share is None
