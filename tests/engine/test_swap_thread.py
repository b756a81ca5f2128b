from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine.errors import EngineStopped
from kvtrace.engine.geometry import KVGeometry
from kvtrace.engine.storage import Storage
from kvtrace.engine.swap.contract import Copy, CopyDone, Direction
from kvtrace.engine.swap.thread import Copier, ThreadMover

GEOMETRY = KVGeometry(layers=1, kv_heads=1, head_dim=2, element_bytes=4)
BLOCKS = 8
WAIT_S = 30.0  # far beyond what anything here takes


class Watched:
    """Copies for real; delays, blocks and fails on request, and remembers the runs."""

    def __init__(self, inner: Copier, delay_s: float = 0.0, failing_slot: int | None = None) -> None:
        self.inner, self.delay_s, self.failing_slot = inner, delay_s, failing_slot
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.runs: list[tuple[str, int]] = []
        self._random = random.Random(5)

    def copy_out(self, block: int, slot: int, count: int = 1) -> None:
        self._before("out", slot, count)
        self.inner.copy_out(block, slot, count)

    def copy_in(self, slot: int, block: int, count: int = 1) -> None:
        self._before("in", slot, count)
        self.inner.copy_in(slot, block, count)

    def _before(self, way: str, slot: int, count: int) -> None:
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        time.sleep(self._random.random() * self.delay_s)
        if self.failing_slot is not None and slot <= self.failing_slot < slot + count:
            raise RuntimeError("bad slot")
        self.runs.append((way, count))


def _storage() -> Storage:
    storage = Storage(GEOMETRY, BLOCKS, BLOCKS, host_chunk_bytes=3 * GEOMETRY.block_bytes)
    storage.pool.copy_(torch.arange(BLOCKS).view(-1, 1, 1, 1, 1, 1).expand_as(storage.pool))
    for slot in range(BLOCKS):
        for part in storage.host_runs(slot):
            part.view(torch.float32).fill_(100 + slot)
    return storage


def _contents(storage: Storage) -> tuple[list[float], list[float]]:
    """The one value that fills each device block and each host slot."""
    host = [torch.cat([part.view(torch.float32) for part in storage.host_runs(slot)]) for slot in range(BLOCKS)]
    for piece in (*storage.pool, *host):
        assert (piece == piece.flatten()[0]).all(), "a block holds bytes of two blocks"
    return [float(block.flatten()[0]) for block in storage.pool], [float(slot[0]) for slot in host]


@contextmanager
def _mover(copier: Copier) -> Iterator[ThreadMover]:
    mover = ThreadMover(copier)
    try:
        yield mover
    finally:
        mover.close()


def _drain(mover: ThreadMover) -> list[CopyDone]:
    done: list[CopyDone] = []
    while mover.in_flight():
        mover.wait(WAIT_S)
        done += mover.poll()
    return done


def _copies(*steps: tuple[Direction, int, int]) -> list[Copy]:
    return [Copy(index, *step) for index, step in enumerate(steps)]


OUT, IN = Direction.OUT, Direction.IN


