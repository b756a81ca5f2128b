"""From what the user named (files, folders, patterns, nothing) to the files to read."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from kvtrace.tracer import attributes as names
from kvtrace.tracer.settings import default_directory
from kvtrace.tracer.spanfile import RUNS

from .errors import NoDataError, SourceNotFoundError

_SUFFIXES: Final = frozenset({".jsonl", ".json", ".ndjson"})


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
    return list({file.resolve(): file for file in found}.values())


def _expand(path: Path) -> list[Path]:
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
    return sorted(file for file in folder.rglob("*") if file.suffix in _SUFFIXES and file.is_file())


def _recorded(data_folder: Path, every_run: bool) -> list[Path]:
    """Span files of the newest run (the one written to last), or of all."""
    runs = [_span_files(run) for run in sorted((data_folder / RUNS).glob("*")) if run.is_dir()]
    runs = [files for files in runs if files]
    if not runs:
        raise NoDataError(
            f"No spans recorded yet below {data_folder}: run an agent with kvtrace's decorators, "
            f"set {names.ENV_DIR} to the folder it recorded to, or name a file."
        )
    if every_run:
        return [file for files in runs for file in files]
    return max(runs, key=_last_written)


def _last_written(files: Iterable[Path]) -> int:
    return max(file.stat().st_mtime_ns for file in files)
