"""The host tier grows while the engine serves: slots are used from the moment their memory is there."""

from __future__ import annotations

from dataclasses import replace

from kvtrace.engine.loop import EngineCore

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
