"""A mover for devices whose memory a thread can copy: the CPU."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from ..errors import EngineStopped
from .contract import Copy, CopyDone, Direction
from .runs import continues, share

RUN_BLOCKS: Final = 32  # longest run copied at once, so that a copy's end is reported soon after it


class Copier(Protocol):
    """Moves the bytes of runs of neighbouring blocks; returns when they have arrived."""

    def copy_out(self, block: int, slot: int, count: int = 1) -> None:
        """Device blocks to host slots."""
        ...

    def copy_in(self, slot: int, block: int, count: int = 1) -> None:
        """Host slots to device blocks."""
        ...


class ThreadMover:
    """Carries out copies one run after the other, first in first out, in one worker thread.

    The ordering of the contract holds because compute on the CPU is synchronous: when the loop's thread calls
    :meth:`submit`, whatever it computed is in memory and nothing reads any more, and the queue's lock makes that
    visible to the worker. One worker in submission order never lets two copies of the same block overtake.

    Args:
        copier: does the copying; :class:`~kvtrace.engine.storage.Storage` in the engine.
        on_done: called in the worker's thread after copies ended, so that a sleeping loop can wake.
        now_ns: monotonic nanoseconds.
    """

    def __init__(
        self,
        copier: Copier,
        on_done: Callable[[], None] | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._copier = copier
        self._on_done = on_done
        self._now_ns = now_ns
        self._changed = threading.Condition()
        self._queue: deque[Copy] = deque()
        self._run: list[Copy] = []  # being copied
        self._done: list[CopyDone] = []
        self._in_flight = 0
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="kvtrace-mover", daemon=True)
        self._worker.start()

    def mark(self) -> None:
        """Nothing: what the calling thread has computed is done."""

    def submit(self, copies: Sequence[Copy], after: object | None = None) -> None:
        """Queue ``copies``; returns at once.

        Raises:
            EngineStopped: the mover was closed.
        """
        with self._changed:
            if self._closed:
                raise EngineStopped("the mover is closed: no copy can be queued any more")
            self._queue.extend(copies)
            self._in_flight += len(copies)
            self._changed.notify_all()

    def poll(self) -> list[CopyDone]:
        """Copies that ended since the last call, each exactly once; never blocks."""
        with self._changed:
            done, self._done = self._done, []
            self._in_flight -= len(done)
        return done

    def fence(self, copy_ids: Collection[int]) -> None:
        """None: compute on the CPU begins when it is called, and could only be kept waiting by waiting."""

    def queued(self, direction: Direction) -> int:
        """Copies of one direction that were submitted and are not over."""
        with self._changed:
            return sum(copy.direction is direction for copy in (*self._queue, *self._run))

    def wait(self, timeout_s: float) -> None:
        """Block until a copy has ended that :meth:`poll` has not returned yet, none is in flight, or the time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._done or not self._in_flight, timeout_s)

    def in_flight(self) -> int:
        """Copies submitted and not yet returned by :meth:`poll`."""
        with self._changed:
            return self._in_flight

    def close(self) -> None:
        """Finish what was submitted and end the worker; what ended stays there for :meth:`poll`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._worker.join()

    def _work(self) -> None:
        while run := self._next_run():
            done = self._carry_out(run)
            with self._changed:
                self._run = []
                self._done.extend(done)
                self._changed.notify_all()
            if self._on_done is not None:
                self._on_done()

    def _next_run(self) -> list[Copy]:
        """The next copies that make one run; empty once the mover is closed and drained."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            run: list[Copy] = []
            while self._queue and len(run) < RUN_BLOCKS and (not run or continues(run[-1], self._queue[0])):
                run.append(self._queue.popleft())
            self._run = run
            return run

    def _carry_out(self, run: list[Copy]) -> list[CopyDone]:
        started = self._now_ns()
        try:
            self._copy(run[0], len(run))
        except Exception as error:
            if len(run) == 1:
                return [CopyDone(run[0], started, self._now_ns(), f"{type(error).__name__}: {error}")]
            # Copying again is harmless, and tells the block that failed from its neighbours.
            return [done for copy in run for done in self._carry_out([copy])]
        return share(run, started, self._now_ns())

    def _copy(self, first: Copy, count: int) -> None:
        if first.direction is Direction.OUT:
            self._copier.copy_out(first.device_block, first.host_slot, count)
        else:
            self._copier.copy_in(first.host_slot, first.device_block, count)
