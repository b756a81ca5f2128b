"""Work as a replay needs it: per agent, turns of generating, waiting for a tool, pausing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """Generate with a context that has ``tokens`` at the end, wait for a tool (0 s: there is none), pause."""

    generate_s: float
    wait_s: float
    pause_s: float
    tool: str | None
    tokens: int

    @property
    def alone_s(self) -> float:
        """Seconds it takes where nothing else is in the way."""
        return self.generate_s + self.wait_s + self.pause_s


@dataclass(frozen=True, slots=True)
class AgentWork:
    """One agent's turns, in order."""

    agent: str
    turns: tuple[Turn, ...]


def alone_s(work: Sequence[AgentWork]) -> float:
    """Seconds that all agents' work takes, one after the other."""
    return sum(turn.alone_s for agent in work for turn in agent.turns)
