"""Span files as a feed: live, where agents run without an engine, and replayed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvtrace.analysis.evidence import ThisHost
from kvtrace.analysis.normal import Notes

from .contract import FeedError, Sample, SourceKind
from .span_world import SpanWorld

if TYPE_CHECKING:
    from kvtrace.analysis.normal import SpanRecord

LIVE_FORGET_S: Final = 600.0
_MOST_AT_ONCE: Final = 32 << 20
_LARGEST_WHOLE: Final = 64 << 20
_RESCAN_READS: Final = 5
_NS: Final = 1_000_000_000


class SpanTail:
    """What is new in one file since it was last looked at. OTLP JSON goes on where it was; other kinds are read anew."""

    def __init__(self, path: Path, process_ids: Iterator[int]) -> None:
        self.path = path
        self.notes = Notes(path, 0, process_ids)
        self.written_ns = 0
        self._offset = 0
        self._stamp: tuple[int, int, int] | None = None
        self._rest = b""

    def read(self) -> list[SpanRecord]:
        """New records; nothing where the file is gone, unreadable, unchanged or of no known kind."""
        try:
            status = self.path.stat()
            self.written_ns = status.st_mtime_ns
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp == self._stamp:
                return []
            if self._stamp is not None and (status.st_ino != self._stamp[0] or status.st_size < self._offset):
                self._offset, self._rest = 0, b""
            records = self._new(status.st_size)
        except OSError:
            return []
        if self._offset >= status.st_size:
            self._stamp = stamp
        return records

    def _new(self, size: int) -> list[SpanRecord]:
        from kvtrace.analysis.sources import importer_for, otlp_json

        importer = importer_for(self.path)
        if importer is None:
            return []
        if importer.kind != otlp_json.KIND or not self._is_lines():
            self._offset = size
            return list(importer.read(self.path, self.notes)) if size <= _LARGEST_WHOLE else []
        return list(self._lines())

    def _is_lines(self) -> bool:
        """Whether the file has a document on every line; one document over many lines is read whole."""
        with self.path.open("rb") as file:
            return file.readline(1 << 20).rstrip().endswith(b"}")

    def _lines(self) -> Iterable[SpanRecord]:
        from kvtrace.analysis.sources.json_values import parse_line
        from kvtrace.analysis.sources.otlp_json import Reader

        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = self._rest + file.read(_MOST_AT_ONCE)
            self._offset = file.tell()
        # The last line may still be on its way.
        whole, _, self._rest = data.rpartition(b"\n")
        reader = Reader(self.notes)
        for number, line in enumerate(whole.split(b"\n"), 1):
            if line.strip():
                value = parse_line(line, number, False, self.notes)
                for document in value if isinstance(value, list) else [value]:
                    if isinstance(document, dict):
                        yield from reader.spans(document)


class SpanFeed:
    """Agents as the span files below ``paths`` tell of them now; of the newest run where none are named."""

    speed = None
    over = False

    def __init__(self, paths: Sequence[Path], now_ns: Callable[[], int]) -> None:
        self._paths = tuple(paths)
        self._now_ns = now_ns
        self._tails: dict[Path, SpanTail] = {}
        self._world = SpanWorld()
        self._process_ids = count()
        self._buried: set[int] = set()
        self._host = ThisHost()
        self._reads = 0
        self.where = ", ".join(str(path) for path in paths) or "the newest run"

    def read(self) -> list[Sample]:
        """Agents now. Raises :class:`FeedError` where there are no spans."""
        if self._reads % _RESCAN_READS == 0:
            self._look_for_files()
        self._reads += 1
        self._world.tell(record for tail in self._tails.values() for record in tail.read())
        if self._reads % _RESCAN_READS == 1:
            self._bury_the_dead()
        now_ns = self._now_ns()
        self._world.advance(now_ns)
        return [Sample(self._world.snapshot(now_ns, LIVE_FORGET_S), SourceKind.SPANS, self.where)]

    def play_at(self, speed: float) -> None:
        """The present goes at its own pace."""

    def close(self) -> None:
        """Nothing is kept open."""

    def _look_for_files(self) -> None:
        """New processes write new files, and a new run is the newest from then on."""
        files = find(self._paths)
        if not self._paths and files and self.where != _run_of(files):
            self.where = _run_of(files)
            self._tails, self._world = {}, SpanWorld()
        for path in files:
            if path not in self._tails:
                self._tails[path] = SpanTail(path, self._process_ids)

    def _bury_the_dead(self) -> None:
        """A process that was killed left calls open, which nobody waits for any more."""
        here = socket.gethostname()
        for tail in self._tails.values():
            for process, number in tail.notes.processes.items():
                known = process.pid is not None and process.start_ns is not None and process.host == here
                if known and number not in self._buried and not self._host.is_running(process):
                    self._buried.add(number)
                    self._world.bury(number, tail.written_ns)


def find(paths: Sequence[Path], *, every_run: bool = False) -> list[Path]:
    """Span files of ``paths``, or of the newest run, or of every run. Raises :class:`FeedError` without any."""
    from kvtrace.analysis.discover import find_files
    from kvtrace.analysis.errors import AnalysisError

    try:
        return find_files(paths, every_run)
    except AnalysisError as error:
        raise FeedError(str(error)) from error


def read_whole(paths: Sequence[Path]) -> SpanWorld:
    """All spans of files that nobody writes any more."""
    world = SpanWorld()
    process_ids = count()
    for path in find(paths):
        tail = SpanTail(path, process_ids)
        while records := tail.read():
            world.tell(records)
    return world


def _run_of(files: Sequence[Path]) -> str:
    return f"run {files[0].parent.name}" if files else os.fspath(Path())
