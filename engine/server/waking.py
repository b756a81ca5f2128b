"""From the engine's thread into the event loop: one wake-up for any number of streams that moved in a step."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class Waker:
    """Sets asyncio events of ``loop`` from other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._moved: list[asyncio.Event] = []

    def wake(self, event: asyncio.Event) -> None:
        """Set ``event`` soon; from any thread."""
        with self._lock:
            self._moved.append(event)
            if len(self._moved) > 1:
                return
        # A loop that is closed has nobody waiting.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        with self._lock:
            moved, self._moved = self._moved, []
        for event in moved:
            event.set()
