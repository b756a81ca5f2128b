"""The table of swap against recompute, agents that fit, and whole plans."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvtrace.analysis import ReportOptions, open_study
from kvtrace.analysis.planner.cards import CARDS, find_card
from kvtrace.analysis.planner.costs import Rig, cost_table
from kvtrace.analysis.planner.fit import fit, pool_bytes
from kvtrace.analysis.planner.models import MODELS, ModelShape
from kvtrace.analysis.planner.plan import ASSUMED_B, Plan, PlanRequest, make_plan, repeated, round_trip
from kvtrace.analysis.planner.recorded import recorded_work
from kvtrace.analysis.planner.work import AgentWork, Turn
from kvtrace.analysis.render.plan import render_plan
from kvtrace.analysis.testing import FixedHost, otlp_span, write_otlp
from kvtrace.tracer import attributes as names
from kvtrace.tui.policies import engine_policies

ARTICLE_RIG = Rig(16 * 2**30, 50e9, 962.0, 48 * 2**30, 8)
ARTICLE_MODEL = ModelShape("the article's", 147_000, 0, None, "rounded as there")
QWEN3_8B = MODELS[0]


def test_table_is_the_published_one() -> None:
    rows = cost_table(ARTICLE_MODEL, ARTICLE_RIG, 561)
    assert [row.tokens for row in rows] == [2_000, 6_900, 16_000, 32_000, 55_000]
    assert [round(row.round_trip_ms, 1) for row in rows] == [11.8, 40.6, 94.1, 188.2, 323.4]
    assert [round(row.recompute_s, 1) for row in rows] == [2.1, 7.2, 16.6, 33.3, 57.2]
    assert {round(row.times_cheaper) for row in rows} == {177}


def test_exact_geometry_stays_within_half_a_percent_of_it() -> None:
    published = cost_table(ARTICLE_MODEL, ARTICLE_RIG, 561)
    for exact, rounded in zip(cost_table(QWEN3_8B, ARTICLE_RIG, 561), published, strict=True):
        assert exact.round_trip_ms == pytest.approx(rounded.round_trip_ms, rel=0.005)
        assert exact.times_cheaper == pytest.approx(177, rel=0.005)


def test_return_includes_the_new_tokens_either_way() -> None:
    row = cost_table(QWEN3_8B, ARTICLE_RIG, 561)[1]
    assert row.return_swapped_s == pytest.approx(row.one_way_ms / 1e3 + 561 / 962)
    assert row.return_recomputed_s == pytest.approx((6900 + 561) / 962)
    assert 9 < row.return_times_cheaper < 13


def test_state_of_a_hybrid_makes_short_contexts_dearer() -> None:
    rows = cost_table(MODELS[2], ARTICLE_RIG, 0)
    assert [row.times_cheaper for row in rows] == sorted(row.times_cheaper for row in rows)
    assert rows[1].times_cheaper == pytest.approx(646, rel=0.005)


def test_agents_that_fit_the_known_pool() -> None:
    held = fit(QWEN3_8B, ARTICLE_RIG, 55_000 * QWEN3_8B.token_bytes, 6_000, 0.59)
    assert (held.resident_agents, held.wanted_agents, held.served_agents, held.bound_by) == (9, 20, 20, "slots")
    assert held.host_needed_bytes == 20 * 6_000 * 147_456
    assert held.throughput_multiple == pytest.approx(2.27, abs=0.005)


@pytest.mark.parametrize(
    ("host_gb", "pool_tokens", "bound_by", "served"),
    [(0, 55_000, "host", 9), (48, 3_000, "vram", 0), (48, 30_000, "vram", 12)],
)
def test_what_binds_is_named(host_gb: int, pool_tokens: int, bound_by: str, served: int) -> None:
    rig = Rig(16 * 2**30, 50e9, 962.0, host_gb * 2**30, 8)
    held = fit(QWEN3_8B, rig, pool_tokens * QWEN3_8B.token_bytes, 6_000, 0.59)
    assert (held.bound_by, held.served_agents) == (bound_by, served)


@given(st.floats(0, 1), st.integers(0, 200_000), st.integers(0, 64), st.integers(1, 32), st.integers(1, 50_000))
def test_fit_never_serves_more_than_there_is_room_for(
    b: float, pool_tokens: int, host_gb: int, slots: int, context_tokens: int
) -> None:
    rig = Rig(16 * 2**30, 50e9, 962.0, host_gb * 2**30, slots)
    held = fit(QWEN3_8B, rig, pool_tokens * QWEN3_8B.token_bytes, context_tokens, b)
    assert min(held.resident_agents, slots) <= held.served_agents <= held.tier_agents
    assert held.resident_agents * context_tokens <= pool_tokens
    if held.throughput_multiple is not None:
        assert 1 - 1e-9 <= held.throughput_multiple <= 1 / (1 - b) * (1 + 1e-9)


def test_weights_that_do_not_fit_leave_no_pool() -> None:
    assert pool_bytes(ARTICLE_RIG, 17_000_000_000) == 0
    assert pool_bytes(ARTICLE_RIG, 5_000_000_000) == pytest.approx(0.9 * 16 * 2**30 - 5e9, abs=1)


@pytest.mark.parametrize("name", ["H200", "NVIDIA H200", "rtx4090", "AMD Radeon RX 9070 XT"])
def test_cards_are_found_by_what_people_call_them(name: str) -> None:
    assert find_card(name) in CARDS
    assert find_card("abacus") is None


@pytest.mark.parametrize("wrong", [{"link_bytes_per_s": 0.0}, {"prefill_tok_s": float("inf")}, {"host_bytes": -1}])
def test_rig_that_means_nothing_is_refused(wrong: dict[str, Any]) -> None:
    figures = {"vram_bytes": 1, "link_bytes_per_s": 1.0, "prefill_tok_s": 1.0, "host_bytes": 0, "slots": 1, **wrong}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Rig(**figures)


def recorded(tmp_path: Path, request: PlanRequest, tokens: int | None = 900) -> Plan:
    usage = {} if tokens is None else {names.GEN_AI_USAGE_INPUT_TOKENS: tokens, names.GEN_AI_USAGE_OUTPUT_TOKENS: 100}
    spans = [
        otlp_span("invoke_agent", 0, 21, span=1, agent="a"),
        otlp_span("chat", 0, 4, span=2, parent=1, agent="a", attributes=usage),
        otlp_span("execute_tool", 4, 12, span=3, parent=1, agent="a", name="execute_tool grep"),
        otlp_span("execute_tool", 6, 14, span=4, parent=1, agent="a", name="execute_tool read"),
        otlp_span("chat", 15, 20, span=5, parent=1, agent="a"),
    ]
    path = write_otlp(tmp_path / "a.jsonl", spans)
    options = ReportOptions(round_trip_ms=round_trip(request).round_trip_ms)
    with open_study([path], options=options, host=FixedHost()) as study:
        work = recorded_work(study.connection, request.context_tokens)
        assert work == (
            AgentWork(
                "a", (Turn(4, 10, 0, "grep", (tokens or 6800) + 100), Turn(5, 0, 2, None, (tokens or 6800) + 100))
            ),
        )
        return make_plan(request, study.report, work, engine_policies())


def test_plan_with_a_source_replays_every_policy_and_ideal(tmp_path: Path) -> None:
    plan = recorded(tmp_path, PlanRequest(ARTICLE_RIG, QWEN3_8B, pool_tokens=55_000))
    assert [result.policy for result in plan.replays] == [policy.name for policy in engine_policies()] + ["ideal"]
    assert plan.b == pytest.approx(10 / 21)
    assert [tool.tool for tool in plan.tools] == ["grep", "read"]
    assert not any("published by others" in sentence for sentence in plan.assumptions)


def test_unknown_contexts_are_assumed(tmp_path: Path) -> None:
    recorded(tmp_path, PlanRequest(ARTICLE_RIG, QWEN3_8B, pool_tokens=55_000), tokens=None)


def test_plan_without_a_source_says_whose_b_it_takes() -> None:
    plan = make_plan(PlanRequest(ARTICLE_RIG, QWEN3_8B))
    assert plan.b == ASSUMED_B == 0.59
    assert not plan.replays
    assert not plan.tools
    assert any("published by others" in sentence for sentence in plan.assumptions)


def test_plan_for_a_card_too_small_replays_nothing(tmp_path: Path) -> None:
    plan = recorded(tmp_path, PlanRequest(ARTICLE_RIG, QWEN3_8B, pool_tokens=1_000))
    assert (plan.fit.served_agents, plan.replays) == (0, ())


def test_repeated_work_keeps_agents_apart() -> None:
    work = repeated((AgentWork("a", ()), AgentWork("b", ())), 5)
    assert len({each.agent for each in work}) == len(work) == 6


def test_text_of_a_plan_fits_80_columns(tmp_path: Path) -> None:
    for plan in (
        make_plan(PlanRequest(ARTICLE_RIG, MODELS[2])),
        recorded(tmp_path, PlanRequest(ARTICLE_RIG, QWEN3_8B, pool_tokens=55_000)),
    ):
        file = io.StringIO()
        render_plan(plan, Console(file=file, width=80))
        assert max(map(len, file.getvalue().splitlines())) <= 80
