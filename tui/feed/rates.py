"""Bytes per second over the last second, for the simulated engine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Moves:
    """What was moved one way: its total, its peak rate, and its rate over the last second."""

    total: int = 0
    peak: float = 0.0
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, at_s: float, moved: int) -> None:
        """Count ``moved`` bytes at ``at_s``."""
        self._recent.append((at_s, moved))
        self.total += moved
        self.peak = max(self.peak, self.rate(at_s))

    def rate(self, at_s: float) -> float:
        """Bytes in the second before ``at_s``."""
        while self._recent and self._recent[0][0] <= at_s - 1.0:
            self._recent.popleft()
        return float(sum(moved for moment, moved in self._recent if moment <= at_s))
