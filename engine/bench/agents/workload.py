"""What the agents of a benchmark do, decided before anything is sent. Pure and seeded."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from random import Random
from typing import Final

from ...errors import ConfigError

VOCABULARY: Final = 30_000  # prompts use ids below this; the usual models have more
_FIRST_ID: Final = 1000  # below lie the special tokens of the usual vocabularies
COLUMNS: Final = (
    "session_id",
    "arrival_time",
    "round_idx",
    "prefix_len",
    "input_len",
    "output_len",
    "tool_wait_after_ms",
)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool and how long it takes."""

    tool: str
    seconds: float


Tools = Callable[[int, int], ToolCall]
"""What agent ``i`` (from 0) calls after its turn ``t`` (from 0)."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of an agent: tokens it adds to its context, tokens it generates, and the call that follows.

    ``call`` is ``None`` after the last turn.
    """

    new_tokens: int
    generated_tokens: int
    call: ToolCall | None


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """One agent: when it begins, and its turns. ``seed`` makes its token ids, so equal seeds share a prompt.

    All its ids are below ``vocabulary``.
    """

    name: str
    starts_s: float
    turns: tuple[Turn, ...]
    seed: str
    vocabulary: int = VOCABULARY

    def new_ids(self, turn: int) -> list[int]:
        """The token ids that its turn ``turn`` adds."""
        return self._ids(f"{self.seed}/{turn}", self.turns[turn].new_tokens)

    def stand_in_ids(self, turn: int) -> list[int]:
        """As many ids as its turn ``turn`` generates, for a server that does not say which it generated."""
        return self._ids(f"{self.seed}/{turn}/output", self.turns[turn].generated_tokens)

    def _ids(self, seed: str, count: int) -> list[int]:
        rng = Random(seed)  # noqa: S311 - a workload, not a secret
        return rng.choices(range(min(_FIRST_ID, self.vocabulary // 2), self.vocabulary), k=count)


@dataclass(frozen=True, slots=True)
class Shape:
    """The agents of a closed loop, all alike but for their tools: a prompt of its own, then ``returns`` from a tool.

    Every turn generates ``generated_tokens``; a return adds ``new_tokens``.
    """

    agents: int
    prompt_tokens: int = 6000
    returns: int = 4
    generated_tokens: int = 64
    new_tokens: int = 100

    @property
    def most_tokens(self) -> int:
        """Length of an agent's context at the end."""
        return self.prompt_tokens + self.returns * self.new_tokens + (self.returns + 1) * self.generated_tokens


def closed_loop(shape: Shape, tools: Tools, seed: int, run: str = "0") -> tuple[AgentPlan, ...]:
    """Plan ``shape``: every agent begins at once. ``run`` keeps the prompts of two runs on one server apart."""
    return tuple(closed_loop_agent(shape, tools, seed, run, index) for index in range(shape.agents))


def closed_loop_agent(shape: Shape, tools: Tools, seed: int, run: str, index: int) -> AgentPlan:
    """Plan one agent of ``shape``; ``index`` may exceed its agents where finished ones are replaced."""
    turns = tuple(
        Turn(
            new_tokens=shape.new_tokens if turn else shape.prompt_tokens,
            generated_tokens=shape.generated_tokens,
            call=tools(index, turn) if turn < shape.returns else None,
        )
        for turn in range(shape.returns + 1)
    )
    return AgentPlan(f"{run}-{index}", 0.0, turns, f"{seed}/{run}/{index}")


def read_sessions(path: Path, seed: int = 0, run: str = "0") -> tuple[AgentPlan, ...]:
    """Plan the sessions of a file in TraceLab's replay format (a CSV with the columns of :data:`COLUMNS`).

    A round is sent when the one before it and its tool wait are over; the last wait of a session is left out.

    Raises:
        ConfigError: the file is missing a column, or a row has no sensible numbers; the message names the line.
    """
    try:
        rounds = list(_rounds(path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    sessions: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    for session, row in rounds:
        sessions[session].append(row)
    if not sessions:
        raise ConfigError(f"{path} holds no sessions: give a CSV with the columns {', '.join(COLUMNS)}")
    return tuple(_session(name, rows, f"{seed}/{run}/{name}", run) for name, rows in sessions.items())


def _rounds(path: Path) -> Iterator[tuple[str, dict[str, float]]]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if missing := [column for column in COLUMNS if column not in (reader.fieldnames or ())]:
            raise ConfigError(f"{path} has no column {', '.join(missing)}: give one with {', '.join(COLUMNS)}")
        for row in reader:
            try:
                numbers = {column: float(row[column]) for column in COLUMNS[1:]}
            except (TypeError, ValueError):
                raise ConfigError(f"{path}, line {reader.line_num}: not all columns are numbers") from None
            if not all(map(isfinite, numbers.values())):
                raise ConfigError(f"{path}, line {reader.line_num}: not all columns are numbers")
            if numbers["input_len"] < 1 or numbers["output_len"] < 1 or min(numbers.values()) < 0:
                raise ConfigError(f"{path}, line {reader.line_num}: lengths must be 1 or more, times 0 or more")
            yield row["session_id"], numbers


def _session(name: str, rows: list[dict[str, float]], seed: str, run: str) -> AgentPlan:
    rows = sorted(rows, key=lambda row: row["round_idx"])
    last = len(rows) - 1
    turns = tuple(
        Turn(
            new_tokens=int(row["input_len"]),
            generated_tokens=int(row["output_len"]),
            call=ToolCall("tool", row["tool_wait_after_ms"] / 1e3) if index < last else None,
        )
        for index, row in enumerate(rows)
    )
    return AgentPlan(f"{run}-{name}", rows[0]["arrival_time"] / 1e3, turns, seed)
