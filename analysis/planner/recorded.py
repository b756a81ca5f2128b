"""The work that a measured database records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import duckdb

from ..options import NS_PER_S
from ..queries import rows
from .work import AgentWork, Turn

MAX_AGENTS: Final = 500


@dataclass(frozen=True, slots=True)
class TurnTime:
    """One row of ``turns.sql``; ``tokens`` are those held while waiting, ``None`` where no model call tells."""

    agent: str
    generating_ns: int
    blocked_ns: int
    paused_ns: int
    tool: str | None
    tokens: int | None


def recorded_work(
    connection: duckdb.DuckDBPyConnection, assumed_tokens: int, agents: int = MAX_AGENTS
) -> tuple[AgentWork, ...]:
    """Work of the first ``agents`` agents of a measured database, in the order in which they began to be seen.

    Where an agent's context is not known yet, it is taken to have ``assumed_tokens``; later the last known length holds.
    """
    found = rows(connection, "turns", TurnTime, {"agents": agents})
    return tuple(
        AgentWork(agent, tuple(_turns(times, assumed_tokens)))
        for agent, times in groupby(found, key=lambda time: time.agent)
    )


def _turns(times: Iterable[TurnTime], tokens: int) -> Iterator[Turn]:
    for time in times:
        tokens = time.tokens or tokens
        yield Turn(
            time.generating_ns / NS_PER_S, time.blocked_ns / NS_PER_S, time.paused_ns / NS_PER_S, time.tool, tokens
        )
