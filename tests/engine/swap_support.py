"""Streams made of threads, each as slow as a test wants, and a random life of blocks that any mover must survive."""

from __future__ import annotations

import ctypes
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from kvtrace.engine.storage import Storage
from kvtrace.engine.swap.batched import BatchedTransport
from kvtrace.engine.swap.choose import Way
from kvtrace.engine.swap.contract import Copy, CopyDone, Direction, Mover
from kvtrace.engine.swap.driver import Addresses
from kvtrace.engine.swap.limits import Bounds
from kvtrace.engine.swap.staged import StagedTransport
from kvtrace.engine.swap.transport import StreamTransport

WAIT_S = 30.0  # far beyond what anything here takes


class ThreadEvent:
    """Stands for a point of a stream, as a device's event does; ``broken`` makes every question to it raise."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.reached.set()  # never recorded: nothing to wait for
        self.at = 0.0
        self.broken = False

    def query(self) -> bool:
        if self.broken:
            raise RuntimeError("the device is gone")
        return self.reached.is_set()

    def synchronize(self) -> None:
        if self.broken:
            raise RuntimeError("the device is gone")
        assert self.reached.wait(WAIT_S)

    def elapsed_time(self, end_event: Any) -> float:
        return float(end_event.at - self.at) * 1e3


class ThreadStream:
    """Work in order, in a thread of its own, each piece after a random delay."""

    def __init__(self, delay_s: float, seed: int) -> None:
        self.delay_s = delay_s
        self.gate = threading.Event()
        self.gate.set()
        self._random = random.Random(seed)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def wait_event(self, event: Any) -> None:
        reached = event.reached  # as recorded last, whatever is recorded later
        self.put(lambda: assert_(reached.wait(WAIT_S)))

    def record_event(self, event: Any) -> None:
        reached = event.reached = threading.Event()

        def reach() -> None:
            event.at = time.monotonic()
            reached.set()

        self.put(reach)

    def close(self) -> None:
        self._work.put(None)
        self._thread.join(WAIT_S)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            assert self.gate.wait(WAIT_S)
            time.sleep(self._random.random() * self.delay_s)
            work()


def assert_(holds: bool) -> None:
    assert holds


@dataclass
class ThreadStreams:
    """A device's streams as :mod:`kvtrace.engine.swap.streams` describes them, with slow copies of CPU tensors.

    A copy poisons its target, lets time pass, and then moves the bytes: whoever comes too early sees poison, or
    has its own bytes overwritten. ``calls`` remembers the sizes of what was copied by each; ``fail`` may raise for one, and
    ``before`` queue something before one.
    """

    delay_s: float = 0.0
    seed: int = 0
    calls: list[list[int]] = field(default_factory=list)
    fail: Callable[[list[torch.Tensor]], None] = lambda targets: None
    before: Callable[[ThreadStream], None] = lambda stream: None

    def __post_init__(self) -> None:
        self.compute = ThreadStream(self.delay_s, self.seed)
        self.made: list[ThreadStream] = []
        self.events: list[ThreadEvent] = []
        self._random = random.Random(self.seed)
        self._threads = threading.local()

    def current(self) -> ThreadStream:
        stream: ThreadStream = getattr(self._threads, "current", self.compute)
        return stream

    def stream(self, *, first: bool = False) -> ThreadStream:
        # Some streams are ten times as slow as others, another one for every seed.
        self.made.append(ThreadStream(self.delay_s * self._random.choice((0.1, 1.0)), self.seed + len(self.made)))
        return self.made[-1]

    def event(self, *, timed: bool = False) -> ThreadEvent:
        self.events.append(ThreadEvent())
        return self.events[-1]

    def copy(self, stream: Any, targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        self._threads.current = stream  # as torch's
        self._copy(stream, targets, sources)

    def _copy(self, stream: Any, targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        self.fail(targets)
        self.calls.append([target.nbytes for target in targets])
        for target, source in zip(targets, sources, strict=True):
            assert target.dtype == source.dtype
            assert target.shape == source.shape

        def work() -> None:
            for target in targets:
                target.view(torch.uint8).fill_(0xFF)
            time.sleep(stream.delay_s * 0.2)
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)

        self.before(stream)
        stream.put(work)

    def batch(self, stream: Any, targets: Addresses, sources: Addresses, sizes: Addresses) -> None:
        """As the driver's call, by address; ``fail`` sees where in memory the targets lie."""
        rows = [
            [_bytes_at(*place) for place in zip(at.tolist(), sizes.tolist(), strict=True)] for at in (targets, sources)
        ]
        self._copy(stream, *rows)

    @contextmanager
    def kept(self) -> Iterator[None]:
        before = self.current()
        try:
            yield
        finally:
            self._threads.current = before

    def close(self) -> None:
        for stream in (self.compute, *self.made):
            with suppress(AttributeError):
                stream.gate.set()
            stream.close()


