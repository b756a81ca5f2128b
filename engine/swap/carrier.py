"""What the stream mover asks of a device: to queue copies, and to tell when they are over. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from .contract import Copy, Direction, Fence
from .limits import Bounds


class Ticket(Protocol):
    """Copies that were queued on the device, or what they bring of one group of layers."""

    @property
    def size(self) -> int:
        """Their bytes."""
        ...

    def done(self) -> bool:
        """Whether they are over; never blocks."""
        ...

    def wait(self) -> None:
        """Block the calling thread, and no other, until they are over."""
        ...

    def seconds(self) -> float:
        """How long the device took from the first byte of the piece to the last of these, once they are over."""
        ...


class Transport(Protocol):
    """Queues copies on the device. ``mark`` is called by whoever submits, ``start`` for one piece of a direction at a time.

    ``parts``: how many groups of layers a block can come in, one after the other; 1 where it only comes whole.
    """

    block_bytes: int
    parts: int
    bounds: Mapping[Direction, Bounds]

    def mark(self) -> object:
        """This point of the compute submitted so far: copies started with it begin after it."""
        ...

    def reached(self, mark: object) -> bool:
        """Whether compute has come past ``mark``; never blocks."""
        ...

    def quick(self) -> bool:
        """Whether :meth:`start` takes microseconds a copy and never waits, so that any thread may call it."""
        ...

    def plan(self, direction: Direction, copies: Sequence[Copy], *, busy: bool) -> list[Sequence[Copy]]:
        """Cut copies of distinct blocks and slots into pieces, each started by one call; any order.

        ``busy``: the link has something to do meanwhile.
        """
        ...

    def start(
        self, direction: Direction, piece: Sequence[Copy], after: object | None, *, in_parts: bool = False
    ) -> Sequence[Ticket]:
        """Queue one piece on the device; returns without waiting for it. Without ``after`` it may begin at once.

        One ticket; ``in_parts``: one for each group of layers, in their order, and the copies are over with the last.
        """
        ...

    def fence(self, tickets: Sequence[Ticket]) -> Fence:
        """What compute can wait for on the device until ``tickets``, of :meth:`start` and in its order, are over."""
        ...

    def close(self) -> None:
        """Release what is held on the device; nothing is in flight any more."""
        ...
