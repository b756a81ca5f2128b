"""The contract between who decides a copy and who carries it out. Torch-free.

Ordering, which every mover keeps:

* a copy **out** starts after the compute that wrote its device block (everything submitted to the device
  before :meth:`Mover.submit` was called, or before the mark that it was given);
* a copy **in** starts after the last reader of its target block (likewise);
* a device block that is the source of a copy out, and a host slot that is the source of a copy in, stays
  untouched until the copy's :class:`CopyDone` was returned by :meth:`Mover.poll`;
* copies that touch the same block or slot are carried out in the order of their submission; others in any order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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


class Fence(Protocol):
    """Copies that are on the device, so that compute can wait for them there."""

    def join(self, part: int | None = None) -> None:
        """Let what the calling thread submits to its device from now on begin after the copies; never blocks.

        With ``part``, only after what they bring of that group of layers (:attr:`~kvtrace.engine.geometry.KVGeometry.parts`)
        and of those before it, so that a step can begin while the rest is on its way.
        """
        ...


class Mover(Protocol):
    """Carries out copies in the background. All but ``wait`` and ``close`` return at once."""

    def mark(self) -> object | None:
        """This point of what the calling thread has submitted to its device; ``None`` where that is done by then."""
        ...

    def submit(self, copies: Sequence[Copy], after: object | None = None) -> None:
        """Queue ``copies``; with ``after``, they start after what was submitted before that :meth:`mark`, not this call.

        Nothing that was submitted since may then write what a copy out reads, or touch the target of a copy in.
        """
        ...

    def poll(self) -> list[CopyDone]:
        """Copies that ended since the last call, each exactly once."""
        ...

    def fence(self, copy_ids: Collection[int]) -> Fence | None:
        """Something to wait for on the device instead of on the host, for copies that :meth:`poll` has not returned yet.

        ``None`` unless each of them is on the device or has ended well: one that still waits its turn, one that
        failed, and a mover whose copies no device can wait for have no fence. :meth:`poll` reports them as ever, at the
        latest when something is over that was submitted after :meth:`Fence.join`.
        """
        ...

    def queued(self, direction: Direction) -> int:
        """Copies of one direction that were submitted and are not over."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Block until a copy has ended that :meth:`poll` has not returned yet, none is in flight, or the time is up.

        It also returns, once, when the last of the copies in of one :meth:`submit` has come to be on the device: there may
        be a :meth:`fence` for them now.
        """
        ...

    def in_flight(self) -> int:
        """Copies submitted and not yet returned by :meth:`poll`."""
        ...

    def close(self) -> None:
        """Finish what was submitted and release the threads or streams."""
        ...
