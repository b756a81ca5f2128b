"""Queues copies between a device pool and host memory on side streams, one after the other; what every transport shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import torch

from ..storage import Storage
from .carrier import Ticket
from .contract import Copy, Direction
from .limits import STAGED, Bounds
from .runs import cut, flat_runs
from .streams import Event, Stream, Streams, TorchStreams


@dataclass(frozen=True, slots=True)
class DeviceTicket:
    """Copies on the device, between two events, the second one of ``stream``.

    ``part``: the first group of layers that they bring, where it is not all of them. ``kept`` lives as long as the copies may need it.
    """

    stream: Stream
    started: Event
    ended: Event
    size: int
    part: int | None = None
    kept: object = None

    def done(self) -> bool:
        """Whether the device has come past the end."""
        return self.ended.query()

    def wait(self) -> None:
        """Wait for the end."""
        self.ended.synchronize()

    def seconds(self) -> float:
        """From the first byte's way to the last one's arrival."""
        return self.started.elapsed_time(self.ended) / 1e3


@dataclass(frozen=True, slots=True)
class DeviceFence:
    """Copies that compute waits for; ``tickets`` of one stream are in the order of that stream."""

    streams: Streams
    tickets: Sequence[DeviceTicket]

    def join(self, part: int | None = None) -> None:
        """Let the calling thread's compute stream wait for the ends of the copies, as far as they bring ``part``."""
        last: dict[Stream, Event] = {}  # of a stream, whoever has waited for the last has waited for all
        for ticket in self.tickets:
            if part is None or ticket.part is None or ticket.part <= part:
                last[ticket.stream] = ticket.ended
        compute = self.streams.current()
        for end in last.values():
            compute.wait_event(end)


@dataclass(frozen=True, slots=True)
class Way:
    """One direction's streams: ``link`` for copies that may go at once, ``behind`` for those that wait for compute.

    What waits would keep everything on its stream waiting that was queued later.
    """

    link: Stream
    behind: Stream


