"""The normal form of what a request holds: a span or an event about one, whichever encoding it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MOST_TEXT: Final = 1024  # characters of an attribute that may name something; what is longer is content
TRACE_DIGITS: Final = 32
SPAN_DIGITS: Final = 16


class BadRecord(ValueError):
    """A span or log record that cannot be used; its text says why, without quoting it."""


@dataclass(frozen=True, slots=True)
class Record:
    """A span (``event`` is ``None``), or a log event about the span whose ids it bears.

    Ids are lower-case hex, ``parent_id`` as received. Instants are unix ns, ``None`` where they are missing or 0; an
    event has ``start_ns`` alone, its own time. ``attributes`` are those with short strings, the only ones of use here.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int | None
    end_ns: int | None
    failed: bool
    attributes: Mapping[str, str]
    event: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that was passed over, and why."""

    why: str


def is_id(text: str, digits: int) -> bool:
    """Tell whether ``text`` is an id in lower-case hex, not all zero."""
    return len(text) == digits and not text.strip("0123456789abcdef") and text.strip("0") != ""
