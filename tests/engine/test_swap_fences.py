"""Fences and marks of the stream mover: what may start before the host has seen an end."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from kvtrace.engine.swap.choose import Way
from kvtrace.engine.swap.contract import Copy

from .swap_bench import BLOCKS, IN, OUT, WAYS, bench, copies_of
from .swap_support import WAIT_S, ThreadCompute, ThreadEvent, ThreadStream, ThreadStreams


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("blocks", [[3], [3, 4, 5, 6], [3, 9, 5, 20]])
def test_compute_behind_a_fence_finds_what_was_copied_in(blocks: list[int], way: Way) -> None:
    with bench(in_flight_blocks=BLOCKS, way=way, last_blocks=BLOCKS) as it:
        for stream in it.streams.made:
            stream.gate.clear()
        copies = [Copy(index, IN, block, 10 + index) for index, block in enumerate(blocks)]
        it.mover.submit(copies)
        it.until_queued(len(blocks))
        fence = it.fence([copy.id for copy in copies])
        fence.join()
        reads = [it.compute.read(block) for block in blocks]
        assert it.mover.poll() == []
        for stream in it.streams.made:
            stream.gate.set()
        it.compute.synchronize()
        assert [read() for read in reads] == [{110 + index} for index in range(len(blocks))]
        assert sorted(done.copy.id for done in it.mover.poll()) == [copy.id for copy in copies]


def test_compute_behind_a_fence_may_write_what_was_copied_out() -> None:
    with bench(ThreadStreams(0.002, 5)) as it:
        it.mover.submit(copies_of((OUT, 3, 1), (OUT, 8, 2)))
        it.fence([0, 1]).join()
        it.compute.write(3, 50)
        it.compute.write(8, 51)
        it.drain()
        assert [it.host(1), it.host(2)] == [{3}, {8}]


def test_what_waits_behind_a_fence_tells_that_its_copies_are_over_though_older_ones_are_not() -> None:
    """A scattered batch stands still in its buffer; a flat one goes past it."""
    with bench(piece_blocks=2, chunk_bytes=1 << 20) as it:
        it.streams.compute.gate.clear()
        it.compute.read(0)
        it.mover.submit(copies_of((IN, 9, 1), (IN, 5, 2)))  # waits for compute
        it.until_queued(4)  # over the link, and scattered
        before, it.streams.compute = it.streams.compute, ThreadStream(0, 9)
        it.mover.submit([Copy(7, IN, 12, 3)])
        it.fence([7]).join()
        read = ThreadCompute(it.storage, it.streams.compute).read(12)
        reached = ThreadEvent()
        it.streams.compute.record_event(reached)
        reached.synchronize()
        assert read() == {103}
        assert [done.copy.id for done in it.mover.poll()] == [7]
        before.gate.set()
        it.drain()
        before.close()


def test_there_is_no_fence_for_a_copy_that_waits_its_turn_on_the_host() -> None:
    with bench(piece_blocks=2, in_flight_blocks=2, way=Way.SINGLE) as it:
        for stream in it.streams.made:
            stream.gate.clear()
        it.mover.submit([Copy(index, OUT, index, index) for index in range(8)])
        it.until_queued(2)
        it.mover.wait(0.02)
        first = {0, 1}
        assert it.mover.fence(first) is not None
        assert it.mover.fence(range(8)) is None
        assert it.mover.queued(OUT) == 8
        assert it.mover.queued(IN) == 0
        for stream in it.streams.made:
            stream.gate.set()
        it.drain()
        assert it.mover.queued(OUT) == 0


def test_there_is_no_fence_for_a_copy_that_failed_and_one_for_what_is_over_already() -> None:
    with bench(chunk_bytes=1 << 20) as it:
        bad = it.storage.device_run(5).data_ptr()

        def fail(targets: list[torch.Tensor]) -> None:
            if any(target.data_ptr() <= bad < target.data_ptr() + target.nbytes for target in targets):
                raise RuntimeError("bad block")

        it.streams.fail = fail
        it.mover.submit(copies_of((IN, 9, 1), (IN, 5, 2), (IN, 7, 3)))
        it.until_over(3)
        assert it.mover.fence([0, 1, 2]) is None
        assert it.mover.fence([1]) is None
        it.fence([0, 2]).join()
        assert it.mover.fence([]) is not None
        assert sorted(done.copy.id for done in it.mover.poll()) == [0, 1, 2]
        assert it.mover.fence([0]) is None  # told already: whoever asks for it has not listened


def test_a_copy_with_a_mark_does_not_wait_for_compute_after_it() -> None:
    with bench() as it:
        it.compute.write(3, 70)
        mark = it.mover.mark()
        it.compute.synchronize()
        it.streams.compute.gate.clear()
        it.compute.write(4, 71)
        it.mover.submit([Copy(0, OUT, 3, 1)], mark)
        it.drain()
        assert it.host(1) == {70}
        it.streams.compute.gate.set()


@pytest.mark.parametrize("way", WAYS)
def test_who_waits_is_woken_when_the_last_of_a_batch_in_is_on_the_device_and_not_again(way: Way) -> None:
    told = threading.Event()
    with bench(way=way, piece_blocks=2, last_blocks=BLOCKS, on_done=told.set) as it:
        for stream in it.streams.made:
            stream.gate.clear()
        copies = [Copy(index, IN, 2 * index, index) for index in range(6)]
        it.mover.submit(copies)
        it.mover.wait(WAIT_S)
        assert it.mover.poll() == []
        assert it.mover.fence([copy.id for copy in copies]) is not None
        assert told.wait(WAIT_S)
        started = time.monotonic()
        it.mover.wait(0.02)
        assert time.monotonic() - started > 0.01
        for stream in it.streams.made:
            stream.gate.set()
        assert len(it.drain()) == 6
