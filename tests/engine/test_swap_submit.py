"""The stream mover's caller queues copies itself, while others submit, poll and close."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine.errors import EngineStopped
from kvtrace.engine.swap.choose import Way
from kvtrace.engine.swap.contract import Copy, CopyDone, Direction
from kvtrace.engine.swap.lanes import Lane

from .swap_bench import BLOCK, BLOCKS, IN, OUT, Bench, bench
from .swap_support import WAIT_S, ThreadStreams
from .test_swap_parts import gates_closed, until_idle


@contextmanager
def switching() -> Iterator[None]:
    """Let threads take turns hundreds of times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def any_copies(source: random.Random, blocks: list[int], first: int) -> list[Copy]:
    count = source.randint(1, len(blocks))
    both, one = source.random() < 0.2, source.choice(list(Direction))
    rows = zip(source.sample(blocks, count), source.sample(blocks, count), strict=True)
    return [
        Copy(first + at, source.choice(list(Direction)) if both else one, block, slot)
        for at, (block, slot) in enumerate(rows)
    ]


@given(
    seed=st.integers(0, 10_000),
    delay_ms=st.sampled_from([0.0, 0.2]),
    submitters=st.integers(1, 3),
    last=st.sampled_from([0, 6, BLOCKS]),
    in_parts=st.integers(0, 9),
    closes=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_every_copy_that_was_taken_ends_once_in_order_whoever_submits_and_closes(
    seed: int, delay_ms: float, submitters: int, last: int, in_parts: int, closes: bool
) -> None:
    source = random.Random(seed)
    own = [list(range(BLOCKS))[number::submitters] for number in range(submitters)]
    device, host = list(range(BLOCKS)), [100 + slot for slot in range(BLOCKS)]
    taken: list[Copy] = []

    def submit(it: Bench, number: int) -> None:
        mine = random.Random(seed + number)
        for turn in range(mine.choice([2, 6])):
            copies = any_copies(mine, own[number], 10_000 * number + 100 * turn)
            try:
                it.mover.submit(copies)
            except EngineStopped:
                return
            it.mover.fence([copies[0].id])
            for copy in copies:
                taken.append(copy)
                if copy.direction is OUT:
                    host[copy.host_slot] = device[copy.device_block]
                else:
                    device[copy.device_block] = host[copy.host_slot]

    streams = ThreadStreams(delay_ms / 1e3, seed)
    bounds = {"piece_blocks": 2, "in_flight_blocks": 4, "last_blocks": last, "in_parts_blocks": in_parts}
    with switching(), bench(streams, way=Way.BATCHED, **bounds) as it:  # type: ignore[arg-type]
        threads = [threading.Thread(target=submit, args=(it, number)) for number in range(submitters)]
        for thread in threads:
            thread.start()
        done: list[CopyDone] = []
        if closes:
            time.sleep(source.random() / 1e3)
            it.mover.close()
        for thread in threads:
            thread.join(WAIT_S)
        done += it.drain()
        assert sorted(one.copy.id for one in done) == sorted(copy.id for copy in taken)
        assert {one.error for one in done} <= {None}
        assert [it.device(block) for block in range(BLOCKS)] == [{value} for value in device]
        assert [it.host(slot) for slot in range(BLOCKS)] == [{value} for value in host]


def test_closing_waits_for_who_is_queueing_copies() -> None:
    with bench(way=Way.BATCHED, piece_blocks=4, chunk_bytes=1 << 20) as it:
        queueing, go_on = threading.Event(), threading.Event()

        def slow(targets: list[torch.Tensor]) -> None:
            queueing.set()
            assert go_on.wait(WAIT_S)

        it.streams.fail = slow
        copies = [Copy(index, IN, index, index) for index in range(4)]
        submits = threading.Thread(target=it.mover.submit, args=(copies,))
        submits.start()
        assert queueing.wait(WAIT_S)
        closes = threading.Thread(target=it.mover.close)
        closes.start()
        closes.join(0.05)
        assert closes.is_alive()
        go_on.set()
        submits.join(WAIT_S)
        closes.join(WAIT_S)
        assert not closes.is_alive()
        assert len(it.mover.poll()) == 4
        assert [it.device(block) for block in range(4)] == [{100 + block} for block in range(4)]


def test_a_lane_that_was_driven_when_copies_came_looks_again_before_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(way=Way.BATCHED, piece_blocks=2, in_flight_blocks=8, chunk_bytes=1 << 20) as it:
        over = until_idle(it)
        note_ends, came = it.mover._note_ends, threading.Event()

        def late(lane: Lane) -> bool:
            """After the lane's last look, and before it waits for the two that are under way."""
            if lane is it.mover._lanes[IN] and not came.is_set():
                came.set()
                with lane.driving:
                    it.mover.submit([Copy(index, IN, index, index) for index in range(2, 4)], over)
            return note_ends(lane)

        monkeypatch.setattr(it.mover, "_note_ends", late)
        with gates_closed(it):
            it.mover.submit([Copy(index, IN, index, index) for index in range(2)], over)
            assert came.wait(WAIT_S)
            until = time.monotonic() + WAIT_S / 3
            while it.mover.fence(range(4)) is None:
                assert time.monotonic() < until, "it waits for the first two"
                time.sleep(0.001)
        assert len(it.drain()) == 4


def test_who_submits_goes_on_with_its_own_stream_although_memory_could_not_be_pinned_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with bench(way=Way.BATCHED, piece_blocks=4, chunk_bytes=1 << 20) as it:
        transport, storage = it.mover._transport, it.storage
        quick = transport.quick

        def quick_so_far() -> bool:
            so_far = quick()
            monkeypatch.setattr(storage._host, "pageable_bytes", 1)
            return so_far

        monkeypatch.setattr(transport, "quick", quick_so_far)
        it.mover.submit([Copy(index, IN, index, index) for index in range(4)])
        assert it.streams.current() is it.streams.compute
        assert len(it.drain()) == 4
        assert it.streams.calls == [[4 * BLOCK]]
        assert [it.device(block) for block in range(4)] == [{100 + block} for block in range(4)]
