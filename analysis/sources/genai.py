"""Which spans are tool calls, model calls, agent runs or waits for a person, after the GenAI conventions.

Also understood: the kinds of OpenInference, OpenLLMetry and Langfuse, the names of the Vercel AI SDK, and older names of
the conventions. All of them stand here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kvtrace.tracer import attributes as names

from ..normal import Kind
from .dialects import DIALECT_WANTED
from .values import BadValueError, integer, text

OPERATIONS: Final[dict[str, Kind]] = {
    names.OPERATION_EXECUTE_TOOL: "tool",
    names.OPERATION_CHAT: "model",
    "generate_content": "model",
    "text_completion": "model",
    names.OPERATION_INVOKE_AGENT: "agent",
    "invoke_workflow": "agent",
    names.OPERATION_HUMAN_WAIT: "human",
}
OPENINFERENCE_KIND: Final = "openinference.span.kind"
TRACELOOP_KIND: Final = "traceloop.span.kind"
OPENLLMETRY_REQUEST: Final = "llm.request.type"
LANGFUSE_KIND: Final = "langfuse.observation.type"
FOREIGN_KINDS: Final[dict[str, Kind]] = {"tool": "tool", "llm": "model", "generation": "model", "agent": "agent"}
OPENLLMETRY_REQUESTS: Final = frozenset({"chat", "completion"})
AI_SDK_TOOL: Final = "ai.toolCall.name"
_ENTITY: Final = "traceloop.entity.name"
TOOL_NAMES: Final = (names.GEN_AI_TOOL_NAME, "tool.name", AI_SDK_TOOL, _ENTITY)
CALL_IDS: Final = (names.GEN_AI_TOOL_CALL_ID, "gen_ai.tool.call_id", "tool_call.id", "tool.id", "ai.toolCall.id")
AGENT_NAMES: Final = (names.GEN_AI_AGENT_NAME, "agent.name", "agent_name", "gen_ai.workflow.name")
# What a span without an operation must carry to be a call to a model: who served it and what came out.
PROVIDERS: Final = (names.GEN_AI_PROVIDER_NAME, "gen_ai.system")
MODELS: Final = (names.GEN_AI_REQUEST_MODEL, names.GEN_AI_RESPONSE_MODEL)
CONVERSATIONS: Final = (names.GEN_AI_CONVERSATION_ID, "session.id")
INPUT_TOKENS: Final = (names.GEN_AI_USAGE_INPUT_TOKENS, "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
OUTPUT_TOKENS: Final = (
    names.GEN_AI_USAGE_OUTPUT_TOKENS,
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
)
MAX_TOKENS: Final = 10**9
OUTPUTS: Final = (*OUTPUT_TOKENS, names.GEN_AI_RESPONSE_FINISH_REASONS)

WANTED: Final = frozenset(
    {
        names.GEN_AI_OPERATION_NAME,
        names.GEN_AI_AGENT_ID,
        names.GEN_AI_TIME_TO_FIRST_CHUNK,
        names.ERROR_TYPE,
        names.AGENT_ID,
        names.PARENT_AGENT_ID,
        names.QUEUED_INTERVALS,
        names.SUSPENDED_INTERVALS,
        OPENINFERENCE_KIND,
        TRACELOOP_KIND,
        LANGFUSE_KIND,
        OPENLLMETRY_REQUEST,
        *TOOL_NAMES,
        *CALL_IDS,
        *AGENT_NAMES,
        *CONVERSATIONS,
        *INPUT_TOKENS,
        *OUTPUT_TOKENS,
        *PROVIDERS,
        *MODELS,
        *OUTPUTS,
        *DIALECT_WANTED,
    }
)
"""Attributes that are read; everything else in a span is passed over undecoded."""

PASSED_ON_TEXTS: Final = frozenset(
    {names.AGENT_ID, names.PARENT_AGENT_ID, names.GEN_AI_AGENT_ID, *CALL_IDS, *CONVERSATIONS}
)
"""Attributes whose text, where printable, matters to nothing but the columns it ends up in, unchanged."""
PASSED_ON_NUMBERS: Final = frozenset({*INPUT_TOKENS, *OUTPUT_TOKENS})
"""The same for counts from 0 to :data:`MAX_TOKENS`."""


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
    inferred: bool


def declared_kind(attributes: Mapping[str, Any]) -> Kind | None:
    """Kind a span says it is of, by its GenAI operation where there is one; ``None`` where it says nothing."""
    operation = attributes.get(names.GEN_AI_OPERATION_NAME)
    if operation is not None:
        return OPERATIONS.get(str(operation), "other")
    for key in (OPENINFERENCE_KIND, TRACELOOP_KIND, LANGFUSE_KIND):
        foreign = attributes.get(key)
        if foreign is not None:
            return FOREIGN_KINDS.get(str(foreign).lower(), "other")
    if text(attributes.get(OPENLLMETRY_REQUEST)) in OPENLLMETRY_REQUESTS:
        return "model"
    return None


def inferred_kind(attributes: Mapping[str, Any]) -> Kind:
    """Kind of a span that names no operation, as instrumentations before the conventions' first release wrote them."""
    if _first(attributes, (names.GEN_AI_TOOL_NAME, AI_SDK_TOOL)) is not None:
        return "tool"
    is_call = all(any(key in attributes for key in keys) for keys in (PROVIDERS, MODELS, OUTPUTS))
    return "model" if is_call and _first(attributes, AGENT_NAMES) is None else "other"