@given(
    batches=st.lists(
        st.lists(
            st.tuples(st.sampled_from(Direction), st.integers(0, BLOCKS - 1), st.integers(0, BLOCKS - 1)), max_size=12
        ),
        max_size=4,
    ),
    run=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_interleaving_equals_copying_in_order(batches: list[list[tuple[Direction, int, int]]], run: bool) -> None:
    storage = _storage()
    device, host = _contents(storage)
    ids = iter(range(1000))
    with _mover(Watched(storage, delay_s=0.0005)) as mover:
        submitted, done = [], []
        for batch in batches:
            copies = [Copy(next(ids), *step) for step in batch]
            if run:  # make neighbours, so that runs are merged
                copies += [Copy(next(ids), OUT, 2 + index, 1 + index) for index in range(4)]
            for copy in copies:
                if copy.direction is OUT:
                    host[copy.host_slot] = device[copy.device_block]
                else:
                    device[copy.device_block] = host[copy.host_slot]
            mover.submit(copies)
            submitted += copies
            done += mover.poll()
        done += _drain(mover)
    assert [entry.copy for entry in done] == submitted
    assert all(entry.error is None for entry in done)
    assert _contents(storage) == (device, host)


def test_times_are_ordered_and_never_overlap() -> None:
    with _mover(Watched(_storage(), delay_s=0.001)) as mover:
        mover.submit(_copies(*((OUT, index, index) for index in range(5)), (IN, 7, 0), (OUT, 6, 3)))
        done = _drain(mover)
    times = [instant for entry in done for instant in (entry.started_ns, entry.ended_ns)]
    assert times == sorted(times)


def test_neighbours_are_copied_as_one_run() -> None:
    copier = Watched(_storage())
    copier.gate.clear()
    with _mover(copier) as mover:
        mover.submit(_copies((OUT, 7, 7)))
        assert copier.entered.wait(WAIT_S)
        # Everything below waits in the queue together.
        mover.submit(_copies((OUT, 1, 2), (OUT, 2, 3), (OUT, 3, 4), (OUT, 5, 5), (IN, 6, 6), (IN, 7, 7), (IN, 0, 0)))
        copier.gate.set()
        _drain(mover)
    assert copier.runs == [("out", 1), ("out", 3), ("out", 1), ("in", 2), ("in", 1)]


def test_a_failed_copy_names_its_error_and_spares_its_neighbours() -> None:
    storage = _storage()
    copier = Watched(storage, failing_slot=2)
    copier.gate.clear()
    with _mover(copier) as mover:
        mover.submit(_copies((OUT, 7, 7)))
        assert copier.entered.wait(WAIT_S)
        mover.submit(_copies((OUT, 4, 1), (OUT, 5, 2), (OUT, 6, 3), (IN, 0, 6)))
        copier.gate.set()
        done = _drain(mover)
    assert [entry.error for entry in done] == [None, None, "RuntimeError: bad slot", None, None]
    device, host = _contents(storage)
    assert host == [100, 4, 102, 6, 104, 105, 106, 7]
    assert device[0] == 106


def test_submit_and_poll_return_while_a_copy_runs() -> None:
    copier = Watched(_storage())
    copier.gate.clear()
    with _mover(copier) as mover:
        mover.submit(_copies((OUT, 0, 0), (IN, 1, 1)))
        assert copier.entered.wait(WAIT_S)
        assert mover.poll() == []
        mover.wait(0.001)
        assert mover.poll() == []
        assert mover.in_flight() == 2
        copier.gate.set()
        assert len(_drain(mover)) == 2


def test_wait_returns_at_once_when_nothing_is_in_flight() -> None:
    with _mover(_storage()) as mover:
        waiter = threading.Thread(target=mover.wait, args=(WAIT_S,))
        waiter.start()
        waiter.join(WAIT_S / 2)
        assert not waiter.is_alive()


def test_close_finishes_what_was_submitted() -> None:
    storage = _storage()
    mover = ThreadMover(Watched(storage, delay_s=0.001))
    mover.submit(_copies((OUT, 0, 7), (OUT, 3, 1), (IN, 5, 7)))
    mover.close()
    assert [entry.copy.id for entry in mover.poll()] == [0, 1, 2]
    assert _contents(storage)[0][5] == 0
    with pytest.raises(EngineStopped, match="closed"):
        mover.submit(_copies((OUT, 0, 0)))
    mover.close()


def test_listener_is_told_after_copies_ended() -> None:
    told = threading.Event()
    mover = ThreadMover(_storage(), on_done=told.set)
    mover.submit(_copies((OUT, 0, 0)))
    assert told.wait(WAIT_S)
    assert len(mover.poll()) == 1
    mover.close()
