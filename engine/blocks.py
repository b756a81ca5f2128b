"""Device blocks, host slots and the pieces of KV in them: plain bookkeeping of where each block stands. Torch-free.

A device block is in exactly one of four places: referenced by live sequences, in the reclaim queue (it holds a
piece that nobody references), busy (unreferenced, but a copy reads or writes it), or free. A host slot is free,
ready (it holds a piece and can be evicted) or part of a copy.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from .swap.contract import Copy, Direction

Owner = str | tuple[str, int]
"""Who holds a chain of blocks: an agent or, with the request's id, one of its preempted requests."""


@dataclass(slots=True, eq=False)
class Piece:
    """The KV of one block's tokens, and where it is: in a device block, a host slot, or both.

    A full block has a ``key`` and is shared by content. A tail (fewer tokens than a block) has none: it belongs to
    ``agent`` and continues the block with key ``parent``; ``tokens`` are its token ids. For a full block ``agent``
    is who computed it first, for reports only. ``request`` is set for the tail of a preempted request alone.
    """

    agent: str
    key: bytes | None
    parent: bytes = b""
    tokens: tuple[int, ...] = ()
    device: int | None = None
    host: int | None = None
    request: int | None = None

    @property
    def owner(self) -> Owner:
        """Who holds it, if it is a tail."""
        return self.agent if self.request is None else (self.agent, self.request)

    @property
    def alive(self) -> bool:
        """Whether its KV is anywhere."""
        return self.device is not None or self.host is not None


@dataclass(slots=True)
class DeviceBlock:
    """One block of the device pool.

    ``refs`` counts the live sequences whose table names it. ``copy`` is the copy in flight that touches it.
    ``demoted``: goes to the front of the reclaim queue. ``stuck``: its copy out failed, so it is dropped rather than
    copied when somebody needs the space. ``used``: how many steps had been launched when a
    sequence let go of it last, so that none after that one looks there.
    """

    refs: int = 0
    piece: Piece | None = None
    copy: Copy | None = None
    demoted: bool = False
    stuck: bool = False
    used: int = 0

    @property
    def loading(self) -> bool:
        """Whether its content is still on the way in."""
        return self.copy is not None and self.copy.direction is Direction.IN


class DevicePool:
    """All device blocks. ``queue`` is the reclaim queue: its head is handed out first; ``dropped`` counts :meth:`drop`.

    ``emptying``: busy blocks that become free as soon as their copy is done. ``launches`` counts the steps. An agent has
    hundreds of blocks, so what is done to many at once is one call.
    """

    def __init__(self, count: int) -> None:
        self.blocks = [DeviceBlock() for _ in range(count)]
        self.free = list(reversed(range(count)))
        self.queue: OrderedDict[int, None] = OrderedDict()
        self.busy: set[int] = set()
        self.emptying: set[int] = set()
        self.dropped = 0
        self.launches = 0

    @property
    def leaving(self) -> int:
        """How many blocks are :attr:`emptying`."""
        return len(self.emptying)

    @property
    def referenced(self) -> int:
        """Blocks that live sequences hold."""
        return len(self.blocks) - len(self.free) - len(self.queue) - len(self.busy)

    def take(self, numbers: Iterable[int]) -> None:
        """Add a reference to blocks that hold pieces: they are in use again, whatever was planned for them."""
        blocks, queue = self.blocks, self.queue
        for number in numbers:
            block = blocks[number]
            block.refs += 1
            if block.refs == 1:
                block.demoted = False
                if block.copy is None:
                    del queue[number]
                else:
                    self.busy.discard(number)
                    self.emptying.discard(number)

    def take_free(self, count: int) -> list[int]:
        """Reference ``count`` free blocks; there must be as many."""
        numbers = [self.free.pop() for _ in range(count)]
        for number in numbers:
            self.blocks[number].refs = 1
        return numbers

    def drop(self, numbers: Iterable[int], *, unused: bool = False, last: int | None = None) -> None:
        """Remove a reference to each of these; the last one sends a block where it belongs now.

        ``unused``: no step was launched since they were taken. ``last`` is the newest launch that used them, where it is
        not the newest of all.
        """
        blocks, queue = self.blocks, self.queue
        launches = self.launches if last is None else last
        for number in numbers:
            block = blocks[number]
            self.dropped += 1
            block.refs -= 1
            if not unused:
                block.used = max(block.used, launches)
            if block.refs:
                continue
            if block.piece is not None and block.copy is None:
                queue[number] = None
            else:
                self.settle(number)

    def settle(self, number: int) -> None:
        """Put a block that is not free where its state says."""
        block = self.blocks[number]
        self.queue.pop(number, None)
        self.busy.discard(number)
        if block.refs:
            return
        if block.copy is not None:
            self.busy.add(number)
            return
        self.emptying.discard(number)
        if block.piece is None:
            block.demoted = block.stuck = False
            self.free.append(number)
        else:
            self.queue[number] = None
            if block.demoted:
                self.queue.move_to_end(number, last=False)

    def demote(self, numbers: Iterable[int]) -> None:
        """Make unreferenced blocks the next to be reclaimed, the last of them first, at once or when its copy is done."""
        blocks, queue = self.blocks, self.queue
        for number in numbers:
            block = blocks[number]
            block.demoted = not block.refs
            if number in queue:
                queue.move_to_end(number, last=False)

    def promote(self, numbers: Iterable[int]) -> None:
        """Make cached blocks the last to be reclaimed, the last of them last of all, and keep those about to leave."""
        blocks, queue, emptying = self.blocks, self.queue, self.emptying
        for number in numbers:
            blocks[number].demoted = False
            emptying.discard(number)
            if number in queue:
                queue.move_to_end(number)


@dataclass(slots=True)
class HostSlot:
    """One slot of the host tier. ``copy`` is the copy in flight that reads or writes it."""

    piece: Piece | None = None
    copy: Copy | None = None


class HostPool:
    """All host slots. ``settled`` counts how often one became :meth:`ready`.

    Slots are handed out in runs: one after the last where that is free, else the lowest. Blocks copied out together
    then lie together, and cross the link together when they come back.
    """

    def __init__(self, count: int) -> None:
        self.slots: list[HostSlot] = []
        self.free: set[int] = set()
        self._lowest: list[int] = []  # a heap of the free slots, with some that are not free any more
        self._last = -1
        self.settled = 0
        self.open(count)

    def open(self, count: int) -> None:
        """Let there be ``count`` slots, more than before: their memory is there now."""
        new = range(len(self.slots), count)
        self.slots += [HostSlot() for _ in new]
        self.free.update(new)
        self._lowest += new
        heapq.heapify(self._lowest)

    def take(self) -> int:
        """Hand out a free slot; there must be one."""
        number = self._last + 1
        if number not in self.free:
            number = heapq.heappop(self._lowest)
            while number not in self.free:
                number = heapq.heappop(self._lowest)
        self.free.remove(number)
        self._last = number
        return number

    def settle(self, number: int) -> None:
        """Put a slot that is not free where its state says."""
        slot = self.slots[number]
        if slot.copy is not None:
            return
        if slot.piece is None:
            self.free.add(number)
            heapq.heappush(self._lowest, number)
        else:
            self.settled += 1

    def ready(self, number: int) -> bool:
        """Whether a slot holds a piece and no copy touches it, so that it can be emptied."""
        slot = self.slots[number]
        return slot.piece is not None and slot.copy is None
