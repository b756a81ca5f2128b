"""Rows of spans that differ in ids, instants and counts alone: learned from the first of them, filled for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from ..normal import Notes, SpanRecord
from ..rows import RowWriter, own_of, shared_of
from .build import build_record
from .values import text

TEXT: Final = "any text"
NUMBER: Final = "any count"
Attributes = Sequence[tuple[str, str, bool]]
"""Key, value, and whether the value varies: it is :data:`TEXT` or :data:`NUMBER` then."""

_IDS_AND_INSTANTS: Final = 5


@dataclass(frozen=True, slots=True)
class Template:
    """A row after ``part`` and ``process``, to be formatted with what ``pick`` takes from a span's values.

    Values are the span's trace id, span id, parent span id, start and end, and then its varying attributes: ``values``
    of them in all.
    """

    row: str
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]
    values: int


@dataclass(frozen=True, slots=True)
class _StandIns:
    """Values that can be told from each other, from all others, and from those of another series."""

    series: int

    def text(self, position: int) -> str:
        return f"\ue000{self.series}/{position}"

    def number(self, position: int) -> int:
        return 900_000_000 + 1_000_000 * self.series + position

    def position(self, value: Any, count: int) -> int | None:
        """Which of ``count`` stand-ins a value is."""
        return next((i for i in range(count) if value in (self.text(i), self.number(i))), None)


def learn(
    name: str, has_parent: bool, has_ended: bool, failed: bool, attributes: Attributes, rows: RowWriter
) -> Template | None:
    """Template of the spans with this name and these attributes.

    ``None`` where some value does more than to end up in a column, so that there is no telling what others would do, and
    where there is something to complain about.
    """
    series = (_StandIns(0), _StandIns(1))
    notes = Notes(Path(), 0)
    records = [_record(notes, name, has_parent, has_ended, failed, attributes, each) for each in series]
    if notes.skipped or shared_of(records[0]) != shared_of(records[1]):
        return None
    row, order = [], []
    count = _IDS_AND_INSTANTS + len(attributes)
    for first, second in zip(*map(own_of, records), strict=True):
        position = series[0].position(first, count)
        if position != series[1].position(second, count) or (position is None and first != second):
            return None
        if position is not None:
            order.append(_place(position, attributes))
        row.append("%s" if position is not None else "" if first is None else str(first).replace("%", "%%"))
    values = _IDS_AND_INSTANTS + sum(varies for _, _, varies in attributes)
    return Template("\t".join([*row, str(rows.shared(shared_of(records[0])))]) + "\n", itemgetter(*order), values)


def _record(
    notes: Notes,
    name: str,
    has_parent: bool,
    has_ended: bool,
    failed: bool,
    attributes: Attributes,
    stand_in: _StandIns,
) -> SpanRecord:
    varying = {TEXT: stand_in.text, NUMBER: stand_in.number}
    return build_record(
        notes,
        0,
        0,
        ids=(stand_in.text(0), stand_in.text(1), stand_in.text(2) if has_parent else ""),
        name=text(name) or "",
        instants=(stand_in.number(3), stand_in.number(4) if has_ended else None),
        attributes={
            key: varying[value](_IDS_AND_INSTANTS + i) if varies else value
            for i, (key, value, varies) in enumerate(attributes)
        },
        failed=failed,
    )


def _place(position: int, attributes: Attributes) -> int:
    """Where among a span's values the one stands that the stand-in at ``position`` stands for."""
    attribute = position - _IDS_AND_INSTANTS
    if attribute < 0:
        return position
    return _IDS_AND_INSTANTS + sum(varies for _, _, varies in attributes[:attribute])
