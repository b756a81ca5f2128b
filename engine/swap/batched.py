"""Many scattered blocks by one call of the driver, whole or one group of layers after the other."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..geometry import KVGeometry
from ..storage import Storage
from .contract import Copy, Direction
from .driver import Addresses, BatchCopy
from .limits import BATCHED, CALL_COPIES, GROUP_BYTES, PART_COPIES, Bounds
from .streams import Event, Streams
from .transport import DeviceTicket, StreamTransport

Offsets = NDArray[np.int64]


class _Group(NamedTuple):
    """Bytes of a block that cross together: those of the group of layers ``part``, or of all, and of some after it."""

    part: int | None
    offset: int
    size: int


def _groups(geometry: KVGeometry, least: int) -> list[_Group]:
    """The groups of layers, as many together as make ``least`` bytes."""
    count = max(1, min(len(geometry.parts), geometry.block_bytes // least))
    ends = [len(geometry.parts) * index // count for index in range(count + 1)]
    groups = []
    for first, after in pairwise(ends):
        start, stop = geometry.parts[first].start, geometry.parts[after - 1].stop
        groups.append(_Group(first, start * geometry.layer_bytes, (stop - start) * geometry.layer_bytes))
    return groups


class BatchedTransport(StreamTransport):
    """A piece is a call or a few, and crosses the link at its full rate, however small and scattered its blocks are.

    So nothing is gathered, and a piece can as well cross *in parts*: of all its blocks first the bytes of the first group of
    layers, then those of the next, so that a step can compute the first layers while the rest is on its way. Memory
    that could not be pinned is nothing for the driver's call: as long as there is any, copies are queued one by one.

    Args:
        storage: both tiers.
        batch: the driver's call.
        streams: the device's streams.
        bounds: how much goes to the device at once.
        group_bytes: least of a block's bytes that cross by themselves; smaller groups of layers cross together.
    """

    _by_slot = False

    def __init__(
        self,
        storage: Storage,
        batch: BatchCopy,
        streams: Streams | None = None,
        bounds: Mapping[Direction, Bounds] = BATCHED,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        super().__init__(storage, streams, bounds)
        self._batch = batch
        self._groups = _groups(storage.geometry, group_bytes)
        self.parts = len(self._groups)
        self._host_places = _HostPlaces(storage)

    def quick(self) -> bool:
        """It is, where all of the host's memory is pinned."""
        return not self._storage.pageable_bytes

    def _start(
        self, direction: Direction, piece: Sequence[Copy], mark: Event | None, *, in_parts: bool
    ) -> Sequence[DeviceTicket]:
        if self._storage.pageable_bytes:
            with self._streams.kept():  # whoever submits may have come here when all was pinned
                return [self._one_by_one(direction, piece, mark)]
        self._host_places.refresh()
        _, _, blocks, slots = zip(*piece, strict=True)
        near, far = self._starts(blocks, self._storage.device_blocks), self._starts(slots, self._host_places.slots)
        stream = self._stream(direction, mark)
        started = self._begin(stream, mark)
        tickets = []
        for group in self._groups if in_parts else [_Group(None, 0, self.block_bytes)]:
            addresses = self._addresses(direction, near + group.offset, far + group.offset, group.size)
            at_once = PART_COPIES if in_parts else CALL_COPIES
            for at in range(0, len(addresses[0]), at_once):
                self._batch(stream, *(row[at : at + at_once] for row in addresses))
            size = group.size * len(piece)
            tickets.append(DeviceTicket(stream, started, self._end(stream), size, group.part, addresses))
        return tickets

    def _starts(self, numbers: Sequence[int], count: int) -> Offsets:
        """Where blocks or slots begin in their row of bytes.

        Raises:
            IndexError: one of them is not there: its address would be somebody else's memory.
        """
        if min(numbers) < 0 or max(numbers) >= count:
            raise IndexError(f"blocks or slots {min(numbers)} to {max(numbers)}, but there are {count}")
        return np.array(numbers, dtype=np.int64) * self.block_bytes

    def _addresses(
        self, direction: Direction, near: Offsets, far: Offsets, size: int
    ) -> tuple[Addresses, Addresses, Addresses]:
        """Targets, sources and sizes of ``size`` bytes each from places in the pool and in the row of host slots."""
        hosts, sizes, near = self._host_places.addresses(far, size, near)
        devices = (near + self._storage.device_bytes.data_ptr()).view(np.uint64)
        pair = (hosts, devices) if direction is Direction.OUT else (devices, hosts)
        return *pair, sizes


class _HostPlaces:
    """Addresses of bytes in the row of host slots, which lies in chunks that come one after the other."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.slots = 0
        self._first = self._shift = np.zeros(0, dtype=np.int64)
        self._lock = threading.Lock()  # both directions look, each in a thread of its own

    def refresh(self) -> None:
        """Take note of the slots that can be used by now."""
        slots = self._storage.ready_host_blocks
        with self._lock:
            if self.slots < slots:
                first, addresses = np.array(self._storage.host_places(), dtype=np.int64).reshape(-1, 2).T
                self.slots, self._first, self._shift = slots, np.ascontiguousarray(first), addresses - first

    def addresses(self, at: Offsets, size: int, beside: Offsets) -> tuple[Addresses, Addresses, Offsets]:
        """Addresses and sizes of ``size`` bytes from each of ``at`` on, and ``beside`` to go with them.

        What lies in two chunks or more is that many rows, at the end.
        """
        chunk = self._first.searchsorted(at, side="right") - 1
        last = self._first.searchsorted(at + (size - 1), side="right") - 1
        sizes = np.full(len(at), size, dtype=np.uint64)
        addresses = (at + self._shift[chunk]).view(np.uint64)
        split = np.flatnonzero(chunk != last)
        if not len(split):
            return addresses, sizes, beside
        rows = [row for index in split.tolist() for row in self._rows(int(at[index]), size, int(beside[index]))]
        more, lengths, places = np.array(rows, dtype=np.int64).T
        whole = chunk == last
        return (
            np.concatenate([addresses[whole], more.view(np.uint64)]),
            np.concatenate([sizes[whole], lengths.view(np.uint64)]),
            np.concatenate([beside[whole], places]),
        )

    def _rows(self, at: int, size: int, beside: int) -> list[tuple[int, int, int]]:
        """Address, length and place beside of each stretch of ``size`` bytes from ``at`` on that lies in one chunk."""
        inside = self._first[(self._first > at) & (self._first < at + size)].tolist()
        rows = []
        for start, end in pairwise([at, *inside, at + size]):
            chunk = int(self._first.searchsorted(start, side="right")) - 1
            rows.append((start + int(self._shift[chunk]), end - start, beside + start - at))
        return rows