def _bytes_at(address: int, size: int) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


def make_transport(
    way: Way, storage: Storage, streams: ThreadStreams, bounds: Bounds, buffer_blocks: int, group_bytes: int = 1
) -> StreamTransport:
    """One of each kind, over streams that are threads."""
    both = dict.fromkeys(Direction, bounds)
    if way is Way.BATCHED:
        return BatchedTransport(storage, streams.batch, streams, both, group_bytes)
    if way is Way.STAGED:
        return StagedTransport(storage, streams, both, buffer_blocks=buffer_blocks)
    return StreamTransport(storage, streams, both)


class Compute(Protocol):
    """What the model's stream does to blocks, in order and in its own time."""

    def write(self, block: int, value: int) -> None: ...
    def read(self, block: int) -> Callable[[], set[int]]: ...
    def synchronize(self) -> None: ...


class ThreadCompute:
    """Compute on a :class:`ThreadStream`."""

    def __init__(self, storage: Storage, stream: ThreadStream) -> None:
        self.storage, self.stream = storage, stream

    def write(self, block: int, value: int) -> None:
        words = self.storage.device_run(block).view(torch.int32)
        self.stream.put(lambda: assert_(words.fill_(value) is words))

    def read(self, block: int) -> Callable[[], set[int]]:
        words = self.storage.device_run(block).view(torch.int32)
        seen: list[torch.Tensor] = []
        self.stream.put(lambda: seen.append(words.clone()))
        return lambda: set(seen[0].tolist())

    def synchronize(self) -> None:
        event = ThreadEvent()
        self.stream.record_event(event)
        event.synchronize()


def host_values(storage: Storage, slot: int) -> set[int]:
    """The 32-bit values in a host slot."""
    whole = torch.cat([part.view(torch.uint8) for part in storage.host_runs(slot)])
    return set(whole.view(torch.int32).tolist())


def fill_host(storage: Storage, slot: int, value: int) -> None:
    size = storage.geometry.block_bytes // 4
    at, pattern = 0, torch.full((size,), value, dtype=torch.int32).view(torch.uint8)
    for part in storage.host_runs(slot):
        part.copy_(pattern[at : at + part.numel()])
        at += part.numel()


