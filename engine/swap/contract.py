"""The contract between who decides a copy and who carries it out. Torch-free.

Ordering, which every mover keeps:

* a copy **out** starts after the compute that wrote its device block (everything submitted to the device
  before :meth:`Mover.submit` was called);
* a copy **in** starts after the last reader of its target block (likewise);
* a device block that is the source of a copy out, and a host slot that is the source of a copy in, stays
  untouched until the copy's :class:`CopyDone` was returned by :meth:`Mover.poll`;
* copies that touch the same block or slot are carried out in the order of their submission; others in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol


class Direction(StrEnum):
    """Which way a block goes."""

    OUT = "out"  # device to host
    IN = "in"  # host to device


class Copy(NamedTuple):
    """Move one block between the tiers. ``id`` is unique for the life of the engine.

    A tuple, like :class:`CopyDone`: an agent has hundreds, and a frozen dataclass takes three times as long to make.
    """

    id: int
    direction: Direction
    device_block: int
    host_slot: int


class CopyDone(NamedTuple):
    """A copy that is over. ``started_ns`` and ``ended_ns`` are monotonic; ``error`` is set where it failed."""

    copy: Copy
    started_ns: int
    ended_ns: int
    error: str | None = None


class Mover(Protocol):
    """Carries out copies in the background."""

    def submit(self, copies: Sequence[Copy]) -> None:
        """Queue ``copies``; returns at once."""
        ...

    def poll(self) -> list[CopyDone]:
        """Copies that ended since the last call, each exactly once; never blocks."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Block until a copy has ended that :meth:`poll` has not returned yet, none is in flight, or the time is up."""
        ...

    def in_flight(self) -> int:
        """Copies submitted and not yet returned by :meth:`poll`."""
        ...

    def close(self) -> None:
        """Finish what was submitted and release the threads or streams."""
        ...
