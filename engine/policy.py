"""What to do with an agent's KV when it starts or stops waiting for a tool. Pure: facts in, actions out.

Torch-free and without state, so that a replay of recorded spans can ask the same questions. The actions are data;
:class:`.loop.EngineCore` carries them out on the cache. docs/policy.md says what each mode does and why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .config import PolicyMode
from .forecast import Left

UNKNOWN_S: Final = 1.0
"""How long ``auto`` leaves an agent alone whose tool it knows nothing about."""

PLAIN_CHAT: Final = 3
"""After so many answers in a row without a tool call, ``auto`` stops copying an agent's blocks early."""

FINISHED_S: Final = 0.5
"""A request's end without a tool call is taken for its agent's after so long: the tool's start may be on its way."""

RETURNED_S: Final = 2.0
"""A request that has not come so long after the tool's end is not expected any more."""

BELIEVED_S: Final = 10.0
"""However short all calls have been, one is believed in for so long."""

_BEYOND: Final = 2.0


class Moment(StrEnum):
    """When the policy is asked."""

    TOOL_STARTED = "tool_started"  # the agent is blocked from now on
    RETURNED = "returned"  # its last open tool ended, or its request came
    EXPIRED = "expired"  # its tool never ended and nobody believes in it any more
    FILLED = "filled"  # a request of the agent filled blocks
    ANSWERED = "answered"  # its turn ended in an answer: a person is next
    SILENT = "silent"  # its turn ended, and nobody tells what it does then; others like it came back
    OVERDUE = "overdue"  # its wait has outlasted what a Hold gave it
    GONE = "gone"  # it was cut off, fell silent, or its call has lasted beyond all belief


@dataclass(frozen=True, slots=True)
class Outlook:
    """What ``auto`` knows besides: of the wait, of the machine and of everybody else.

    ``left``: what is left of the wait, ``None`` where nothing is known. ``elapsed_s``: how long it has lasted.
    ``round_trip_s``: what copying the agent out and back takes, ``restore_s`` the way back alone, at the link's measured
    rate; ``recompute_s`` what computing it again would take, ``None`` before anything was prefilled. ``short``: share of
    the pool that waiting requests lack. ``idleness``: share of its last cycles that the agent waited. ``answers``: its
    last turns in a row that ended without a tool call.
    """

    left: Left | None = None
    elapsed_s: float = 0.0
    round_trip_s: float = 0.0
    restore_s: float = 0.0
    recompute_s: float | None = None
    short: float = 0.0
    idleness: float | None = None
    answers: int = 0


@dataclass(frozen=True, slots=True)
class AgentView:
    """What a decision may depend on: the agent, its tool, and where its context is, in blocks."""

    agent: str
    tool: str | None
    blocks: int
    device_blocks: int
    host_blocks: int
    outlook: Outlook = Outlook()


@dataclass(frozen=True, slots=True)
class Action:
    """Base of what a policy can ask for; ``why`` is for people."""

    agent: str
    why: str


@dataclass(frozen=True, slots=True)
class Mirror(Action):
    """Copy the blocks that just filled to the host, if it has room to spare."""


@dataclass(frozen=True, slots=True)
class Park(Action):
    """Copy out what the host lacks, tail included; the device keeps its blocks."""


@dataclass(frozen=True, slots=True)
class Demote(Action):
    """Make the agent's device blocks the first to be handed out."""


@dataclass(frozen=True, slots=True)
class Evict(Action):
    """Copy everything out and free each device block when its copy is done."""


@dataclass(frozen=True, slots=True)
class Promote(Action):
    """Make the agent's device blocks the last to be handed out."""


@dataclass(frozen=True, slots=True)
class Prefetch(Action):
    """Copy back what has left the device, into blocks nobody needs more."""


@dataclass(frozen=True, slots=True)
class Rest(Action):
    """Treat the agent's blocks like those of any agent whose turn is over."""


@dataclass(frozen=True, slots=True)
class Hold(Action):
    """Leave the agent's blocks where they are, and ask again if it still waits after ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent that waits, as a possible victim. ``left_s``: how long it is expected to go on waiting."""

    agent: str
    left_s: float
    idleness: float
    blocks: int


