"""The ideal queue against its published rates and against bounds that hold for every queue."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.analysis.planner.ideal import Pace, Workload, exponential_tools, ideal_run


@pytest.mark.parametrize(
    ("seed", "agents", "turns_per_s"),
    [
        (1, 16, 4.51),
        (1, 32, 7.50),
        (1, 48, 9.35),
        (2, 16, 5.15),
        (2, 32, 9.00),
        (2, 48, 9.98),
        (3, 16, 5.70),
        (3, 32, 7.82),
        (3, 48, 10.51),
    ],
)
def test_rates_are_the_known_ones(seed: int, agents: int, turns_per_s: float) -> None:
    run = ideal_run(Workload(agents), Pace(), exponential_tools(seed))
    assert run.turns_per_s == pytest.approx(turns_per_s, abs=0.006)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(1, 8), st.integers(0, 2**16))
def test_every_agent_ends_every_turn_in_order(agents: int, slots: int, seed: int) -> None:
    work = Workload(agents, prompt_tokens=700, returns=2, generated_tokens=5)
    run = ideal_run(work, Pace(slots=slots), exponential_tools(seed))
    assert sorted((turn.agent, turn.turn) for turn in run.turns) == [(i, t) for i in range(agents) for t in range(3)]
    assert all(turn.arrived_s < turn.first_token_s < turn.ended_s for turn in run.turns)
    assert run.makespan_s >= agents * (700 + 2 * 100) / Pace().prefill_tok_s


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**16))
def test_one_slot_serves_one_agent_at_a_time(agents: int, seed: int) -> None:
    work = Workload(agents, prompt_tokens=300, returns=1, generated_tokens=3)
    run = ideal_run(work, Pace(slots=1), exponential_tools(seed))
    alone_s = [turn.ended_s - turn.first_token_s for turn in run.turns]
    assert alone_s == pytest.approx([2 * Pace().step_s(1, 0)] * len(run.turns))


def test_lone_agent_is_only_held_up_by_its_own_work() -> None:
    run = ideal_run(Workload(1, 512, 1, 2, 100), Pace(), lambda agent, turn: 1.0)
    step_s = Pace().step_s(1, 0)
    assert run.makespan_s == pytest.approx(0.0128 + step_s + 1.0 + 0.0025 + step_s)


def test_finished_agents_are_replaced_by_others_with_tool_times_of_their_own() -> None:
    drawn: list[tuple[int, int]] = []

    def tool_s(agent: int, turn: int) -> float:
        drawn.append((agent, turn))
        return 0.1

    work = Workload(2, prompt_tokens=100, returns=1, generated_tokens=4, lives=3)
    run = ideal_run(work, Pace(), tool_s)
    assert sorted({turn.agent for turn in run.turns}) == [0, 1, 2, 3, 4, 5]
    assert sorted(drawn) == [(agent, 0) for agent in range(6)]
    ends = {(turn.agent, turn.turn): turn for turn in run.turns}
    assert ends[2, 0].arrived_s == ends[0, 1].ended_s


def test_steady_rate_is_bounded_by_the_slots_and_grows_with_agents_until_then() -> None:
    pace = Pace()
    rates = []
    for agents in (8, 16, 24, 48):
        run = ideal_run(Workload(agents, lives=1 << 30), pace, exponential_tools(1), until_s=20.0)
        assert 19.0 < run.makespan_s < 21.0
        rates.append(len(run.between(6.0, 20.0).turns) / 14.0)
    assert rates == sorted(rates)
    assert rates[-1] < pace.slots / (64 * pace.step_s(pace.slots, 0))


def test_agents_that_never_return_have_no_first_token_of_a_return() -> None:
    run = ideal_run(Workload(2, prompt_tokens=50, returns=0), Pace(), exponential_tools(1))
    assert run.return_ttft_p50_s is None
