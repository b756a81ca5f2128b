"""Copies in that come one group of layers after the other, and what else many copies by one call make possible."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine.swap import stream as stream_mover
from kvtrace.engine.swap.choose import Way
from kvtrace.engine.swap.contract import Copy, Direction

from .swap_bench import BLOCK, BLOCKS, GEOMETRY, IN, OUT, Bench, bench, copies_of
from .swap_support import WAIT_S, ThreadStream, ThreadStreams, assert_

LAYER = GEOMETRY.layer_bytes
PARTS = len(GEOMETRY.parts)


def reader(it: Bench, block: int, part: int) -> Callable[[], set[int]]:
    """Have compute read a group of layers, and say what it saw."""
    layers = GEOMETRY.parts[part]
    words = it.storage.device_run(block)[layers.start * LAYER : layers.stop * LAYER].view(torch.int32)
    seen: list[set[int]] = []
    it.streams.compute.put(lambda: seen.append(set(words.tolist())))
    return lambda: seen[0]


@given(
    seed=st.integers(0, 10_000),
    delay_ms=st.sampled_from([0.0, 0.3, 1.0]),
    joins=st.lists(st.integers(0, PARTS - 1), min_size=1, max_size=5),
    blocks=st.lists(st.integers(0, BLOCKS - 1), min_size=3, max_size=12, unique=True),
    beside=st.lists(st.sampled_from(Direction), max_size=2),
)
@settings(max_examples=40, deadline=None)
def test_who_joined_a_part_sees_its_layers_and_those_before_whatever_is_slow(
    seed: int, delay_ms: float, joins: list[int], blocks: list[int], beside: list[Direction]
) -> None:
    streams = ThreadStreams(delay_ms / 1e3, seed)
    with bench(streams, way=Way.BATCHED, piece_blocks=2, last_blocks=BLOCKS) as it:
        others = [block for block in range(BLOCKS) if block not in blocks]
        for number, direction in enumerate(beside):
            it.mover.submit([Copy(100 + number, direction, others[number], 23 - number)])
        copies = [Copy(index, IN, block, index) for index, block in enumerate(blocks)]
        it.mover.submit(copies)
        fence = it.fence([copy.id for copy in copies])
        reads = []
        for part in joins:
            fence.join(part)
            reads += [(slot, reader(it, block, at)) for slot, block in enumerate(blocks) for at in range(part + 1)]
        it.compute.synchronize()
        assert [(slot, read()) for slot, read in reads] == [(slot, {100 + slot}) for slot, _ in reads]
        assert len(it.drain()) == len(copies) + len(beside)
        assert [it.device(block) for block in blocks] == [{100 + slot} for slot in range(len(blocks))]


def test_compute_goes_on_with_the_layers_that_are_there_while_the_others_are_on_their_way() -> None:
    with bench(way=Way.BATCHED, piece_blocks=1, last_blocks=BLOCKS) as it, held_up(it.streams, at=3) as held:
        copies = copies_of((IN, 9, 1), (IN, 5, 2), (IN, 7, 3), (IN, 20, 8))  # the first one, then parts of the others
        it.mover.submit(copies)
        fence = it.fence(range(4))
        fence.join(0)
        first = reader(it, 7, 0)
        it.compute.synchronize()
        assert first() == {103}
        assert [done.copy.id for done in it.mover.poll()] == [0]
        assert it.mover.queued(IN) == 3
        fence.join()
        last = reader(it, 7, PARTS - 1)
        held.set()
        it.compute.synchronize()
        assert last() == {103}
        assert sorted(done.copy.id for done in it.mover.poll()) == [1, 2, 3]


@contextmanager
def held_up(streams: ThreadStreams, *, at: int) -> Iterator[threading.Event]:
    """Let the stream of batch number ``at`` stand still before it, until the event is set or all is over."""
    held, counted = threading.Event(), [0]

    def before(stream: ThreadStream) -> None:
        counted[0] += 1
        if counted[0] == at:
            stream.put(lambda: assert_(held.wait(WAIT_S)))

    streams.before = before
    try:
        yield held
    finally:
        held.set()


@pytest.mark.parametrize(
    ("direction", "count", "calls"),
    [
        (IN, 9, [[BLOCK], *[[LAYER] * 8] * PARTS]),  # one, so that the link is busy meanwhile
        (IN, 2, [[BLOCK] * 2]),  # no more than a piece
        (OUT, 4, [[BLOCK], [BLOCK] * 2, [BLOCK]]),  # nobody computes behind these
    ],
)
def test_a_long_batch_in_crosses_in_parts_and_others_whole(
    direction: Direction, count: int, calls: list[list[int]]
) -> None:
    with bench(way=Way.BATCHED, piece_blocks=2, last_blocks=BLOCKS, chunk_bytes=1 << 20) as it:
        it.mover.submit([Copy(index, direction, 3 + index, 2 * index) for index in range(count)])
        it.drain()
        assert it.streams.calls == calls


def test_a_batch_behind_which_another_waits_crosses_whole_so_that_a_short_one_overtakes_it() -> None:
    with bench(way=Way.BATCHED, piece_blocks=2, in_flight_blocks=2, last_blocks=12, chunk_bytes=1 << 20) as it:
        for stream in it.streams.made:
            stream.gate.clear()
        it.mover.submit([Copy(index, IN, index, index) for index in range(14)])  # too long as a whole
        it.until_queued(2)
        it.mover.submit([Copy(20, IN, 20, 20)])
        it.compute.synchronize()
        for stream in it.streams.made:
            stream.gate.set()
        order = [done.copy.id for done in it.drain()]
        assert order.index(20) < order.index(13)
        first = it.streams.calls.index([BLOCK])
        assert all(size == BLOCK for call in it.streams.calls[: first + 1] for size in call)


def test_the_head_of_a_long_restore_crosses_whole_and_the_rest_in_parts() -> None:
    with bench(way=Way.BATCHED, piece_blocks=2, in_flight_blocks=2, last_blocks=10, chunk_bytes=1 << 20) as it:
        it.mover.submit([Copy(index, IN, 23 - index, index) for index in range(20)])
        assert len(it.drain()) == 20
        whole = [call for call in it.streams.calls if call[0] == BLOCK]
        parts = [call for call in it.streams.calls if call[0] == LAYER]
        assert it.streams.calls == whole + parts
        assert len(parts) == PARTS
        assert 6 <= len(parts[0]) <= 10
        assert sum(map(len, whole)) + len(parts[0]) == 20
        assert [it.device(23 - index) for index in range(20)] == [{100 + index} for index in range(20)]


def test_no_more_than_the_end_of_the_rest_crosses_in_parts() -> None:
    with bench(
        way=Way.BATCHED, piece_blocks=2, in_flight_blocks=2, last_blocks=BLOCKS, in_parts_blocks=6, chunk_bytes=1 << 20
    ) as it:
        it.mover.submit([Copy(index, IN, 23 - index, index) for index in range(20)])
        assert len(it.drain()) == 20
        sizes = [{*call} for call in it.streams.calls]
        assert sizes == [{BLOCK}] * (len(sizes) - PARTS) + [{LAYER}] * PARTS
        assert 4 <= len(it.streams.calls[-1]) <= 6
        assert [it.device(23 - index) for index in range(20)] == [{100 + index} for index in range(20)]


@pytest.mark.parametrize(("way", "here"), [(Way.BATCHED, True), (Way.SINGLE, False), (Way.STAGED, False)])
def test_a_restore_is_on_the_device_when_it_was_submitted_if_queueing_takes_no_time(way: Way, here: bool) -> None:
    with bench(way=way, piece_blocks=2, parted_blocks=4, last_blocks=BLOCKS, chunk_bytes=1 << 20) as it:
        over = until_idle(it)
        with lane_asleep(it), gates_closed(it):  # as while the engine's thread has Python's lock
            it.mover.submit([Copy(index, IN, index, index) for index in range(4)], over)
            assert (it.mover.fence(range(4)) is not None) == here
            it.mover.submit([Copy(index, IN, index, index) for index in range(4, 20)], over)
            assert (it.mover.fence(range(20)) is not None) == here
        assert len(it.drain()) == 20
        assert [it.device(block) for block in range(20)] == [{100 + block} for block in range(20)]
        assert not here or it.streams.calls == [[BLOCK] * 4, *[[LAYER] * 16] * PARTS]


def test_no_more_than_the_bounds_is_queued_by_who_submits() -> None:
    with bench(way=Way.BATCHED, piece_blocks=2, in_flight_blocks=4, last_blocks=6, chunk_bytes=1 << 20) as it:
        until_idle(it)
        with lane_asleep(it), gates_closed(it):
            it.mover.submit([Copy(index, IN, index, index) for index in range(20)])
            assert it.mover.fence(range(20)) is None
            assert 4 <= sum(len(flight.piece) for flight in it.mover._lanes[IN].flights) < 6
        assert len(it.drain()) == 20


def test_who_submits_leaves_what_is_too_much_to_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_mover, "HERE_COPIES", 5)
    with bench(way=Way.BATCHED, piece_blocks=2, in_flight_blocks=BLOCKS, chunk_bytes=1 << 20) as it:
        over = until_idle(it)
        with lane_asleep(it), gates_closed(it):
            it.mover.submit([Copy(index, IN, index, index) for index in range(20)], over)
            assert sum(len(flight.piece) for flight in it.mover._lanes[IN].flights) in (5, 6)
        assert len(it.drain()) == 20
        assert [it.device(block) for block in range(20)] == [{100 + block} for block in range(20)]


def test_what_the_submitting_thread_cannot_start_is_told_as_failed_and_the_lane_goes_on() -> None:
    with bench(way=Way.BATCHED, piece_blocks=2, parted_blocks=8, chunk_bytes=1 << 20) as it:
        it.mover.submit(copies_of((IN, 1, 1), (IN, BLOCKS + 3, 2), (IN, 2, 3)), until_idle(it))  # no such block
        it.mover.submit([Copy(3, IN, 3, 4)])
        errors = {done.copy.id: done.error for done in it.drain()}
        assert {number for number, error in errors.items() if error is not None} == {1}
        assert [it.device(block) for block in (1, 2, 3)] == [{101}, {103}, {104}]


def until_idle(it: Bench) -> object:
    """Wait until the lane's thread waits for work; a mark that compute has come past."""
    mark, until = it.mover.mark(), time.monotonic() + WAIT_S
    it.compute.synchronize()
    while not it.mover._lanes[IN].idle:
        assert time.monotonic() < until
        time.sleep(0.001)
    return mark


