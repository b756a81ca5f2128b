"""Who is let in, and what comes back before its slot is free."""

from __future__ import annotations

import pytest

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.records import EventKind
from kvtrace.engine.sequence import SequenceStatus

from .support import World, check_answer, tokens


def test_no_more_agents_are_under_way_than_the_limit() -> None:
    stage = World(max_agents=2, device_blocks=64)
    first = [stage.ask(f"a{i}", tokens(20, seed=i)) for i in range(2)]
    starts = [stage.tool_starts(f"a{i}") for i in range(2)]
    newcomer = stage.submit("new", tokens(20, seed=9))
    stage.step(5)
    assert newcomer.status is SequenceStatus.WAITING
    # Those under way are not held up, and the newcomer's turn comes when one of them is through.
    stage.tool_ends(starts[0])
    again = stage.submit("a0", first[0].tokens)
    stage.run_until(again)
    check_answer(again)
    stage.run_until(newcomer)
    check_answer(newcomer)


def test_auto_lets_nobody_new_in_while_the_others_fill_both_tiers() -> None:
    stage = World(PolicyMode.AUTO, device_blocks=8, host_blocks=4, slots=2)
    for i in range(2):
        stage.ask(f"a{i}", tokens(70, seed=i))
    starts = [stage.tool_starts(f"a{i}") for i in range(2)]
    newcomer = stage.submit("new", tokens(70, seed=9))
    stage.step(3)
    assert newcomer.status is SequenceStatus.WAITING
    stage.tool_ends(starts[0])
    stage.core.turn_ended("a0", {})
    stage.run_until(newcomer)
    check_answer(newcomer)


@pytest.mark.parametrize("policy", [PolicyMode.SWAP, PolicyMode.AUTO, PolicyMode.RECOMPUTE])
def test_the_limit_holds_no_sub_agent_up_for_good(policy: PolicyMode) -> None:
    """Its parent's turns are over only when it is done, so that waiting for them would never end."""
    stage = World(policy, max_agents=1, device_blocks=64)
    stage.ask("parent", tokens(20))
    stage.tool_starts("parent", "delegate")
    child = stage.submit("child", tokens(20, seed=1))
    stage.step(3)
    assert child.status is SequenceStatus.WAITING
    stage.clock.pass_s(61.0)
    stage.run_until(child)
    check_answer(child)


@pytest.mark.parametrize("waited_s", [61.0, 200.0])
def test_auto_holds_nobody_up_for_long_nor_for_those_who_stay_away(waited_s: float) -> None:
    stage = World(PolicyMode.AUTO, device_blocks=8, host_blocks=4, slots=2)
    for i in range(2):
        stage.ask(f"a{i}", tokens(70, seed=i))
        stage.tool_starts(f"a{i}")
    newcomer = stage.submit("new", tokens(70, seed=9))
    stage.step(3)
    assert newcomer.status is SequenceStatus.WAITING
    stage.clock.pass_s(waited_s)
    stage.run()
    check_answer(newcomer)


def test_whoever_is_next_has_its_kv_back_before_it_has_a_slot() -> None:
    stage = World(PolicyMode.SWAP, device_blocks=16, host_blocks=64, slots=1)
    context = stage.ask("next", tokens(60, seed=1)).tokens
    start = stage.tool_starts("next")
    stage.run()
    stage.ask("crowd", tokens(250, seed=2))
    assert stage.core.cache.residency("next").device_blocks == 0
    busy = stage.submit("busy", tokens(20, seed=3), max_tokens=60)
    stage.step(3)
    stage.tool_ends(start)
    again = stage.submit("next", context)
    stage.step(20)
    assert again.status is SequenceStatus.WAITING
    assert busy.status is SequenceStatus.RUNNING
    assert stage.core.cache.residency("next").device_blocks == 4
    assert [event.why for event in stage.events if event.kind is EventKind.RESTORE] == ["its slot will be free soon"]
    stage.run()
    assert again.usage.cached_host_tokens == 0
    check_answer(again)
    check_answer(busy)


def test_slot_of_a_request_whose_last_token_is_under_way_is_given_away_at_once() -> None:
    stage = World(pipelined=True, slots=1, device_blocks=32)
    chunks: list[list[int]] = []
    stage.core.watch_steps(lambda launched: chunks.append([chunk.sequence_id for chunk in launched]))
    first, second = (stage.submit(agent, tokens(20, seed=seed), max_tokens=3) for seed, agent in enumerate("ab"))
    stage.run()
    check_answer(first)
    check_answer(second)
    # No step is without work between the two, though one step is in flight while the next is planned.
    assert chunks == [[first.id]] * 3 + [[second.id]] * 3
