"""One direction's copies as the stream mover keeps them: what waits, and what is on the device. Torch-free."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .carrier import Ticket
from .contract import Copy, Direction
from .limits import Bounds
from .runs import conflict_free


@dataclass(slots=True, eq=False)
class Batch:
    """Copies submitted together, one direction, distinct blocks and slots. ``pieces`` is set by the lane's thread."""

    direction: Direction
    copies: Sequence[Copy]
    after: object | None  # none any more once compute has come past it
    blocks: set[int]
    slots: set[int]
    left: int  # copies not yet on the device
    pieces: deque[Sequence[Copy]] | None = None


@dataclass(slots=True, eq=False)
class Flight:
    """A piece on the device; its copies are over with the last of the ``tickets``, which leave as they are over."""

    piece: Sequence[Copy]
    tickets: deque[Ticket]
    after: object | None  # what it was made to wait for

    def left(self) -> int:
        """Bytes that are still to come; none from a device that has failed."""
        try:
            return sum(ticket.size for ticket in self.tickets if not ticket.done())
        except Exception:  # told when its ends are noted
            return 0


@dataclass(slots=True)
class Lane:
    """One direction: what waits, and what is on the device, oldest first. Who queues copies there holds ``driving``."""

    wake: threading.Condition
    bounds: Bounds
    queue: list[Batch] = field(default_factory=list)
    flights: deque[Flight] = field(default_factory=deque)
    blocks: int = 0  # on the device
    turns: int = 0
    idle: bool = False  # its thread waits to be woken
    fresh: bool = False  # something came to the queue after the last look at it
    driving: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True)
class Touched:
    """Blocks and slots that copies under way touch: none that touches one of them may start."""

    blocks: set[int] = field(default_factory=set)
    slots: set[int] = field(default_factory=set)

    def leaves_alone(self, batch: Batch) -> bool:
        """Whether ``batch`` touches nothing of it."""
        return self.blocks.isdisjoint(batch.blocks) and self.slots.isdisjoint(batch.slots)

    def add(self, batch: Batch) -> None:
        """A batch is under way."""
        self.blocks |= batch.blocks
        self.slots |= batch.slots

    def remove(self, copies: Iterable[Copy]) -> None:
        """These are over."""
        _, _, blocks, slots = zip(*copies, strict=True)
        self.blocks.difference_update(blocks)
        self.slots.difference_update(slots)


def in_batches(copies: Sequence[Copy], after: object) -> list[Batch]:
    """Batches of one direction and without conflict, in an order that keeps the order of conflicting copies."""
    _, directions, blocks, slots = zip(*copies, strict=True)
    count = len(copies)
    all_blocks, all_slots = set(blocks), set(slots)
    if directions.count(directions[0]) == len(all_blocks) == len(all_slots) == count:
        # What the engine submits, but for the odd step that moves blocks both ways.
        return [Batch(directions[0], copies, after, all_blocks, all_slots, count)]
    return [
        Batch(
            group[0].direction,
            group,
            after,
            {copy.device_block for copy in group},
            {copy.host_slot for copy in group},
            len(group),
        )
        for group in conflict_free(copies)
    ]
