"""Files cut into pieces that are read on their own, and what reading one yields beside its rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final

from .normal import MAX_NAMED_SKIPS, Notes, Process, Skip
from .rows import RowWriter
from .sources import Importer, importer_for
from .sources.json_values import is_one_document

PIECE_BYTES: Final = 48 << 20
_PROBE_BYTES: Final = 4096
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """The lines of a file that begin in ``[begin, end)``, or the whole file where its format is not one of lines."""

    path: str
    begin: int
    end: int

    @property
    def bytes(self) -> int:
        """Length."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Part:
    """What was read from one piece, apart from the rows filed under ``number`` in a pack.

    ``kind`` is ``None`` where no importer recognised the file. A part is ``settled`` unless it may read otherwise
    once the file has grown: it is the unfinished last line, or of a format that is read as a whole. ``failed`` says
    that reading was cut short by the system, or took in other files, so that nothing may be remembered. ``begin`` and ``end`` are byte offsets,
    ``head`` and ``tail`` digests of the file's first bytes and of the last ones before ``end``.
    """

    kind: str | None
    begin: int
    end: int
    number: int = 0
    lines: int = 0
    settled: bool = False
    failed: bool = False
    head: str = ""
    tail: str = ""
    processes: tuple[Process, ...] = ()
    skips: tuple[Skip, ...] = ()
    skipped: int = 0
    cannot_show: tuple[str, ...] = ()
    shows_turns: bool = False


def cut(piece: Piece) -> list[Piece]:
    """A big file in pieces, where its format allows that. Raises ``OSError``."""
    if piece.bytes <= PIECE_BYTES or not _has_lines(Path(piece.path)):
        return [piece]
    bounds = [*range(piece.begin, piece.end, PIECE_BYTES), piece.end]
    return [Piece(piece.path, begin, end) for begin, end in pairwise(bounds)]


def read_piece(piece: Piece, rows: RowWriter) -> list[Part]:
    """Read a piece into ``rows``: its part, and one more for a last line that is not finished.

    A file that cannot be read, or is of no known kind, has a part that says so.
    """
    path = Path(piece.path)
    part = Part(None, piece.begin, piece.end, number=rows.next_part())
    notes = Notes(path, 0)
    try:
        importer = importer_for(path)
    except OSError as error:
        notes.skip(0, f"cannot be read: {error.strerror or error}")
        return [_noted(replace(part, failed=True), notes)]
    if importer is None:
        notes.skip(0, "of no known kind" if piece.end else "the file is empty")
        return [_noted(part, notes)]
    part = replace(part, kind=importer.kind)
    try:
        if importer.lines is not None and not (piece.begin == 0 and is_one_document(path)):
            return _read_lines(importer, piece, part, notes, rows)
        for record in importer.read(path, notes):
            rows.add(record)
        part = replace(part, failed=not notes.alone)
    except OSError as error:
        notes.skip(0, f"reading stopped: {error.strerror or error}")
        part = replace(part, failed=True)
    return [_noted(part, notes)]


def probe(file: BinaryIO, end: int) -> tuple[str, str]:
    """Digests of a file's first bytes and of its last ones before ``end``. Raises ``OSError``."""
    tail_begin = max(0, end - _PROBE_BYTES)
    head = os.pread(file.fileno(), min(end, _PROBE_BYTES), 0)
    tail = os.pread(file.fileno(), end - tail_begin, tail_begin)
    return blake2b(head, digest_size=16).hexdigest(), blake2b(tail, digest_size=16).hexdigest()


def _has_lines(path: Path) -> bool:
    importer = importer_for(path)
    return importer is not None and importer.lines is not None and not is_one_document(path)


def _read_lines(importer: Importer, piece: Piece, part: Part, notes: Notes, rows: RowWriter) -> list[Part]:
    assert importer.lines is not None
    reader = importer.lines(notes, rows)
    number, unfinished = 0, b""
    with Path(piece.path).open("rb", buffering=0) as file:
        at = begin = _first_line_at(file, piece.begin)
        for lines in _whole_lines(file, begin, piece.end):
            whole = lines.rfind(b"\n") + 1
            if whole < len(lines):
                lines, unfinished = lines[:whole], lines[whole:]
            number += reader.read_many(lines, number + 1)
            at += len(lines)
        head, tail = probe(file, at)
    settled = replace(part, begin=begin, end=at, lines=number, settled=True, head=head, tail=tail)
    parts = [_noted(settled, notes)]
    if unfinished:
        last = Part(part.kind, at, at + len(unfinished), rows.next_part(), lines=1)
        last_notes = Notes(notes.path, 0)
        importer.lines(last_notes, rows).read(unfinished, 1)
        parts.append(_noted(last, last_notes))
    return parts


def _first_line_at(file: BinaryIO, begin: int) -> int:
    """Where the first line begins that begins at or after ``begin``."""
    return _line_end(file, begin - 1) if begin else 0


def _line_end(file: BinaryIO, at: int) -> int:
    """Where the line ends that ``at`` is in."""
    while some := os.pread(file.fileno(), _PROBE_BYTES, at):
        newline = some.find(b"\n")
        if newline >= 0:
            return at + newline + 1
        at += len(some)
    return at


def _whole_lines(file: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    """The lines that begin in ``[begin, end)``, many at a time; the last one may lack its end."""
    while begin < end:
        stop = min(begin + _READ_BYTES, end)
        stop = _line_end(file, stop - 1)
        lines = os.pread(file.fileno(), stop - begin, begin)
        if not lines:
            return
        yield lines
        begin += len(lines)


def _noted(part: Part, notes: Notes) -> Part:
    return replace(
        part,
        processes=tuple(notes.processes),
        skips=tuple(notes.skips[:MAX_NAMED_SKIPS]),
        skipped=notes.skipped,
        cannot_show=tuple(notes.cannot_show),
        shows_turns=notes.shows_turns,
    )
