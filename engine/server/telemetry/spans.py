"""The content of spans: from the server's records to names, attributes and times. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from kvtrace.tracer import attributes as names

from ...records import EngineEvent, EventKind
from ..records import RequestRecord

PROVIDER: Final = "kvtrace"
OPERATION_TEXT: Final = "text_completion"
_KV_NAMES: Final = {EventKind.PARK: "kv.park", EventKind.RESTORE: "kv.restore"}
_GOOD: Final = frozenset({"stop", "length", "tool_calls"})


@dataclass(frozen=True, slots=True)
class SpanContent:
    """A span that is over, but for its ids. ``error`` is the status's text; ``None`` for no error."""

    name: str
    kind: SpanKind
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue]
    error: str | None = None


def request_span(record: RequestRecord, model: str) -> SpanContent:
    """The server's side of a model call, by the GenAI conventions.

    Args:
        record: the request, when it is over.
        model: the model that is served; the request may have asked by another name.
    """
    operation = OPERATION_TEXT if record.endpoint == "completions" else names.OPERATION_CHAT
    usage = record.usage
    attributes: dict[str, AttributeValue | None] = {
        names.GEN_AI_OPERATION_NAME: operation,
        names.GEN_AI_PROVIDER_NAME: PROVIDER,
        names.GEN_AI_REQUEST_MODEL: record.model,
        names.GEN_AI_RESPONSE_MODEL: model,
        names.GEN_AI_RESPONSE_ID: record.response_id,
        names.GEN_AI_REQUEST_STREAM: True if record.stream else None,
        names.GEN_AI_REQUEST_MAX_TOKENS: record.max_tokens,
        names.GEN_AI_REQUEST_TEMPERATURE: record.temperature,
        names.GEN_AI_REQUEST_TOP_P: record.top_p,
        names.GEN_AI_USAGE_INPUT_TOKENS: usage.prompt_tokens,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: usage.output_tokens,
        names.GEN_AI_USAGE_CACHE_READ: usage.cached_device_tokens + usage.cached_host_tokens,
        names.AGENT_ID: record.agent,
        names.CACHED_DEVICE_TOKENS: usage.cached_device_tokens,
        names.CACHED_HOST_TOKENS: usage.cached_host_tokens,
        names.PREFILLED_TOKENS: usage.prefilled_tokens,
        names.REPREFILLED_TOKENS: usage.reprefilled_tokens,
        names.QUEUED_SECONDS: record.queued_s,
        names.RESTORING_SECONDS: record.restoring_s,
        names.QUEUED_INTERVALS: [instant for pair in usage.wait_intervals_unix_ns for instant in pair] or None,
        names.RESPONSE_TOOL_CALL_IDS: list(record.tool_calls) or None,
    }
    if record.first_token_unix_ns is not None:
        first_s = (record.first_token_unix_ns - record.arrived_unix_ns) / 1e9
        attributes[names.GEN_AI_TIME_TO_FIRST_CHUNK] = first_s
    error = None
    if record.outcome in _GOOD:
        attributes[names.GEN_AI_RESPONSE_FINISH_REASONS] = [record.outcome]
    elif record.outcome == names.OUTCOME_CANCELLED:
        attributes[names.OUTCOME] = names.OUTCOME_CANCELLED
    else:
        attributes[names.ERROR_TYPE] = record.outcome
        error = record.error or record.outcome
    return SpanContent(
        name=f"{operation} {model}",
        kind=SpanKind.SERVER,
        start_ns=record.arrived_unix_ns,
        end_ns=record.ended_unix_ns,
        attributes={key: value for key, value in attributes.items() if value is not None},
        error=error,
    )


def kv_span(event: EngineEvent) -> SpanContent | None:
    """A park or a restore, from its first copy's start to its last one's end; ``None`` for other events."""
    name = _KV_NAMES.get(event.kind)
    if name is None:
        return None
    attributes: dict[str, AttributeValue] = {
        names.AGENT_ID: event.agent,
        names.KV_BYTES: event.bytes,
        names.KV_WHY: event.why,
    }
    if event.tool is not None:
        # Not gen_ai.tool.name with an operation: the span is no tool call.
        attributes[names.GEN_AI_TOOL_NAME] = event.tool
    lasted_ns = int((event.duration_ms or 0.0) * 1e6)
    return SpanContent(name, SpanKind.INTERNAL, event.time_unix_ns - lasted_ns, event.time_unix_ns, attributes)
