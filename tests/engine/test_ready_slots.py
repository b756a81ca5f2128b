"""The host tier grows while the engine serves: slots are used from the moment their memory is there."""

from __future__ import annotations

from dataclasses import replace

from kvtrace.engine.loop import EngineCore
from kvtrace.engine.swap.contract import Direction

from .support import GEOMETRY, INFO, World, check_answer, tokens


def _growing(ready: list[int], **settings: int) -> World:
    """A world whose host tier has ``ready[0]`` slots by now."""
    world = World(**settings)  # type: ignore[arg-type]
    info = replace(INFO, ready_host_blocks=lambda: ready[0])
    world.core = EngineCore(
        world.core._config, GEOMETRY, world.runner, world.mover, world.clock, info, world.events.append
    )
    return world


def test_slots_are_used_as_they_become_ready_and_not_before() -> None:
    ready = [0]
    world = _growing(ready, host_blocks=64)
    context = world.ask("a", tokens(70)).tokens
    world.tool_starts("a")
    world.run()
    assert world.core.cache.residency("a").host_blocks == 0
    ready[0] = 3
    world.ask("b", tokens(40, seed=1))
    world.tool_starts("b")
    world.run()
    host = world.core.cache.placement.host
    assert len(host.slots) == 3
    assert all(copy.host_slot < 3 for copy in world.core.cache.placement.copies.values())
    ready[0] = 64
    world.ask("c", tokens(200, seed=2))
    assert len(host.slots) == 64
    again = world.ask("a", context)
    check_answer(again)


def test_more_memory_than_asked_for_gives_no_more_slots() -> None:
    world = _growing([1000], host_blocks=5)
    world.ask("a", tokens(70))
    assert len(world.core.cache.placement.host.slots) == 5


def test_new_slots_come_after_those_that_were_there() -> None:
    ready = [2]
    world = _growing(ready, host_blocks=64)
    world.step()
    ready[0] = 6
    world.step()
    host = world.core.cache.placement.host
    assert [host.take() for _ in range(6)] == [0, 1, 2, 3, 4, 5]


def test_slowly_growing_host_copies_every_block_once_and_drops_none() -> None:
    """Sixteen agents fill more than half of the device while the first slots come; all of it stays somewhere."""
    ready = [0]
    world = _growing(ready, device_blocks=100, host_blocks=300, slots=2, step_tokens=64)
    contexts = {}
    for at in range(16):
        agent = f"a{at}"
        contexts[agent] = world.ask(agent, tokens(85, seed=at)).tokens
        world.tool_starts(agent)
        ready[0] += 4  # far slower than the agents' KV
        world.run()
    for _ in range(60):
        ready[0] = min(ready[0] + 8, 300)
        world.step()
    world.run()
    # 88 tokens have KV: five blocks and a part.
    assert world.mover.moved[Direction.OUT] == 16 * 6
    world.ask("crowd", tokens(1500, seed=99))
    for agent, context in contexts.items():
        assert world.ask(agent, context).usage.reprefilled_tokens == 0
    totals = world.core.snapshot().totals
    assert (totals.dropped_blocks, totals.reprefilled_tokens) == (0, 0)


def test_blocks_that_others_have_copies_of_go_first_while_the_host_grows() -> None:
    ready = [6]
    world = _growing(ready, device_blocks=20, host_blocks=100)
    first = world.ask("copied", tokens(90, seed=1)).tokens
    world.tool_starts("copied")
    world.run()
    second = world.ask("not copied", tokens(90, seed=2)).tokens
    world.tool_starts("not copied")
    world.run()
    assert world.core.cache.residency("not copied").host_blocks == 0
    world.ask("crowd", tokens(200, seed=3), max_tokens=1)
    assert world.core.snapshot().totals.dropped_blocks == 0
    ready[0] = 100
    for agent, context in (("copied", first), ("not copied", second)):
        assert world.ask(agent, context).usage.reprefilled_tokens == 0


def test_request_waits_for_the_slots_of_a_growing_host_rather_than_have_blocks_dropped() -> None:
    ready = [1]
    world = _growing(ready, device_blocks=12, host_blocks=100)
    context = world.ask("a", tokens(120, seed=1)).tokens
    world.tool_starts("a")
    world.run()
    big = world.submit("big", tokens(150, seed=2), max_tokens=1)
    world.step(5)
    assert big.finish_reason is None
    ready[0] = 100
    world.run()
    check_answer(big)
    assert world.ask("a", context).usage.reprefilled_tokens == 0


def test_nobody_waits_for_memory_that_does_not_come() -> None:
    world = _growing([1], device_blocks=12, host_blocks=100)
    world.ask("a", tokens(120, seed=1))
    world.tool_starts("a")
    world.run()
    big = world.submit("big", tokens(150, seed=2), max_tokens=1)
    world.step(5)
    world.clock.pass_s(3)
    world.run()
    check_answer(big)