@contextmanager
def lane_asleep(it: Bench) -> Iterator[None]:
    """Have nobody but the caller start copies."""
    wake = it.mover._lanes[IN].wake
    notify, wake.notify = wake.notify, lambda n=1: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        wake.notify = notify  # type: ignore[method-assign]
        with wake:
            wake.notify()


@contextmanager
def gates_closed(it: Bench) -> Iterator[None]:
    """Let nothing cross the link."""
    for stream in it.streams.made:
        stream.gate.clear()
    try:
        yield
    finally:
        for stream in it.streams.made:
            stream.gate.set()


def test_slots_that_lie_in_several_chunks_of_memory_are_as_many_copies() -> None:
    with bench(way=Way.BATCHED, chunk_bytes=640) as it:
        it.mover.submit(copies_of((OUT, 3, 0), (OUT, 9, 1), (IN, 5, 7)))
        it.drain()
        out, back = sorted(it.streams.calls, key=sum, reverse=True)
        assert sorted(out) == [128, 256, 384, 640, 640]  # two chunks, and three
        assert sorted(back) == [512, 512]
        assert (it.host(0), it.host(1), it.device(5)) == ({3}, {9}, {107})


def test_a_part_that_cannot_be_started_fails_only_what_fails_by_itself() -> None:
    with bench(way=Way.BATCHED, piece_blocks=2, last_blocks=BLOCKS, chunk_bytes=1 << 20) as it:
        bad = it.storage.device_run(5).data_ptr()

        def fail(targets: list[torch.Tensor]) -> None:
            places = [target.data_ptr() for target in targets]
            if (bad in places and len(places) == 1) or bad + 2 * LAYER in places:
                raise RuntimeError("bad block")

        it.streams.fail = fail
        it.mover.submit(copies_of((IN, 9, 1), (IN, 5, 2), (IN, 7, 3)))
        errors = {done.copy.device_block: done.error for done in it.drain()}
        assert errors == {9: None, 5: "RuntimeError: bad block", 7: None}
        assert [it.device(block) for block in (9, 7)] == [{101}, {103}]


