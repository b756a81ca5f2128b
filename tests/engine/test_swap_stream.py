"""The stream mover over streams that are threads: every clause of the contract, whatever is slow."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine.errors import EngineStopped
from kvtrace.engine.storage import Storage
from kvtrace.engine.swap.choose import Way
from kvtrace.engine.swap.contract import Copy, CopyDone, Direction
from kvtrace.engine.swap.stream import StreamMover
from kvtrace.engine.swap.transport import StreamTransport

from .swap_bench import BLOCK, BLOCKS, GEOMETRY, IN, OUT, WAYS, bench, copies_of
from .swap_support import WAIT_S, Life, ThreadEvent, ThreadStreams


@pytest.mark.parametrize("way", WAYS)
@given(
    seed=st.integers(0, 10_000),
    delay_ms=st.sampled_from([0.0, 0.2, 1.0]),
    piece=st.integers(1, 9),
    buffer=st.integers(1, 5),
    last=st.sampled_from([0, 9, 24]),
)
@settings(max_examples=15, deadline=None)
def test_blocks_survive_any_interleaving_of_slow_streams(
    way: Way, seed: int, delay_ms: float, piece: int, buffer: int, last: int
) -> None:
    streams = ThreadStreams(delay_ms / 1e3, seed)
    with bench(streams, way=way, piece_blocks=piece, buffer_blocks=buffer, last_blocks=last) as it:
        life = Life(it.storage, it.mover, it.compute, seed)
        life.live(120)
        life.check()
        assert life.done > 0


@given(
    batches=st.lists(
        st.lists(st.tuples(st.sampled_from(Direction), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=12),
        max_size=4,
    ),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_copies_of_the_same_block_or_slot_keep_their_order(
    batches: list[list[tuple[Direction, int, int]]], seed: int
) -> None:
    with bench(ThreadStreams(0.0003, seed)) as it:
        device, host = list(range(BLOCKS)), list(range(100, 100 + BLOCKS))
        submitted: list[Copy] = []
        for batch in batches:
            copies = copies_of(*batch, first=len(submitted))
            for copy in copies:
                if copy.direction is OUT:
                    host[copy.host_slot] = device[copy.device_block]
                else:
                    device[copy.device_block] = host[copy.host_slot]
            it.mover.submit(copies)
            submitted += copies
        done = it.drain()
        assert sorted(entry.copy.id for entry in done) == [copy.id for copy in submitted]
        assert [it.device(block) for block in range(BLOCKS)] == [{value} for value in device]
        assert [it.host(slot) for slot in range(BLOCKS)] == [{value} for value in host]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("blocks", [[3], [3, 4, 5, 6], [3, 9, 5, 20]])
def test_a_copy_out_starts_after_the_compute_that_wrote_its_block(blocks: list[int], way: Way) -> None:
    with bench(way=way, last_blocks=24) as it:
        it.streams.compute.gate.clear()
        for block in blocks:
            it.compute.write(block, 77)
        it.mover.submit([Copy(index, OUT, block, 10 + index) for index, block in enumerate(blocks)])
        time.sleep(0.05)
        assert it.mover.poll() == []
        it.streams.compute.gate.set()
        it.drain()
        assert [it.host(10 + index) for index in range(len(blocks))] == [{77}] * len(blocks)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("blocks", [[3], [3, 4, 5, 6], [3, 9, 5, 20]])
def test_a_copy_in_starts_after_the_last_reader_of_its_target(blocks: list[int], way: Way) -> None:
    with bench(way=way, last_blocks=24) as it:
        it.streams.compute.gate.clear()
        reads = [it.compute.read(block) for block in blocks]
        it.mover.submit([Copy(index, IN, block, 10 + index) for index, block in enumerate(blocks)])
        time.sleep(0.05)
        assert it.mover.poll() == []
        it.streams.compute.gate.set()
        it.drain()
        assert [read() for read in reads] == [{block} for block in blocks]
        assert [it.device(block) for block in blocks] == [{110 + index} for index in range(len(blocks))]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("direction", list(Direction))
def test_no_end_is_told_before_the_last_byte_arrived(direction: Direction, way: Way) -> None:
    with bench(way=way) as it:
        for stream in it.streams.made:
            stream.gate.clear()
        it.mover.submit(copies_of((direction, 2, 5), (direction, 7, 6)))
        time.sleep(0.05)
        assert it.mover.poll() == []
        assert it.mover.in_flight() == 2
        for stream in it.streams.made:
            stream.gate.set()
        assert len(it.drain()) == 2
        assert it.mover.in_flight() == 0


@pytest.mark.parametrize("stream", range(4))
@pytest.mark.parametrize("direction", list(Direction))
def test_a_buffer_is_not_filled_again_before_it_was_emptied(direction: Direction, stream: int) -> None:
    """One of the four streams stands still while the others go as far as they may."""
    with bench(piece_blocks=2, in_flight_blocks=BLOCKS) as it:
        it.streams.made[stream].gate.clear()
        blocks = [(5 * index) % 12 for index in range(12)]
        it.mover.submit([Copy(index, direction, block, 4 + index) for index, block in enumerate(blocks)])
        time.sleep(0.05)
        it.streams.made[stream].gate.set()
        it.drain()
        if direction is OUT:
            assert [it.host(4 + index) for index in range(12)] == [{block} for block in blocks]
        else:
            assert [it.device(block) for block in blocks] == [{104 + index} for index in range(12)]


def test_scattered_blocks_cross_the_link_as_one_copy_and_contiguous_ones_without_a_detour() -> None:
    with bench(piece_blocks=6, buffer_blocks=6, chunk_bytes=1 << 20) as it:
        it.mover.submit([Copy(index, OUT, block, 4 + index) for index, block in enumerate((9, 2, 17, 5, 11, 20))])
        it.drain()
        assert it.streams.calls == [[BLOCK] * 6, [6 * BLOCK]]  # gather, link
        it.streams.calls.clear()
        it.mover.submit([Copy(10 + index, IN, 6 + index, 4 + index) for index in range(6)])
        it.drain()
        assert it.streams.calls == [[6 * BLOCK]]
        assert [it.device(6 + index) for index in range(6)] == [{9}, {2}, {17}, {5}, {11}, {20}]
        it.streams.calls.clear()
        it.mover.submit([Copy(20 + index, OUT, index, 20 - 3 * index) for index in range(4)])
        it.drain()
        assert it.streams.calls == [[BLOCK] * 4]


def test_slots_handed_out_backwards_are_one_run_all_the_same() -> None:
    with bench(piece_blocks=8, chunk_bytes=1 << 20) as it:
        it.mover.submit([Copy(index, OUT, 10 - index, 17 - index) for index in range(8)])
        it.drain()
        assert it.streams.calls == [[8 * BLOCK]]
        assert [it.host(10 + index) for index in range(8)] == [{3 + index} for index in range(8)]


def test_only_so_much_is_on_the_device_at_once() -> None:
    with bench(piece_blocks=2, in_flight_blocks=4, way=Way.SINGLE) as it:
        for stream in it.streams.made:
            stream.gate.clear()
        it.mover.submit([Copy(index, OUT, index, index) for index in range(20)])
        it.until_queued(4)
        it.mover.wait(0.05)
        assert 4 * BLOCK <= sum(map(sum, it.streams.calls)) < 6 * BLOCK
        for stream in it.streams.made:
            stream.gate.set()
        assert len(it.drain()) == 20


def test_more_of_the_only_batch_is_on_the_device() -> None:
    with bench(piece_blocks=2, in_flight_blocks=2, alone_blocks=8, way=Way.SINGLE) as it:
        for stream in it.streams.made:
            stream.gate.clear()
        it.mover.submit([Copy(index, OUT, index, index) for index in range(20)])
        it.until_queued(8)
        it.mover.submit([Copy(20, OUT, 20, 20)])  # whoever comes now waits for no more than that
        time.sleep(0.05)
        assert 8 * BLOCK <= sum(map(sum, it.streams.calls)) < 10 * BLOCK
        for stream in it.streams.made:
            stream.gate.set()
        assert len(it.drain()) == 21


def test_the_rest_of_the_only_batch_goes_to_the_device_as_a_whole() -> None:
    with bench(piece_blocks=2, in_flight_blocks=4, last_blocks=9, way=Way.SINGLE) as it:
        for stream in it.streams.made:
            stream.gate.clear()
        it.mover.submit([Copy(index, OUT, index, index) for index in range(9)])
        it.until_queued(9)
        it.mover.submit([Copy(20 + index, OUT, 10 + index, 10 + index) for index in range(2)])
        it.mover.wait(0.05)
        assert sum(map(sum, it.streams.calls)) == 9 * BLOCK
        for stream in it.streams.made:
            stream.gate.set()
        assert len(it.drain()) == 11


def test_a_batch_too_long_for_that_waits_its_turn_although_it_is_the_only_one() -> None:
    with bench(piece_blocks=2, in_flight_blocks=4, last_blocks=9, way=Way.SINGLE) as it:
        for stream in it.streams.made:
            stream.gate.clear()
        it.mover.submit([Copy(index, OUT, index, index) for index in range(20)])
        it.until_queued(4)
        it.mover.wait(0.05)
        assert sum(map(sum, it.streams.calls)) < 6 * BLOCK
        for stream in it.streams.made:
            stream.gate.set()
        assert len(it.drain()) == 20


def test_a_short_batch_overtakes_a_long_one_and_the_long_one_is_not_starved() -> None:
    with bench(piece_blocks=2, in_flight_blocks=1) as it:
        for stream in it.streams.made:
            stream.gate.clear()
        it.mover.submit([Copy(index, OUT, index, index) for index in range(12)])
        it.until_queued(1)
        for number in range(8):
            it.mover.submit([Copy(100 + number, OUT, 12 + number, 12 + number)])
        it.compute.synchronize()
        for stream in it.streams.made:
            stream.gate.set()
        order = [entry.copy.id for entry in it.drain()]
        assert order.index(100) < order.index(1)
        assert order.index(2) < order.index(107)


def test_what_is_computed_goes_before_what_still_waits_for_compute() -> None:
    with bench(piece_blocks=1, in_flight_blocks=1) as it:
        for stream in it.streams.made:
            stream.gate.clear()
        it.mover.submit([Copy(index, OUT, index, index) for index in range(4)])
        it.until_queued(1)
        it.compute.synchronize()
        it.streams.compute.gate.clear()
        it.compute.write(9, 99)
        it.mover.submit([Copy(50, OUT, 9, 9)])
        for stream in it.streams.made:
            stream.gate.set()
        done: list[CopyDone] = []
        while len(done) < 4:
            it.mover.wait(WAIT_S)
            done += it.mover.poll()
        assert {entry.copy.id for entry in done} == {0, 1, 2, 3}
        it.streams.compute.gate.set()
        it.drain()
        assert it.host(9) == {99}


def test_a_failed_copy_names_its_error_and_spares_its_neighbours() -> None:
    with bench(chunk_bytes=1 << 20) as it:
        bad = it.storage.device_run(5).data_ptr()

        def fail(targets: list[torch.Tensor]) -> None:
            if any(target.data_ptr() <= bad < target.data_ptr() + target.nbytes for target in targets):
                raise RuntimeError("bad block")

        it.streams.fail = fail
        it.mover.submit(copies_of((IN, 9, 1), (IN, 5, 2), (IN, 7, 3)))
        errors = {entry.copy.device_block: entry.error for entry in it.drain()}
        assert errors == {9: None, 5: "RuntimeError: bad block", 7: None}
        assert [it.device(block) for block in (9, 5, 7)] == [{101}, {5}, {103}]


def test_nothing_of_a_copy_whose_start_failed_half_way_comes_after_its_end_was_told() -> None:
    with bench(chunk_bytes=1 << 20) as it:
        scatter, tried, bad = it.streams.made[3], [0], it.storage.device_run(3).data_ptr()

        def fail(targets: list[torch.Tensor]) -> None:
            tried[0] += 1
            # The second half cannot be started, and then the block of number 3 alone.
            if tried[0] == 3 or (len(targets) == 1 and targets[0].data_ptr() == bad):
                raise RuntimeError("no further call")

        it.streams.fail = fail
        scatter.gate.clear()  # the first half is about to leave its buffer
        it.mover.submit(copies_of((IN, 3, 0), (IN, 9, 1), (IN, 5, 2), (IN, 20, 3)))
        time.sleep(0.05)
        assert it.mover.poll() == []
        scatter.gate.set()
        assert [done.copy.device_block for done in it.drain() if done.error is not None] == [3]
        it.compute.write(3, 777)
        it.compute.synchronize()
        assert [it.device(block) for block in (3, 9, 5, 20)] == [{777}, {101}, {102}, {103}]


def test_a_device_that_fails_later_fails_the_copies_that_were_on_it() -> None:
    with bench() as it:
        for stream in it.streams.made:
            stream.gate.clear()
        it.mover.submit(copies_of((OUT, 1, 1), (OUT, 2, 2)))
        it.until_queued(2)
        for event in it.streams.events:
            event.broken = True
        done: list[CopyDone] = []
        until = time.monotonic() + WAIT_S
        while len(done) < 2 and time.monotonic() < until:
            done += it.mover.poll()
        assert [entry.error for entry in done] == ["RuntimeError: the device is gone"] * 2
        assert it.mover.in_flight() == 0


def test_copies_for_a_device_that_has_failed_end_with_an_error_and_nobody_waits_for_them() -> None:
    with bench() as it:
        it.mover.submit(copies_of((OUT, 1, 1)))
        it.drain()
        real = it.streams.event

        def broken(*, timed: bool = False) -> ThreadEvent:
            event = real(timed=timed)
            event.broken = True
            return event

        it.streams.event = broken  # type: ignore[method-assign]
        it.mover.submit(copies_of((OUT, 1, 1), (IN, 2, 2), first=10))
        assert {entry.error for entry in it.drain()} == {"RuntimeError: the device is gone"}


def test_times_add_up_to_what_the_device_took() -> None:
    with bench(ThreadStreams(0.002, 3)) as it:
        it.mover.submit([Copy(index, OUT, index, index) for index in range(4)])
        done = it.drain()
    assert all(entry.started_ns <= entry.ended_ns for entry in done)
    assert [entry.started_ns for entry in done[1:]] == [entry.ended_ns for entry in done[:-1]]


def test_wait_returns_at_once_when_nothing_is_in_flight() -> None:
    with bench() as it:
        waiter = threading.Thread(target=it.mover.wait, args=(WAIT_S,))
        waiter.start()
        waiter.join(WAIT_S / 2)
        assert not waiter.is_alive()


def test_close_finishes_what_was_submitted() -> None:
    with bench(ThreadStreams(0.001, 1)) as it:
        it.mover.submit(copies_of((OUT, 0, 7), (OUT, 3, 1), (IN, 5, 7), (OUT, 5, 9)))
        it.mover.close()
        assert sorted(entry.copy.id for entry in it.mover.poll()) == [0, 1, 2, 3]
        assert it.host(9) == {0}
        with pytest.raises(EngineStopped, match="closed"):
            it.mover.submit(copies_of((OUT, 0, 0)))
        it.mover.close()


def test_listener_is_told_after_copies_ended() -> None:
    told = threading.Event()
    storage = Storage(GEOMETRY, 2, 2)
    mover = StreamMover(StreamTransport(storage, ThreadStreams()), on_done=told.set)
    mover.submit(copies_of((OUT, 0, 0)))
    assert told.wait(WAIT_S)
    mover.close()
    assert len(mover.poll()) == 1
