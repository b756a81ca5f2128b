"""What every feed gives: samples, or a reason why there is none right now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from kvtrace.engine.records import Snapshot


class SourceKind(StrEnum):
    """Who knows what a sample says."""

    ENGINE = "engine"
    SPANS = "spans"  # agents, tools and b; nothing of memory
    DEMO = "demo"  # an engine that is only simulated


@dataclass(frozen=True, slots=True)
class Sample:
    """One instant of an engine, or of agents without one, and ``where`` it comes from.

    Of :attr:`SourceKind.SPANS` the snapshot's tiers, link and totals are all zero and mean nothing.
    """

    snapshot: Snapshot
    kind: SourceKind
    where: str

    @property
    def knows_memory(self) -> bool:
        """Whether anything is known of memory and of copies."""
        return self.kind is not SourceKind.SPANS

    def as_json(self) -> dict[str, Any]:
        """The snapshot as ``docs/state.schema.json`` has it, with its ``source``; what spans cannot know is null."""
        known = self.snapshot.as_json()
        if not self.knows_memory:
            known |= {"model": None, "device": None, "policy": None, "tiers": None, "link": None, "totals": None}
            for agent in known["agents"]:
                agent |= {"vram_bytes": None, "host_bytes": None, "kept_tokens": None, "parks": None, "restores": None}
        return known | {"source": {"kind": self.kind.value, "where": self.where}}


class FeedError(Exception):
    """There is no sample now, and why; the next try may well succeed."""


SLOWEST: Final = 1 / 16
FASTEST: Final = 1024.0
"""Speeds at which the past can be played."""


class Feed(Protocol):
    """Gives samples when asked. All calls come from one thread, which may block for a few seconds at most."""

    @property
    def where(self) -> str:
        """What is being watched, in a few words."""
        ...

    @property
    def speed(self) -> float | None:
        """How many times as fast as it happened it is played; ``None`` for the present, which has its own pace."""
        ...

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        ...

    def read(self) -> list[Sample]:
        """What is new since the last call, oldest first; nothing where nothing is new. Raises :class:`FeedError`."""
        ...

    def play_at(self, speed: float) -> None:
        """Play at this speed from now on; of no effect on the present."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...
