"""Spans of agents that write neither GenAI nor framework conventions, said in GenAI words.

Claude Code (beta traces): ``claude_code.interaction`` is a turn, ``claude_code.llm_request`` a model call,
``claude_code.tool`` a tool call with the children ``.blocked_on_user`` (the permission wait) and ``.execution``.
Logfire: a pending span is written when a span starts, under an id of its own, as a child of the span it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from kvtrace.tracer import attributes as names

from .values import identifier, text

CLAUDE_CODE: Final = "claude_code."
CLAUDE_OPERATIONS: Final = {
    "claude_code.interaction": names.OPERATION_INVOKE_AGENT,
    "claude_code.llm_request": names.OPERATION_CHAT,
    "claude_code.tool": names.OPERATION_EXECUTE_TOOL,
    "claude_code.tool.blocked_on_user": names.OPERATION_HUMAN_WAIT,
}
CLAUDE_TOOL: Final = "tool_name"
CLAUDE_CALL: Final = "tool_use_id"
CLAUDE_SUB_AGENT: Final = "agent_id"
CLAUDE_TTFT: Final = "ttft_ms"
CLAUDE_INPUTS: Final = ("input_tokens", "cache_read_tokens", "cache_creation_tokens")
CLAUDE_OUTPUT: Final = "output_tokens"
SESSION: Final = "session.id"
# "approval", "tool.approval", "wait for approval", "permission_request": spans that some frameworks put around a question.
ASKS: Final = re.compile(r"(.*[ ._/])?(approval|permission)([ ._](wait|request|prompt))?", re.IGNORECASE)

LOGFIRE_TYPE: Final = "logfire.span_type"
LOGFIRE_PENDING: Final = "pending_span"
LOGFIRE_PARENT: Final = "logfire.pending_parent_id"

DIALECT_WANTED: Final = frozenset(
    {
        *(CLAUDE_TOOL, CLAUDE_CALL, CLAUDE_SUB_AGENT, CLAUDE_TTFT, SESSION, LOGFIRE_TYPE, LOGFIRE_PARENT),
        *(CLAUDE_OUTPUT, *CLAUDE_INPUTS),
    }
)
"""Attributes that are read beside the conventions' own."""


def in_genai_words(span_name: str, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The span's attributes with what its name says added, or as they are for a span of no known dialect."""
    if span_name.startswith(CLAUDE_CODE):
        return _claude_code(span_name, attributes)
    if names.GEN_AI_OPERATION_NAME not in attributes and ASKS.fullmatch(span_name):
        return {**attributes, names.GEN_AI_OPERATION_NAME: names.OPERATION_HUMAN_WAIT}
    return attributes


def pending_parent(attributes: Mapping[str, Any]) -> str | None:
    """For a pending span, the parent of the span it stands for (``""`` for a root); ``None`` for any other span.

    Raises :class:`BadValueError` where it is no id.
    """
    if attributes.get(LOGFIRE_TYPE) != LOGFIRE_PENDING:
        return None
    return identifier(attributes.get(LOGFIRE_PARENT), 16, LOGFIRE_PARENT)


def _claude_code(span_name: str, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    inputs = [attributes.get(key) for key in CLAUDE_INPUTS]
    ttft_ms = attributes.get(CLAUDE_TTFT)
    return {
        **attributes,
        names.GEN_AI_OPERATION_NAME: CLAUDE_OPERATIONS.get(span_name, span_name),
        names.GEN_AI_TOOL_NAME: attributes.get(CLAUDE_TOOL),
        names.GEN_AI_TOOL_CALL_ID: attributes.get(CLAUDE_CALL),
        names.GEN_AI_TIME_TO_FIRST_CHUNK: ttft_ms / 1000 if isinstance(ttft_ms, int | float) else None,
        names.GEN_AI_USAGE_INPUT_TOKENS: sum(value for value in inputs if isinstance(value, int)) or None,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: attributes.get(CLAUDE_OUTPUT),
        names.AGENT_ID: _claude_agent(attributes),
    }


def _claude_agent(attributes: Mapping[str, Any]) -> str | None:
    """The session, and within it the sub-agent where one is named: each has a context of its own."""
    session, sub_agent = text(attributes.get(SESSION)), text(attributes.get(CLAUDE_SUB_AGENT))
    return f"{session}/{sub_agent}" if session and sub_agent else session
