"""How each state of an agent looks: a glyph, a word and a colour, none of which carries the meaning alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvtrace.engine.records import AgentRecord, AgentState


class Shown(StrEnum):
    """What a person is told an agent does. A wait of which nobody knows where the KV is, is just a tool's."""

    GENERATING = "generating"
    RESTORING = "restoring"
    QUEUED = "queued"
    TOOL = "tool"
    PARKING = "parking"
    RESIDENT = "resident"
    PARKED = "parked"
    HUMAN = "human"
    IDLE = "idle"


WAITS: Final = frozenset({Shown.TOOL, Shown.PARKING, Shown.RESIDENT, Shown.PARKED})
"""Waiting for a tool, wherever the KV is: what b counts."""


@dataclass(frozen=True, slots=True)
class Look:
    """A state's marks and words. ``fill`` is what strips and bars are drawn with; ``style`` names a colour."""

    glyph: str
    ascii_glyph: str
    fill: str
    ascii_fill: str
    word: str
    short: str
    style: str
    means: str


LOOKS: Final[dict[Shown, Look]] = {
    Shown.GENERATING: Look("●", "*", "█", "#", "generating", "gen", "generating", "the model works for it"),
    Shown.RESTORING: Look("▲", "^", "▲", "^", "restoring", "rest", "restoring", "its KV is on the way back"),
    Shown.QUEUED: Look("◔", "q", "▖", "q", "queued", "queue", "queued", "its request holds no slot yet"),
    Shown.TOOL: Look("◇", "o", "▒", "o", "tool", "tool", "waiting", "waits for a tool; no engine tells of its KV"),
    Shown.PARKING: Look("▼", "v", "▼", "v", "parking", "park", "parking", "waits for a tool, copies out under way"),
    Shown.RESIDENT: Look(
        "■", "!", "▓", "!", "resident", "resid", "resident", "waits for a tool, all its KV still in VRAM"
    ),
    Shown.PARKED: Look("◌", ".", "░", ".", "parked", "parked", "parked", "waits for a tool, KV has left VRAM"),
    Shown.HUMAN: Look("○", "h", "╌", "-", "human", "human", "human", "answered; a person is to go on"),
    Shown.IDLE: Look("·", " ", " ", " ", "idle", "idle", "idle", "known, nothing open"),
}

_OF_STATE: Final = {
    AgentState.GENERATING: Shown.GENERATING,
    AgentState.BLOCKED_RESIDENT: Shown.RESIDENT,
    AgentState.PARKING: Shown.PARKING,
    AgentState.PARKED: Shown.PARKED,
    AgentState.RESTORING: Shown.RESTORING,
    AgentState.QUEUED: Shown.QUEUED,
    AgentState.HUMAN: Shown.HUMAN,
    AgentState.IDLE: Shown.IDLE,
}


def shown(state: AgentState, knows_memory: bool) -> Shown:
    """What to show of a state, given whether the source knows where KV is."""
    found = _OF_STATE[state]
    return Shown.TOOL if found in WAITS and not knows_memory else found


def glyph(state: Shown, ascii_only: bool) -> str:
    """The state's mark, one cell wide."""
    look = LOOKS[state]
    return look.ascii_glyph if ascii_only else look.glyph


def fill(state: Shown, ascii_only: bool) -> str:
    """What the state's time is drawn with."""
    look = LOOKS[state]
    return look.ascii_fill if ascii_only else look.fill


@dataclass(frozen=True, slots=True)
class Detail:
    """What can be added to a state's word: how much of the KV is back, the place in the queue."""

    restored: float | None = None
    place: int | None = None


def wording(state: Shown, agent: AgentRecord, detail: Detail, short: bool) -> str:
    """The state in words, for instance ``parked pytest`` or ``restoring 60%``; ``short`` for little room."""
    look = LOOKS[state]
    word = look.short if short else look.word
    if state in WAITS:
        tool = agent.tool or "?"
        if state is Shown.TOOL:
            return tool if short else f"tool:{tool}"
        return f"{word} {tool}"
    if state is Shown.RESTORING and detail.restored is not None:
        return f"{word} {detail.restored:.0%}"
    if state is Shown.QUEUED and detail.place is not None:
        return f"{word} #{detail.place}"
    return word
