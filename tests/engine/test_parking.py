from __future__ import annotations

import pytest

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.forward import Outcome
from kvtrace.engine.records import AgentState, EventKind
from kvtrace.engine.sequence import SequenceStatus
from kvtrace.engine.swap.contract import Direction

from .support import World, check_answer, park_and_evict, tokens

HOST_POLICIES = [PolicyMode.SWAP, PolicyMode.EAGER, PolicyMode.AUTO]


def state_of(world: World, agent: str) -> AgentState:
    return next(record.state for record in world.core.snapshot().agents if record.agent == agent)


@pytest.mark.parametrize("policy", HOST_POLICIES)
def test_parked_agent_comes_back_without_prefill(policy: PolicyMode) -> None:
    world = World(policy)
    context = park_and_evict(world, "a")
    assert state_of(world, "a") is AgentState.PARKED
    again = world.ask("a", context)
    # The last sampled token never had KV.
    assert (again.usage.prefilled_tokens, again.usage.reprefilled_tokens) == (1, 0)
    assert again.usage.cached_host_tokens == len(context) - 1
    assert EventKind.PARK in world.kinds()
    assert EventKind.RESTORE in world.kinds()
    record = next(record for record in world.core.snapshot().agents if record.agent == "a")
    assert (record.parks, record.restores) == (1, 1)


def test_recompute_loses_the_waiting_agent_before_one_that_works() -> None:
    world = World(PolicyMode.RECOMPUTE, device_blocks=16, slots=4)
    waiting = world.ask("waiting", tokens(60, seed=2)).tokens
    world.tool_starts("waiting")
    working = world.submit("working", tokens(60, seed=1), max_tokens=30)
    world.step(4)
    world.ask("crowd", tokens(120, seed=3), max_tokens=1)
    world.run_until(working)
    assert working.usage.reprefilled_tokens == 0
    assert world.ask("waiting", waiting).usage.reprefilled_tokens > 0
    assert EventKind.DROP in world.kinds()


@pytest.mark.parametrize("policy", [PolicyMode.RECOMPUTE, *HOST_POLICIES])
def test_leftovers_of_who_is_done_go_before_the_blocks_of_who_waits(policy: PolicyMode) -> None:
    world = World(policy, device_blocks=14, host_blocks=0)
    context = world.ask("waits", tokens(60, seed=1)).tokens
    for turn in range(2):
        start = world.tool_starts("waits")
        world.clock.pass_s(1.0)
        if not turn:
            done = world.ask("done", tokens(60, seed=2)).tokens
            call = world.tool_starts("done")
            world.clock.pass_s(0.1)
            world.tool_ends(call)
            world.ask("done", done)
            world.clock.pass_s(1.0)
            world.ask("new", tokens(90, seed=3))
        world.tool_ends(start)
        again = world.ask("waits", context)
        assert again.usage.reprefilled_tokens == 0
        context = again.tokens


@pytest.mark.parametrize("policy", HOST_POLICIES)
@pytest.mark.parametrize("end", ["never ends", "ends without a request", "is aborted"])
def test_agent_that_nobody_expects_leaves_the_host_before_one_that_is_expected(policy: PolicyMode, end: str) -> None:
    world = World(policy, device_blocks=12, host_blocks=10)
    for _ in range(4):
        world.ask("teacher", tokens(8, seed=9))
        call = world.tool_starts("teacher")
        world.clock.pass_s(1.8)
        world.tool_ends(call)
    dead = world.ask("dead", tokens(60, seed=1)).tokens
    start = world.tool_starts("dead")
    if end == "ends without a request":
        world.tool_ends(start)
    elif end == "is aborted":
        request = world.submit("dead", dead, max_tokens=50)
        world.step(3)
        world.core.abort(request.id)
    world.run()
    world.clock.pass_s(30)
    alive = world.ask("alive", tokens(60, seed=2)).tokens
    start = world.tool_starts("alive")
    world.clock.pass_s(0.1)
    world.ask("crowd", tokens(150, seed=3))
    world.tool_ends(start)
    assert world.ask("alive", alive).usage.reprefilled_tokens == 0
    assert world.core.cache.residency("dead").kept_tokens < 60
    world.core.check()


