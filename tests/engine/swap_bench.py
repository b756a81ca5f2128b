"""A stream mover over a small storage of numbered blocks, whose streams are threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from kvtrace.engine.geometry import KVGeometry
from kvtrace.engine.storage import Storage
from kvtrace.engine.swap.choose import Way
from kvtrace.engine.swap.contract import Copy, CopyDone, Direction, Fence
from kvtrace.engine.swap.limits import Bounds
from kvtrace.engine.swap.stream import StreamMover

from .swap_support import WAIT_S, ThreadCompute, ThreadStreams, fill_host, host_values, make_transport

GEOMETRY = KVGeometry(layers=4, kv_heads=1, head_dim=2, element_bytes=4)  # four groups of one layer
BLOCK = GEOMETRY.block_bytes
BLOCKS = 24
OUT, IN = Direction.OUT, Direction.IN
WAYS = (Way.BATCHED, Way.STAGED, Way.SINGLE)


class Bench:
    """A storage of numbered blocks and slots, its mover, and the streams below."""

    def __init__(self, streams: ThreadStreams, mover: StreamMover, storage: Storage) -> None:
        self.streams, self.mover, self.storage = streams, mover, storage
        self.compute = ThreadCompute(storage, streams.compute)
        for index in range(BLOCKS):
            storage.device_run(index).view(torch.int32).fill_(index)
            fill_host(storage, index, 100 + index)

    def device(self, block: int) -> set[int]:
        return set(self.storage.device_run(block).view(torch.int32).tolist())

    def host(self, slot: int) -> set[int]:
        return host_values(self.storage, slot)

    def until_queued(self, blocks: int) -> None:
        """Wait until so many blocks have been given to the device."""
        until = time.monotonic() + WAIT_S
        while sum(map(sum, self.streams.calls)) < blocks * BLOCK:
            assert time.monotonic() < until, "nothing is queued"
            time.sleep(0.001)

    def until_over(self, blocks: int) -> None:
        """Wait until so many copies are over that nobody has asked for yet."""
        until = time.monotonic() + WAIT_S
        while sum(map(self.mover.queued, Direction)) > self.mover.in_flight() - blocks:
            assert time.monotonic() < until, "nothing ends"
            time.sleep(0.001)

    def fence(self, copies: Sequence[int]) -> Fence:
        """The fence of copies that are about to be on the device."""
        until = time.monotonic() + WAIT_S
        while (fence := self.mover.fence(copies)) is None:
            assert time.monotonic() < until, "no fence"
            time.sleep(0.001)
        return fence

    def drain(self) -> list[CopyDone]:
        done: list[CopyDone] = []
        until = time.monotonic() + WAIT_S
        while self.mover.in_flight():
            assert time.monotonic() < until, "copies are stuck"
            self.mover.wait(WAIT_S)
            done += self.mover.poll()
        return done


@contextmanager
def bench(
    streams: ThreadStreams | None = None,
    *,
    way: Way = Way.STAGED,
    piece_blocks: int = 4,
    buffer_blocks: int = 2,
    in_flight_blocks: int = 8,
    last_blocks: int = 0,
    alone_blocks: int = 0,
    parted_blocks: int | None = None,
    in_parts_blocks: int = 0,
    chunk_bytes: int = 640,  # ends inside of layers
    on_done: Callable[[], None] | None = None,
    group_bytes: int = 1,
) -> Iterator[Bench]:
    streams = streams or ThreadStreams()
    storage = Storage(GEOMETRY, BLOCKS, BLOCKS, host_chunk_bytes=chunk_bytes)
    parted_blocks = piece_blocks if parted_blocks is None else parted_blocks
    limits = (piece_blocks, in_flight_blocks, last_blocks, parted_blocks, alone_blocks, in_parts_blocks)
    bounds = Bounds(*(blocks * BLOCK for blocks in limits))
    mover = StreamMover(make_transport(way, storage, streams, bounds, buffer_blocks, group_bytes), on_done)
    try:
        yield Bench(streams, mover, storage)
    finally:
        for stream in (streams.compute, *streams.made):
            stream.gate.set()
        mover.close()


def copies_of(*steps: tuple[Direction, int, int], first: int = 0) -> list[Copy]:
    return [Copy(first + index, *step) for index, step in enumerate(steps)]
