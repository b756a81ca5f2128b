"""The span file of one process: OTLP JSON lines, appended with one write(2) a record.

A record is in the page cache when :meth:`SpanFile.append` returns, so it survives the death of the process (not of the
power: there is no fsync). Nothing is buffered, so there is nothing to flush and nothing to lose at exit.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from .diagnostics import COUNTS, warn_once
from .heartbeat import Heartbeat

ROTATE_BYTES: Final = 64 * 1024**2  # beyond this the process goes on in another file
_MOST_TOUCHED: Final = 8  # of a process's files, the newest, whose open spans are kept in evidence
RUNS: Final = "runs"  # folder of all runs below the root
NOTE_PREFIX: Final = "hook-"  # a hook's span file, and its notes of the calls that are open
NOTE_SUFFIX: Final = ".open"
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)


def run_directory(root: Path, run_id: str) -> Path:
    """Return the folder that holds the span files of one run."""
    return root / RUNS / run_id


class SpanFile:
    """Appends records to ``path``, opened at the first record; a file that cannot be written costs records only.

    After ``rotate_bytes`` the next record goes to ``<name>.1.jsonl``, and so on.
    """

    def __init__(self, path: Path, rotate_bytes: int = ROTATE_BYTES) -> None:
        self.path = path
        self._rotate_bytes = rotate_bytes
        self._paths = [path]
        self._size = 0
        self.heartbeat = Heartbeat(self.touch)
        self._fd: int | None = None
        self._inode = (-1, -1)
        self._torn = False
        self._closed = False
        self.abandoned = False

    def append(self, record: str) -> bool:
        """Write ``record``, a line with its newline, and tell whether it is on disk."""
        if self.abandoned:
            return False
        data = record.encode()
        try:
            fd = self._descriptor()
            if self._torn:
                data = b"\n" + data
            written = os.write(fd, data)
        except OSError as error:
            self._lose(error.strerror or type(error).__name__)
            return False
        self._size += written
        # A short write (the disk filled up) leaves half a line: the next record begins on a line of its own.
        self._torn = torn = written != len(data)
        if torn:
            self._lose("the disk is full")
        if self._size >= self._rotate_bytes:
            self._rotate()
        return not torn

    def touch(self) -> None:
        """Move the files' modification time to now; failing does not matter."""
        for path in self._paths[-_MOST_TOUCHED:]:
            with contextlib.suppress(OSError):
                os.utime(path)

    def close(self) -> None:
        """Close the descriptor as soon as no span is open any more."""
        self._closed = True
        self.span_ended("")

    def abandon(self) -> None:
        """Let go at once, in a forked child: the file and its open spans are the parent's."""
        self.abandoned = True
        # Its thread stayed behind in the parent, and so must the wish to stop it.
        self.heartbeat = Heartbeat(self.touch)
        self._release()

    def span_ended(self, span_id: str) -> None:
        """Note the end of a span, and close the descriptor after the last one of a closed file."""
        self.heartbeat.leave(span_id)
        if self._closed and self.heartbeat.idle:
            self.heartbeat.stop()
            self._release()

    def _descriptor(self) -> int:
        """Return the open file; one that was deleted, or closed under us and perhaps re-used, is opened anew."""
        if self._fd is None:
            return self._open()
        try:
            status = os.fstat(self._fd)
        except OSError:
            return self._open()
        if (status.st_dev, status.st_ino) != self._inode:
            return self._open()
        if status.st_nlink == 0:
            self._release()
            return self._open()
        return self._fd

    def _open(self) -> int:
        self._fd = None
        _make_private(self.path.parent)
        fd = os.open(self.path, _FLAGS, 0o600)
        status = os.fstat(fd)
        self._inode = (status.st_dev, status.st_ino)
        self._fd = fd
        return fd

    def _rotate(self) -> None:
        first = self._paths[0]
        self.path = first.with_name(f"{first.stem}.{len(self._paths)}{first.suffix}")
        self._paths.append(self.path)
        self._size, self._torn = 0, False
        self._release()

    def _release(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _lose(self, reason: str) -> None:
        COUNTS.lost_records += 1
        warn_once(
            "spanfile",
            "kvtrace: cannot write spans to %s: %s. The program goes on, its spans are lost and counted. "
            "Free the disk, or set KVTRACE_DIR to a folder that can be written.",
            self.path,
            reason,
        )


def _make_private(directory: Path) -> None:
    """Make ``<root>/runs/<run>`` for its owner only, and leave folders that exist as they are."""
    run, runs, root = directory, directory.parent, directory.parent.parent
    root.parent.mkdir(parents=True, exist_ok=True)
    for folder in (root, runs, run):
        folder.mkdir(mode=0o700, exist_ok=True)
