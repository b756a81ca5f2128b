"""How far reading is, as a bar on stderr that only shows when it takes longer than a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

_PATIENCE_S: Final = 1.0


class ReadingBar:
    """A progress of :mod:`kvtrace.analysis.progress`, gone when the ``with`` is left or everything is read."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._began = clock()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._said: set[str] = set()

    def __enter__(self) -> ReadingBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        """Show how far it is, or nothing where it is quick or done."""
        self._show(done_bytes, total_bytes, (TextColumn("Reading"), BarColumn(), DownloadColumn()))

    def derive(self, done_spans: int, total_spans: int) -> None:
        """Show how many spans are made into timelines, or nothing where it is quick or done."""
        counts = TextColumn("{task.completed:,.0f} of {task.total:,.0f} spans")
        self._show(done_spans, total_spans, (TextColumn("Measuring"), BarColumn(), counts))

    def _show(self, done: int, total: int, columns: tuple[ProgressColumn, ...]) -> None:
        if done >= total:
            self._stop()
        elif self._bar is not None:
            self._bar.update(self._task, completed=done)
        elif self._clock() - self._began > _PATIENCE_S and self._console.is_terminal:
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True)
            self._task = self._bar.add_task("", total=total, completed=done)
            self._bar.start()

    def say(self, sentence: str) -> None:
        """Print a sentence once."""
        if sentence not in self._said:
            self._said.add(sentence)
            self._console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
