"""Small blocks by way of a staging buffer: for devices that have no call for many copies at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..storage import Storage
from . import limits
from .contract import Copy, Direction
from .limits import BUFFERS, FLAT_BYTES, STAGED, Bounds
from .runs import flat_runs, slot_runs
from .streams import Event, Stream, Streams
from .transport import DeviceTicket, StreamTransport, Way, split_like


@dataclass(slots=True)
class _Buffer:
    """Device memory that blocks pass through: ``full`` is when they are all in it, ``free`` when its last user is done."""

    words: torch.Tensor
    blocks: list[torch.Tensor]
    full: Event
    free: Event


class _Buffers:
    """One direction's buffers, which take turns."""

    def __init__(self, buffers: list[_Buffer]) -> None:
        self._buffers = buffers
        self._turn = 0

    def next(self) -> _Buffer:
        self._turn += 1
        return self._buffers[self._turn % len(self._buffers)]


class StagedTransport(StreamTransport):
    """Gathers blocks on the device.

    A piece whose host slots follow each other while its device blocks do not is *staged*: one kernel gathers the blocks
    into a buffer on the device, from where they cross the link as one copy (and the other way round). Alone, 360 KiB
    reach three quarters of the link's rate, and even 2.4 MB lose 5 % to the gaps between copies. What is contiguous on
    both sides anyway, or scattered on both, is copied directly.

    Two buffers each way take turns, so that the link never waits for a kernel. A copy out is gathered after the mark of
    the compute that wrote it; a staged copy in crosses the link at once, and only its scattering waits for the mark. Those
    kernels run on the stream ``behind`` the link's, and go before those of compute: they are short, and the link waits for them.

    Args:
        storage: both tiers.
        streams: the device's streams.
        bounds: how much goes to the device at once.
        buffer_blocks: size of each of the four buffers; by default after that of the pool.
    """

    def __init__(
        self,
        storage: Storage,
        streams: Streams | None = None,
        bounds: Mapping[Direction, Bounds] = STAGED,
        *,
        buffer_blocks: int | None = None,
    ) -> None:
        super().__init__(storage, streams, bounds)
        pool_bytes = storage.device_bytes.numel()
        self._buffer_blocks = buffer_blocks or limits.buffer_blocks(self.block_bytes, pool_bytes)
        self._buffers = {direction: self._make_buffers() for direction in Direction}

    def close(self) -> None:
        """Free the buffers as well."""
        self._buffers.clear()
        super().close()

    def _make_way(self) -> Way:
        return Way(self._streams.stream(), self._streams.stream(first=True))

    def _make_buffers(self) -> _Buffers:
        buffers = []
        for _ in range(BUFFERS):
            blocks = torch.empty((self._buffer_blocks, self._block_words), dtype=torch.int64, device=self._pool.device)
            buffers.append(_Buffer(blocks.view(-1), list(blocks), self._streams.event(), self._streams.event()))
        return _Buffers(buffers)

    def _stream(self, direction: Direction, mark: Event | None) -> Stream:
        """Always the link's: the other one is for the kernels."""
        link = self._ways[direction].link
        _wait_for(link, mark)
        return link

    def _start(
        self, direction: Direction, piece: Sequence[Copy], mark: Event | None, *, in_parts: bool
    ) -> Sequence[DeviceTicket]:
        if not self._worth_staging(piece):
            return [self._one_by_one(direction, piece, mark)]
        return [self._stage_out(piece, mark) if direction is Direction.OUT else self._stage_in(piece, mark)]

    def _worth_staging(self, piece: Sequence[Copy]) -> bool:
        """Whether the piece has fewer runs of slots than contiguous stretches, and those are short."""
        if self._buffer_blocks == 1 or len(piece) == 1:
            return False
        if piece[-1].host_slot - piece[0].host_slot == len(piece) - 1:  # one run: told without a look at each copy
            start = piece[0].device_block
            return [copy.device_block for copy in piece] != list(range(start, start + len(piece)))
        flat = len(flat_runs(piece))
        return len(slot_runs(piece)) < flat and len(piece) * self.block_bytes < FLAT_BYTES * flat

    def _stage_out(self, piece: Sequence[Copy], mark: Event | None) -> DeviceTicket:
        way = self._ways[Direction.OUT]
        ticket = self._ticket(way.link, piece)
        _wait_for(way.behind, mark)
        for at in range(0, len(piece), self._buffer_blocks):
            some, buffer = piece[at : at + self._buffer_blocks], self._buffers[Direction.OUT].next()
            way.behind.wait_event(buffer.free)
            self._streams.copy(
                way.behind, buffer.blocks[: len(some)], [self._blocks[copy.device_block] for copy in some]
            )
            way.behind.record_event(buffer.full)
            way.link.wait_event(buffer.full)
            if not at:
                way.link.record_event(ticket.started)
            self._cross(way.link, Direction.OUT, *self._buffer_and_host(buffer, some))
            self._emptied(way.link, buffer, ticket, last=at + len(some) == len(piece))
        return ticket

    def _stage_in(self, piece: Sequence[Copy], mark: Event | None) -> DeviceTicket:
        way = self._ways[Direction.IN]
        ticket = self._ticket(way.behind, piece)
        for at in range(0, len(piece), self._buffer_blocks):
            some, buffer = piece[at : at + self._buffer_blocks], self._buffers[Direction.IN].next()
            way.link.wait_event(buffer.free)
            if not at:
                way.link.record_event(ticket.started)
            self._cross(way.link, Direction.IN, *self._buffer_and_host(buffer, some))
            way.link.record_event(buffer.full)
            way.behind.wait_event(buffer.full)
            if not at:
                _wait_for(way.behind, mark)
            self._streams.copy(
                way.behind, [self._blocks[copy.device_block] for copy in some], buffer.blocks[: len(some)]
            )
            self._emptied(way.behind, buffer, ticket, last=at + len(some) == len(piece))
        return ticket

    def _ticket(self, stream: Stream, piece: Sequence[Copy]) -> DeviceTicket:
        started, ended = self._streams.event(timed=True), self._streams.event(timed=True)
        return DeviceTicket(stream, started, ended, len(piece) * self.block_bytes)

    def _emptied(self, stream: Stream, buffer: _Buffer, ticket: DeviceTicket, *, last: bool) -> None:
        """Note where a part of the piece has left its buffer; for the last one that is the end of the piece as well."""
        buffer.free = ticket.ended if last else self._streams.event()
        stream.record_event(buffer.free)

    def _buffer_and_host(self, buffer: _Buffer, some: Sequence[Copy]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Stretches of the buffer and the host memory they belong to, one pair for each run of slots."""
        near: list[torch.Tensor] = []
        far: list[torch.Tensor] = []
        at = 0
        for slot, count in slot_runs(some):
            host = self._host(slot, count)
            size = count * self._block_words
            near += split_like(buffer.words[at : at + size], host)
            far += host
            at += size
        return near, far


def _wait_for(stream: Stream, mark: Event | None) -> None:
    if mark is not None:
        stream.wait_event(mark)
