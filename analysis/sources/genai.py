"""Which spans are tool calls, model calls, agent runs or waits for a person, after the GenAI conventions.

Also understood: the kinds of OpenInference and OpenLLMetry, whose names are theirs and stand here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kvtrace.tracer import attributes as names

from ..normal import Kind
from .values import BadValueError, integer, text

_OPERATIONS: Final[dict[str, Kind]] = {
    names.OPERATION_EXECUTE_TOOL: "tool",
    names.OPERATION_CHAT: "model",
    "generate_content": "model",
    "text_completion": "model",
    names.OPERATION_INVOKE_AGENT: "agent",
    names.OPERATION_HUMAN_WAIT: "human",
}
_OPENINFERENCE_KIND: Final = "openinference.span.kind"
_TRACELOOP_KIND: Final = "traceloop.span.kind"
_OPENLLMETRY_REQUEST: Final = "llm.request.type"
_FOREIGN_KINDS: Final[dict[str, Kind]] = {"tool": "tool", "llm": "model", "agent": "agent"}
_OPENLLMETRY_REQUESTS: Final = frozenset({"chat", "completion"})
_TOOL_NAMES: Final = (names.GEN_AI_TOOL_NAME, "tool.name")
_CALL_IDS: Final = (names.GEN_AI_TOOL_CALL_ID, "gen_ai.tool.call_id", "tool_call.id", "tool.id")
_AGENT_NAMES: Final = (names.GEN_AI_AGENT_NAME, "agent.name")
_CONVERSATIONS: Final = (names.GEN_AI_CONVERSATION_ID, "session.id")

WANTED: Final = frozenset(
    {
        names.GEN_AI_OPERATION_NAME,
        names.GEN_AI_AGENT_ID,
        names.GEN_AI_TIME_TO_FIRST_CHUNK,
        names.ERROR_TYPE,
        names.AGENT_ID,
        names.PARENT_AGENT_ID,
        names.QUEUED_INTERVALS,
        _OPENINFERENCE_KIND,
        _TRACELOOP_KIND,
        _OPENLLMETRY_REQUEST,
        *_TOOL_NAMES,
        *_CALL_IDS,
        *_AGENT_NAMES,
        *_CONVERSATIONS,
    }
)
"""Attributes that are read; everything else in a span is passed over undecoded."""


class Meaning(NamedTuple):
    """What a span's name and attributes say about it."""

    kind: Kind
    name: str
    call_id: str | None
    agent_id: str | None
    agent_label: str | None
    agent_name: str | None
    parent_agent_id: str | None
    conversation_id: str | None


def kind_of(attributes: Mapping[str, Any]) -> Kind:
    """Kind of a span; the GenAI operation decides where there is one."""
    operation = attributes.get(names.GEN_AI_OPERATION_NAME)
    if operation is not None:
        return _OPERATIONS.get(str(operation), "other")
    for key in (_OPENINFERENCE_KIND, _TRACELOOP_KIND):
        foreign = attributes.get(key)
        if foreign is not None:
            return _FOREIGN_KINDS.get(str(foreign).lower(), "other")
    return "model" if attributes.get(_OPENLLMETRY_REQUEST) in _OPENLLMETRY_REQUESTS else "other"


def meaning(span_name: str, attributes: Mapping[str, Any]) -> Meaning:
    """Read a span's name and attributes; every attribute may be missing or of the wrong type."""
    kind = kind_of(attributes)
    agent_name = _first(attributes, _AGENT_NAMES)
    name = span_name
    if kind == "tool":
        name = _first(attributes, _TOOL_NAMES) or span_name.removeprefix(f"{names.OPERATION_EXECUTE_TOOL} ")
    elif kind == "agent":
        name = agent_name = agent_name or span_name.removeprefix(f"{names.OPERATION_INVOKE_AGENT} ")
    return Meaning(
        kind=kind,
        name=name or "(no name)",
        call_id=_first(attributes, _CALL_IDS) if kind == "tool" else None,
        agent_id=text(attributes.get(names.AGENT_ID)),
        agent_label=text(attributes.get(names.GEN_AI_AGENT_ID)) or agent_name,
        agent_name=agent_name,
        parent_agent_id=text(attributes.get(names.PARENT_AGENT_ID)),
        conversation_id=_first(attributes, _CONVERSATIONS),
    )


def first_token_ns(start_ns: int | None, attributes: Mapping[str, Any]) -> int | None:
    """Instant of the first streamed chunk, from seconds after the start."""
    seconds = attributes.get(names.GEN_AI_TIME_TO_FIRST_CHUNK)
    if start_ns is None or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        return None
    return start_ns + round(seconds * 1e9)


def queued_intervals(attributes: Mapping[str, Any]) -> list[int]:
    """Instants ``start, end, start, end, ...`` of the waits a model call reports; empty where it reports none.

    Raises :class:`BadValueError` where they are no such list.
    """
    value = attributes.get(names.QUEUED_INTERVALS)
    if value is None:
        return []
    if not isinstance(value, list) or len(value) % 2:
        raise BadValueError(f"{names.QUEUED_INTERVALS} is no list of start and end pairs")
    instants = [integer(item, names.QUEUED_INTERVALS) for item in value]
    if None in instants:
        raise BadValueError(f"{names.QUEUED_INTERVALS} holds something that is no instant")
    return [item for item in instants if item is not None]


def _first(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    for key in keys:
        value = text(attributes.get(key))
        if value is not None:
            return value
    return None
