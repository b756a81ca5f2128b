"""The simulated engine as a feed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .contract import Sample, SourceKind
from .simulation import SimulatedEngine

WARM_UP_S: Final = 90
_NS: Final = 1_000_000_000


class DemoFeed:
    """Samples of ``agents`` simulated agents that have been at work for :data:`WARM_UP_S` seconds already."""

    over = False

    def __init__(self, agents: int, seed: int, now_ns: Callable[[], int], speed: float = 1.0) -> None:
        self.where = f"demo, seed {seed}"
        self._now_ns = now_ns
        self.speed = speed
        self._began_ns = now_ns()
        self._shown_ns = self._began_ns
        self._engine = SimulatedEngine(agents, seed, self._began_ns - WARM_UP_S * _NS)
        self._warm = False

    def read(self) -> list[Sample]:
        """The simulated engine now; the first time, also how it was during the minute before."""
        past = []
        if not self._warm:
            self._warm = True
            past = [self._at(self._began_ns - seconds * _NS) for seconds in range(WARM_UP_S, 0, -1)]
        return [*past, self._at(self._time_ns())]

    def play_at(self, speed: float) -> None:
        """Let the simulated time go at this speed."""
        self._shown_ns, self._began_ns = self._time_ns(), self._now_ns()
        self.speed = speed

    def close(self) -> None:
        """Nothing to let go of."""

    def _time_ns(self) -> int:
        return self._shown_ns + round((self._now_ns() - self._began_ns) * self.speed)

    def _at(self, now_ns: int) -> Sample:
        self._engine.advance(now_ns)
        return Sample(self._engine.snapshot(), SourceKind.DEMO, self.where)
