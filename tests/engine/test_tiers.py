from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvtrace.engine import placement, tiers
from kvtrace.engine.config import PolicyMode
from kvtrace.engine.placement import FLUSH_COPIES
from kvtrace.engine.records import EventKind
from kvtrace.engine.sequence import SequenceStatus
from kvtrace.engine.swap.contract import Copy, Direction

from .support import BLOCK, World, check_answer, park_and_evict, tokens


@pytest.mark.parametrize("steps", range(8))
def test_abort_during_copy_out_frees_nothing_early(steps: int) -> None:
    world = World(device_blocks=8, most_delay=9, seed=steps)
    aborted = world.submit("a", tokens(100), max_tokens=9)
    world.step(steps)
    world.core.abort(aborted.id)
    world.core.check()
    world.ask("b", tokens(110, seed=1))
    again = world.ask("a", tokens(100), max_tokens=9)
    assert again.usage.reprefilled_tokens <= BLOCK


def test_matched_host_blocks_survive_making_room_for_them() -> None:
    """The host is full, and only a new agent's request wants what it holds."""
    world = World(PolicyMode.EAGER, device_blocks=8, host_blocks=4)
    world.ask("gone", tokens(64), max_tokens=1)
    start = world.tool_starts("gone")
    world.run()
    world.core.cache.rest("gone")
    assert world.core.cache.residency("gone").device_blocks == 0
    world.ask("crowd", tokens(100, seed=1))
    newcomer = world.ask("new", tokens(64), max_tokens=40)
    assert newcomer.usage.cached_host_tokens == 63
    assert newcomer.usage.reprefilled_tokens == 0
    assert start.agent == "gone"


def test_broken_link_costs_work_and_nothing_else() -> None:
    world = World(failures=1.0)
    context = world.ask("a", tokens(70)).tokens
    world.tool_starts("a")
    world.ask("crowd", tokens(200, seed=1))
    assert world.ask("a", context).usage.reprefilled_tokens > 0
    assert EventKind.DROP in world.kinds()


def test_failed_restore_computes_from_the_hole_on() -> None:
    world = World()
    context = park_and_evict(world, "a")
    world.mover.failures = 1.0
    again = world.submit("a", context)
    world.step(8)
    world.mover.failures = 0.0
    world.run()
    check_answer(again)
    assert again.usage.reprefilled_tokens > 0


@pytest.mark.parametrize("signal", [True, False], ids=["tool's end", "request"])
def test_restore_begins_with_a_few_copies_and_the_rest_follows_as_one_batch(
    monkeypatch: pytest.MonkeyPatch, signal: bool
) -> None:
    world = World(device_blocks=160, host_blocks=400, step_tokens=512)
    context = world.ask("a", tokens(150 * BLOCK)).tokens
    start = world.tool_starts("a")
    world.run()
    world.ask("crowd", tokens(159 * BLOCK, seed=98))
    world.tool_starts("crowd")
    world.run()
    sizes: list[int] = []
    submit = world.mover.submit

    def counted(copies: Sequence[Copy], after: object | None = None) -> None:
        sizes.append(len(copies))
        submit(copies, after)

    monkeypatch.setattr(world.mover, "submit", counted)
    if signal:
        world.tool_ends(start)
    again = world.ask("a", context)
    check_answer(again)
    assert again.usage.reprefilled_tokens == 0
    assert sizes[:2] == [FLUSH_COPIES, 151 - FLUSH_COPIES]


@pytest.mark.parametrize(("first", "expected"), [(2, ["handed over", "room"]), (1000, [])])
def test_the_first_blocks_of_a_restore_leave_before_room_is_made_for_the_others(
    monkeypatch: pytest.MonkeyPatch, first: int, expected: list[str]
) -> None:
    world, order = World(), list[str]()
    park_and_evict(world, "a")
    cache = world.core.cache
    for module in (placement, tiers):
        monkeypatch.setattr(module, "FLUSH_COPIES", first)
    monkeypatch.setattr(cache.placement, "flush", lambda: order.append("handed over"))
    assert cache.prefetch("a", needed=True, make_room=lambda: order.append("room"))
    assert order == expected


def test_a_restore_goes_on_without_the_block_that_making_room_for_it_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    context = park_and_evict(world, "a")
    cache = world.core.cache
    for module in (placement, tiers):
        monkeypatch.setattr(module, "FLUSH_COPIES", 2)
    away = [piece for piece in cache.pieces("a") if piece.device is None]
    assert len(away) > 4
    copies = cache.prefetch("a", needed=True, make_room=lambda: cache.placement.leave_host(away[3]))
    assert len(copies) == len(away) - 1
    world.core.check()
    world.run()
    check_answer(world.ask("a", [*context, 1]))


