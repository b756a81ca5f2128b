"""Replays: bounds that hold for every policy and all work, and small cases whose times can be told by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.analysis.planner.policy import Facts, FreeMoves, Moment
from kvtrace.analysis.planner.pool import Holder, Pool, Rank
from kvtrace.analysis.planner.replay import ReplayResult, ReplayRig, replay
from kvtrace.analysis.planner.work import AgentWork, Turn, alone_s
from kvtrace.tui.policies import engine_policies

RIG = ReplayRig(
    device_blocks=10,
    host_blocks=100,
    slots=2,
    agents=8,
    block_tokens=10,
    block_bytes=1_000_000_000,
    state_blocks=0,
    copy_s=0.125,
    compute_s=2.0,
)
POLICIES = {policy.name: policy for policy in engine_policies()}


class Script:
    """A policy that says what it is told to at each moment."""

    name = "script"
    uses_host = True

    def __init__(self, **actions: Sequence[str]) -> None:
        self._actions = actions

    def actions(self, moment: Moment, facts: Facts) -> Sequence[str]:
        assert 0 <= facts.device_blocks <= facts.blocks
        return self._actions.get(moment, ())


def turn(generate_s: float, wait_s: float = 0.0, tokens: int = 60, pause_s: float = 0.0) -> Turn:
    return Turn(generate_s, wait_s, pause_s, "grep" if wait_s else None, tokens)


def work_of(random: Random, agents: int) -> list[AgentWork]:
    def one() -> Turn:
        wait_s = random.choice((0.0, 0.1, 1.0, 30.0))
        return turn(
            random.choice((0.0, 0.5, 4.0)), wait_s, random.choice((1, 20, 60, 99, 5000)), random.choice((0.0, 0.2))
        )

    return [AgentWork(f"a{i}", (turn(1.0), *(one() for _ in range(random.randrange(8))))) for i in range(agents)]


def played(work: Sequence[AgentWork], policy: Any, **rig: Any) -> ReplayResult:
    return replay(work, replace(RIG, **rig), policy)


def assert_bounded(result: ReplayResult, work: Sequence[AgentWork]) -> None:
    longest_s = max(alone_s([agent]) for agent in work)
    assert result.makespan_s >= longest_s - 1e-9
    assert -1e-9 <= result.freed_gb_s <= result.idle_gb_s + 1e-6
    assert result.lost_s == pytest.approx(result.moving_s + result.queued_s)
    assert min(result.moving_s, result.queued_s) >= -1e-9
    assert result.agents_served <= min(result.agents, len(work)) + 1e-9
    assert result.turns_per_s * result.makespan_s == pytest.approx(sum(len(agent.turns) for agent in work))
    assert result.unknown_actions == ()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.sampled_from([*POLICIES.values(), FreeMoves()]),
    st.integers(0, 30),
    st.integers(1, 3),
)
def test_every_policy_finishes_all_work_within_bounds(
    seed: int, agents: int, policy: Any, host_blocks: int, slots: int
) -> None:
    work = work_of(Random(seed), agents)
    assert_bounded(played(work, policy, host_blocks=host_blocks, slots=slots), work)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(list(POLICIES.values())))
def test_plenty_of_everything_costs_no_recomputing(seed: int, policy: Any) -> None:
    work = work_of(Random(seed), 6)
    result = played(work, policy, device_blocks=4000, host_blocks=4000, slots=6, agents=6)
    assert result.recomputed_tokens == 0
    assert result.queued_s == pytest.approx(0)
    if policy.name != "eager":
        assert result.makespan_s == pytest.approx(max(alone_s([agent]) for agent in work))


def two_agents() -> list[AgentWork]:
    """Each needs 6 of 10 blocks; the second's only turn falls into the first's wait."""
    return [AgentWork("a", (turn(1, 10), turn(1))), AgentWork("b", (turn(1, 1), turn(1)))]


def test_recompute_pays_for_what_another_agent_took() -> None:
    result = played(two_agents(), POLICIES["recompute"], agents=2)
    # b takes 2 of a's 6 blocks while a waits; a returns at 11 s and computes those 2 again, 2 s each.
    assert result.recomputed_tokens == 20
    assert (result.bytes_out, result.bytes_in) == (0, 0)
    assert result.makespan_s == pytest.approx(11 + 4 + 1)


def test_swap_brings_back_only_what_another_agent_took() -> None:
    result = played(two_agents(), POLICIES["swap"], agents=2)
    assert result.recomputed_tokens == 0
    assert result.bytes_in == 2 * RIG.block_bytes
    assert result.makespan_s == pytest.approx(11 + 2 * 0.125 + 1)


def test_eager_moves_everything_at_every_wait() -> None:
    result = played([AgentWork("a", (turn(1, 10), turn(1)))], POLICIES["eager"])
    assert result.bytes_out == result.bytes_in == 6 * RIG.block_bytes
    assert result.freed_gb_s == pytest.approx(6 * (10 - 6 * 0.125))
    assert result.makespan_s == pytest.approx(12 + 6 * 0.125)


def test_tool_faster_than_the_copy_out_keeps_its_blocks() -> None:
    result = played([AgentWork("a", (turn(1, 0.5), turn(1)))], POLICIES["eager"])
    assert result.bytes_in == 0
    assert result.makespan_s == pytest.approx(2.5)


def test_full_host_tier_leads_to_recomputing_not_to_a_stall() -> None:
    result = played(two_agents(), POLICIES["swap"], agents=2, host_blocks=1)
    assert result.recomputed_tokens == 20


def test_free_moves_lose_nothing_but_slots() -> None:
    work = work_of(Random(5), 12)
    result = played(work, FreeMoves(), copy_s=0.0, host_blocks=10**6, slots=12, agents=12)
    assert result.moving_s == 0
    assert result.recomputed_tokens == 0


def test_next_agent_starts_when_one_is_through() -> None:
    work = [AgentWork(f"a{i}", (turn(2),)) for i in range(3)]
    result = played(work, FreeMoves(), agents=1)
    assert (result.makespan_s, result.agents, result.agents_served) == (6, 1, 1)


def test_unknown_wishes_of_a_policy_are_told() -> None:
    result = played([AgentWork("a", (turn(1, 1),))], Script(tool_started=("park", "levitate")))
    assert result.unknown_actions == ("levitate",)


@pytest.mark.parametrize("nothing", [{"device_blocks": 0}, {"slots": 0}, {"agents": 0}])
def test_rig_without_anything_is_refused(nothing: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        played([AgentWork("a", (turn(1),))], FreeMoves(), **nothing)


def test_work_without_time_is_refused() -> None:
    with pytest.raises(ValueError, match="take time"):
        played([AgentWork("a", (turn(0),))], FreeMoves())


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_blocks_are_neither_lost_nor_made(random: Random) -> None:
    pool, holders = Pool(20, 15), [Holder(f"a{i}", rank=random.choice(list(Rank))) for i in range(4)]
    for holder in holders:
        pool.join(holder)
    for step in range(60):
        holder = random.choice(holders)
        match random.randrange(4):
            case 0:
                if pool.take(holder, random.randrange(6), float(step), random.choice(list(Rank))) is not None:
                    holder.blocks = max(holder.blocks, holder.device)
            case 1:
                pool.copy_out(holder)
            case 2:
                pool.give(holder, random.randrange(holder.device + 1), float(step))
            case _:
                pool.shorten(holder, random.randrange(12), float(step))
        assert pool.device_free + sum(each.device for each in holders) == 20
        assert pool.host_free + sum(each.host for each in holders) == 15
        assert pool.device_free >= 0
        assert pool.host_free >= 0
