"""Batches read by as many processes as there are cores, and by this one where there is little to read."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from typing import Final

import msgspec

from .packing import Batch, read_batch
from .pieces import Part

_WORTH_A_PROCESS: Final = 24 << 20
_MAX_PROCESSES: Final = 8


class _Answer(msgspec.Struct):
    parts: list[list[Part]] = []
    errno: int | None = None
    strerror: str | None = None


class WorkerDiedError(RuntimeError):
    """A process that read a batch ended before it answered."""


class _Worker:
    """One process; it ends when its input does."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvtrace.analysis.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def read(self, batch: Batch) -> list[list[Part]]:
        """Have a batch read. Raises ``OSError`` where its pack cannot be written, :class:`WorkerDiedError`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(batch) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerDiedError from None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerDiedError
        answer = msgspec.json.decode(line, type=_Answer)
        if answer.strerror is not None:
            raise OSError(answer.errno, answer.strerror)
        return answer.parts

    def stop(self) -> None:
        """End the process, at once where it is in the middle of a batch."""
        self._process.terminate()
        self._process.communicate()


def read_batches(batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[list[Part]]]]:
    """Read batches, in whatever order they get ready. Raises ``OSError`` where a pack cannot be written."""
    processes = min(len(batches), _cores(), _MAX_PROCESSES)
    if processes < 2 or sum(batch.bytes for batch in batches) < _WORTH_A_PROCESS:
        for batch in batches:
            yield batch, read_batch(batch)
        return
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    with ExitStack() as stack:
        for _ in range(processes):
            worker = _Worker()
            stack.callback(worker.stop)
            idle.put(worker)
        executor = stack.enter_context(ThreadPoolExecutor(processes))
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        running = {executor.submit(_read_by, idle, batch): batch for batch in batches}
        for future in as_completed(running):
            batch = running[future]
            yield batch, _result(future.result, batch)


def _read_by(idle: queue.SimpleQueue[_Worker], batch: Batch) -> list[list[Part]]:
    worker = idle.get()
    try:
        return worker.read(batch)
    finally:
        # A dead one too: it fails at once, and its batches are read by this process.
        idle.put(worker)


def _result(parts: Callable[[], list[list[Part]]], batch: Batch) -> list[list[Part]]:
    """A batch whose worker died, killed perhaps for memory, is read here and now."""
    try:
        return parts()
    except WorkerDiedError:
        return read_batch(batch)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
