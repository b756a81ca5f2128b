"""Records of spans that other libraries made: what they say about time and identity, without what was said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import StatusCode

from . import attributes as names
from . import content
from .conventions import without_content
from .identity import Agent
from .otlp_json import RECORD_END, STATUS_ERROR, AttributeValue, encode_attributes, encode_text

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from .runtime import Runtime

_LONGEST: Final = 256  # characters of an attribute that says what ran: beyond that it is no name any more


def encode_span(span: ReadableSpan, agent: Agent | None, runtime: Runtime, *, ended: bool) -> str:
    """Return the line for ``span``: complete if it ended, else its start record."""
    context, parent = span.get_span_context(), span.parent
    assert context is not None
    attributes = kept(span.attributes or {}, agent, runtime.settings.capture_content is True)
    if ended and (error := _error_type(span)) is not None:
        attributes.setdefault(names.ERROR_TYPE, error)
    if agent is not None and agent.parent_id is not None and agent.id == f"{context.span_id:016x}":
        attributes[names.PARENT_AGENT_ID] = agent.parent_id
    failed = ended and span.status.status_code is StatusCode.ERROR
    return _line(
        runtime.record_start_of(_scope(span)),
        (f"{context.trace_id:032x}", f"{context.span_id:016x}", f"{parent.span_id:016x}" if parent else None),
        (span.name, span.kind.value + 1),
        (span.start_time or 0, span.end_time if ended else None),
        attributes,
        failed,
    )


def encode_inferred(
    ids: tuple[str, str, str | None], agent: Agent, start_unix_ns: int, end_unix_ns: int, runtime: Runtime
) -> str:
    """Return the line for a tool that no library traced: the time from a request for tools to the next model call."""
    attributes: dict[str, AttributeValue] = {
        names.GEN_AI_OPERATION_NAME: names.OPERATION_EXECUTE_TOOL,
        names.GEN_AI_TOOL_NAME: "inferred",
        names.INFERRED: True,
        **agent.attributes,
    }
    name = f"{names.OPERATION_EXECUTE_TOOL} inferred"
    return _line(runtime.record_start, ids, (name, 1), (start_unix_ns, end_unix_ns), attributes, False)


def kept(attributes: Mapping[str, Any], agent: Agent | None, capture: bool) -> dict[str, AttributeValue]:
    """Return what is recorded of a span's attributes, with its agent's beside them."""
    most = content.MOST_BYTES if capture else _LONGEST
    chosen = attributes if capture else without_content(attributes)
    found = {key: _cut(value, most) for key, value in chosen.items() if _is_plain(value)}
    if agent is not None:
        for key, value in agent.attributes.items():
            found.setdefault(key, value)
    return found


def _line(
    head: str,
    ids: tuple[str, str, str | None],
    named: tuple[str, int],
    instants: tuple[int, int | None],
    attributes: Mapping[str, AttributeValue],
    failed: bool,
) -> str:
    trace_id, span_id, parent_id = ids
    start, end = instants
    parent_json = f'"parentSpanId":"{parent_id}",' if parent_id else ""
    end_json = f',"endTimeUnixNano":"{end}"' if end is not None else ""
    status_json = f',"status":{{"code":{STATUS_ERROR}}}' if failed else ""
    return (
        f'{head}{{"traceId":"{trace_id}","spanId":"{span_id}",{parent_json}"name":{encode_text(named[0])},'
        f'"kind":{named[1]},"startTimeUnixNano":"{start}","attributes":[{encode_attributes(attributes)}]'
        f"{end_json}{status_json}}}{RECORD_END}"
    )


def _error_type(span: ReadableSpan) -> str | None:
    """Return the class of the exception that others note in an event, whose message stays out."""
    for event in span.events:
        kind = (event.attributes or {}).get("exception.type")
        if isinstance(kind, str):
            return kind.rpartition(".")[2]
    return None


def _scope(span: ReadableSpan) -> tuple[str, str]:
    scope = span.instrumentation_scope
    return ("", "") if scope is None else (scope.name, scope.version or "")


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(isinstance(item, (str, bool, int, float)) for item in value)
    return isinstance(value, (str, bool, int, float))


def _cut(value: AttributeValue, most: int) -> AttributeValue:
    if isinstance(value, str) and len(value) > most:
        return value.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")
    return value
