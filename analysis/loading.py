"""Reads every file with its importer into the store, and keeps what each had to say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from .evidence import Host, last_sign_ns
from .normal import Notes, SpanRecord
from .sources import Importer, importer_for
from .store import Store


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """One file and what came of reading it; ``kind`` is ``None`` where no importer recognised it."""

    notes: Notes
    kind: str | None


def load_files(store: Store, files: Sequence[Path], host: Host) -> list[LoadedFile]:
    """Load files into ``store``. A file that cannot be read, or is of no known kind, is noted and left out."""
    process_ids = count()
    loaded = [_open(Notes(path, source, process_ids)) for source, path in enumerate(files)]
    store.load(record for notes, importer in loaded for record in _read(notes, importer))
    for notes, _ in loaded:
        _add_processes(store, notes, host)
    return [LoadedFile(notes, importer.kind if importer else None) for notes, importer in loaded]


def _open(notes: Notes) -> tuple[Notes, Importer | None]:
    try:
        importer = importer_for(notes.path)
    except OSError as error:
        notes.skip(0, f"cannot be read: {error.strerror or error}")
        return notes, None
    if importer is None:
        empty = notes.path.stat().st_size == 0
        notes.skip(0, "the file is empty" if empty else "of no known kind")
    return notes, importer


def _read(notes: Notes, importer: Importer | None) -> Iterator[SpanRecord]:
    try:
        if importer is not None:
            yield from importer.read(notes.path, notes)
    except OSError as error:
        notes.skip(0, f"reading stopped: {error.strerror or error}")


def _add_processes(store: Store, notes: Notes, host: Host) -> None:
    if not notes.processes:
        return
    try:
        mtime_ns = notes.path.stat().st_mtime_ns
    except OSError:
        mtime_ns = 0
    for process, number in notes.processes.items():
        sign_ns, running = last_sign_ns(process, mtime_ns, host)
        store.add_process(number, sign_ns, running)
