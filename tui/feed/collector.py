"""Reads a feed in a thread of its own, at an interval that can be changed meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .contract import Feed, FeedError, Sample

_LONGEST_RETRY_S = 2.0


class Collector:
    """Hands samples to ``on_samples`` and the reasons for their absence to ``on_trouble``, both called in its thread."""

    def __init__(
        self,
        feed: Feed,
        interval_s: float,
        on_samples: Callable[[list[Sample]], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        self._feed = feed
        self._interval_s = interval_s
        self._on_samples = on_samples
        self._on_trouble = on_trouble
        self._wake = threading.Event()
        self._stopping = False
        self._speed: float | None = None
        # A daemon: a server that does not answer must not keep the program from ending.
        self._thread = threading.Thread(target=self._collect, name="kvtrace-feed", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more; returns at once."""
        self._stopping = True
        self._wake.set()

    def set_interval(self, seconds: float) -> None:
        """Sample every so many seconds from now on."""
        self._interval_s = seconds
        self._wake.set()

    def set_speed(self, speed: float) -> None:
        """Play a replay at this speed from now on."""
        self._speed = speed
        self._wake.set()

    def refresh(self) -> None:
        """Sample now."""
        self._wake.set()

    def _collect(self) -> None:
        while not self._stopping:
            began = time.monotonic()
            pause_s = self._interval_s
            try:
                speed, self._speed = self._speed, None
                if speed is not None:
                    self._feed.play_at(speed)
                samples = self._feed.read()
                if samples and not self._stopping:
                    self._on_samples(samples)
            except FeedError as error:
                if not self._stopping:
                    self._on_trouble(str(error))
                pause_s = min(pause_s, _LONGEST_RETRY_S)
            self._wake.wait(max(0.02, pause_s - (time.monotonic() - began)))
            self._wake.clear()
        self._feed.close()