class StreamTransport:
    """Copies of :class:`~kvtrace.engine.storage.Storage` on a GPU's own copy engines, each queued by itself.

    Blocks that follow each other on both sides are one copy. All copies are flat and one-dimensional.

    Args:
        storage: both tiers.
        streams: the device's streams.
        bounds: how much goes to the device at once.
    """

    parts = 1
    _by_slot = True

    def __init__(
        self, storage: Storage, streams: Streams | None = None, bounds: Mapping[Direction, Bounds] = STAGED
    ) -> None:
        self._storage = storage
        self._streams = streams or TorchStreams(storage.pool.device)
        self.bounds = bounds
        self.block_bytes = storage.geometry.block_bytes
        # Eight bytes at a time: a kernel that copies single bytes does not reach the memory's rate.
        self._pool = storage.device_bytes.view(torch.int64)
        self._block_words = self.block_bytes // self._pool.element_size()
        # Views by block and by slot, since making one takes longer than a small block takes over the link.
        self._blocks = list(self._pool.view(storage.device_blocks, -1))
        self._slots: dict[int, list[torch.Tensor]] = {}
        self._ways = {direction: self._make_way() for direction in Direction}
        self._last: dict[Stream, Event] = {}

    def mark(self) -> Event:
        """This point of the calling thread's compute stream."""
        event = self._streams.event()
        self._streams.current().record_event(event)
        return event

    def reached(self, mark: object) -> bool:
        """Whether compute has come past ``mark``."""
        event: Event = mark  # type: ignore[assignment]  # what mark() gave
        return event.query()

    def quick(self) -> bool:
        """It is not: each copy is a call of its own, and memory that is not pinned, or a full buffer, would be waited for."""
        return False

    def plan(self, direction: Direction, copies: Sequence[Copy], *, busy: bool) -> list[Sequence[Copy]]:
        """Cut copies of distinct blocks and slots into pieces, in the order of their host slots where that helps."""
        most = max(1, self.bounds[direction].piece // self.block_bytes)
        return cut(copies, most, busy=busy, by_slot=self._by_slot)

    def start(
        self, direction: Direction, piece: Sequence[Copy], after: object | None, *, in_parts: bool = False
    ) -> Sequence[DeviceTicket]:
        """Queue one piece, in the order of its slots as :meth:`plan` cuts them; returns without waiting for it."""
        mark: Event | None = after  # type: ignore[assignment]  # what mark() gave
        try:
            return self._start(direction, piece, mark, in_parts=in_parts)
        except Exception:
            self._drain(direction)
            raise

    def fence(self, tickets: Sequence[Ticket]) -> DeviceFence:
        """The ends of ``tickets``, which :meth:`start` gave."""
        return DeviceFence(self._streams, [cast(DeviceTicket, ticket) for ticket in tickets])

    def close(self) -> None:
        """Forget the streams and end the storage's pinning; nothing is in flight any more."""
        self._ways.clear()
        self._last.clear()
        self._blocks.clear()
        self._slots.clear()
        self._streams.close()
        self._storage.close()

    def _make_way(self) -> Way:
        return Way(self._streams.stream(), self._streams.stream())

    def _stream(self, direction: Direction, mark: Event | None) -> Stream:
        """The stream for copies that come after ``mark``; what is queued there from now on does."""
        way = self._ways[direction]
        if mark is None:
            return way.link
        way.behind.wait_event(mark)
        return way.behind

    def _start(
        self, direction: Direction, piece: Sequence[Copy], mark: Event | None, *, in_parts: bool
    ) -> Sequence[DeviceTicket]:
        return [self._one_by_one(direction, piece, mark)]

    def _one_by_one(self, direction: Direction, piece: Sequence[Copy], mark: Event | None) -> DeviceTicket:
        near: list[torch.Tensor] = []
        far: list[torch.Tensor] = []
        for first, count in flat_runs(piece):
            host = self._host(first.host_slot, count)
            at = first.device_block * self._block_words
            row = self._blocks[first.device_block] if count == 1 else self._pool[at : at + count * self._block_words]
            near += split_like(row, host)
            far += host
        stream = self._stream(direction, mark)
        started = self._begin(stream, mark)
        self._cross(stream, direction, near, far)
        return DeviceTicket(stream, started, self._end(stream), len(piece) * self.block_bytes)

    def _begin(self, stream: Stream, mark: Event | None) -> Event:
        """Where the time of what is queued next begins: at the end of what the link is busy with, or here.

        One event between two pieces, for each is a gap on the link.
        """
        last = self._last.get(stream) if mark is None else None
        if last is not None and not last.query():
            return last
        started = self._streams.event(timed=True)
        stream.record_event(started)
        return started

    def _end(self, stream: Stream) -> Event:
        """The end of what has been queued."""
        ended = self._last[stream] = self._streams.event(timed=True)
        stream.record_event(ended)
        return ended

    def _drain(self, direction: Direction) -> None:
        """Wait for what was queued of a piece that failed half way: it must not come after its blocks are told to be free."""
        way = self._ways[direction]
        for stream in (way.link, way.behind):
            with suppress(Exception):  # a device that has failed does nothing any more
                end = self._streams.event()
                stream.record_event(end)
                end.synchronize()

    def _cross(self, link: Stream, direction: Direction, near: list[torch.Tensor], far: list[torch.Tensor]) -> None:
        if direction is Direction.OUT:
            self._streams.copy(link, far, near)
        else:
            self._streams.copy(link, near, far)

    def _host(self, slot: int, count: int) -> list[torch.Tensor]:
        """The memory of host slots in words; two pieces or more where chunks end."""
        if count > 1:
            return [part.view(torch.int64) for part in self._storage.host_runs(slot, count)]
        host = self._slots.get(slot)
        if host is None:
            host = self._slots[slot] = [part.view(torch.int64) for part in self._storage.host_runs(slot)]
        return host


def split_like(row: torch.Tensor, host: list[torch.Tensor]) -> list[torch.Tensor]:
    """``row`` in pieces as long as those of ``host``."""
    if len(host) == 1:
        return [row]
    pieces, at = [], 0
    for part in host:
        pieces.append(row[at : at + part.numel()])
        at += part.numel()
    return pieces
