"""While a span is open, a file's modification time says once a second that its process still lives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

PERIOD_S: Final = 1.0
_IDLE_BEATS: Final = 10  # beats without an open span after which the thread ends


class Heartbeat:
    """Calls ``touch`` once a second as long as a span is open, from a daemon thread that comes and goes by need.

    There is no lock, so that none can be held over a fork. A span is entered before the thread is looked for, and the
    thread signs off before it looks for spans a last time: one of the two always sees the other.
    """

    def __init__(self, touch: Callable[[], None], period_s: float = PERIOD_S) -> None:
        self._touch = touch
        self._period_s = period_s
        self._open: set[str] = set()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def enter(self, span_id: str) -> None:
        """Note an open span."""
        self._open.add(span_id)
        if self._thread is None:
            self._start()

    def leave(self, span_id: str) -> None:
        """Note that a span ended."""
        self._open.discard(span_id)

    @property
    def idle(self) -> bool:
        """Tell whether no span is open."""
        return not self._open

    @property
    def beating(self) -> bool:
        """Tell whether the thread runs."""
        return self._thread is not None

    def stop(self) -> None:
        """End the thread, if there is one; the next span starts it again. Used before a fork."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._wake.set()
            # Bounded: a touch that hangs on a dead network disk must not hold up the fork.
            thread.join(timeout=0.5)

    def _start(self) -> None:
        self._wake = threading.Event()
        thread = threading.Thread(target=self._run, args=(self._wake,), name="kvtrace-heartbeat", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is going down: only the evidence of life is lost
            self._thread = None

    def _run(self, wake: threading.Event) -> None:
        me = threading.current_thread()
        idle_beats = 0
        while not wake.wait(self._period_s) and self._thread is me:
            if self._open:
                idle_beats = 0
                self._touch()
                continue
            idle_beats += 1
            if idle_beats >= _IDLE_BEATS:
                self._thread = None
                if not self._open:
                    return
                self._thread = me