class Life:
    """Random compute and copies over all blocks and slots, as an engine that uses every freedom of the contract.

    A block or slot is used again in the very moment the contract allows it: compute overwrites the source of a copy out
    as soon as its end was polled, the host the source of a copy in likewise. Copies that touch nothing which compute has
    touched since a mark go after that mark, whatever else was submitted since; and where there is a fence, compute reads and
    overwrites blocks while the copies that touch them are under way. ``check`` compares every block and slot and
    everything that compute read on the way with what doing one thing after the other would have given.
    """

    def __init__(self, storage: Storage, mover: Mover, compute: Compute, seed: int) -> None:
        self.storage, self.mover, self.compute = storage, mover, compute
        self.random = random.Random(seed)
        self.values = iter(range(1, 1 << 30))
        self.ids = iter(range(1 << 30))
        self.device = [next(self.values) for _ in range(storage.device_blocks)]
        self.host = [next(self.values) for _ in range(storage.host_blocks)]
        self.work = 0  # given to compute, and how much of it was when each block was touched last
        self.touched = [0] * storage.device_blocks
        self.under_way: dict[int, Copy] = {}
        self.fenced = 0
        self.marked: tuple[object | None, int] = (None, 0)
        for block, value in enumerate(self.device):
            self._write(block, value)
        for slot, value in enumerate(self.host):
            fill_host(storage, slot, value)
        self.sources: set[int] = set()  # blocks that a copy out reads
        self.targets: set[int] = set()  # blocks that a copy in writes
        self.slots: set[int] = set()
        self.reads: list[tuple[Callable[[], set[int]], int]] = []
        self.done = 0

    def live(self, rounds: int) -> None:
        for _ in range(rounds):
            self.random.choice((self.write, self.read, self.copy, self.copy, self.poll, self.mark, self.fence))()

    def mark(self) -> None:
        self.marked = self.mover.mark(), self.work

    def fence(self) -> None:
        some = self.random.sample(sorted(self.under_way), self.random.randint(0, min(3, len(self.under_way))))
        fence = self.mover.fence(some)
        if fence is not None:
            fence.join()
            for copy in map(self.under_way.__getitem__, some):
                self._read(copy.device_block)
                self.device[copy.device_block] = next(self.values)
                self._write(copy.device_block, self.device[copy.device_block])
                self.fenced += 1

    def write(self) -> None:
        free = [b for b in range(len(self.device)) if b not in self.sources | self.targets]
        for block in self.random.sample(free, min(len(free), 3)):
            self.device[block] = next(self.values)
            self._write(block, self.device[block])

    def read(self) -> None:
        there = [b for b in range(len(self.device)) if b not in self.targets]
        for block in self.random.sample(there, min(len(there), 2)):
            self._read(block)

    def copy(self) -> None:
        blocks = [b for b in range(len(self.device)) if b not in self.sources | self.targets]
        slots = [s for s in range(len(self.host)) if s not in self.slots]
        count = min(len(blocks), len(slots), self.random.choice((1, 2, 9)))
        direction = self.random.choice(list(Direction))
        chosen = self.random.sample(blocks, count)
        start = self.random.randint(0, len(slots) - count)
        # Neighbouring slots most of the time, as the engine hands them out.
        where = slots[start : start + count] if self.random.random() < 0.7 else self.random.sample(slots, count)
        if self.random.random() < 0.3:
            chosen.sort()
        for block, slot in zip(chosen, where, strict=True):
            if direction is Direction.OUT:
                self.host[slot] = self.device[block]
                self.sources.add(block)
            else:
                self.device[block] = self.host[slot]
                self.targets.add(block)
            self.slots.add(slot)
        mark, at = self.marked
        after = mark if all(self.touched[block] <= at for block in chosen) else None
        copies = [Copy(next(self.ids), direction, b, s) for b, s in zip(chosen, where, strict=True)]
        self.under_way |= {copy.id: copy for copy in copies}
        self.mover.submit(copies, after)

    def poll(self) -> None:
        for done in self.mover.poll():
            self._end(done)

    def check(self) -> None:
        while self.mover.in_flight():
            self.mover.wait(WAIT_S)
            self.poll()
        self.compute.synchronize()
        for read, expected in self.reads:
            assert read() == {expected}
        last = [self.compute.read(block) for block in range(len(self.device))]
        self.compute.synchronize()
        assert [read() for read in last] == [{value} for value in self.device]
        assert [host_values(self.storage, slot) for slot in range(len(self.host))] == [{value} for value in self.host]

    def _read(self, block: int) -> None:
        self._touch(block)
        self.reads.append((self.compute.read(block), self.device[block]))

    def _write(self, block: int, value: int) -> None:
        self._touch(block)
        self.compute.write(block, value)

    def _touch(self, block: int) -> None:
        self.work += 1
        self.touched[block] = self.work

    def _end(self, done: CopyDone) -> None:
        assert done.error is None
        assert done.started_ns <= done.ended_ns
        self.done += 1
        del self.under_way[done.copy.id]
        block, slot = done.copy.device_block, done.copy.host_slot
        self.slots.remove(slot)
        if done.copy.direction is Direction.OUT:
            self.sources.remove(block)
            self.device[block] = next(self.values)
            self._write(block, self.device[block])
        else:
            self.targets.remove(block)
            self.host[slot] = next(self.values)
            fill_host(self.storage, slot, self.host[slot])
