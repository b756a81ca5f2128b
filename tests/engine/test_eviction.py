"""Whose host slot is emptied: those nobody works with, then copies of what is on the device, then nobody's."""

from __future__ import annotations

from kvtrace.engine.blocks import Piece
from kvtrace.engine.config import PolicyMode
from kvtrace.engine.records import EventKind

from .support import World, tokens


def slots(world: World, agent: str) -> int:
    return world.core.cache.residency(agent).host_blocks


def test_context_of_who_rests_gives_way_before_that_of_who_waits() -> None:
    world = World(device_blocks=30, host_blocks=12)
    world.ask("rests", tokens(64, seed=1))
    world.ask("waits", tokens(64, seed=2))
    world.tool_starts("waits")
    world.run()
    before = slots(world, "waits")
    world.ask("new", tokens(100, seed=3))
    assert slots(world, "rests") < 4
    assert slots(world, "waits") == before
    assert EventKind.DROP not in world.kinds()


def test_agent_that_works_again_keeps_its_copies() -> None:
    world = World(device_blocks=40, host_blocks=8)
    context = world.ask("a", tokens(64, seed=1)).tokens
    world.ask("b", tokens(64, seed=2))
    assert (slots(world, "a"), slots(world, "b")) == (4, 4)
    working = world.submit("a", context, max_tokens=200)
    world.step(2)
    other = world.submit("c", tokens(100, seed=3), max_tokens=1)
    while other.finish_reason is None:
        world.step()
    assert working.finish_reason is None
    assert slots(world, "a") >= 4 > slots(world, "b")


def test_full_host_is_not_searched_for_every_block_that_fills() -> None:
    """With a host full of waiting agents' copies a search for each block would cost more than computing it."""
    world = World(PolicyMode.SWAP, device_blocks=200, host_blocks=60, step_tokens=512, slots=2)
    for at in range(4):
        world.ask(f"waits-{at}", tokens(16 * 15, seed=at))
        world.tool_starts(f"waits-{at}")
        world.run()
    assert not world.core.cache.placement.host.free
    looked_at = 0
    eviction = world.core.cache.placement.eviction
    kept = eviction._kept

    def count(piece: Piece) -> bool:
        nonlocal looked_at
        looked_at += 1
        return kept(piece)

    eviction._kept = count
    request = world.submit("new", tokens(16 * 40, seed=9), max_tokens=1)
    while request.finish_reason is None:
        world.core.step()
    assert looked_at < 60


def test_copies_of_what_a_request_still_fills_are_not_looked_at_again_and_again() -> None:
    world = World(device_blocks=80, host_blocks=30, step_tokens=16, slots=2)
    world.ask("rests", tokens(16 * 20, seed=1), max_tokens=1)
    running = world.submit("new", tokens(16 * 40, seed=2), max_tokens=1)
    eviction = world.core.cache.placement.eviction
    seen = set()
    while running.finish_reason is None:
        world.step()
        seen |= eviction.in_use
        # Nothing that a request works with gives way, and none of it stands before what may.
        blocks = {running.table[at] for at in range(len(running.table))}
        pieces = [world.core.cache.placement.host.slots[slot].piece for slot in list(eviction.loose)[:1]]
        assert not eviction.in_use or not any(piece is None or piece.device in blocks for piece in pieces)
    world.run()
    world.ask("another", tokens(16 * 20, seed=3), max_tokens=1)
    assert seen
    assert not eviction.in_use
