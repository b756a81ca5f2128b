"""JSON of a snapshot to :class:`.contract.Sample`, from whatever version of kvtrace wrote it.

Keys that are not known here are passed over, keys that are missing or null become 0, "" or ``None``. Texts are made
safe to print: a server may be somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from kvtrace.engine.records import (
    AgentRecord,
    AgentState,
    EngineEvent,
    EventKind,
    HostTier,
    Link,
    Snapshot,
    Tiers,
    Totals,
    VramTier,
)

from .contract import FeedError, Sample, SourceKind

Record = TypeVar("Record")

_EMPTY: Final[dict[Any, Any]] = {int: 0, float: 0.0, str: ""}
_DEFAULT: Final = object()
_MOST: Final = 2**64


def sample_from(document: object, where: str) -> Sample:
    """Read one snapshot. Raises :class:`FeedError` where it is none."""
    if not isinstance(document, Mapping) or not isinstance(document.get("agents"), list):
        raise FeedError(f"{where} does not tell a state of kvtrace's engine; check the address")
    source = _mapping(document, "source")
    kind = SourceKind.ENGINE if document.get("tiers") is not None else SourceKind.SPANS
    if source.get("kind") == SourceKind.DEMO:
        kind = SourceKind.DEMO
    tiers = _mapping(document, "tiers")
    try:
        snapshot = _record(
            Snapshot,
            document,
            tiers=Tiers(_record(VramTier, _mapping(tiers, "vram")), _record(HostTier, _mapping(tiers, "host"))),
            link=_record(Link, _mapping(document, "link")),
            agents=tuple(_agents(document["agents"])),
            events=tuple(_events(document.get("events") or ())),
            totals=_record(Totals, _mapping(document, "totals")),
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise FeedError(
            f"{where} tells a state that cannot be read ({error}); is its kvtrace of another age?"
        ) from error
    return Sample(snapshot, kind, where)


def printable(text: str) -> str:
    """``text`` without anything that a terminal would obey."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)


def _agents(items: list[Any]) -> Iterator[AgentRecord]:
    for item in items:
        spent = item.get("state_seconds")
        known = (
            {key: value for key, value in spent.items() if isinstance(value, int | float) and abs(value) < _MOST}
            if isinstance(spent, dict)
            else {}
        )
        yield _record(AgentRecord, item, state=_state(str(item.get("state", ""))), state_seconds=known)


def _events(items: Iterable[Any]) -> Iterator[EngineEvent]:
    for item in items:
        # A kind of event that is not known here is left out: nothing could be said about it.
        if item.get("kind") in _KINDS:
            yield _record(EngineEvent, item, kind=EventKind(item["kind"]))


_KINDS: Final = frozenset(EventKind)


def _state(word: str) -> AgentState:
    try:
        return AgentState(word)
    except ValueError:
        raise ValueError(f"an agent is {printable(word)[:40]!r}, a state that this kvtrace does not know") from None


def _mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def _record(record_type: type[Record], values: Mapping[str, Any], **made: Any) -> Record:
    """A record from the JSON object ``values``; fields in ``made`` are ready."""
    taken = dict(made)
    for name, kinds, empty in _fields(cast(Any, record_type)):
        if name in made:
            continue
        value = values.get(name)
        if value is None:
            if empty is not _DEFAULT:
                taken[name] = empty
            continue
        # The largest of the figures are instants in ns, the widest 64 bits; nobody can calculate with more.
        if not isinstance(value, kinds) or (isinstance(value, int | float) and not abs(value) < _MOST):
            raise TypeError(f"{name} is {printable(str(value))[:40]!r}")
        taken[name] = printable(value) if isinstance(value, str) else value
    return record_type(**taken)


@cache
def _fields(record_type: Any) -> tuple[tuple[str, tuple[type, ...], Any], ...]:
    """Name, JSON types and stand-in of each plain field; :data:`_DEFAULT` where the record has one of its own."""
    hints = get_type_hints(record_type)
    found = []
    for field in fields(record_type):
        hint = hints[field.name]
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (get_origin(hint) or hint,)
        own = field.default is not MISSING or field.default_factory is not MISSING
        empty = _DEFAULT if own else None if NoneType in kinds else _EMPTY.get(kinds[0])
        # Whole numbers are numbers; what is not a plain value is checked by whoever uses it.
        found.append((field.name, (int, float) if float in kinds else tuple(kinds), empty))
    return tuple(found)
