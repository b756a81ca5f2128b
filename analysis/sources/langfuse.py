"""Langfuse exports: traces with their observations from the interface or the public API, rows from blob storage.

Observations have a type; frameworks that know only SPAN are understood by how they call their tools: ``tool.X``, a tool
name among the span's own attributes, or a step inside LangGraph's ``tools`` node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kvtrace.tracer import attributes as names

from ..normal import Notes, Process, SpanRecord
from .any_value import attributes
from .build import build_record
from .genai import WANTED
from .json_values import json_values
from .stamps import say, stamp
from .values import BadValueError, text

KIND: Final = "Langfuse export"

_MARKS: Final = (
    b'"parentObservationId"',
    b'"parent_observation_id"',
    b'"observations"',
    b'"htmlPath"',
    b'"bookmarked"',
)
_OWNERS: Final = (b'"traceId"', b'"projectId"', b'"trace_id"', b'"project_id"')
_OPERATIONS: Final = {
    "TOOL": names.OPERATION_EXECUTE_TOOL,
    "GENERATION": names.OPERATION_CHAT,
    "AGENT": names.OPERATION_INVOKE_AGENT,
}
_TOOL_PREFIX: Final = "tool."
_TOOL_NODE: Final = "tools"
_GRAPH_RUNS: Final = frozenset({"LangGraph", "AgentExecutor"})
_MILLISECONDS: Final = "lengths under 1 ms not visible (Langfuse keeps milliseconds)"
_SNAKE: Final = (
    ("trace_id", "traceId"),
    ("parent_observation_id", "parentObservationId"),
    ("start_time", "startTime"),
    ("end_time", "endTime"),
    ("completion_start_time", "completionStartTime"),
    ("usage_details", "usageDetails"),
)
_INPUTS: Final = ("input", "prompt_tokens", "promptTokens")
_OUTPUTS: Final = ("output", "completion_tokens", "completionTokens")
_LEVELS: Final = ("usageDetails", "usage")


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like observations of Langfuse."""
    return any(key in head for key in _OWNERS) and any(mark in head for mark in _MARKS)


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield every readable observation of a file; what is not is counted in ``notes``. Raises ``OSError``."""
    say(notes, _MILLISECONDS)
    process = notes.process(Process())
    for line, value in json_values(path, notes):
        for trace, observations in _groups(value):
            by_id = {
                each["id"]: each for each in observations if isinstance(each, dict) and isinstance(each.get("id"), str)
            }
            for observation in observations:
                try:
                    yield _record(observation, by_id, trace, process, line, notes)
                except BadValueError as error:
                    notes.skip(line, str(error))


def _groups(value: Any) -> Iterator[tuple[Mapping[str, Any], list[Any]]]:
    """Traces with their observations; observations that come without a trace are one group."""
    if isinstance(value, dict):
        if isinstance(value.get("observations"), list):
            trace = value.get("trace")
            yield (trace if isinstance(trace, dict) else value), value["observations"]
            return
        inner = value.get("data")
        value = inner if isinstance(inner, list) else [value]
    if isinstance(value, list):
        traces = [each for each in value if isinstance(each, dict) and isinstance(each.get("observations"), list)]
        for trace in traces:
            yield from _groups(trace)
        rest = [each for each in value if each not in traces] if traces else value
        if rest:
            yield {}, rest


def _record(
    observation: Any, by_id: Mapping[str, Any], trace: Mapping[str, Any], process: int, line: int, notes: Notes
) -> SpanRecord:
    if not isinstance(observation, dict):
        raise BadValueError(f"{type(observation).__name__} instead of an observation")
    observation = {**observation, **{camel: observation[snake] for snake, camel in _SNAKE if snake in observation}}
    parent_id = text(observation.get("parentObservationId"))
    start_ns = stamp(observation.get("startTime"), "startTime", notes)
    return build_record(
        notes,
        line,
        process,
        ids=(
            text(observation.get("traceId")) or text(trace.get("id")) or "",
            text(observation.get("id")) or "",
            parent_id or "",
        ),
        name=text(observation.get("name")) or "",
        instants=(start_ns, stamp(observation.get("endTime"), "endTime", notes)),
        attributes=_attributes(observation, by_id.get(parent_id or ""), trace, start_ns, notes),
        failed=observation.get("level") == "ERROR",
    )


def _attributes(
    observation: Mapping[str, Any], parent: Any, trace: Mapping[str, Any], start_ns: int | None, notes: Notes
) -> dict[str, Any]:
    name = text(observation.get("name")) or ""
    metadata = _mapping(observation.get("metadata"))
    own = attributes(_mapping(metadata.get("attributes")), WANTED)
    operation = _operation(observation, name, metadata, parent, own)
    first_ns = stamp(observation.get("completionStartTime"), "completionStartTime", notes)
    said = {
        **own,
        names.GEN_AI_OPERATION_NAME: operation,
        names.GEN_AI_TOOL_NAME: own.get(names.GEN_AI_TOOL_NAME) or name.removeprefix(_TOOL_PREFIX),
        names.GEN_AI_TIME_TO_FIRST_CHUNK: None if first_ns is None or start_ns is None else (first_ns - start_ns) / 1e9,
        names.GEN_AI_USAGE_INPUT_TOKENS: _usage(observation, _INPUTS),
        names.GEN_AI_USAGE_OUTPUT_TOKENS: _usage(observation, _OUTPUTS),
    }
    session = text(trace.get("sessionId"))
    if session and parent is None and operation == names.OPERATION_INVOKE_AGENT:
        # Runs of one session are turns of one agent: the time between them is the person's.
        said[names.AGENT_ID] = said.get(names.AGENT_ID) or f"{session}/{name}"
    return said


def _operation(
    observation: Mapping[str, Any], name: str, metadata: Mapping[str, Any], parent: Any, own: Mapping[str, Any]
) -> str:
    kind = str(observation.get("type")).upper()
    if kind == "AGENT" and own.get(names.GEN_AI_OPERATION_NAME) == "create_agent":
        return "create_agent"
    if kind in _OPERATIONS:
        return _OPERATIONS[kind]
    inside_tools = isinstance(parent, dict) and parent.get("name") == _TOOL_NODE
    if name.startswith(_TOOL_PREFIX) or (inside_tools and metadata.get("langgraph_node") == _TOOL_NODE):
        return names.OPERATION_EXECUTE_TOOL
    if parent is None and name in _GRAPH_RUNS:
        return names.OPERATION_INVOKE_AGENT
    known = own.get(names.GEN_AI_OPERATION_NAME)
    if known is None and own.get(names.GEN_AI_TOOL_NAME):
        return names.OPERATION_EXECUTE_TOOL
    return str(known or kind)


def _usage(observation: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    for level in (*_LEVELS, None):
        counts = observation if level is None else _mapping(observation.get(level))
        found = next((counts[key] for key in keys if isinstance(counts.get(key), int)), None)
        if found:
            return found
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    """A mapping, or one written as JSON text; empty for anything else."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}