def test_a_full_host_makes_room_for_what_it_lacks_of_an_agent_not_with_what_it_has_of_it() -> None:
    world = World(device_blocks=32, host_blocks=9)
    world.ask("a", tokens(70))  # its four full blocks, and the same of another, are on the host early, the rest are not
    world.ask("b", tokens(70, seed=1))
    world.ask("c", tokens(20, seed=2))
    assert not world.core.cache.placement.host.free
    moved = world.mover.moved[Direction.OUT]
    world.tool_starts("a")
    world.run()
    assert world.core.cache.residency("a").host_blocks == 5
    assert world.mover.moved[Direction.OUT] == moved + 1


def test_block_on_its_way_out_stays_for_another_agent() -> None:
    world = World(PolicyMode.EAGER)
    world.ask("a", tokens(64))
    world.mover.held = True
    world.tool_starts("a")
    other = world.submit("b", tokens(70), max_tokens=30)
    world.step(3)
    assert other.status is SequenceStatus.RUNNING
    world.mover.held = False
    world.run()
    check_answer(other)
    assert other.usage.cached_device_tokens == 64


def test_full_host_gives_up_resting_agents_before_waiting_ones() -> None:
    world = World(PolicyMode.EAGER, host_blocks=10)
    for index, agent in enumerate(("waiting", "resting")):
        world.ask(agent, tokens(64, seed=index))
        world.tool_starts(agent)
        world.run()
    world.core.cache.rest("resting")
    world.ask("third", tokens(64, seed=2))
    world.tool_starts("third")
    world.run()
    cache = world.core.cache
    assert [cache.residency(agent).host_blocks for agent in ("waiting", "resting", "third")] == [5, 0, 5]


def test_full_host_of_waiting_agents_drops_the_newcomer() -> None:
    world = World(PolicyMode.EAGER, host_blocks=5)
    contexts = {}
    for index, agent in enumerate(("first", "second")):
        contexts[agent] = world.ask(agent, tokens(64, seed=index)).tokens
        world.tool_starts(agent)
        world.run()
    world.ask("crowd", tokens(230, seed=3))
    assert world.ask("first", contexts["first"]).usage.reprefilled_tokens == 0
    assert world.ask("second", contexts["second"]).usage.reprefilled_tokens > 0
    assert [event.agent for event in world.events if event.kind is EventKind.DROP][:1] == ["second"]


def test_early_copies_give_way_to_a_waiting_agent() -> None:
    """The host is full of copies of what a running request has on the device anyway."""
    world = World(device_blocks=20, host_blocks=6, most_delay=0)
    busy = world.submit("busy", tokens(120, seed=2), max_tokens=60)
    world.step(8)
    waiting = world.submit("waiting", tokens(60, seed=1), max_tokens=3)
    while waiting.finish_reason is None:
        world.step()
    assert world.core.cache.residency("waiting").host_blocks == 0
    world.tool_starts("waiting")
    world.step(2)
    assert busy.finish_reason is None
    assert world.core.cache.residency("waiting").host_blocks == 4
    world.run()
    check_answer(busy)


def test_prefetch_takes_no_blocks_from_agents_that_do_not_wait() -> None:
    world = World(device_blocks=16)
    world.ask("a", tokens(64))
    start = world.tool_starts("a")
    world.run()
    world.ask("crowd", tokens(205, seed=1))
    cache = world.core.cache
    assert [cache.residency(agent).device_blocks for agent in ("a", "crowd")] == [3, 13]
    world.tool_ends(start)
    world.run()
    assert [cache.residency(agent).device_blocks for agent in ("a", "crowd")] == [3, 13]
    assert cache.residency("crowd").host_blocks == 13


def test_waiting_for_space_empties_no_more_than_needed() -> None:
    world = World(PolicyMode.EAGER, device_blocks=24)
    world.ask("resting", tokens(64))
    running = world.submit("running", tokens(60, seed=1), max_tokens=60)
    world.step(3)
    world.mover.held = True
    crowd = world.submit("crowd", tokens(280, seed=2))
    world.step(3)
    assert world.core.cache.placement.device.leaving == 3
    world.mover.held = False
    world.run()
    check_answer(running)
    check_answer(crowd)


def test_prefetch_takes_blocks_from_agents_that_wait() -> None:
    world = World(device_blocks=16)
    world.ask("a", tokens(64))
    start = world.tool_starts("a")
    world.run()
    world.ask("crowd", tokens(200, seed=1))
    world.tool_starts("crowd")
    world.run()
    world.tool_ends(start)
    world.run()
    assert [world.core.cache.residency(agent).device_blocks for agent in ("a", "crowd")] == [5, 11]
