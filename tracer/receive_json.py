"""OTLP requests in JSON: spans that may be tools, and log events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

from .receive_record import MOST_TEXT, BadRecord, Record, Rejected

_MOST_NS: Final = 1 << 64
_ERROR_CODES: Final = (2, "2", "STATUS_CODE_ERROR")


class BadDocument(ValueError):
    """A body that is not the JSON of an OTLP request."""


def read_json(data: bytes, *, logs: bool) -> Iterator[Record | Rejected]:
    """Yield the records of a request, and what could not be read of them. Raises :class:`BadDocument`."""
    try:
        document = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        # The decoder's own text may quote the body; its class and place say enough.
        raise BadDocument(f"the body is no JSON ({type(error).__name__})") from None
    if not isinstance(document, dict):
        raise BadDocument("the body is no JSON object")
    outer, inner, records = ("Logs", "Logs", "logRecords") if logs else ("Spans", "Spans", "spans")
    for group in _objects(document, f"resource{outer}"):
        for scope in _objects(group, f"scope{inner}"):
            for item in _items(scope, records):
                try:
                    yield _record(item, logs)
                except BadRecord as error:
                    yield Rejected(str(error))


def _refuse(constant: str) -> NoReturn:
    raise BadDocument(f"{constant} is no JSON")


def _items(parent: dict[str, Any], key: str) -> list[Any]:
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadDocument(f"{key} is no array")
    return value


def _objects(parent: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    for item in _items(parent, key):
        if not isinstance(item, dict):
            raise BadDocument(f"{key} holds something that is no object")
        yield item


def _record(item: Any, logs: bool) -> Record:
    if not isinstance(item, dict):
        raise BadRecord("a record that is no object")
    status = item.get("status")
    start = _instant(item, "timeUnixNano") or _instant(item, "observedTimeUnixNano") if logs else None
    return Record(
        trace_id=_text(item, "traceId").lower(),
        span_id=_text(item, "spanId").lower(),
        parent_id=_text(item, "parentSpanId").lower(),
        name=_text(item, "name"),
        start_ns=start if logs else _instant(item, "startTimeUnixNano"),
        end_ns=None if logs else _instant(item, "endTimeUnixNano"),
        failed=isinstance(status, dict) and status.get("code") in _ERROR_CODES,
        attributes=_attributes(item.get("attributes")),
        event=_text(item, "eventName") if logs else None,
    )


def _text(item: Mapping[str, Any], key: str) -> str:
    value = item.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRecord(f"{key} that is no string")
    return _sound(value[:MOST_TEXT])


def _instant(item: Mapping[str, Any], key: str) -> int | None:
    """Return an instant given as a number or in digits; 0 stands for none."""
    value = item.get(key)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(_MOST_NS)):
        value = int(value)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST_NS:
        raise BadRecord(f"{key} that is no instant")
    return value or None


def _attributes(items: Any) -> dict[str, str]:
    if items is None:
        return {}
    if not isinstance(items, list):
        raise BadRecord("attributes that are no array")
    found: dict[str, str] = {}
    for item in items:
        value = item.get("value") if isinstance(item, dict) else None
        if not isinstance(value, dict) or not isinstance(item.get("key"), str):
            raise BadRecord("an attribute without key or value")
        text = value.get("stringValue")
        if text is not None and not isinstance(text, str):
            raise BadRecord("a stringValue that is no string")
        if text is not None and max(len(text), len(item["key"])) <= MOST_TEXT:
            found[_sound(item["key"])] = _sound(text)
    return found


def _sound(text: str) -> str:
    """Return ``text``; JSON can write half a character, which no reader of ours could print or send on."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRecord("a string that is not Unicode") from None
    return text
