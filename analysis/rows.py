"""Records on their way to the database: a row of text each, what they have in common written once.

Row by row inserts are a hundred times slower than a file that the database reads in one go, and a bulk interface would
need numpy or pyarrow. Texts hold no control characters (importers see to that), so neither tabs nor line ends need quoting.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from .normal import SpanRecord

SHARED: Final = ("kind", "name", "agent_label", "agent_name", "error", "confidence")
"""Columns with few different values, which rows refer to by number."""
OWN: Final = tuple(name for name in SpanRecord._fields if name not in ("source", "process", *SHARED))
"""Columns of a row, after ``part`` and ``process`` and before ``shared``."""

_FLUSH_ROWS: Final = 8192
_MAX_KNOWN: Final = 50_000
_POSITIONS: Final = {name: position for position, name in enumerate(SpanRecord._fields)}
shared_of: Final = itemgetter(*(_POSITIONS[name] for name in SHARED))
own_of: Final = itemgetter(*(_POSITIONS[name] for name in OWN))


class RowWriter:
    """Writes ``rows.tsv`` and ``shared.tsv`` into a folder, closed by ``with``. Parts are numbered from ``first_part``.

    ``templates`` and ``patterns`` are for readers to keep what they learned of rows from one file to the next.
    """

    def __init__(self, folder: Path, first_part: int = 0) -> None:
        self.rows_path = folder / "rows.tsv"
        self.shared_path = folder / "shared.tsv"
        self.part = first_part - 1
        self.written = 0
        self.templates: dict[Any, Any] = {}
        self.patterns: Any = None
        self._rows: list[str] = []
        self._known: dict[tuple[Any, ...], int] = {}
        self._numbers = 0
        self._file = self.rows_path.open("w", encoding="utf-8", newline="")
        self._shared = self.shared_path.open("w", encoding="utf-8", newline="")

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._flush()
        self._file.close()
        self._shared.close()

    def next_part(self) -> int:
        """File the rows that follow under a new number, and return it."""
        self.part += 1
        return self.part

    def add(self, record: SpanRecord) -> None:
        """Write a record; its ``source`` is left to whoever knows what the part belongs to."""
        shared = self.shared(shared_of(record))
        self.write(f"{self.part}\t{record.process}\t{as_row(own_of(record))}\t{shared}\n")

    def write(self, row: str) -> None:
        """Write a row: ``part``, ``process``, the :data:`OWN` columns and the number of the shared ones."""
        self._rows.append(row)
        if len(self._rows) >= _FLUSH_ROWS:
            self._flush()

    def write_all(self, rows: Sequence[str]) -> None:
        """Write rows."""
        self._rows += rows
        if len(self._rows) >= _FLUSH_ROWS:
            self._flush()

    def shared(self, values: tuple[Any, ...]) -> int:
        """Number of a combination of :data:`SHARED` values."""
        known = self._known.get(values)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[values] = self._numbers
            self._numbers += 1
            self._shared.write(f"{known}\t{as_row(values)}\n")
        return known

    def _flush(self) -> None:
        self.written += len(self._rows)
        self._file.write("".join(self._rows))
        self._rows.clear()


def as_row(values: Sequence[Any]) -> str:
    """Values between tabs; nothing for ``None``."""
    return "\t".join(["" if value is None else str(value) for value in values])
