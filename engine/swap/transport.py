"""Queues copies between a device pool and pinned host memory on side streams; small blocks by way of a staging buffer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import torch

from ..storage import Storage
from . import limits
from .carrier import Ticket
from .contract import Copy, Direction
from .limits import BUFFERS, FLAT_BYTES, PIECE_BYTES
from .runs import cut, flat_runs, slot_runs
from .streams import Event, Stream, Streams, TorchStreams


@dataclass(frozen=True, slots=True)
class DeviceTicket:
    """A piece on the device, between two events."""

    started: Event
    ended: Event

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
    """Copies that compute waits for."""

    streams: Streams
    ends: list[Event]

    def join(self) -> None:
        """Let the calling thread's compute stream wait for the ends of the copies."""
        compute = self.streams.current()
        for end in self.ends:
            compute.wait_event(end)


@dataclass(slots=True)
class _Buffer:
    """Device memory that blocks pass through: ``full`` is when they are all in it, ``free`` when its last user is done."""

    words: torch.Tensor
    blocks: list[torch.Tensor]
    full: Event
    free: Event


@dataclass(slots=True)
class _Way:
    """One direction's streams: ``link`` for copies over the link, ``spread`` for the kernels that gather or scatter.

    Those kernels go before those of compute: they are short, and the link waits for them.
    """

    link: Stream
    spread: Stream
    buffers: list[_Buffer]
    turn: int = 0

    def next_buffer(self) -> _Buffer:
        self.turn += 1
        return self.buffers[self.turn % len(self.buffers)]


