"""OTLP JSON lines in their plain form, read several times faster than the tolerant reader and to the same records.

Only what a record is made of is decoded, and what a span means is worked out once for each *shape*: the same name and
attributes, with other ids, instants and counts. Lines and spans of any other form are left to the tolerant reader,
which stays the definition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ..rows import RowWriter
from .any_value import plain
from .genai import MAX_TOKENS, PASSED_ON_NUMBERS, PASSED_ON_TEXTS, WANTED
from .otlp_json import Reader, has_failed
from .templates import NUMBER, TEXT, Template, learn
from .values import MAX_NS

_MAX_TEMPLATES: Final = 20_000
_MAX_IDS: Final = 200_000
_TRACE_ID: Final = re.compile("(?!0{32})[0-9a-f]{32}").fullmatch
_SPAN_ID: Final = re.compile("(?!0{16})[0-9a-f]{16}").fullmatch


class _Attribute(msgspec.Struct, gc=False):
    key: str
    value: dict[str, Any]


class _Span(msgspec.Struct, gc=False):
    traceId: str  # noqa: N815 - names of the format
    spanId: str  # noqa: N815
    parentSpanId: str = ""  # noqa: N815
    name: str = ""
    startTimeUnixNano: str | int | None = None  # noqa: N815
    endTimeUnixNano: str | int | None = None  # noqa: N815
    attributes: list[_Attribute] = []
    status: Any = None
    # The other spelling counts where the first is absent.
    parent_span_id: Any = None
    start_time_unix_nano: Any = None
    end_time_unix_nano: Any = None


class _ScopeSpans(msgspec.Struct, gc=False):
    spans: list[_Span]


class _ResourceSpans(msgspec.Struct, gc=False):
    scopeSpans: list[_ScopeSpans]  # noqa: N815
    resource: msgspec.Raw = msgspec.Raw(b"null")


class _Line(msgspec.Struct, gc=False):
    resourceSpans: list[_ResourceSpans]  # noqa: N815


_ROLES: Final = {
    key: "text" if key in PASSED_ON_TEXTS else "number" if key in PASSED_ON_NUMBERS else "meaning" for key in WANTED
}
_DECODE: Final[Callable[[bytes], _Line]] = msgspec.json.Decoder(_Line).decode


class LeanReader:
    """Reads lines into ``rows``; ``tolerant`` judges spans that are not in plain form, and counts the unreadable."""

    def __init__(self, tolerant: Reader, rows: RowWriter) -> None:
        self._rows = rows
        self._tolerant = tolerant
        self._templates: dict[tuple[Any, ...], Template | None] = rows.templates
        self._traces: set[str] = set()
        self._parents: set[str] = {""}
        self._resource: bytes | None = None
        self._process = 0
        self._filed_under = ""

    def read(self, line: bytes) -> bool:
        """Read one line, or return ``False`` where it is not in plain form: nothing of it was read then."""
        try:
            document = _DECODE(line)
            # Texts that are passed over have not been looked at.
            line.isascii() or line.decode()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        for resource_spans in document.resourceSpans:
            resource = bytes(resource_spans.resource)
            if resource != self._resource:
                self._enter(resource)
            for scope_spans in resource_spans.scopeSpans:
                for span in scope_spans.spans:
                    self._read_span(span)
        return True

    def _enter(self, resource: bytes) -> None:
        self._resource = resource
        self._process = self._tolerant.process_of(json.loads(resource))
        self._filed_under = f"{self._rows.part}\t{self._process}\t"

    def _read_span(self, span: _Span) -> None:
        row = self._row(span)
        if row is not None:
            self._rows.write(row)
            return
        fields = {name: value for name in span.__struct_fields__ if (value := getattr(span, name)) is not None}
        fields["attributes"] = [{"key": each.key, "value": each.value} for each in span.attributes]
        record = self._tolerant.record_or_skip(fields, self._process)
        if record is not None:
            self._rows.add(record)

    def _row(self, span: _Span) -> str | None:
        """A span as a row, or ``None`` where it is not in plain form."""
        start, end = span.startTimeUnixNano, span.endTimeUnixNano
        try:
            start = int(start)  # type: ignore[arg-type] # None is a TypeError like any other
            end = None if end is None else int(end)
        except (TypeError, ValueError):
            return None
        if not (0 < start <= MAX_NS and (end is None or 0 < end <= MAX_NS) and self._has_plain_ids(span)):
            return None
        shape: list[Any] = [
            span.name,
            not span.parentSpanId,
            end is None,
            span.status is not None and has_failed(span.status),
        ]
        values: list[Any] = [span.traceId, span.spanId, span.parentSpanId, start, end]
        for attribute in span.attributes:
            role = _ROLES.get(attribute.key)
            if role is None:
                continue
            value = attribute.value.get("stringValue")
            if value is None or len(attribute.value) > 1:
                value = plain(attribute.value)
            if value.__class__ is str:
                if role == "text" and value and value.isprintable():
                    values.append(value)
                    value = None
            elif value.__class__ is int and role == "number" and 0 <= value <= MAX_TOKENS:
                values.append(value)
                value = 0
            else:
                return None
            shape += (attribute.key, value)
        key = tuple(shape)
        template = self._templates.get(key) or self._learn(key)
        return None if template is None else self._filed_under + template.row % template.pick(values)

    def _learn(self, shape: tuple[Any, ...]) -> Template | None:
        if shape in self._templates:
            return None
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        name, is_root, is_open, failed, *rest = shape
        attributes = [
            (key, TEXT if value is None else NUMBER if value == 0 else value, not isinstance(value, str))
            for key, value in zip(rest[::2], rest[1::2], strict=True)
        ]
        template = learn(name, not is_root, not is_open, failed, attributes, self._rows)
        self._templates[shape] = template
        return template

    def _has_plain_ids(self, span: _Span) -> bool:
        """Whether ids are lower-case hex of the right length, and nothing is spelt the other way."""
        return (
            (span.traceId in self._traces or _is_id(span.traceId, _TRACE_ID, self._traces))
            and (span.parentSpanId in self._parents or _is_id(span.parentSpanId, _SPAN_ID, self._parents))
            and _SPAN_ID(span.spanId) is not None
            and not (span.parent_span_id or span.start_time_unix_nano or span.end_time_unix_nano)
        )


def _is_id(value: str, matches: Callable[[str], object], known: set[str]) -> bool:
    """Whether an id is a plain one; many spans share it, so it is remembered."""
    if not matches(value):
        return False
    if len(known) >= _MAX_IDS:
        known.clear()
    known.add(value)
    return True
