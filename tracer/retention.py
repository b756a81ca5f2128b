"""Old runs make room: what goes is decided by age and total size, never while a process of the run lives.

Of runs that stay, notes of hooks about calls whose end never came go by age: no end is to be expected any more.

Done when a process configures itself, at most once an hour for all processes together, within a time budget and without
a thread.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .diagnostics import internal_error
from .spanfile import NOTE_PREFIX, NOTE_SUFFIX, RUNS

DEFAULT_MAX_BYTES: Final = 2 * 1024**3  # of all runs together
DEFAULT_MAX_DAYS: Final = 30.0
_PERIOD_S: Final = 3600.0  # between two looks
_YOUNGEST_S: Final = 3600.0  # a run written to since then stays, whoever wrote it: it may be another machine's
_BUDGET_S: Final = 0.1  # of one look; what is left goes at the next one
_MOST_FILES: Final = 20_000  # that one look takes note of
_MARK: Final = ".cleaned"
_OURS: Final = ("*.jsonl", f"{NOTE_PREFIX}*{NOTE_SUFFIX}")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run's folder: its size in bytes, when it was last written to, and the processes that wrote it.

    ``notes`` are the hooks' files of open calls, with when each was written.
    """

    path: Path
    size_bytes: int
    written_s: float
    processes: frozenset[str]
    notes: tuple[tuple[Path, float], ...] = ()


def clean(
    root: Path,
    *,
    max_bytes: int,
    max_days: float,
    now_s: float,
    keep: Path,
    is_alive: Callable[[str], bool],
) -> list[Path]:
    """Remove runs below ``root`` that are too old or too many, and return their folders. Never raises.

    ``max_bytes`` or ``max_days`` of 0 set no limit. ``keep`` is this process's own run. ``is_alive`` tells of the stem
    of a span file whether its process lives.
    """
    try:
        if not _is_due(root / _MARK, now_s) or not (root / RUNS).is_dir():
            return []
        runs = list(_runs(root / RUNS))
        chosen = choose(runs, max_bytes=max_bytes, max_days=max_days, now_s=now_s)
        deadline = time.monotonic() + _BUDGET_S
        removed = []
        for run in chosen:
            if time.monotonic() > deadline:
                break
            if run.path != keep and not any(is_alive(process) for process in run.processes):
                _remove(run.path)
                removed.append(run.path)
        _remove_notes(runs, now_s - max_days * 86_400 if max_days > 0 else 0.0)
        return removed
    except Exception as error:
        internal_error("the removal of old runs", error)
        return []


def choose(runs: Iterable[RecordedRun], *, max_bytes: int, max_days: float, now_s: float) -> list[RecordedRun]:
    """Return the runs to remove, oldest first: those past their age, then as many as the size asks for."""
    oldest_first = sorted(runs, key=lambda run: run.written_s)
    total = sum(run.size_bytes for run in oldest_first)
    chosen = []
    for run in oldest_first:
        age_s = now_s - run.written_s
        too_old = max_days > 0 and age_s > max_days * 86_400
        too_much = 0 < max_bytes < total
        if age_s > _YOUNGEST_S and (too_old or too_much):
            chosen.append(run)
            total -= run.size_bytes
    return chosen


def _is_due(mark: Path, now_s: float) -> bool:
    """Tell whether nobody looked for an hour, and note that somebody does now."""
    try:
        if now_s - mark.stat().st_mtime < _PERIOD_S:
            return False
    except FileNotFoundError:
        if not mark.parent.is_dir():
            return False
    except OSError:
        return False
    try:
        mark.touch(0o600)
        os.utime(mark, (now_s, now_s))
    except OSError:  # a folder that cannot be written has nothing to remove either
        return False
    return True


def _runs(folder: Path) -> Iterator[RecordedRun]:
    seen = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):
                run, files = _run(entry)
                seen += files
                yield run
            if seen > _MOST_FILES:
                return


def _run(folder: os.DirEntry[str]) -> tuple[RecordedRun, int]:
    size, written, processes, files = 0, folder.stat(follow_symlinks=False).st_mtime, set(), 0
    notes = []
    with os.scandir(folder.path) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            size, written, files = size + status.st_size, max(written, status.st_mtime), files + 1
            if entry.name.endswith(".jsonl"):
                processes.add(entry.name.split(".", 1)[0])
            elif entry.name.startswith(NOTE_PREFIX) and entry.name.endswith(NOTE_SUFFIX):
                notes.append((Path(entry.path), status.st_mtime))
    return RecordedRun(Path(folder.path), size, written, frozenset(processes), tuple(notes)), files


def _remove(run: Path) -> None:
    """Remove the span files of a run and what hooks noted beside them, and its folder if nothing else is in it."""
    for pattern in _OURS:
        for file in run.glob(pattern):
            with contextlib.suppress(OSError):
                file.unlink()
    with contextlib.suppress(OSError):
        run.rmdir()


def _remove_notes(runs: Iterable[RecordedRun], oldest_s: float) -> None:
    """Remove notes of open calls written before an instant."""
    for run in runs:
        for path, written_s in run.notes:
            if written_s < oldest_s:
                with contextlib.suppress(OSError):
                    path.unlink()