class StreamTransport:
    """Copies of :class:`~kvtrace.engine.storage.Storage` on a GPU's own copy engines.

    A piece whose host slots follow each other while its device blocks do not is *staged*: one kernel gathers the blocks
    into a buffer on the device, from where they cross the link as one copy (and the other way round). Alone, 360 KiB
    reach three quarters of the link's rate, and even 2.4 MB lose 5 % to the gaps between copies. What is contiguous on
    both sides anyway, or scattered on both, is copied directly. All copies are flat and one-dimensional.

    Two buffers each way take turns, so that the link never waits for a kernel. A copy out is gathered after the mark of
    the compute that wrote it; a staged copy in crosses the link at once, and only its scattering waits for the mark.

    Args:
        storage: both tiers.
        streams: the device's streams.
        piece_bytes: what one call queues at most.
        buffer_blocks: size of each of the four buffers; by default after that of the pool.
        staged: ``False`` copies everything directly, to measure what staging brings.
    """

    def __init__(
        self,
        storage: Storage,
        streams: Streams | None = None,
        *,
        piece_bytes: int = PIECE_BYTES,
        buffer_blocks: int | None = None,
        staged: bool = True,
    ) -> None:
        self._storage = storage
        self._streams = streams or TorchStreams(storage.pool.device)
        self.block_bytes = storage.geometry.block_bytes
        self._piece_blocks = max(1, piece_bytes // self.block_bytes)
        pool_bytes = storage.device_bytes.numel()
        self._buffer_blocks = buffer_blocks or limits.buffer_blocks(self.block_bytes, pool_bytes)
        # Eight bytes at a time: a kernel that copies single bytes does not reach the memory's rate.
        self._pool = storage.device_bytes.view(torch.int64)
        self._block_words = self.block_bytes // self._pool.element_size()
        # Views by block and by slot, since making one takes longer than a small block takes over the link.
        self._blocks = list(self._pool.view(storage.device_blocks, -1))
        self._slots: dict[int, list[torch.Tensor]] = {}
        self._staged = staged and self._buffer_blocks > 1
        self._ways = {
            direction: _Way(self._streams.stream(), self._streams.stream(first=True), self._make_buffers())
            for direction in Direction
        }

    def mark(self) -> Event:
        """This point of the calling thread's compute stream."""
        event = self._streams.event()
        self._streams.current().record_event(event)
        return event

    def reached(self, mark: object) -> bool:
        """Whether compute has come past ``mark``."""
        event: Event = mark  # type: ignore[assignment]  # what mark() gave
        return event.query()

    def plan(self, direction: Direction, copies: Sequence[Copy], *, busy: bool) -> list[list[Copy]]:
        """Cut copies of distinct blocks and slots into pieces, in the order of their host slots."""
        return cut(copies, self._piece_blocks, busy=busy)

    def start(self, direction: Direction, piece: Sequence[Copy], after: object | None) -> DeviceTicket:
        """Queue one piece, in the order of its slots as :meth:`plan` cuts them; returns without waiting for it."""
        mark: Event | None = after  # type: ignore[assignment]  # what mark() gave
        ticket = DeviceTicket(self._streams.event(timed=True), self._streams.event(timed=True))
        way = self._ways[direction]
        try:
            if not self._worth_staging(piece):
                self._direct(way.link, direction, piece, mark, ticket)
            elif direction is Direction.OUT:
                self._stage_out(way, piece, mark, ticket)
            else:
                self._stage_in(way, piece, mark, ticket)
        except Exception:
            self._drain(way)
            raise
        return ticket

    def fence(self, tickets: Sequence[Ticket]) -> DeviceFence:
        """The ends of ``tickets``, which :meth:`start` gave."""
        return DeviceFence(self._streams, [cast(DeviceTicket, ticket).ended for ticket in tickets])

    def close(self) -> None:
        """Free the buffers and end the storage's pinning; nothing is in flight any more."""
        self._ways.clear()
        self._blocks.clear()
        self._slots.clear()
        self._streams.close()
        self._storage.close()

    def _make_buffers(self) -> list[_Buffer]:
        buffers = []
        for _ in range(BUFFERS if self._staged else 0):
            blocks = torch.empty((self._buffer_blocks, self._block_words), dtype=torch.int64, device=self._pool.device)
            buffers.append(_Buffer(blocks.view(-1), list(blocks), self._streams.event(), self._streams.event()))
        return buffers

    def _worth_staging(self, piece: Sequence[Copy]) -> bool:
        """Whether the piece has fewer runs of slots than contiguous stretches, and those are short."""
        if not self._staged or len(piece) == 1:
            return False
        if piece[-1].host_slot - piece[0].host_slot == len(piece) - 1:  # one run: told without a look at each copy
            start = piece[0].device_block
            return [copy.device_block for copy in piece] != list(range(start, start + len(piece)))
        flat = len(flat_runs(piece))
        return len(slot_runs(piece)) < flat and len(piece) * self.block_bytes < FLAT_BYTES * flat

    def _direct(
        self, link: Stream, direction: Direction, piece: Sequence[Copy], mark: Event | None, ticket: DeviceTicket
    ) -> None:
        near: list[torch.Tensor] = []
        far: list[torch.Tensor] = []
        for first, count in flat_runs(piece):
            host = self._host(first.host_slot, count)
            at = first.device_block * self._block_words
            row = self._blocks[first.device_block] if count == 1 else self._pool[at : at + count * self._block_words]
            near += _split_like(row, host)
            far += host
        _wait_for(link, mark)
        link.record_event(ticket.started)
        self._cross(link, direction, near, far)
        link.record_event(ticket.ended)

    def _stage_out(self, way: _Way, piece: Sequence[Copy], mark: Event | None, ticket: DeviceTicket) -> None:
        _wait_for(way.spread, mark)
        for at in range(0, len(piece), self._buffer_blocks):
            part, buffer = piece[at : at + self._buffer_blocks], way.next_buffer()
            way.spread.wait_event(buffer.free)
            self._streams.copy(
                way.spread, buffer.blocks[: len(part)], [self._blocks[copy.device_block] for copy in part]
            )
            way.spread.record_event(buffer.full)
            way.link.wait_event(buffer.full)
            if not at:
                way.link.record_event(ticket.started)
            self._cross(way.link, Direction.OUT, *self._buffer_and_host(buffer, part))
            self._emptied(way.link, buffer, ticket, last=at + len(part) == len(piece))

    def _stage_in(self, way: _Way, piece: Sequence[Copy], mark: Event | None, ticket: DeviceTicket) -> None:
        for at in range(0, len(piece), self._buffer_blocks):
            part, buffer = piece[at : at + self._buffer_blocks], way.next_buffer()
            way.link.wait_event(buffer.free)
            if not at:
                way.link.record_event(ticket.started)
            self._cross(way.link, Direction.IN, *self._buffer_and_host(buffer, part))
            way.link.record_event(buffer.full)
            way.spread.wait_event(buffer.full)
            if not at:
                _wait_for(way.spread, mark)
            self._streams.copy(
                way.spread, [self._blocks[copy.device_block] for copy in part], buffer.blocks[: len(part)]
            )
            self._emptied(way.spread, buffer, ticket, last=at + len(part) == len(piece))

    def _drain(self, way: _Way) -> None:
        """Wait for what was queued of a piece that failed half way: it must not come after its blocks are told to be free."""
        for stream in (way.link, way.spread):
            with suppress(Exception):  # a device that has failed does nothing any more
                end = self._streams.event()
                stream.record_event(end)
                end.synchronize()

    def _emptied(self, stream: Stream, buffer: _Buffer, ticket: DeviceTicket, *, last: bool) -> None:
        """Note where a part of the piece has left its buffer; for the last one that is the end of the piece as well."""
        buffer.free = ticket.ended if last else self._streams.event()
        stream.record_event(buffer.free)

    def _buffer_and_host(self, buffer: _Buffer, part: Sequence[Copy]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Stretches of the buffer and the host memory they belong to, one pair for each run of slots."""
        near: list[torch.Tensor] = []
        far: list[torch.Tensor] = []
        at = 0
        for slot, count in slot_runs(part):
            host = self._host(slot, count)
            size = count * self._block_words
            near += _split_like(buffer.words[at : at + size], host)
            far += host
            at += size
        return near, far

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


def _wait_for(stream: Stream, mark: Event | None) -> None:
    if mark is not None:
        stream.wait_event(mark)


def _split_like(row: torch.Tensor, host: list[torch.Tensor]) -> list[torch.Tensor]:
    """``row`` in pieces as long as those of ``host``."""
    if len(host) == 1:
        return [row]
    pieces, at = [], 0
    for part in host:
        pieces.append(row[at : at + part.numel()])
        at += part.numel()
    return pieces