def victims(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Who gives way first: whoever will wait longest, to within a factor of two.

    Among those the one that waits for the greatest share of its time, then the one whose return has least to copy.
    """

    def rank(candidate: Candidate) -> tuple[float, float, int, str]:
        octave = math.floor(math.log2(max(candidate.left_s, 1e-3)))
        return (-octave, -round(candidate.idleness, 1), candidate.blocks, candidate.agent)

    return sorted(candidates, key=rank)


def believed_s(longest_s: float | None) -> float:
    """How long an open call is believed in, where the longest of its tool or of anybody's took ``longest_s``."""
    return math.inf if longest_s is None else max(_BEYOND * longest_s, BELIEVED_S)


Rule = Callable[[Moment, AgentView], tuple[Action, ...]]

_BACK: Final = "back from its tool"

_AWAY: Final = {Moment.ANSWERED: "waits for a person", Moment.SILENT: "is away and says nothing"}


def decide(mode: PolicyMode, moment: Moment, view: AgentView) -> tuple[Action, ...]:
    """The actions that ``mode`` takes at ``moment``, in order."""
    return _RULES[mode](moment, view)


def _keep(moment: Moment, view: AgentView) -> tuple[Action, ...]:
    del moment, view
    return ()


def _recompute(moment: Moment, view: AgentView) -> tuple[Action, ...]:
    if moment is Moment.TOOL_STARTED:
        return (Demote(view.agent, _waits(view)),)
    if moment is Moment.RETURNED:
        return (Promote(view.agent, _BACK),)
    return _expire(moment, view)


def _eager(moment: Moment, view: AgentView) -> tuple[Action, ...]:
    if moment is Moment.TOOL_STARTED:
        return (Evict(view.agent, _waits(view)),)
    return _return(moment, view)


def _swap(moment: Moment, view: AgentView) -> tuple[Action, ...]:
    if moment is Moment.FILLED:
        return (Mirror(view.agent, "copy early, so that parking has little left to copy"),)
    if moment is Moment.TOOL_STARTED:
        return (Park(view.agent, _waits(view)), Demote(view.agent, _waits(view)))
    return _return(moment, view)


def _auto(moment: Moment, view: AgentView) -> tuple[Action, ...]:
    match moment:
        case Moment.FILLED:
            return _mirror_early(view)
        case Moment.TOOL_STARTED | Moment.ANSWERED | Moment.SILENT:
            return _begin_wait(moment, view)
        case Moment.OVERDUE:
            waited = f"{_waits(view) if view.tool else 'waits'} for {_span(view.outlook.elapsed_s)} already"
            return _give_way(view, f"{waited}, longer than was expected")
        case _:
            return _return(moment, view)


def _mirror_early(view: AgentView) -> tuple[Action, ...]:
    if view.outlook.answers >= PLAIN_CHAT:
        return ()
    return (Mirror(view.agent, "copy early, so that parking has little left to copy"),)


def _begin_wait(moment: Moment, view: AgentView) -> tuple[Action, ...]:
    """Hold what will be needed at once, give way with the rest; where somebody lacks space, give way at once."""
    outlook = view.outlook
    waits = _AWAY.get(moment) or _waits(view)
    if outlook.short > 0:
        return _give_way(view, f"{waits}, and requests lack {outlook.short:.0%} of the pool")
    if outlook.left is None:
        return (Hold(view.agent, f"{waits}: nothing is known of how long", UNKNOWN_S),)
    half = f"half of such waits end within {_span(outlook.left.p50_s)}, copying there and back takes"
    if outlook.left.p50_s <= outlook.round_trip_s:
        return (Hold(view.agent, f"{waits}: {half} {_span(outlook.round_trip_s)}", outlook.round_trip_s),)
    return _give_way(view, f"{waits}: {half} {_span(outlook.round_trip_s)}")


def _give_way(view: AgentView, why: str) -> tuple[Action, ...]:
    outlook = view.outlook
    if outlook.recompute_s is not None and outlook.recompute_s < outlook.restore_s:
        return (Demote(view.agent, f"{why}; computing it again is faster than copying it back"),)
    return (Park(view.agent, why), Demote(view.agent, why))


def _return(moment: Moment, view: AgentView) -> tuple[Action, ...]:
    if moment is Moment.RETURNED:
        return (Promote(view.agent, _BACK), Prefetch(view.agent, _BACK))
    return _expire(moment, view)


def _expire(moment: Moment, view: AgentView) -> tuple[Action, ...]:
    if moment is Moment.GONE:
        return (Rest(view.agent, "nobody expects it any more"),)
    return (Rest(view.agent, "its tool never ended"),) if moment is Moment.EXPIRED else ()


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _waits(view: AgentView) -> str:
    return f"waits for {view.tool}" if view.tool else "waits for a tool"


_RULES: Final[dict[PolicyMode, Rule]] = {
    PolicyMode.KEEP: _keep,
    PolicyMode.RECOMPUTE: _recompute,
    PolicyMode.EAGER: _eager,
    PolicyMode.SWAP: _swap,
    PolicyMode.AUTO: _auto,
}
