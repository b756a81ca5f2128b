"""What an agent's hooks tell: one event at a time, and which spans it opens and closes. Pure.

The events are Claude Code's; others send the same. An event is all that a hook process sees, so what was open before
comes from :mod:`.hook_store`. Ids are derived from the session's and the call's, so that the processes that record the
start and the end of a call agree on them without talking to each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from . import attributes as names
from .otlp_json import AttributeValue

Kind = Literal["turn", "tool", "human"]

DEFAULT_AGENT: Final = "claude-code"
_FAILED: Final = "tool_error"  # error.type: hooks give a text, which is content, and no class
_ENDINGS: Final = frozenset({"Stop", "StopFailure", "SubagentStop"})


class BadEvent(ValueError):
    """Something that is no hook event."""


@dataclass(frozen=True, slots=True)
class HookEvent:
    """A hook event. ``agent`` owns it: the session, or ``session/sub-agent``, and then ``parent`` is the session."""

    event: str
    session: str
    agent: str
    parent: str | None
    agent_name: str
    tool: str
    call_id: str | None
    duration_ns: int | None
    interrupted: bool


@dataclass(frozen=True, slots=True)
class HookSpan:
    """A span of a session, open or closed; ids in hex, instants in unix ns. ``parent`` is the parent agent's id."""

    kind: Kind
    trace_id: str
    span_id: str
    parent_span_id: str | None
    name: str
    agent: str
    agent_name: str
    parent: str | None
    session: str
    call_id: str | None
    start_ns: int
    end_ns: int | None = None
    outcome: str | None = None
    error: str | None = None

    def closed(self, end_ns: int, outcome: str | None = None, error: str | None = None) -> HookSpan:
        """Return the span as it ended, not before its start."""
        values = {field: getattr(self, field) for field in self.__slots__}
        return HookSpan(**{**values, "end_ns": max(end_ns, self.start_ns), "outcome": outcome, "error": error})

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """The span's attributes, of the start and of the end."""
        operation = {
            "turn": names.OPERATION_INVOKE_AGENT,
            "tool": names.OPERATION_EXECUTE_TOOL,
            "human": names.OPERATION_HUMAN_WAIT,
        }[self.kind]
        is_tool = self.kind == "tool"
        found = {
            names.GEN_AI_OPERATION_NAME: operation,
            names.GEN_AI_TOOL_NAME: self.name if is_tool else None,
            names.GEN_AI_TOOL_TYPE: names.TOOL_TYPE_FUNCTION if is_tool else None,
            names.AGENT_ID: self.agent,
            names.GEN_AI_AGENT_NAME: self.agent_name,
            names.PARENT_AGENT_ID: self.parent if self.kind == "turn" else None,
            names.GEN_AI_CONVERSATION_ID: self.session,
            names.GEN_AI_TOOL_CALL_ID: self.call_id,
            names.HUMAN_WAIT_REASON: "permission" if self.kind == "human" else None,
            names.OUTCOME: self.outcome,
            names.ERROR_TYPE: self.error,
        }
        return {key: value for key, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Plan:
    """What an event changes: spans that open, and spans that close, in this order of writing."""

    closes: tuple[HookSpan, ...] = ()
    opens: tuple[HookSpan, ...] = ()


def read_event(payload: Any, agent_name: str = DEFAULT_AGENT) -> HookEvent:
    """Read a hook's JSON; raises :class:`BadEvent`. Fields that are missing or of another type count as unknown."""
    if not isinstance(payload, Mapping):
        raise BadEvent("the input is no JSON object")
    event, session = _text(payload, "hook_event_name"), _text(payload, "session_id")
    if event is None or session is None:
        raise BadEvent("the input has no hook_event_name and session_id")
    sub_agent = _text(payload, "agent_id")
    return HookEvent(
        event=event,
        session=session,
        agent=session if sub_agent is None else f"{session}/{sub_agent}",
        parent=None if sub_agent is None else session,
        agent_name=agent_name if sub_agent is None else _text(payload, "agent_type") or sub_agent,
        tool=_text(payload, "tool_name") or "(no name)",
        call_id=_text(payload, "tool_use_id"),
        duration_ns=_duration_ns(payload.get("duration_ms")),
        interrupted=payload.get("is_interrupt") is True,
    )


def plan(event: HookEvent, spans: Iterable[HookSpan], now_ns: int, last_ns: int) -> Plan:
    """Decide what ``event`` opens and closes, given the open ``spans`` of its session.

    ``last_ns`` is when the session was last heard of. A person who interrupts an agent causes no event, so what is
    still open when the next prompt comes ended then, not when the prompt came.
    """
    spans = tuple(spans)
    mine = [span for span in spans if span.agent == event.agent]
    match event.event:
        case "UserPromptSubmit":
            return Plan(_abandoned(mine, last_ns), (_turn(event, now_ns),))
        case "SubagentStart":
            return Plan(opens=() if mine or event.parent is None else (_turn(event, now_ns),))
        case "PreToolUse":
            return Plan(opens=_tool_opens(event, mine, now_ns))
        case "PermissionRequest":
            return Plan(opens=_wait_opens(event, mine, now_ns))
        case "PostToolUse" | "PostToolUseFailure":
            return Plan(_tool_closes(event, mine, now_ns))
        case "SessionEnd":
            return Plan(_abandoned(spans, now_ns))
        case ending if ending in _ENDINGS:
            return Plan(_abandoned(mine, now_ns))
    return Plan()


def _abandoned(spans: Iterable[HookSpan], end_ns: int) -> tuple[HookSpan, ...]:
    """Close turns, and tools that nobody will report: denied ones, when permission was asked for, or cut off."""
    spans = tuple(spans)
    asked = {span.parent_span_id: span.start_ns for span in spans if span.kind == "human"}
    tools = [
        span.closed(asked.get(span.span_id, end_ns), names.OUTCOME_CLOSED) for span in spans if span.kind == "tool"
    ]
    waits = [span.closed(span.start_ns, names.OUTCOME_CLOSED) for span in spans if span.kind == "human"]
    return (*tools, *waits, *(span.closed(end_ns) for span in spans if span.kind == "turn"))


def _turn(event: HookEvent, now_ns: int) -> HookSpan:
    return _span(event, "turn", f"turn:{now_ns}", event.agent_name, now_ns)


def _tool_opens(event: HookEvent, mine: list[HookSpan], now_ns: int) -> tuple[HookSpan, ...]:
    if event.call_id is None or any(span.kind == "tool" and span.call_id == event.call_id for span in mine):
        return ()
    open_turn = next((span for span in mine if span.kind == "turn"), None)
    turn = open_turn or _turn(event, now_ns)
    call = _span(event, "tool", event.call_id, event.tool, now_ns, turn.span_id)
    return (call,) if open_turn else (turn, call)


def _wait_opens(event: HookEvent, mine: list[HookSpan], now_ns: int) -> tuple[HookSpan, ...]:
    """Find the call that a permission is asked for: by its id, which most versions leave out, or else by its tool."""
    waiting = {span.parent_span_id for span in mine if span.kind == "human"}
    calls = [span for span in mine if span.kind == "tool" and span.span_id not in waiting]
    if event.call_id is not None:
        calls = [span for span in calls if span.call_id == event.call_id]
    else:
        calls = [span for span in calls if span.name == event.tool]
    if not calls:
        return ()
    call = min(calls, key=lambda span: span.start_ns)
    return (_span(event, "human", f"permission:{call.call_id}", "human_wait", now_ns, call.span_id),)


def _tool_closes(event: HookEvent, mine: list[HookSpan], now_ns: int) -> tuple[HookSpan, ...]:
    call = next((span for span in mine if span.kind == "tool" and span.call_id == event.call_id), None)
    if call is None:
        if event.call_id is None or event.duration_ns is None:
            return ()
        turn = next((span.span_id for span in mine if span.kind == "turn"), None)
        call = _span(event, "tool", event.call_id, event.tool, now_ns - event.duration_ns, turn)
    error = _FAILED if event.event == "PostToolUseFailure" and not event.interrupted else None
    ended = call.closed(now_ns, names.OUTCOME_CANCELLED if event.interrupted else None, error)
    waits = [span for span in mine if span.kind == "human" and span.parent_span_id == call.span_id]
    # The duration leaves out the wait for permission: what lies between request and run was the person's.
    answered_ns = now_ns - event.duration_ns if event.duration_ns is not None else 0
    return (*(wait.closed(answered_ns) for wait in waits), ended)


def _span(event: HookEvent, kind: Kind, key: str, name: str, start_ns: int, parent: str | None = None) -> HookSpan:
    return HookSpan(
        kind=kind,
        trace_id=_digest(event.session)[:32],
        span_id=_digest(f"{event.agent}\0{key}")[:16],
        parent_span_id=parent,
        name=name,
        agent=event.agent,
        agent_name=event.agent_name,
        parent=event.parent,
        session=event.session,
        call_id=event.call_id if kind == "tool" else None,
        start_ns=start_ns,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _duration_ns(duration_ms: Any) -> int | None:
    if not isinstance(duration_ms, int | float) or isinstance(duration_ms, bool) or not 0 <= duration_ms < 1e10:
        return None
    return round(duration_ms * 1e6)


def _text(payload: Mapping[str, Any], key: str) -> str | None:
    value = payload.get(key)
    return value if isinstance(value, str) and value else None