def test_a_device_that_fails_between_two_parts_fails_the_copies() -> None:
    with bench(way=Way.BATCHED, piece_blocks=1, last_blocks=BLOCKS) as it, held_up(it.streams, at=3) as held:
        it.mover.submit(copies_of((IN, 9, 1), (IN, 5, 2), (IN, 7, 3)))
        it.fence(range(3))
        for event in it.streams.events:
            event.broken = True
        held.set()
        errors = {done.copy.id: done.error for done in it.drain()}
        assert [errors[1], errors[2]] == ["RuntimeError: the device is gone"] * 2


@pytest.mark.parametrize("way", [Way.BATCHED, Way.SINGLE])
@pytest.mark.parametrize("direction", list(Direction))
def test_copies_that_wait_for_compute_hold_up_none_that_need_not_and_their_ends_are_told(
    direction: Direction, way: Way
) -> None:
    with bench(way=way, piece_blocks=2, in_flight_blocks=4) as it:
        mark = it.mover.mark()
        it.compute.synchronize()
        it.streams.compute.gate.clear()
        it.compute.read(0)
        it.mover.submit([Copy(index, direction, index, index) for index in range(6)])  # after the read
        it.until_queued(4)
        it.mover.submit([Copy(index, direction, index, index) for index in range(10, 16)], mark)
        it.until_over(6)  # nobody polls
        assert sorted(done.copy.id for done in it.mover.poll()) == [10, 11, 12, 13, 14, 15]
        it.streams.compute.gate.set()
        assert len(it.drain()) == 6