def test_agent_given_up_is_expected_again_when_it_is_heard_of() -> None:
    world = World()
    for _ in range(3):
        context = world.ask("a", tokens(30)).tokens
        start = world.tool_starts("a")
        world.clock.pass_s(1.0)
        world.tool_ends(start)
    world.ask("a", context)
    start = world.tool_starts("a")
    session = world.core.sessions.agents["a"]
    for seconds, gone in ((9, False), (10, True)):
        world.clock.pass_s(seconds)
        world.core.step()
        assert session.gone is gone
        assert (session.agent in world.core.sessions.blocked_agents()) is not gone
    world.tool_ends(start)
    assert not session.gone
    assert world.ask("a", context).usage.reprefilled_tokens == 0


def test_keep_ignores_signals() -> None:
    world = World(PolicyMode.KEEP, device_blocks=16)
    first = world.ask("first", tokens(60, seed=1)).tokens
    second = world.ask("second", tokens(60, seed=2)).tokens
    world.tool_starts("second")
    world.ask("crowd", tokens(150, seed=3))
    assert world.ask("second", second).usage.reprefilled_tokens == 0
    assert world.ask("first", first).usage.reprefilled_tokens > 0


def test_short_call_under_swap_costs_no_copy_back() -> None:
    world = World()
    context = world.ask("a", tokens(70)).tokens
    start = world.tool_starts("a")
    world.run()
    world.tool_ends(start)
    world.ask("a", context)
    assert world.mover.moved[Direction.IN] == 0
    assert EventKind.REVIVE in world.kinds()


def test_eager_empties_the_device_at_once() -> None:
    world = World(PolicyMode.EAGER)
    world.ask("a", tokens(70))
    start = world.tool_starts("a")
    world.run()
    assert world.core.snapshot().tiers.vram.kv_reclaimable_bytes == 0
    assert state_of(world, "a") is AgentState.PARKED
    world.tool_ends(start)
    assert state_of(world, "a") is AgentState.RESTORING
    world.run()
    assert world.core.cache.residency("a").device_blocks == 5


@pytest.mark.parametrize("policy", [PolicyMode.SWAP, PolicyMode.EAGER])
def test_tool_ends_while_its_copies_run_out(policy: PolicyMode) -> None:
    world = World(policy, most_delay=30, seed=5)
    context = world.ask("a", tokens(70)).tokens
    start = world.tool_starts("a")
    assert world.mover.in_flight() > 0
    assert state_of(world, "a") is AgentState.PARKING
    world.tool_ends(start)
    again = world.submit("a", context)
    world.run()
    check_answer(again)
    assert again.usage.cached_device_tokens == len(context) - 1
    assert world.mover.moved[Direction.IN] == 0


def test_taken_tail_waits_for_its_copy_out() -> None:
    world = World()
    context = world.ask("a", tokens(70)).tokens
    world.mover.held = True
    world.tool_starts("a")
    again = world.submit("a", [*context, 7])
    world.core._collect()
    world.core._admission.hand_out(Outcome())
    assert again.status is SequenceStatus.RESTORING
    world.mover.held = False
    world.run()
    check_answer(again)


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("policy", HOST_POLICIES)
def test_abort_during_restore_keeps_everything(policy: PolicyMode, steps: int) -> None:
    world = World(policy, most_delay=6, seed=steps)
    context = park_and_evict(world, "a")
    aborted = world.submit("a", context)
    world.step(steps)
    aborted_early = world.core.abort(aborted.id) is not None
    world.core.check()
    assert aborted.finish_reason == ("abort" if aborted_early else "length")
    again = world.ask("a", context)
    assert again.usage.reprefilled_tokens == 0


@pytest.mark.parametrize("policy", list(PolicyMode))
@pytest.mark.parametrize("host_blocks", [0, 1, 4, 300])
def test_all_blocked_and_all_back_at_once(policy: PolicyMode, host_blocks: int) -> None:
    world = World(policy, device_blocks=14, host_blocks=host_blocks, slots=3)
    agents = [f"a{i}" for i in range(9)]
    contexts = {agent: world.submit(agent, tokens(50, seed=i)) for i, agent in enumerate(agents)}
    world.run()
    starts = [world.tool_starts(agent) for agent in agents]
    world.run()
    for start in starts:
        world.tool_ends(start)
    again = [world.submit(agent, first.tokens, max_tokens=20) for agent, first in contexts.items()]
    world.run()
    for request in again:
        check_answer(request)
    reprefilled = world.core.snapshot().totals.reprefilled_tokens
    assert (reprefilled == 0) == (policy.uses_host and host_blocks == 300)


