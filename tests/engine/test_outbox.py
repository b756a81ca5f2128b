"""What waits for the link goes first, the rest is rationed, and what goes together lies together."""

from __future__ import annotations

from kvtrace.engine.blocks import HostPool
from kvtrace.engine.config import PolicyMode
from kvtrace.engine.outbox import Outbox
from kvtrace.engine.sequence import SequenceStatus
from kvtrace.engine.swap.contract import Copy, Direction

from .support import World, check_answer, park_and_evict, tokens


def copy(number: int, direction: Direction = Direction.OUT) -> Copy:
    return Copy(number, direction, number, number)


def test_urgent_copies_go_first_and_count_against_the_ration() -> None:
    box = Outbox()
    for number in range(6):
        box.put({number: copy(number)}, Direction.OUT, urgent=number >= 4)
    ration = {Direction.OUT: 3, Direction.IN: 3}
    assert [one.id for one in box.take(ration)] == [4, 5, 0]
    assert (len(box), ration[Direction.OUT]) == (3, 0)


def test_ways_are_rationed_apart() -> None:
    box = Outbox()
    for number in range(4):
        way = Direction.IN if number % 2 else Direction.OUT
        box.put({number: copy(number, way)}, way, urgent=False)
    assert [one.id for one in box.take({Direction.OUT: 1, Direction.IN: 2})] == [0, 1, 3]


def test_copy_that_somebody_waits_for_by_now_overtakes() -> None:
    box = Outbox()
    for number in range(5):
        box.put({number: copy(number)}, Direction.OUT, urgent=False)
    box.hurry(4)
    box.hurry(99)
    assert [one.id for one in box.take({Direction.OUT: 1, Direction.IN: 1})] == [4]


def test_no_more_than_the_ration_is_started_in_a_step() -> None:
    world = World(PolicyMode.EAGER, device_blocks=40, step_copies=3, most_delay=0)
    world.ask("a", tokens(16 * 12))
    world.tool_starts("a")
    started = world.mover.in_flight()
    counts = [started]
    while world.core.has_work():
        before = world.core.snapshot().link.out_total_bytes
        world.step()
        counts.append((world.core.snapshot().link.out_total_bytes - before) // 1024)
    assert max(counts) <= 3
    assert world.core.cache.residency("a").device_blocks == 0


def test_request_gets_all_its_blocks_at_once_however_small_the_ration() -> None:
    world = World(step_copies=1, device_blocks=16)
    context = park_and_evict(world, "a")
    again = world.submit("a", context)
    while again.status is SequenceStatus.WAITING:
        world.step()
    assert sum(one.direction is Direction.IN for one in world.mover.copies()) == 5
    world.run()
    check_answer(again)


def test_slots_are_handed_out_in_runs() -> None:
    pool = HostPool(12)
    assert [pool.take() for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    for number in (1, 2, 4):
        pool.settle(number)
    # One run goes on where it was; the next one begins at the lowest free slot.
    assert [pool.take() for _ in range(6)] == [6, 7, 8, 9, 10, 11]
    assert [pool.take() for _ in range(3)] == [1, 2, 4]
    assert not pool.free


def test_slots_that_come_later_join_in() -> None:
    pool = HostPool(1)
    assert pool.take() == 0
    pool.open(3)
    assert sorted((pool.take(), pool.take())) == [1, 2]
    pool.settle(1)
    assert pool.take() == 1
