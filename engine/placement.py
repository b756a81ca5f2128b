"""Where each piece of KV is: the index, both pools and the copies in flight. Torch-free; decides no policy.

Rules kept here, whoever calls:

* a block or slot that a copy touches is neither freed nor handed out before :meth:`Placement.complete` saw it end;
* a piece leaves the device for good only when the host has it; without a host slot it is *dropped*, and counted;
* copies are only noted in ``outbox``; the loop hands them to the mover, in long lists from ``flush`` on as well.

A piece that a working agent has on the host alone is not evicted there, unless :mod:`.eviction` is told of one that is
needed later than the block that wants to leave; else that block is dropped.

An agent has hundreds of blocks, and every one of them comes, goes and is copied at each return: what is done to all of them
is done in one tight loop here, while other agents' next step waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Set
from collections.abc import Sequence as Seq
from itertools import islice
from typing import Final

from .blocks import DevicePool, HostPool, Piece
from .claims import Claims
from .eviction import HostEviction
from .outbox import Outbox
from .records import EventKind
from .swap.contract import Copy, CopyDone, Direction

FLUSH_COPIES: Final = 64
"""A restore hands over so many of its copies at once: the link is busy while the rest is being decided on, which goes as
one batch, so that as much of it as a step takes can arrive while the step computes."""

_NONE: Final[frozenset[int]] = frozenset()


class Placement:
    """Both tiers' contents.

    ``claims`` knows who holds a piece, and hears of every piece that comes to a tier or leaves one.

    ``outbox`` collects copies to submit, ``losses`` counts blocks by (``RECLAIM`` or ``DROP``, agent) until the loop
    takes them, ``dropped`` counts all dropped blocks. ``host_grows``: more host slots are still to come.
    """

    def __init__(self, device_blocks: int, host_slots: int) -> None:
        self.device = DevicePool(device_blocks)
        self.host = HostPool(host_slots)
        self.index: dict[bytes, Piece] = {}
        self.claims = Claims(self.index)
        self.copies: dict[int, Copy] = {}
        self.outbox = Outbox()
        self.flush: Callable[[], None] = lambda: None
        self.losses: Counter[tuple[EventKind, str]] = Counter()
        self.dropped = 0
        self.host_grows = False
        self.eviction = HostEviction(self.device, self.host, self.claims)
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
        device = self.device
        if count > self.available:
            return None
        self._reclaim(count - len(device.free) - device.leaving, spare, patient)
        if len(device.free) < count:
            for number in device.emptying:
                copy = device.blocks[number].copy
                assert copy is not None
                self.outbox.hurry(copy.id)
            return None
        return device.take_free(count)

    def enter(self, piece: Piece, block: int) -> None:
        """Say that ``block`` holds ``piece``, which has just been computed there."""
        if piece.key is not None and not piece.alive:
            self.index[piece.key] = piece
            self.claims.lives(piece.key, 1)
        piece.device = block
        self.device.blocks[block].piece = piece
        self.claims.moved([piece], 1)
        if piece.host is not None:
            self.eviction.review(piece)

    def start_out(self, piece: Piece, *, must: bool, spare: Set[int] = _NONE, urgent: bool = False) -> Copy | None:
        """Copy ``piece`` to the host; ``None`` where that is impossible now or not needed. ``must``: evict harder."""
        if piece.device is None or piece.host is not None:
            return None
        block = self.device.blocks[piece.device]
        if block.copy is not None or block.stuck:
            return None
        number = self._host_slot(piece, must, spare)
        if number is None:
            return None
        piece.host = number
        slot = self.host.slots[number]
        slot.piece = piece
        self.claims.moved_on_host(piece, 1)
        copy = Copy(self._next_copy, Direction.OUT, piece.device, number)
        self._next_copy += 1
        block.copy = slot.copy = self.copies[copy.id] = copy
        self.outbox.put({copy.id: copy}, Direction.OUT, urgent=urgent)
        if not block.refs:
            del self.device.queue[piece.device]
            self.device.busy.add(piece.device)
        return copy

    def start_in(self, pieces: Seq[Piece], numbers: Seq[int], *, urgent: bool, begun: bool = False) -> list[int]:
        """Copy ``pieces``, which only the host has, into empty blocks that are referenced; the ids of the copies.

        ``urgent``: a request waits for them. ``begun``: they are the rest of what is on its way already.
        """
        first, at_once = self._next_copy, len(pieces) if begun else FLUSH_COPIES
        self._start_in(pieces[:at_once], numbers[:at_once], urgent)
        if len(pieces) > at_once:
            self.flush()
            self._start_in(pieces[at_once:], numbers[at_once:], urgent)
        return list(range(first, self._next_copy))

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

    def complete(self, ended: Iterable[CopyDone]) -> None:
        """Take note that copies ended. After a failed copy in, its target block holds nothing."""
        blocks, slots, copies, kept = self.device.blocks, self.host.slots, self.copies, self.claims.kept
        busy, loose, redundant = self.device.busy, self.eviction.loose, self.eviction.redundant
        for copy, _, _, error in ended:
            number, _, at, place = copy
            del copies[number]
            block, slot = blocks[at], slots[place]
            block.copy = slot.copy = None
            if error is not None:
                self._fail(copy)
            piece = slot.piece
            if piece is None:
                self._settle_host(place)
            else:
                self.host.settled += 1
                if not kept(piece):
                    loose[place] = None
                if piece.device is not None:
                    redundant[place] = None
            if at in busy:
                self._settle_device(at)

    def empty_heads(self, most: int, *, cheap: bool = False) -> int:
        """Empty up to ``most`` blocks from the head of the queue on, as long as the host has them; how many.

        ``cheap``: and only as long as nobody needs them soon.
        """
        blocks, hot, numbers = self.device.blocks, self.claims.hot, []
        for number in self.device.queue if most > 0 else ():
            block = blocks[number]
            piece = block.piece
            assert piece is not None
            if piece.host is None or (cheap and not block.demoted and hot(piece)):
                break
            numbers.append(number)
            if len(numbers) == most:
                break
        self._empty(numbers)
        return len(numbers)

    def _reclaim(self, short: int, spare: Set[int], patient: bool) -> None:
        """Empty ``short`` blocks of the queue, its head first; while the host grows, rather others than to drop one."""
        device = self.device
        left = min(max(short, 0), len(device.queue))
        left -= self.empty_heads(left)
        left -= self.empty_mirrored(left)
        passed = []
        for number in list(device.queue if self.host_grows else islice(device.queue, left)) if left else ():
            if not left:
                return
            piece = device.blocks[number].piece
            assert piece is not None
            if self.start_out(piece, must=not self.host_grows, spare=spare, urgent=True) is not None:
                self.losses[EventKind.RECLAIM, piece.agent] += 1
                device.emptying.add(number)
            elif self.host_grows:
                passed.append(piece)
                continue
            else:
                self.leave_device(piece)
            left -= 1
        for piece in passed[:left] if not patient else ():
            self.leave_device(piece)

    def empty_mirrored(self, count: int) -> int:
        """Empty up to ``count`` blocks that the host has, from behind those it lacks: nobody waits for a copy without need."""
        blocks, queue = self.device.blocks, self.device.queue
        there = (
            (at for at in queue if (piece := blocks[at].piece) is not None and piece.host is not None) if count else ()
        )
        numbers = list(islice(there, count))
        self._empty(numbers)
        return len(numbers)

    def _empty(self, numbers: list[int]) -> None:
        """Empty blocks of the queue that the host has, which is the way of every block that an agent gets."""
        device, blocks, redundant = self.device, self.device.blocks, self.eviction.redundant
        emptied = []
        for number in numbers:
            block = blocks[number]
            piece = block.piece
            assert piece is not None
            assert piece.host is not None
            del device.queue[number], redundant[piece.host]
            piece.device = block.piece = None
            block.demoted = block.stuck = False
            emptied.append(piece)
        device.free += numbers
        self.claims.moved(emptied, -1)
        for agent, count in Counter([piece.agent for piece in emptied]).items():
            self.losses[EventKind.RECLAIM, agent] += count

    def _start_in(self, pieces: Seq[Piece], numbers: Seq[int], urgent: bool) -> None:
        blocks, slots, loose = self.device.blocks, self.host.slots, self.eviction.loose
        started = {}
        for number, (piece, at) in enumerate(zip(pieces, numbers, strict=True), self._next_copy):
            place = piece.host
            assert place is not None
            block = blocks[at]
            copy = Copy(number, Direction.IN, at, place)
            piece.device, block.piece = at, piece
            block.copy = slots[place].copy = copy
            # A slot whose piece is nowhere else is no other copy's, and not redundant.
            if place in loose:
                del loose[place]
            started[number] = copy
        self._next_copy += len(started)
        self.copies.update(started)
        self.outbox.put(started, Direction.IN, urgent=urgent)
        self.claims.moved(pieces, 1)

    def _host_slot(self, wanted: Piece, must: bool, spare: Set[int]) -> int | None:
        if not self.host.free:
            victim = self.eviction.victim(wanted, spare, must=must)
            if victim is None:
                return None
            self.leave_host(victim)
        return self.host.take()

    def _settle_device(self, number: int) -> None:
        """A copy that touched a block which nobody references is over."""
        block, leaves = self.device.blocks[number], number in self.device.emptying
        self.device.settle(number)
        if leaves and block.piece is not None and self.mirrored(block.piece):
            self.leave_device(block.piece)

    def _settle_host(self, number: int) -> None:
        self.host.settle(number)
        piece = self.host.slots[number].piece
        if piece is None:
            self.eviction.forget(number)
        else:
            self.eviction.review(piece)

    def _fail(self, copy: Copy) -> None:
        block, slot = self.device.blocks[copy.device_block], self.host.slots[copy.host_slot]
        arriving = copy.direction is Direction.IN
        block.stuck = block.stuck or not arriving
        self.device.emptying.discard(copy.device_block)
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
        self.claims.moved([piece], -1)
        if piece.host is not None:
            self.eviction.review(piece)
        return block

    def _detach_host(self, piece: Piece) -> int:
        assert piece.host is not None
        slot, piece.host = piece.host, None
        self.host.slots[slot].piece = None
        self.claims.moved_on_host(piece, -1)
        return slot

    def _count_loss(self, piece: Piece) -> None:
        if piece.alive:
            return
        self.dropped += 1
        self.losses[EventKind.DROP, piece.agent] += 1
        if piece.key is not None:
            del self.index[piece.key]
            self.claims.lives(piece.key, -1)
