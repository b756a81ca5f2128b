"""How a replay asks the engine's policy: words for moments and actions, so that neither side imports the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Moment = Literal["filled", "tool_started", "returned", "overdue"]
"""The agent's turn filled blocks; it waits for a tool from now on; its tool ended; it waits longer than a :class:`Hold`."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a decision may depend on: the agent, its tool, and where its context is, in blocks.

    ``now_s`` is the time of the replay, ``waited_s`` how long the agent has waited for its tool; ``copy_s`` and
    ``compute_s`` are what copying a block one way and computing it again take. ``short`` is the share of the device that
    the next request lacks.
    """

    agent: str
    tool: str | None
    blocks: int
    device_blocks: int
    host_blocks: int
    now_s: float = 0.0
    waited_s: float = 0.0
    copy_s: float = 0.0
    compute_s: float = 0.0
    short: float = 0.0


@dataclass(frozen=True, slots=True)
class Hold:
    """Do nothing yet, and ask again if the agent still waits after ``seconds``."""

    seconds: float


class Policy(Protocol):
    """A policy by its name; ``uses_host`` is false where it never copies anything to host memory."""

    @property
    def name(self) -> str:
        """What to call it."""
        ...

    @property
    def uses_host(self) -> bool:
        """Whether it has a tier of host memory."""
        ...

    def actions(self, moment: Moment, facts: Facts) -> Sequence[str | Hold]:
        """What to do, in order.

        Besides a :class:`Hold`, known are ``mirror`` and ``park`` (copy to the host what it lacks), ``demote``, ``promote`` and ``rest`` (hand the
        agent's blocks out first, last, or in turn), ``evict`` (copy out, then free) and ``prefetch`` (copy back).
        """
        ...


class FreeMoves:
    """Copies everything out at once, gives room away at every wait, fetches at every return: ideal where moves are free."""

    name = "ideal"
    uses_host = True

    def actions(self, moment: Moment, facts: Facts) -> Sequence[str]:
        """Give the room away while waiting, take it back after."""
        del facts
        if moment == "filled":
            return ("mirror",)
        return ("promote", "prefetch") if moment == "returned" else ("park", "demote")