def test_parallel_tools_block_until_the_last_ends() -> None:
    world = World()
    context = park_and_evict(world, "a")
    second = world.tool_starts("a")
    third = world.tool_starts("a")
    world.tool_ends(second)
    assert world.mover.moved[Direction.IN] == 0
    assert state_of(world, "a") is AgentState.PARKED
    world.core.turn_ended("a", {})
    world.tool_ends(third)
    assert state_of(world, "a") is AgentState.PARKED
    assert world.ask("a", context).usage.reprefilled_tokens == 0


def test_request_alone_brings_a_parked_agent_back() -> None:
    world = World()
    context = park_and_evict(world, "a")
    world.submit("a", context)
    assert state_of(world, "a") is AgentState.QUEUED
    world.run()
    assert state_of(world, "a") is AgentState.IDLE


def test_turn_that_ends_in_tool_calls_parks() -> None:
    world = World()
    world.ask("a", tokens(70))
    world.core.turn_ended("a", {"call-1": None})
    world.run()
    assert EventKind.PARK in world.kinds()
    assert state_of(world, "a") is AgentState.BLOCKED_RESIDENT
    world.core.turn_ended("b", {"nobody": None})


def test_turn_that_ends_in_an_answer_waits_for_a_person() -> None:
    world = World()
    world.ask("a", tokens(20))
    world.core.turn_ended("a", {})
    assert state_of(world, "a") is AgentState.HUMAN


def test_tool_that_starts_during_generation_parks_afterwards() -> None:
    world = World()
    context = world.ask("a", tokens(70)).tokens
    request = world.submit("a", context, max_tokens=20)
    world.step(4)
    world.tool_starts("a")
    assert state_of(world, "a") is AgentState.GENERATING
    world.run()
    check_answer(request)
    assert world.core.cache.residency("a").host_blocks == 6
    assert world.kinds() == [EventKind.PARK]


def test_overdue_tool_stops_blocking() -> None:
    world = World(ttl_s=60)
    world.ask("a", tokens(70))
    world.tool_starts("a")
    world.clock.pass_s(61)
    world.step()
    assert state_of(world, "a") is AgentState.IDLE


def test_eager_second_call_during_the_first_ones_copies() -> None:
    world = World(PolicyMode.EAGER)
    context = world.ask("a", tokens(70)).tokens
    world.mover.held = True
    first = world.tool_starts("a")
    world.tool_ends(first)
    world.tool_starts("a")
    again = world.submit("a", context)
    world.mover.held = False
    world.run()
    check_answer(again)
    assert again.usage.reprefilled_tokens == 0


def test_waiting_agent_does_not_expose_blocks_others_hold() -> None:
    world = World(PolicyMode.RECOMPUTE, device_blocks=16)
    world.ask("resting", tokens(48) + tokens(10, seed=1))
    world.ask("waiting", tokens(48) + tokens(20, seed=2))
    world.tool_starts("waiting")
    world.ask("crowd", tokens(196, seed=3))
    assert world.core.cache.residency("waiting").device_blocks == 3


def test_parked_blocks_go_before_resting_ones_once_copied() -> None:
    world = World(device_blocks=16)
    world.ask("resting", tokens(64, seed=1))
    world.ask("waiting", tokens(64, seed=2))
    world.tool_starts("waiting")
    assert world.mover.in_flight() > 0
    world.run()
    world.ask("crowd", tokens(172, seed=3))
    cache = world.core.cache
    assert [cache.residency(agent).device_blocks for agent in ("resting", "waiting")] == [5, 0]


def test_prefetched_agent_is_not_said_to_be_revived() -> None:
    world = World(PolicyMode.EAGER)
    context = world.ask("a", tokens(64)).tokens
    start = world.tool_starts("a")
    world.run()
    world.tool_ends(start)
    world.run()
    world.ask("a", context)
    assert world.kinds() == [EventKind.PARK, EventKind.RESTORE]


def test_full_block_is_copied_in_the_step_that_filled_it() -> None:
    world = World()
    world.submit("a", tokens(20))
    world.step()
    assert world.mover.in_flight() == 1
