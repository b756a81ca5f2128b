"""What ``sql/clickhouse/records.sql`` looks for in a span's attributes: the words of the importers of trace files, as SQL literals."""

from __future__ import annotations

from string import Template
from typing import Final

from kvtrace.tracer import attributes as names

from ..queries import sql
from ..sources import dialects, genai

_ONE: Final = {
    "operation": names.GEN_AI_OPERATION_NAME,
    "human_wait": names.OPERATION_HUMAN_WAIT,
    "tool_name": names.GEN_AI_TOOL_NAME,
    "call_id": names.GEN_AI_TOOL_CALL_ID,
    "first_chunk": names.GEN_AI_TIME_TO_FIRST_CHUNK,
    "input_tokens": names.GEN_AI_USAGE_INPUT_TOKENS,
    "output_tokens": names.GEN_AI_USAGE_OUTPUT_TOKENS,
    "agent_id": names.AGENT_ID,
    "agent_label": names.GEN_AI_AGENT_ID,
    "parent_agent_id": names.PARENT_AGENT_ID,
    "queued": names.QUEUED_INTERVALS,
    "suspended": names.SUSPENDED_INTERVALS,
    "error": names.ERROR_TYPE,
    "host": names.HOST_NAME,
    "pid": names.PROCESS_PID,
    "process_start": names.PROCESS_START,
    "tool_prefix": f"^{names.OPERATION_EXECUTE_TOOL} ",
    "agent_prefix": f"^{names.OPERATION_INVOKE_AGENT} ",
    "logfire_type": dialects.LOGFIRE_TYPE,
    "logfire_pending": dialects.LOGFIRE_PENDING,
    "logfire_parent": dialects.LOGFIRE_PARENT,
    "claude": dialects.CLAUDE_CODE,
    "claude_tool": dialects.CLAUDE_TOOL,
    "claude_call": dialects.CLAUDE_CALL,
    "claude_ttft": dialects.CLAUDE_TTFT,
    "claude_output": dialects.CLAUDE_OUTPUT,
    "claude_sub_agent": dialects.CLAUDE_SUB_AGENT,
    "session": dialects.SESSION,
    "asks": f"(?i)^(?:{dialects.ASKS.pattern})\\z",
    "request_type": genai.OPENLLMETRY_REQUEST,
}

_MANY: Final = {
    "claude_inputs": dialects.CLAUDE_INPUTS,
    "claude_names": dialects.CLAUDE_OPERATIONS,
    "claude_operations": dialects.CLAUDE_OPERATIONS.values(),
    "operations": genai.OPERATIONS,
    "operation_kinds": genai.OPERATIONS.values(),
    "foreign_keys": (genai.OPENINFERENCE_KIND, genai.TRACELOOP_KIND, genai.LANGFUSE_KIND),
    "foreign_names": genai.FOREIGN_KINDS,
    "foreign_kinds": genai.FOREIGN_KINDS.values(),
    "request_types": sorted(genai.OPENLLMETRY_REQUESTS),
    "tool_names": genai.TOOL_NAMES,
    "inferred_tools": (names.GEN_AI_TOOL_NAME, genai.AI_SDK_TOOL),
    "call_ids": genai.CALL_IDS,
    "agent_names": genai.AGENT_NAMES,
    "providers": genai.PROVIDERS,
    "models": genai.MODELS,
    "outputs": genai.OUTPUTS,
    "conversations": genai.CONVERSATIONS,
    "inputs": genai.INPUT_TOKENS,
    "output_counts": genai.OUTPUT_TOKENS,
}


def records_query(table: str) -> str:
    """The query for ``records`` from a table of the Collector's form, named in full and quoted."""
    one = {key: _literal(value) for key, value in _ONE.items()}
    many = {key: f"[{', '.join(map(_literal, values))}]" for key, values in _MANY.items()}
    return Template(sql("clickhouse/records")).substitute(one | many, table=table, max_tokens=str(genai.MAX_TOKENS))


def _literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
