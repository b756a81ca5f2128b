"""Brings the database up to the files: what was read before comes from the cache, the rest is read into it."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Final

from .cache import Entry, SpanCache, Stored
from .catching_up import todo
from .evidence import Host, last_sign_ns
from .normal import MAX_NAMED_SKIPS, Notes, Process, Skip
from .packing import Batch
from .pieces import PIECE_BYTES, Part, Piece, cut, probe
from .pool import read_batches
from .progress import Progress
from .store import PackedPart, Store

_FILES_A_BATCH: Final = 4096
_PART_BITS: Final = 62  # parts are numbered at random, so that no two of all packs have the same number


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """One file and what came of reading it; ``kind`` is ``None`` where no importer recognised it."""

    notes: Notes
    kind: str | None


@dataclass(slots=True)
class _File:
    """A file on its way: what is known of it, and what was read of it just now."""

    path: Path
    stat: os.stat_result | None = None
    kept: tuple[Stored, ...] = ()
    read: list[Stored] = field(default_factory=list)
    unreadable: Part | None = None
    changed: bool = False
    looked_ns: int = 0

    @property
    def stored(self) -> tuple[Stored, ...]:
        """All parts in the order of the file."""
        return (*self.kept, *sorted(self.read, key=lambda stored: stored.part.begin))


def load_files(
    store: Store, files: Sequence[Path], host: Host, cache: SpanCache, progress: Progress
) -> list[LoadedFile]:
    """Load files into ``store``. A file that cannot be read, or is of no known kind, is noted and left out.

    Raises ``OSError`` where ``cache`` cannot be written.
    """
    known = [_File(path) for path in files]
    pieces = [piece for file in known for piece in _look(file, cache)]
    _read(known, pieces, cache, progress)
    loaded = _loaded(known)
    packs = {stored.pack for file in known for stored in file.stored if stored.pack is not None}
    numbers = cache.numbers(packs)
    store.attach([str(cache.pack_path(pack)) for pack in numbers], _packed_parts(known, loaded, numbers))
    store.add_processes(_signs(known, loaded, host))
    return loaded


def _signs(known: Sequence[_File], loaded: Sequence[LoadedFile], host: Host) -> Iterator[tuple[int, int | None, bool]]:
    """Each process once, with the last sign of life that any of its files gives."""
    last_mtime: dict[int, tuple[Process, int]] = {}
    for file, each in zip(known, loaded, strict=True):
        mtime_ns = file.stat.st_mtime_ns if file.stat else 0
        for process, number in each.notes.processes.items():
            last_mtime[number] = process, max(mtime_ns, last_mtime.get(number, (process, 0))[1])
    for number, (process, mtime_ns) in last_mtime.items():
        yield number, *last_sign_ns(process, mtime_ns, host)


def _look(file: _File, cache: SpanCache) -> list[Piece]:
    """Find out what is known of a file, and which pieces of it are to be read."""
    try:
        file.looked_ns = time.time_ns()
        file.stat = file.path.stat()
        entry = cache.get(file.stat)
        plan = todo(str(file.path), file.stat, entry, cache.packs, lambda stored: _looks_like(file.path, stored))
        file.kept = plan.kept
        file.changed = entry is None or not (entry.settled and entry.is_of(file.stat))
        return [] if plan.piece is None else cut(plan.piece)
    except OSError as error:
        skip = Skip(0, f"cannot be read: {error.strerror or error}")
        file.unreadable = Part(None, 0, 0, skips=(skip,), skipped=1)
        return []


def _looks_like(path: Path, stored: Stored) -> bool:
    with path.open("rb") as file:
        return probe(file, stored.part.end) == (stored.part.head, stored.part.tail)


def _read(known: Sequence[_File], pieces: Sequence[Piece], cache: SpanCache, progress: Progress) -> None:
    """Read pieces into packs, and remember what came of it."""
    by_path = {str(file.path): file for file in known}
    total, done = sum(piece.bytes for piece in pieces), 0
    progress.advance(done, total)
    for batch, parts in read_batches(list(_batches(pieces, str(cache.folder)))):
        written = (cache.folder / batch.pack).exists()
        for piece, read in zip(batch.pieces, parts, strict=True):
            by_path[piece.path].read += [Stored(batch.pack if written else None, part) for part in read]
        done += batch.bytes
        progress.advance(done, total)
    remembered = [
        (file.stat, Entry(file.stat.st_size, file.stat.st_mtime_ns, file.stored, file.looked_ns))
        for file in known
        if file.stat and file.changed and not any(stored.part.failed for stored in file.read)
    ]
    cache.put(remembered)
    if pieces:
        cache.sweep()


def _batches(pieces: Sequence[Piece], folder: str) -> Iterator[Batch]:
    some: list[Piece] = []
    for piece in pieces:
        if some and (len(some) == _FILES_A_BATCH or sum(each.bytes for each in some) + piece.bytes > PIECE_BYTES):
            yield _batch(some, folder)
            some = []
        some.append(piece)
    if some:
        yield _batch(some, folder)


def _batch(pieces: Sequence[Piece], folder: str) -> Batch:
    return Batch(folder, f"{secrets.token_hex(12)}.parquet", secrets.randbits(_PART_BITS), tuple(pieces))


def _loaded(known: Sequence[_File]) -> list[LoadedFile]:
    process_ids, met = count(), dict[Process, int]()
    return [_merged(file, source, process_ids, met) for source, file in enumerate(known)]


def _merged(file: _File, source: int, process_ids: Iterator[int], met: dict[Process, int]) -> LoadedFile:
    """Notes of all parts of a file as those of one reading. ``met`` are processes that other files may be of as well."""
    notes = Notes(file.path, source, process_ids)
    parts = [stored.part for stored in file.stored] if file.unreadable is None else [file.unreadable]
    lines = 0
    for part in parts:
        for process in part.processes:
            if process in met:
                notes.processes[process] = met[process]
            number = notes.process(process)
            if process.pid is not None and process.start_ns is not None:
                met[process] = number
        room = MAX_NAMED_SKIPS - len(notes.skips)
        notes.skips += [replace(skip, line=skip.line and skip.line + lines) for skip in part.skips[:room]]
        notes.skipped += part.skipped
        notes.cannot_show += [limit for limit in part.cannot_show if limit not in notes.cannot_show]
        notes.shows_turns |= part.shows_turns
        lines += part.lines
    return LoadedFile(notes, next((part.kind for part in parts), None))


def _packed_parts(
    known: Sequence[_File], loaded: Sequence[LoadedFile], packs: Mapping[str, int]
) -> Iterator[PackedPart]:
    for file, each in zip(known, loaded, strict=True):
        for stored in file.stored:
            if stored.pack is not None:
                processes = [each.notes.processes[process] for process in stored.part.processes]
                yield PackedPart(stored.part.number, each.notes.source, processes, packs[stored.pack])
