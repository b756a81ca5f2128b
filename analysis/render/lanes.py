"""Which agents get a lane of a picture, and in which order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..report import AgentReport


@dataclass(frozen=True, slots=True)
class Place:
    """An agent's lane; ``depth`` is 0 for a lane of its own and 1 more than its parent's below a parent."""

    agent: AgentReport
    depth: int


def choose_lanes(agents: Sequence[AgentReport], most: int) -> list[Place]:
    """The ``most`` agents of the longest wall clock, in the order given, each below its parent where that is shown."""
    longest = sorted(agents, key=lambda agent: -agent.wall_s)[:most]
    kept = {agent.agent for agent in longest}
    below: defaultdict[str | None, list[AgentReport]] = defaultdict(list)
    for agent in agents:
        if agent.agent in kept:
            below[agent.parent if agent.parent in kept else None].append(agent)
    places = list(_walk(below, None, 0))
    # Agents that are each other's parents hang below nobody.
    met = {place.agent.agent for place in places}
    return places + [Place(agent, 0) for agent in agents if agent.agent in kept - met]


def _walk(below: dict[str | None, list[AgentReport]], parent: str | None, depth: int) -> Iterator[Place]:
    for agent in below.get(parent, ()):
        yield Place(agent, depth)
        yield from _walk(below, agent.agent, depth + 1)
