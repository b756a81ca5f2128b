"""OTLP requests in protobuf: spans that may be tools, and log events, out of everything else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from . import otlp_proto as proto
from .otlp_json import STATUS_ERROR
from .receive_record import MOST_TEXT, BadRecord, Record, Rejected
from .wire import Budget, WireError, read_fields

# A tool span contains one of these and an event of ours the last; all else is passed over at the speed of a search.
_MARKS: Final = (b"execute_tool", b"openinference.span.kind", b"traceloop.span.kind", b"kvtrace.span.")


def read_protobuf(data: bytes, *, logs: bool, budget: Budget) -> Iterator[Record | Rejected]:
    """Yield the records of a request that may be about tools, and what could not be read of them.

    Raises :class:`WireError` where the structure around the records is damaged, and ``BudgetSpentError``.
    """
    read = _log_event if logs else _span
    for raw in _records(data, budget):
        if not any(mark in raw for mark in _MARKS):
            continue
        try:
            yield read(raw, budget)
        except (WireError, BadRecord) as error:
            yield Rejected(str(error))


def _records(data: bytes, budget: Budget) -> Iterator[bytes]:
    for field, _, group in read_fields(data, budget):
        if field != proto.REQUEST_RESOURCES:
            continue
        for inner_field, _, scope in read_fields(group, budget):
            if inner_field != proto.RESOURCE_SCOPES:
                continue
            for record_field, _, record in read_fields(scope, budget):
                if record_field == proto.SCOPE_RECORDS:
                    yield record


def _span(raw: bytes, budget: Budget) -> Record:
    ids = {proto.SPAN_TRACE_ID: b"", proto.SPAN_SPAN_ID: b"", proto.SPAN_PARENT_ID: b"", proto.SPAN_NAME: b""}
    times = {proto.SPAN_START: 0, proto.SPAN_END: 0}
    attributes: dict[str, str] = {}
    failed = False
    for field, number, content in read_fields(raw, budget):
        if field == proto.SPAN_ATTRIBUTES:
            attributes.update(_attribute(content, budget))
        elif field in ids:
            ids[field] = content
        elif field in times:
            times[field] = number
        elif field == proto.SPAN_STATUS:
            failed = (proto.STATUS_CODE, STATUS_ERROR, b"") in read_fields(content, budget)
    return Record(
        trace_id=ids[proto.SPAN_TRACE_ID].hex(),
        span_id=ids[proto.SPAN_SPAN_ID].hex(),
        parent_id=ids[proto.SPAN_PARENT_ID].hex(),
        name=_text(ids[proto.SPAN_NAME][:MOST_TEXT], "ignore"),
        start_ns=times[proto.SPAN_START] or None,
        end_ns=times[proto.SPAN_END] or None,
        failed=failed,
        attributes=attributes,
    )


def _log_event(raw: bytes, budget: Budget) -> Record:
    texts = {proto.LOG_TRACE_ID: b"", proto.LOG_SPAN_ID: b"", proto.LOG_EVENT_NAME: b""}
    times = {proto.LOG_TIME: 0, proto.LOG_OBSERVED: 0}
    attributes: dict[str, str] = {}
    for field, number, content in read_fields(raw, budget):
        if field == proto.LOG_ATTRIBUTES:
            attributes.update(_attribute(content, budget))
        elif field in texts:
            texts[field] = content
        elif field in times:
            times[field] = number
    return Record(
        trace_id=texts[proto.LOG_TRACE_ID].hex(),
        span_id=texts[proto.LOG_SPAN_ID].hex(),
        parent_id="",
        name="",
        start_ns=times[proto.LOG_TIME] or times[proto.LOG_OBSERVED] or None,
        end_ns=None,
        failed=False,
        attributes=attributes,
        event=_text(texts[proto.LOG_EVENT_NAME][:MOST_TEXT], "ignore"),
    )


def _attribute(raw: bytes, budget: Budget) -> dict[str, str]:
    key = value = b""
    for field, _, content in read_fields(raw, budget):
        if field == proto.ATTRIBUTE_KEY:
            key = content
        elif field == proto.ATTRIBUTE_VALUE:
            value = content
    # One tag and one length come before the text itself.
    if len(key) > MOST_TEXT or len(value) > MOST_TEXT + 8:
        return {}
    for field, _, content in read_fields(value, budget):
        if field == proto.VALUE_STRING:
            return {_text(key): _text(content)}
    return {}


def _text(raw: bytes, errors: str = "strict") -> str:
    try:
        return raw.decode("utf-8", errors)
    except UnicodeDecodeError:
        raise BadRecord("a string that is not UTF-8") from None
