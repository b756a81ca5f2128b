"""Where each piece of KV is: the index, both pools and the copies in flight. Torch-free; decides no policy.

Rules kept here, whoever calls:

* a block or slot that a copy touches is neither freed nor handed out before :meth:`Placement.complete` saw it end;
* a piece leaves the device for good only when the host has it; without a host slot it is *dropped*, and counted;
* copies are only noted in ``outbox``; the loop hands them to the mover, in long lists from ``flush`` on as well.

A piece that a working agent has on the host alone is not evicted there, unless :mod:`.eviction` is told of one that is
needed later than the block that wants to leave; else that block is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from typing import Final

from .blocks import DevicePool, HostPool, Piece
from .eviction import HostEviction
from .outbox import Outbox
from .records import EventKind
from .swap.contract import Copy, CopyDone, Direction

FLUSH_COPIES: Final = 64
"""A restore hands over its copies so many at a time: the link is busy while the rest is still being decided on."""

_NONE: Final[frozenset[int]] = frozenset()


class Placement:
    """Both tiers' contents.

    ``kept`` says whether a working agent holds a piece (see :class:`.claims.Claims`) and ``version`` changes when that may;
    ``moved`` hears of every piece that comes to a tier or leaves one.

    ``outbox`` collects copies to submit, ``losses`` counts blocks by (``RECLAIM`` or ``DROP``, agent) until the loop
    takes them, ``dropped`` counts all dropped blocks. ``host_grows``: more host slots are still to come.
    """

    def __init__(
        self,
        device_blocks: int,
        host_slots: int,
        kept: Callable[[Piece], bool],
        moved: Callable[[Piece], None] = lambda piece: None,
        version: Callable[[], int] = lambda: 0,
    ) -> None:
        self.device = DevicePool(device_blocks)
        self.host = HostPool(host_slots)
        self.index: dict[bytes, Piece] = {}
        self.copies: dict[int, Copy] = {}
        self.outbox = Outbox()
        self.flush: Callable[[], None] = lambda: None
        self.losses: Counter[tuple[EventKind, str]] = Counter()
        self.dropped = 0
        self.host_grows = False
        self.kept = kept
        self.eviction = HostEviction(self.device, self.host, kept, version)
        self._moved = moved
        self._next_copy = 0

    @property
    def available(self) -> int:
        """Blocks that can be handed out now or when the copies that empty them are done."""
        return len(self.device.free) + len(self.device.queue) + self.device.leaving

    def mirrored(self, piece: Piece) -> bool:
        """Whether the host has ``piece`` whole."""
        if piece.host is None:
            return False
        copy = self.host.slots[piece.host].copy
        return copy is None or copy.direction is Direction.IN

    def allocate(self, count: int, spare: Set[int] = _NONE, *, patient: bool = False) -> list[int] | None:
        """``count`` blocks with one reference each, or ``None`` while they are not there.

        Empties blocks from the head of the reclaim queue as needed; a block without a host copy is copied out
        first, so that the call may have to be repeated when that is done. Host slots in ``spare`` are not evicted. Who is
        ``patient`` waits for the slots of a host that grows, where blocks would have to be dropped otherwise.
        """
        if count > self.available:
            return None
        self._reclaim(count - len(self.device.free) - self.device.leaving, spare, patient)
        if len(self.device.free) < count:
            for number in self.device.busy:
                block = self.device.blocks[number]
                if block.leaving and block.copy is not None:
                    self.outbox.hurry(block.copy.id)
            return None
        return [self.device.take_free() for _ in range(count)]

    def attach(self, piece: Piece, block: int) -> None:
        """Say that ``block`` holds ``piece``."""
        piece.device = block
        self.device.blocks[block].piece = piece
        self._note(piece)

    def start_out(self, piece: Piece, *, must: bool, spare: Set[int] = _NONE, urgent: bool = False) -> Copy | None:
        """Copy ``piece`` to the host; ``None`` where that is impossible now or not needed. ``must``: evict harder."""
        if piece.device is None or piece.host is not None:
            return None
        block = self.device.blocks[piece.device]
        if block.copy is not None or block.stuck:
            return None
        slot = self._host_slot(piece, must, spare)
        if slot is None:
            return None
        piece.host = slot
        self.host.slots[slot].piece = piece
        self._note(piece)
        return self._start(Direction.OUT, piece.device, slot, urgent)

    def start_in(self, piece: Piece, block: int, *, urgent: bool) -> Copy:
        """Copy ``piece``, which only the host has, into the empty ``block``; ``urgent``: a request waits for it."""
        assert piece.device is None
        assert piece.host is not None
        self.attach(piece, block)
        copy = self._start(Direction.IN, block, piece.host, urgent)
        if len(self.outbox) % FLUSH_COPIES == 0:
            self.flush()
        return copy

    def leave_device(self, piece: Piece) -> None:
        """Take ``piece`` off the device."""
        block = self._detach_device(piece)
        self.device.settle(block)
        self._count_loss(piece)

    def leave_host(self, piece: Piece) -> None:
        """Take ``piece`` off the host; a copy that is writing or reading the slot ends first."""
        slot = self._detach_host(piece)
        self._settle_host(slot)
        self._count_loss(piece)

    def dissolve(self, piece: Piece) -> None:
        """Forget ``piece`` in both tiers without counting a loss: its KV goes on under another name or is obsolete."""
        if piece.host is not None:
            self._settle_host(self._detach_host(piece))
        if piece.device is not None:
            self.device.settle(self._detach_device(piece))

    def complete(self, done: CopyDone) -> None:
        """Take note that a copy ended. After a failed copy in, its target block holds nothing."""
        copy = self.copies.pop(done.copy.id)
        block, slot = self.device.blocks[copy.device_block], self.host.slots[copy.host_slot]
        block.copy = slot.copy = None
        if done.error is not None:
            self._fail(copy)
        self._settle_host(copy.host_slot)
        self.device.settle(copy.device_block)
        if block.leaving and block.piece is not None and self.mirrored(block.piece):
            self.leave_device(block.piece)

    def _start(self, direction: Direction, block: int, slot: int, urgent: bool) -> Copy:
        copy = Copy(self._next_copy, direction, block, slot)
        self._next_copy += 1
        self.device.blocks[block].copy = self.host.slots[slot].copy = copy
        self.copies[copy.id] = copy
        self.outbox.put(copy, urgent=urgent)
        self.device.settle(block)
        self._settle_host(slot)
        return copy

    def _reclaim(self, short: int, spare: Set[int], patient: bool) -> None:
        """Empty ``short`` blocks of the queue, its head first; while the host grows, rather others than to drop one."""
        left = min(max(short, 0), len(self.device.queue))
        passed = []
        for number in list(self.device.queue) if left else ():
            if not left:
                return
            piece = self.device.blocks[number].piece
            assert piece is not None
            if self.mirrored(piece):
                self.losses[EventKind.RECLAIM, piece.agent] += 1
                self.leave_device(piece)
            elif self.start_out(piece, must=not self.host_grows, spare=spare, urgent=True) is not None:
                self.losses[EventKind.RECLAIM, piece.agent] += 1
                self.device.blocks[number].leaving = True
            elif self.host_grows:
                passed.append(piece)
                continue
            else:
                self.leave_device(piece)
            left -= 1
        for piece in passed[:left] if not patient else ():
            self.leave_device(piece)

    def _host_slot(self, wanted: Piece, must: bool, spare: Set[int]) -> int | None:
        if not self.host.free:
            victim = self.eviction.victim(wanted, spare, must=must)
            if victim is None:
                return None
            self.leave_host(victim)
        return self.host.take()

    def _settle_host(self, number: int) -> None:
        self.host.settle(number)
        piece = self.host.slots[number].piece
        if piece is None:
            self.eviction.forget(number)
        else:
            self.eviction.review(piece)

    def _note(self, piece: Piece) -> None:
        self._moved(piece)
        if piece.host is not None:
            self.eviction.review(piece)

    def _fail(self, copy: Copy) -> None:
        block, slot = self.device.blocks[copy.device_block], self.host.slots[copy.host_slot]
        arriving = copy.direction is Direction.IN
        block.stuck = block.stuck or not arriving
        block.leaving = False
        resident = block.piece if arriving else None
        for piece in dict.fromkeys(piece for piece in (resident, slot.piece) if piece is not None):
            if piece is resident:
                self._detach_device(piece)
            if piece.host is not None:
                self._detach_host(piece)
            self._count_loss(piece)

    def _detach_device(self, piece: Piece) -> int:
        assert piece.device is not None
        block, piece.device = piece.device, None
        self.device.blocks[block].piece = None
        self._note(piece)
        return block

    def _detach_host(self, piece: Piece) -> int:
        assert piece.host is not None
        slot, piece.host = piece.host, None
        self.host.slots[slot].piece = None
        self._note(piece)
        return slot

    def _count_loss(self, piece: Piece) -> None:
        if piece.alive:
            return
        self.dropped += 1
        self.losses[EventKind.DROP, piece.agent] += 1
        if piece.key is not None:
            del self.index[piece.key]
