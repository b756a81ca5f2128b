"""What to do with an agent's KV when it starts or stops waiting for a tool. Pure: facts in, actions out.

Torch-free and without state, so that a replay of recorded spans can ask the same questions. The actions are data;
:class:`.loop.EngineCore` carries them out on the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .config import PolicyMode


class Moment(StrEnum):
    """When the policy is asked."""

    TOOL_STARTED = "tool_started"  # the agent is blocked from now on
    RETURNED = "returned"  # its last open tool ended, or its request came
    EXPIRED = "expired"  # its tool never ended and nobody believes in it any more
    FILLED = "filled"  # a request of the agent filled blocks


@dataclass(frozen=True, slots=True)
class AgentView:
    """What a decision may depend on: the agent, its tool, and where its context is, in blocks."""

    agent: str
    tool: str | None
    blocks: int
    device_blocks: int
    host_blocks: int


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


Rule = Callable[[Moment, AgentView], tuple[Action, ...]]

_BACK: Final = "back from its tool"


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


def _return(moment: Moment, view: AgentView) -> tuple[Action, ...]:
    if moment is Moment.RETURNED:
        return (Promote(view.agent, _BACK), Prefetch(view.agent, _BACK))
    return _expire(moment, view)


def _expire(moment: Moment, view: AgentView) -> tuple[Action, ...]:
    return (Rest(view.agent, "its tool never ended"),) if moment is Moment.EXPIRED else ()


def _waits(view: AgentView) -> str:
    return f"waits for {view.tool}" if view.tool else "waits for a tool"


_RULES: Final[dict[PolicyMode, Rule]] = {
    PolicyMode.KEEP: _keep,
    PolicyMode.RECOMPUTE: _recompute,
    PolicyMode.EAGER: _eager,
    PolicyMode.SWAP: _swap,
}
