"""What the stream mover asks of a device: to queue copies, and to tell when they are over. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .contract import Copy, Direction, Fence


class Ticket(Protocol):
    """A piece of work that was queued on the device."""

    def done(self) -> bool:
        """Whether it is over; never blocks."""
        ...

    def wait(self) -> None:
        """Block the calling thread, and no other, until it is over."""
        ...

    def seconds(self) -> float:
        """How long the device took, once it is over."""
        ...


class Transport(Protocol):
    """Queues copies on the device. ``mark`` is called by whoever submits, ``start`` by one thread a direction."""

    block_bytes: int

    def mark(self) -> object:
        """This point of the compute submitted so far: copies started with it begin after it."""
        ...

    def reached(self, mark: object) -> bool:
        """Whether compute has come past ``mark``; never blocks."""
        ...

    def plan(self, direction: Direction, copies: Sequence[Copy], *, busy: bool) -> list[list[Copy]]:
        """Cut copies of distinct blocks and slots into pieces, each started by one call; any order.

        ``busy``: the link has something to do meanwhile.
        """
        ...

    def start(self, direction: Direction, piece: Sequence[Copy], after: object | None) -> Ticket:
        """Queue one piece on the device; returns without waiting for it. Without ``after`` it may begin at once."""
        ...

    def fence(self, tickets: Sequence[Ticket]) -> Fence:
        """What compute can wait for on the device until all of ``tickets``, of :meth:`start`, are over."""
        ...

    def close(self) -> None:
        """Release what is held on the device; nothing is in flight any more."""
        ...
