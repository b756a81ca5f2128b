"""Files in, measured times out: through the cache where that works, without it where it does not."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import duckdb

from .cache import SpanCache, default_folder
from .deriving import derivation, measure_kept
from .discover import STDIN
from .evidence import Host
from .layers import FOLDER_PREFIX
from .loading import LoadedFile, load_files
from .progress import Progress, Quiet
from .store import Store
from .timeline import Measured, measure

_SPOOLED: Final = "kvtrace-stdin"
_WORTH_KEEPING: Final = 64 << 20  # bytes of files that take a second to derive
_TROUBLE: Final = (OSError, sqlite3.Error, duckdb.Error)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How files are read.

    With ``cache``, what was read is remembered in ``cache_folder`` (default: below the user's cache folder).
    ``progress`` hears how far it is, ``stdin`` stands for the path ``-``. With ``rows``, what pictures are drawn from is
    brought here from a table that stays elsewhere.
    """

    cache: bool = True
    cache_folder: Path | None = None
    progress: Progress = field(default_factory=Quiet)
    stdin: BinaryIO | None = None
    rows: bool = False


@dataclass(frozen=True, slots=True)
class Intake:
    """What came of the files, and the database that ``measured`` is from."""

    store: Store
    loaded: Sequence[LoadedFile]
    measured: Measured


def take_in(stack: ExitStack, files: Sequence[Path], host: Host, round_trip_ns: int, options: ReadOptions) -> Intake:
    """Load and measure files; whatever has to be there as long as the database is closed by ``stack``.

    A cache that is damaged or cannot be written costs time, and a sentence to ``options.progress``, but no figure.
    """
    work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvtrace-")))
    read = [_spooled(work, options.stdin) if file == STDIN else file for file in files]
    if options.cache:
        try:
            return _measured(stack, options.cache_folder or default_folder(), read, host, round_trip_ns, options)
        except duckdb.OutOfMemoryException:
            raise
        except _TROUBLE as error:
            _distrust(options, error)
    return _measured(stack, work / "cache", read, host, round_trip_ns, options)


def _measured(
    stack: ExitStack, folder: Path, files: Sequence[Path], host: Host, round_trip_ns: int, options: ReadOptions
) -> Intake:
    with ExitStack() as attempt:
        cache = SpanCache(folder)
        attempt.callback(cache.close)
        store = attempt.enter_context(Store())
        loaded = load_files(store, files, host, cache, options.progress)
        for file in loaded:
            if file.notes.path.name == _SPOOLED:
                file.notes.path = STDIN
        if sum(_size(file) for file in files) < _WORTH_KEEPING:
            measured = measure(store.connection, round_trip_ns)
        else:
            measured = measure_kept(store, folder / derivation(), round_trip_ns, options.progress)
        stack.push(attempt.pop_all())
    return Intake(store, loaded, measured)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _spooled(work: Path, stdin: BinaryIO | None) -> Path:
    """Standard input as a file, since a format is told by the beginning and read from there again."""
    path = work / _SPOOLED
    with path.open("wb") as file:
        shutil.copyfileobj(stdin or sys.stdin.buffer, file, 1 << 20)
    return path


def _distrust(options: ReadOptions, error: Exception) -> None:
    """Say that the cache is of no use now, and have it made anew."""
    folder = options.cache_folder or default_folder()
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    options.progress.say(
        f"The cache in {folder} is of no use ({reason}), so everything is read anew; deleting that folder is safe."
    )
    for path in (*folder.glob("index.sqlite*"), *folder.glob("*.parquet")):
        with contextlib.suppress(OSError):
            path.unlink()
    for path in folder.glob(f"{FOLDER_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)
