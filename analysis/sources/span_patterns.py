"""Spans as text, recognised by a regular expression each form: learned from one that was decoded, matched for the rest.

A pattern is a span's text word for word, apart from its ids, instants, counts and passed-on texts, which are captured,
and from scalars that nobody reads, which may be anything. What it matches is therefore read as the span it was
learned from was, with other values in the columns they end up in; whatever it does not match is decoded.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .templates import Template

Roles = Mapping[str, str]
"""What becomes of an attribute by its key: ``text`` or ``number`` where its value is only passed on."""

_WORTH_LEARNING: Final = 64  # spans of a form; a pattern costs as much as decoding a few hundred of them
_MAX_PATTERNS: Final = 256
_MAX_OF_NAME: Final = 8
_TEXT: Final = r"[ !#-\[\]-~]*"
_ANY_TEXT: Final = rf'"{_TEXT}(?:\\["\\/bfnrt]{_TEXT})*"'
_ANY_NUMBER: Final = r"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,17})?"
_TOKEN: Final = re.compile(rf"{_ANY_TEXT}|[-+.\deE]+|true|false|null|[\[\]{{}}:,]|[ \t]+", re.A)
_TRACE_ID: Final = "((?!0{32})[0-9a-f]{32})"
_SPAN_ID: Final = "((?!0{16})[0-9a-f]{16})"
_INSTANT: Final = r"([1-8]\d{18}|[1-9]\d{0,17})"
_COUNT: Final = r"(0|[1-9]\d{0,8})"
_VALUE: Final = r"([ !#-\[\]-~]+)"
_NEXT: Final = -1  # place of an attribute's value: after those before it
_FIELDS: Final = {
    "traceId": (0, _TRACE_ID),
    "spanId": (1, _SPAN_ID),
    "parentSpanId": (2, _SPAN_ID),
    "startTimeUnixNano": (3, _INSTANT),
    "endTimeUnixNano": (4, _INSTANT),
}
_TEXT_FORMS: Final = ("stringValue", "string_value")
_NUMBER_FORMS: Final = ("intValue", "int_value")
_NAME: Final = '"name":"'


Wrapper = tuple[str, str, str]
"""What lines begin and end with around their spans, and what the rows of such lines begin with."""


class Pattern(NamedTuple):
    """One form of span: ``match`` captures values, of which those numbered ``groups`` fill ``row``."""

    match: Callable[[str, int], re.Match[str] | None]
    row: str
    groups: tuple[int, ...]


@dataclass(slots=True)
class SpanPatterns:
    """The patterns of one :class:`~kvtrace.analysis.rows.RowWriter`, by the name that spans begin with."""

    by_name: dict[str, list[Pattern]] = field(default_factory=dict)
    _seen: dict[int, int] = field(default_factory=dict)
    _count: int = 0

    def is_due(self, template: Template) -> bool:
        """Whether another span of ``template`` makes a pattern worth its price; at every doubling of their number."""
        seen = self._seen[id(template)] = self._seen.get(id(template), 0) + 1
        return seen >= _WORTH_LEARNING and seen & (seen - 1) == 0 and self._count < _MAX_PATTERNS

    def learn(self, text: str, template: Template, roles: Roles) -> None:
        """Learn the form of a span that ``template`` made a row of. Texts of no usable form teach nothing."""
        name = _name(text)
        known = self.by_name.setdefault(name, []) if name is not None else []
        if name is None or len(known) >= _MAX_OF_NAME:
            return
        with contextlib.suppress(_UnusualError):
            known.append(_pattern(text, template, roles))
            self._count += 1

    def read_lines(self, text: str, begin: int, wrapper: Wrapper, rows: list[str]) -> tuple[int, int]:
        """Add rows of the lines that begin at ``begin``, until one is of no known form: where that is, and how many."""
        lines, at = 0, begin
        prefix, tail, filed_under = wrapper
        by_name = self.by_name
        whole = len(rows)
        while text.startswith(prefix, at):
            end = at + len(prefix) - 1
            while True:
                start = end + 1
                name = text.find(_NAME, start) + 8
                found = None
                for match, row, groups in by_name.get(text[name : text.find('"', name)], ()):
                    found = match(text, start)
                    if found is not None:
                        rows.append(filed_under + row % found.group(*groups))
                        break
                if found is None:
                    break
                end = found.end()
                if text[end] != ",":
                    break
            if found is None or not text.startswith(tail, end):
                break
            lines, at, whole = lines + 1, end + len(tail), len(rows)
        del rows[whole:]
        return at, lines


def _name(text: str) -> str | None:
    """The name of a span, if it is written plainly; only good for finding patterns."""
    at = text.find(_NAME)
    return None if at < 0 else text[at + 8 : text.find('"', at + 8)]


class _UnusualError(ValueError):
    """A span is written in a way that says too little about others."""


def _pattern(text: str, template: Template, roles: Roles) -> Pattern:
    """The form of a span. Raises :class:`_UnusualError`."""
    words = [found[0] for found in _TOKEN.finditer(text)]
    if "".join(words) != text:
        raise _UnusualError
    parts: list[str] = []
    captured: list[int] = []
    attributes = len(_FIELDS)
    for word, place in zip(words, _places(words), strict=True):
        position, regex = _variation(word, place, roles)
        parts.append(_in_place_of(word, regex) if regex else re.escape(word))
        if position is not None:
            captured.append(attributes if position == _NEXT else position)
            attributes += position == _NEXT
    # Twice the same field, or a value that varies but stands there in some other form.
    if len(set(captured)) < len(captured) or attributes != template.values:
        raise _UnusualError
    wanted = template.pick(range(attributes))
    if not set(wanted) <= set(captured):
        raise _UnusualError
    return Pattern(
        re.compile("".join(parts), re.A).match, template.row, tuple(captured.index(each) + 1 for each in wanted)
    )


def _variation(word: str, place: _Place | None, roles: Roles) -> tuple[int | None, str | None]:
    """Which of a row's values a word is, and what may stand in its place: neither where it must be as it is.

    Raises :class:`_UnusualError` for a value that varies in ways beyond those.
    """
    inner = word.strip('"')
    match place and place.path:
        case (str(key),) if key in _FIELDS and re.fullmatch(_FIELDS[key][1], inner, re.A):
            return _FIELDS[key]
        case ("status", "message"):
            return None, _anything_like(word)
        case ("attributes", "", "value", form) if place is not None and place.attribute is not None:
            role = roles.get(place.attribute)
            if role is None:
                return None, _anything_like(word)
            regex = _VALUE if role == "text" and form in _TEXT_FORMS and inner else None
            regex = _COUNT if role == "number" and form in _NUMBER_FORMS else regex
            if regex is not None and not re.fullmatch(regex, inner, re.A):
                raise _UnusualError
            return (None if regex is None else _NEXT), regex
    return None, None


def _in_place_of(word: str, regex: str) -> str:
    return f'"{regex}"' if word[0] == '"' and regex[0] != '"' else regex


def _anything_like(word: str) -> str | None:
    """Any scalar of the same type, ``None`` where there is no saying which."""
    if word[0] == '"':
        return _ANY_TEXT
    return "(?:true|false)" if word in ("true", "false") else _ANY_NUMBER if re.fullmatch(_ANY_NUMBER, word) else None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a scalar stands: the keys that lead to it (``""`` in a list), and the key of its attribute if that is known."""

    path: tuple[str, ...]
    attribute: str | None


def _places(words: Sequence[str]) -> Iterator[_Place | None]:
    """The place of each word that is a scalar value, ``None`` for keys and punctuation."""
    path: list[str] = []
    opened: list[str] = []
    is_key = False
    attribute: str | None = None
    for word in words:
        place = None
        if word in "{[":
            if path == ["attributes", ""]:
                attribute = None
            path.append("")
            opened.append(word)
        elif word in "}]":
            path.pop()
            opened.pop()
        elif word[0] == '"' and is_key:
            path[-1] = word[1:-1]
        elif word not in ",:" and not word.isspace():
            place = _Place(tuple(path), attribute)
            if place.path == ("attributes", "", "key"):
                attribute = word[1:-1]
        if not word.isspace():
            is_key = word in "{," and opened[-1:] == ["{"]
        yield place