def meaning(span_name: str, attributes: Mapping[str, Any]) -> Meaning:
    """Read a span's name and attributes; every attribute may be missing or of the wrong type."""
    declared = declared_kind(attributes)
    kind = declared or inferred_kind(attributes)
    agent_name = _first(attributes, AGENT_NAMES)
    name = span_name
    if kind == "tool":
        name = _first(attributes, TOOL_NAMES) or span_name.removeprefix(f"{names.OPERATION_EXECUTE_TOOL} ")
    elif kind == "agent":
        name = agent_name = agent_name or span_name.removeprefix(f"{names.OPERATION_INVOKE_AGENT} ")
    return Meaning(
        kind=kind,
        name=name or "(no name)",
        call_id=_first(attributes, CALL_IDS) if kind == "tool" else None,
        agent_id=text(attributes.get(names.AGENT_ID)),
        agent_label=text(attributes.get(names.GEN_AI_AGENT_ID)) or agent_name,
        agent_name=agent_name,
        parent_agent_id=text(attributes.get(names.PARENT_AGENT_ID)),
        conversation_id=_first(attributes, CONVERSATIONS),
        inferred=declared is None,
    )


def first_token_ns(start_ns: int | None, attributes: Mapping[str, Any]) -> int | None:
    """Instant of the first streamed chunk, from seconds after the start."""
    seconds = attributes.get(names.GEN_AI_TIME_TO_FIRST_CHUNK)
    if start_ns is None or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        return None
    return start_ns + round(seconds * 1e9)


def usage(attributes: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Input and output tokens of a model call, each ``None`` where it is not told or no sensible count."""
    return _tokens(attributes, INPUT_TOKENS), _tokens(attributes, OUTPUT_TOKENS)


def _tokens(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        try:
            count = integer(attributes.get(key), key)
        except BadValueError:
            continue
        if count is not None and 0 <= count <= MAX_TOKENS:
            return count
    return None


def intervals(attributes: Mapping[str, Any], key: str) -> list[int] | None:
    """Instants ``start, end, start, end, ...`` that a span reports under ``key``; ``None`` where it reports none.

    Raises :class:`BadValueError` where they are no such list.
    """
    value = attributes.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) % 2:
        raise BadValueError(f"{key} is no list of start and end pairs")
    instants = [integer(item, key) for item in value]
    if None in instants:
        raise BadValueError(f"{key} holds something that is no instant")
    return [item for item in instants if item is not None]


def _first(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    for key in keys:
        value = text(attributes.get(key))
        if value is not None:
            return value
    return None
