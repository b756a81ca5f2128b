"""OTLP JSON line by line: the lean way where a line is in plain form, the tolerant way where it is not."""

from __future__ import annotations

from ..normal import Notes
from ..rows import RowWriter
from .json_values import parse_line
from .otlp_json import Reader
from .otlp_lean import LeanReader


class LineReader:
    """Reads lines into ``rows``; what cannot be read is counted in ``notes``."""

    def __init__(self, notes: Notes, rows: RowWriter) -> None:
        self._notes = notes
        self._rows = rows
        self._tolerant = Reader(notes)
        self._lean = LeanReader(self._tolerant, rows)

    def read_many(self, lines: bytes, number: int) -> int:
        """Read whole lines, the first of them the ``number``-th; how many there were."""
        text, at, count = str(lines, "latin-1"), 0, 0
        while True:
            at, known = self._lean.read_known(text, at)
            count += known
            if at == len(lines):
                return count
            end = lines.index(b"\n", at) + 1
            line = lines[at:end]
            if not line.isspace():
                self.read(line, number + count)
            count += 1
            at = end

    def read(self, line: bytes, number: int) -> None:
        """Read a line that is not blank."""
        self._tolerant.line = number
        if self._lean.read(line):
            return
        value = parse_line(line, number, not line.endswith(b"\n"), self._notes)
        if value is not None:
            for document in value if isinstance(value, list) else [value]:
                for record in self._tolerant.spans(document):
                    self._rows.add(record)