def test_memory_that_could_not_be_pinned_is_copied_without_the_drivers_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(way=Way.BATCHED, last_blocks=BLOCKS, piece_blocks=2) as it:
        monkeypatch.setattr(it.storage._host, "pageable_bytes", 1)

        def batch(*arguments: Any) -> None:
            raise AssertionError("the driver would read memory that may move")

        monkeypatch.setattr(it.mover._transport, "_batch", batch)
        it.mover.submit(copies_of((IN, 9, 1), (IN, 5, 2), (IN, 7, 3), (OUT, 2, 9)))
        assert {done.error for done in it.drain()} == {None}
        assert [it.device(block) for block in (9, 5, 7)] == [{101}, {102}, {103}]
        assert it.host(9) == {2}


@pytest.mark.parametrize("copy", [Copy(0, IN, BLOCKS, 3), Copy(0, OUT, 3, BLOCKS), Copy(0, IN, -1, 3)])
def test_no_address_is_made_for_a_block_or_slot_that_is_not_there(copy: Copy) -> None:
    with bench(way=Way.BATCHED) as it:
        it.mover.submit([copy, Copy(1, copy.direction, 8, 8)])
        errors = {done.copy.id: done.error for done in it.drain()}
        assert errors[1] is None
        assert errors[0] is not None
        assert errors[0].startswith("IndexError")


def test_every_byte_comes_to_its_place_whole_and_in_parts() -> None:
    with bench(way=Way.BATCHED, piece_blocks=2, last_blocks=BLOCKS) as it:
        words = it.storage.device_bytes.view(torch.int64).view(BLOCKS, -1)
        words.copy_(torch.arange(words.numel()).view_as(words))
        before, slots = words.clone(), [17, 3, 4, 0, 23, 11]
        it.mover.submit([Copy(index, OUT, 2 * index, slot) for index, slot in enumerate(slots)])
        it.drain()
        words.fill_(-1)
        it.mover.submit([Copy(10 + index, IN, 20 - 3 * index, slot) for index, slot in enumerate(slots)])
        it.drain()
        assert len(it.streams.calls[-1]) >= len(slots)  # in parts
        assert torch.equal(words[[20 - 3 * index for index in range(6)]], before[[0, 2, 4, 6, 8, 10]])


@pytest.mark.parametrize(("least", "sizes"), [(1, [1, 1, 1, 1]), (2 * LAYER, [2, 2]), (3 * LAYER, [4]), (1 << 20, [4])])
def test_small_groups_of_layers_cross_together(least: int, sizes: list[int]) -> None:
    with bench(way=Way.BATCHED, piece_blocks=2, last_blocks=BLOCKS, chunk_bytes=1 << 20, group_bytes=least) as it:
        it.mover.submit([Copy(index, IN, 3 + index, 2 * index) for index in range(6)])
        fence = it.fence(range(6))
        fence.join(1)
        reads = [reader(it, 3 + index, part) for index in range(6) for part in (0, 1)]
        it.compute.synchronize()
        assert [read() for read in reads] == [{100 + 2 * index} for index in range(6) for part in (0, 1)]
        it.drain()
        first, *rest = it.streams.calls
        assert first == [BLOCK]
        assert {size for call in rest for size in call} == {size * LAYER for size in sizes}
