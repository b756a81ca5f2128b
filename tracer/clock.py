"""Time, injected everywhere: one wall anchor per process and monotonic deltas from it.

Instants of one process then never run backwards when somebody steps the system clock, and every difference
between two of them is a monotonic difference.
"""

from __future__ import annotations

import time
from typing import Final, Protocol


class Clock(Protocol):
    """Where instants come from."""

    def unix_ns(self) -> int:
        """Nanoseconds since the Unix epoch, never decreasing within a process."""
        ...


class SystemClock:
    """Wall clock read once, then advanced by the monotonic clock."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def unix_ns(self) -> int:
        """Nanoseconds since the Unix epoch, never decreasing within a process."""
        return self._offset_ns + time.monotonic_ns()


SYSTEM_CLOCK: Final = SystemClock()
