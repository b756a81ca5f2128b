"""What the spans of other libraries mean, by the names their conventions give things; pure, and shared by all readers.

Known: the GenAI conventions and their older names, OpenInference (Phoenix), OpenLLMetry (Traceloop), Langfuse and Logfire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from . import attributes as names
from .otlp_json import AttributeValue

Kind: TypeAlias = Literal["tool", "model", "agent"]

_OPERATIONS: Final[Mapping[str, Kind]] = {
    names.OPERATION_EXECUTE_TOOL: "tool",
    names.OPERATION_CHAT: "model",
    "generate_content": "model",
    "text_completion": "model",
    names.OPERATION_INVOKE_AGENT: "agent",
}
_KIND_KEYS: Final = ("openinference.span.kind", "traceloop.span.kind", "langfuse.observation.type")
_FOREIGN_KINDS: Final[Mapping[str, Kind]] = {"tool": "tool", "llm": "model", "generation": "model", "agent": "agent"}
_REQUEST_KEYS: Final = ("llm.request.type", "gen_ai.request.type")
_TOOL_NAMES: Final = (names.GEN_AI_TOOL_NAME, "tool.name", "traceloop.entity.name")
_CALL_IDS: Final = (names.GEN_AI_TOOL_CALL_ID, "gen_ai.tool.call_id", "tool_call.id", "tool.id")
_CONVERSATIONS: Final = (names.GEN_AI_CONVERSATION_ID, "session.id")
_FINISH_REASONS: Final = (names.GEN_AI_RESPONSE_FINISH_REASONS, "llm.response.finish_reason")
_TOOL_CALLS: Final = frozenset({"tool_calls", "tool_call", "tool_use", "function_call"})

# What is kept of others' spans. A list of what is known to be harmless, not of what is known to be content: a library's
# next attribute must not end up on disk because nobody here had heard of it.
_KEPT: Final = frozenset(
    {
        *_KIND_KEYS,
        *_REQUEST_KEYS,
        *_TOOL_NAMES,
        *_CALL_IDS,
        *_CONVERSATIONS,
        *_FINISH_REASONS,
        names.GEN_AI_OPERATION_NAME,
        names.GEN_AI_PROVIDER_NAME,
        names.GEN_AI_REQUEST_MODEL,
        names.GEN_AI_RESPONSE_MODEL,
        names.GEN_AI_TIME_TO_FIRST_CHUNK,
        names.GEN_AI_AGENT_ID,
        names.GEN_AI_AGENT_NAME,
        names.GEN_AI_TOOL_TYPE,
        names.ERROR_TYPE,
        "agent.name",
        "gen_ai.output.type",
        "gen_ai.request.stream",
        "gen_ai.system",
        "llm.model_name",
        "llm.provider",
        "logfire.pending_parent_id",
        "logfire.span_type",
    }
)
_KEPT_PREFIXES: Final = ("gen_ai.usage.", "kvtrace.", "llm.token_count.", "llm.usage.")
_PENDING_KEY: Final = "logfire.span_type"


def kind_of(attributes: Mapping[str, Any]) -> Kind | None:
    """Return what a span is; the GenAI operation decides where there is one."""
    operation = attributes.get(names.GEN_AI_OPERATION_NAME)
    if operation is not None:
        return _OPERATIONS.get(str(operation))
    for key in _KIND_KEYS:
        if (kind := attributes.get(key)) is not None:
            return _FOREIGN_KINDS.get(str(kind).lower())
    return "model" if any(attributes.get(key) in ("chat", "completion") for key in _REQUEST_KEYS) else None


def tool_name(span_name: str, attributes: Mapping[str, Any]) -> str:
    """Return the name of a tool span's tool."""
    return _first(attributes, _TOOL_NAMES) or span_name.removeprefix(f"{names.OPERATION_EXECUTE_TOOL} ")


def call_id(attributes: Mapping[str, Any]) -> str | None:
    """Return the id that the model gave a tool call."""
    return _first(attributes, _CALL_IDS)


def conversation(attributes: Mapping[str, Any]) -> str | None:
    """Return the conversation that a span belongs to."""
    return _first(attributes, _CONVERSATIONS)


def is_pending(attributes: Mapping[str, Any]) -> bool:
    """Tell whether this is Logfire's placeholder for a span that is still open, and no span of its own."""
    return attributes.get(_PENDING_KEY) == "pending_span"


def asks_for_tools(attributes: Mapping[str, Any]) -> bool:
    """Tell whether a model call ended because the model wants tools to run."""
    for key in _FINISH_REASONS:
        reasons = attributes.get(key)
        found = (reasons,) if isinstance(reasons, str) else reasons or ()
        if any(reason in _TOOL_CALLS for reason in found):
            return True
    return False


def without_content(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Return the attributes that say what ran and how long, never what was said."""
    return {key: value for key, value in attributes.items() if key in _KEPT or key.startswith(_KEPT_PREFIXES)}


def _first(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((value for key in keys if isinstance(value := attributes.get(key), str) and value), None)
