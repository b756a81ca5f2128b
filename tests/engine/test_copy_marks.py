"""What a copy waits for: not for the steps in flight, unless they may touch what the copy touches."""

from __future__ import annotations

import pytest

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.swap.contract import Direction

from .support import BLOCK, World, check_answer, tokens

IN_FLIGHT = 2
"""Steps that the device has to do: one, and one that waits behind it."""


def _busy(world: World) -> None:
    """Somebody decodes, and two steps are in flight that the device has not begun."""
    world.submit("busy", tokens(20, seed=9), 60)
    world.step(3)
    _until_both_wait(world)


def _until_both_wait(world: World) -> None:
    while world.device.executed > world.device.launched - IN_FLIGHT:
        world.step()


def _waits_for(world: World, direction: Direction) -> set[int]:
    """The launches that copies of one direction come after."""
    return {flight.after for flight in world.mover._flights if flight.copy.direction is direction}


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_out_at_a_tool_call_does_not_wait_for_the_steps_in_flight(seed: int) -> None:
    world = World(device_blocks=24, pipelined=True, seed=seed)
    _busy(world)
    request = world.submit("a", tokens(70), 4)
    while request.finish_reason is None:
        world.step()
    check_answer(request)
    while any(copy.direction is Direction.OUT for copy in world.mover.copies()):
        world.step()
    _until_both_wait(world)
    world.tool_starts("a")
    assert _waits_for(world, Direction.OUT) == {world.device.launched - IN_FLIGHT}
    world.run()
    assert world.core.cache.residency("a").host_blocks == world.core.cache.residency("a").blocks


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_in_to_blocks_that_no_step_in_flight_knows_does_not_wait_for_it(seed: int) -> None:
    world = World(device_blocks=24, pipelined=True, seed=seed)
    context = world.ask("a", tokens(70)).tokens
    world.tool_starts("a")
    world.run()
    world.core.cache.evict("a")
    _busy(world)
    request = world.submit("a", context, 4)
    assert _waits_for(world, Direction.IN) == {world.device.launched - IN_FLIGHT}
    world.run()
    check_answer(request)


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_in_waits_for_the_step_in_flight_that_may_write_its_target(seed: int) -> None:
    """A request is aborted while a step begins a new block for it, which another one's KV gets at once."""
    world = World(PolicyMode.SWAP, device_blocks=8, pipelined=True, seed=seed, most_delay=0)
    context = world.ask("a", tokens(4 * BLOCK + 8)).tokens
    world.tool_starts("a")
    world.run()
    world.core.cache.evict("a")
    other = world.submit("b", tokens(2 * BLOCK - 3, seed=5), 60)
    while other.launched % BLOCK != 1 or world.device.executed > world.device.launched - IN_FLIGHT:
        world.step()
    begun = other.table[other.launched // BLOCK]
    world.core.abort(other.id)
    request = world.submit("a", context, 4)
    targets = {flight.copy.device_block: flight.after for flight in world.mover._flights}
    assert targets.pop(begun) == world.device.launched
    assert set(targets.values()) == {world.device.launched - IN_FLIGHT}
    world.run()
    check_answer(request)


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_in_does_not_wait_for_a_step_behind_the_one_that_may_write_its_target(seed: int) -> None:
    """A request is aborted whose last token is in the first of two steps in flight: the second knows nothing of it."""
    world = World(PolicyMode.SWAP, device_blocks=8, pipelined=True, seed=seed, most_delay=0)
    context = world.ask("a", tokens(4 * BLOCK + 8)).tokens
    world.tool_starts("a")
    world.run()
    world.core.cache.evict("a")
    _busy(world)
    doomed = world.submit("b", tokens(2 * BLOCK - 3, seed=5), 5)
    while doomed.usage.output_tokens + doomed.unread < 5 or doomed.last_launch == world.device.launched:
        world.step()
    assert doomed.unread == 1
    begun = doomed.table[2]
    world.core.abort(doomed.id)
    request = world.submit("a", context, 4)
    targets = {flight.copy.device_block: flight.after for flight in world.mover._flights}
    assert targets[begun] == world.device.launched - 1
    world.run()
    check_answer(request)


@pytest.mark.parametrize("delay", [0, 4])
def test_a_block_taken_over_from_the_host_is_not_copied_into_before_an_aborted_request_is_done_with_it(
    delay: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(PolicyMode.SWAP, device_blocks=24, pipelined=True, most_delay=delay)
    context = world.ask("a", tokens(4 * BLOCK + 5)).tokens
    world.tool_starts("a")
    world.run()
    world.core.cache.evict("a")
    world.run()
    world.core.cache.placement.leave_host(
        world.core.cache.pieces("a")[0]
    )  # a hole at the beginning, as an eviction leaves it
    monkeypatch.setattr(world.device, "drift", lambda: None)
    doomed = world.submit("b", tokens(150, seed=5), 8)
    world.step(2)
    other = world.submit("c", [*context[:BLOCK], 1, 2, 3, 4], 8)  # computes what is missing
    world.step(2)
    assert other.in_flight
    world.core.abort(doomed.id)
    back = world.submit("d", [*context, 7], 4)  # finds the rest behind the hole when that is filled
    world.step()
    world.run()
    for request in (other, back):
        check_answer(request)


def test_a_step_that_samples_nothing_is_over_on_the_device_when_it_was_read() -> None:
    world = World(device_blocks=24, pipelined=True, step_tokens=32)
    request = world.submit("a", tokens(100), 4)
    world.step(3)
    assert (world.device.launched, world.device.executed) == (4, 2)
    assert (world.core._forward.settled[0], world.core._forward.written) == (2, 2)
    world.run()
    check_answer(request)
    assert world.core._forward.settled[0] == world.device.launched
