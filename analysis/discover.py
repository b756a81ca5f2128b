"""From what the user named (files, folders, patterns, nothing) to the files to read."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from kvtrace.tracer import attributes as names
from kvtrace.tracer.settings import default_directory
from kvtrace.tracer.spanfile import RUNS

from .errors import NoDataError, SourceNotFoundError

_SUFFIXES: Final = frozenset({".jsonl", ".json", ".ndjson", ".traj", ".eval", ".pb", ".binpb"})


STDIN: Final = Path("-")
"""Stands for standard input."""

_BEGAN: Final = re.compile(r"\d{8}T\d{6}")
_LATEST: Final = 64


def find_files(paths: Sequence[Path], every_run: bool = False, data_folder: Path | None = None) -> list[Path]:
    """Files to read, each once and in a fixed order.

    Without ``paths`` the newest run below ``data_folder`` (default: ``KVTRACE_DIR`` or the user's data folder), or
    every run there. Raises :class:`SourceNotFoundError` for a path that names nothing, :class:`NoDataError` where
    nothing was recorded.
    """
    if paths:
        found = [file for path in paths for file in _expand(path)]
    else:
        found = _recorded(data_folder or default_directory(os.environ), every_run)
    # The same file under two names is read once; what is left of duplicates is merged span by span.
    return list({_identity(file): file for file in found}.values())


def _identity(file: Path) -> object:
    try:
        stat = file.stat()
    except OSError:
        return file
    return stat.st_dev, stat.st_ino


def _expand(path: Path) -> list[Path]:
    if path == STDIN:
        return [path]
    path = path.expanduser()
    if path.is_dir():
        files = _span_files(path)
        if not files:
            raise SourceNotFoundError(
                f"{path} holds no {', '.join(sorted(_SUFFIXES))} file; name a file or another folder"
            )
        return files
    if path.exists():
        return [path]
    matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - absolute patterns
    if not matches:
        raise SourceNotFoundError(f"{path} is no file, folder or pattern that matches one; check the spelling")
    return [file for match in matches for file in (_span_files(match) if match.is_dir() else [match])]


def _span_files(folder: Path) -> list[Path]:
    found = chain.from_iterable(
        (os.path.join(at, name) for name in names if os.path.splitext(name)[1] in _SUFFIXES)  # noqa: PTH118, PTH122
        for at, _, names in os.walk(folder)
    )
    # Plain texts until here, since there may be 100,000 of them.
    return [Path(file) for file in sorted(found, key=_in_order) if os.path.isfile(file)]  # noqa: PTH113


def _in_order(file: str) -> list[str]:
    return file.split(os.sep)  # noqa: PTH206 - 100,000 of them


def _recorded(data_folder: Path, every_run: bool) -> list[Path]:
    """Span files of the newest run (the one written to last), or of all.

    Of runs whose name begins with the instant they began, only the :data:`_LATEST` that began last are looked into:
    one that goes on longer than so many later ones has to be named.
    """
    runs = sorted(run for run in (data_folder / RUNS).glob("*") if run.is_dir())
    if not every_run:
        timed = [run for run in runs if _BEGAN.match(run.name)]
        runs = [run for run in runs if run not in set(timed[:-_LATEST])]
    found = [files for run in runs if (files := _span_files(run))]
    if not found:
        raise NoDataError(
            f"No spans recorded yet below {data_folder}: run an agent with kvtrace's decorators, "
            f"set {names.ENV_DIR} to the folder it recorded to, or name a file."
        )
    return [file for files in found for file in files] if every_run else max(found, key=_last_written)


def _last_written(files: Iterable[Path]) -> int:
    return max(file.stat().st_mtime_ns for file in files)
