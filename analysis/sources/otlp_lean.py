"""OTLP JSON lines in their plain form, read several times faster than the tolerant reader and to the same records.

Only what a record is made of is decoded, and what a span means is worked out once for each *shape*: the same name and
attributes, with other ids, instants and counts. Lines and spans of any other form are left to the tolerant reader,
which stays the definition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from ..rows import RowWriter
from .any_value import plain
from .genai import MAX_TOKENS, PASSED_ON_NUMBERS, PASSED_ON_TEXTS, WANTED
from .otlp_json import Reader, has_failed
from .span_patterns import SpanPatterns, Wrapper
from .templates import NUMBER, TEXT, Template, learn
from .values import MAX_NS

_MAX_TEMPLATES: Final = 20_000
_MAX_IDS: Final = 200_000
_MAX_WRAPPERS: Final = 8
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


class _RawScopeSpans(msgspec.Struct, gc=False):
    spans: list[msgspec.Raw]


class _RawResourceSpans(msgspec.Struct, gc=False):
    scopeSpans: list[_RawScopeSpans]  # noqa: N815
    resource: msgspec.Raw = msgspec.Raw(b"null")


class _RawLine(msgspec.Struct, gc=False):
    resourceSpans: list[_RawResourceSpans]  # noqa: N815


_DECODE_RAW: Final[Callable[[bytes], _RawLine]] = msgspec.json.Decoder(_RawLine).decode
_STAND_IN: Final = b'{"traceId":"\x7f"}'


def unwrap(line: bytes) -> tuple[str, list[str], str] | None:
    """What stands before a line's spans, their texts, and what stands behind; ``None`` where they are not all together."""
    try:
        spans = _only_spans(_DECODE_RAW(line))
        if not spans:
            return None
        prefix = line[: line.index(spans[0])]
        tail = line[line.rindex(spans[-1]) + len(spans[-1]) :]
        # The same text might also stand elsewhere in the line: only this shows that the ends are the right ones.
        if _only_spans(_DECODE_RAW(prefix + _STAND_IN + tail)) != [_STAND_IN]:
            return None
        return str(prefix, "ascii"), [str(span, "ascii") for span in spans], str(tail, "ascii")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _only_spans(line: _RawLine) -> list[bytes] | None:
    if len(line.resourceSpans) != 1 or len(line.resourceSpans[0].scopeSpans) != 1:
        return None
    return [bytes(span) for span in line.resourceSpans[0].scopeSpans[0].spans]


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
        self._wrappers: list[Wrapper] = []
        self._patterns: SpanPatterns = rows.patterns or SpanPatterns()
        rows.patterns = self._patterns

    def read_known(self, text: str, begin: int) -> tuple[int, int]:
        """Read the lines from ``begin`` on without decoding them, as long as they are of forms that were met before.

        ``text`` is whole lines, a character a byte. Returns where the first other line begins, and how many were read.
        """
        rows: list[str] = []
        lines, at = 0, begin
        for wrapper in self._wrappers:
            at, read = self._patterns.read_lines(text, at, wrapper, rows)
            lines += read
        self._rows.write_all(rows)
        return at, lines

    def read(self, line: bytes) -> bool:
        """Read one line, or return ``False`` where it is not in plain form: nothing of it was read then."""
        try:
            document = _DECODE(line)
            # Texts that are passed over have not been looked at.
            line.isascii() or line.decode()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        due, is_new = [], False
        for resource_spans in document.resourceSpans:
            resource = bytes(resource_spans.resource)
            if resource != self._resource:
                is_new = True
                self._enter(resource)
            for scope_spans in resource_spans.scopeSpans:
                for number, span in enumerate(scope_spans.spans):
                    template = self._read_span(span)
                    if template is not None and self._patterns.is_due(template):
                        due.append((number, template))
        if due or (is_new and self._patterns.by_name):
            self._learn_form(line, due)
        return True

    def _learn_form(self, line: bytes, due: Sequence[tuple[int, Template]]) -> None:
        """Learn how lines begin and end, and the forms of some of this one's spans."""
        found = unwrap(line)
        if found is None:
            return
        prefix, spans, tail = found
        if all(known != prefix for known, _, _ in self._wrappers) and len(self._wrappers) < _MAX_WRAPPERS:
            self._wrappers.append((prefix, tail, self._filed_under))
        for number, template in due:
            self._patterns.learn(spans[number], template, _ROLES)

    def _enter(self, resource: bytes) -> None:
        self._resource = resource
        self._process = self._tolerant.process_of(json.loads(resource))
        self._filed_under = f"{self._rows.part}\t{self._process}\t"

    def _read_span(self, span: _Span) -> Template | None:
        """Read a span; its template, if it is in plain form."""
        values: list[Any] = []
        template = self._template(span, values)
        if template is not None:
            self._rows.write(self._filed_under + template.row % template.pick(values))
            return template
        fields = {name: value for name in span.__struct_fields__ if (value := getattr(span, name)) is not None}
        fields["attributes"] = [{"key": each.key, "value": each.value} for each in span.attributes]
        record = self._tolerant.record_or_skip(fields, self._process)
        if record is not None:
            self._rows.add(record)
        return None

    def _template(self, span: _Span, values: list[Any]) -> Template | None:
        """What makes a row of a span and of the ``values`` found in it, or ``None`` where it is not in plain form."""
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
        values += (span.traceId, span.spanId, span.parentSpanId, start, end)
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
        return self._templates.get(key) or self._learn(key)

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
