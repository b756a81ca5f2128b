"""Exit codes of every ``kvtrace`` command: part of the command line's contract."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process's exit status means."""

    OK = 0
    FAILED = 1
    USAGE = 2  # click's own
    UNREACHABLE = 3
    TIMEOUT = 4
    NO_DATA = 5
    INTERRUPTED = 130


class CommandError(Exception):
    """Ends a command with one sentence on stderr and an exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code
