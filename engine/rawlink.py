"""Plain copies between host and device, as fast as the machine makes them: what every other copy is held against."""

from __future__ import annotations

import random
import threading
import time
from typing import cast

import numpy as np
import torch

from .swap.contract import Direction
from .swap.driver import BatchCopy
from .swap.streams import Stream


class RawLink:
    """A row of bytes on the device and one on the host, pinned where ``device`` is a GPU, and plain copies of them."""

    def __init__(self, device: torch.device, size: int) -> None:
        self.device = device
        self.size = size
        self.pinned = device.type != "cpu"
        # Both hold something: memory never written to may not exist yet.
        self.near = {way: torch.ones(size, dtype=torch.uint8, device=device) for way in Direction}
        self.far = {way: _host_row(size, self.pinned) for way in Direction}
        self._streams = {way: torch.cuda.Stream(device) for way in Direction} if self.pinned else {}  # type: ignore[no-untyped-call]

    def copy(self, direction: Direction) -> float:
        """Seconds of one copy of all bytes."""
        synchronize(self.device)
        started = time.perf_counter()
        self._start(direction, 0, 0, self.size)
        synchronize(self.device)
        return time.perf_counter() - started

    def copy_both(self) -> float:
        """Seconds until both directions are done that start together."""
        synchronize(self.device)
        started = time.perf_counter()
        if self.pinned:
            for way in Direction:
                self._start(way, 0, 0, self.size)
        else:
            threads = [threading.Thread(target=self._start, args=(way, 0, 0, self.size)) for way in Direction]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        synchronize(self.device)
        return time.perf_counter() - started

    def copy_blocks(self, direction: Direction, block: int, count: int, source: random.Random) -> float:
        """Seconds of copying ``count`` blocks of ``block`` bytes, each to and from a random place."""
        near, far = (
            [row[at * block : (at + 1) * block] for at in source.sample(range(self.size // block), count)]
            for row in (self.near[direction], self.far[direction])
        )
        synchronize(self.device)
        started = time.perf_counter()
        # One call for all, so that what is measured is the copies and not this loop.
        if direction is Direction.OUT:
            torch._foreach_copy_(far, near, non_blocking=self.pinned)
        else:
            torch._foreach_copy_(near, far, non_blocking=self.pinned)
        synchronize(self.device)
        return time.perf_counter() - started

    def batch_blocks(
        self, direction: Direction, block: int, count: int, source: random.Random, batch: BatchCopy
    ) -> float:
        """The same by one call of the driver."""
        near, far = (
            np.array(source.sample(range(self.size // block), count), dtype=np.uint64) * np.uint64(block)
            + np.uint64(row.data_ptr())
            for row in (self.near[direction], self.far[direction])
        )
        sizes = np.full(count, block, dtype=np.uint64)
        targets, sources = (far, near) if direction is Direction.OUT else (near, far)
        synchronize(self.device)
        started = time.perf_counter()
        batch(cast(Stream, self._streams[direction]), targets, sources, sizes)
        synchronize(self.device)
        return time.perf_counter() - started

    def _start(self, direction: Direction, near: int, far: int, size: int) -> None:
        on_device = self.near[direction][near : near + size]
        on_host = self.far[direction][far : far + size]
        target, origin = (on_host, on_device) if direction is Direction.OUT else (on_device, on_host)
        if not self.pinned:
            target.copy_(origin)
            return
        with torch.cuda.stream(self._streams[direction]):
            target.copy_(origin, non_blocking=True)


def synchronize(device: torch.device) -> None:
    """Wait until ``device`` has done all it was given; the CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _host_row(size: int, pinned: bool) -> torch.Tensor:
    row = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    return row.fill_(1)
