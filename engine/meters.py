"""Counts and rates. Torch-free."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from .records import Link, Totals
from .swap.contract import Direction

_SECOND_NS: Final = 1_000_000_000


class RateMeter:
    """Amount per second over the last second, its peak, and the total."""

    def __init__(self) -> None:
        self.total = 0
        self.peak = 0.0
        self._recent: deque[tuple[int, int]] = deque()
        self._sum = 0

    def add(self, now_ns: int, amount: int) -> None:
        """Count ``amount`` at ``now_ns``."""
        self._recent.append((now_ns, amount))
        self._sum += amount
        self.total += amount
        self.peak = max(self.peak, self.rate(now_ns))

    def rate(self, now_ns: int) -> float:
        """What was counted in the second before ``now_ns``."""
        while self._recent and self._recent[0][0] <= now_ns - _SECOND_NS:
            self._sum -= self._recent.popleft()[1]
        return float(self._sum)


class LinkMeter:
    """Bytes copied between the tiers, each way."""

    def __init__(self) -> None:
        self._out = RateMeter()
        self._in = RateMeter()

    def add(self, direction: Direction, now_ns: int, moved_bytes: int) -> None:
        """Count a finished copy."""
        (self._out if direction is Direction.OUT else self._in).add(now_ns, moved_bytes)

    def link(self, now_ns: int) -> Link:
        """The rates at ``now_ns``."""
        return Link(
            out_bytes_per_s=self._out.rate(now_ns),
            in_bytes_per_s=self._in.rate(now_ns),
            out_peak_bytes_per_s=self._out.peak,
            in_peak_bytes_per_s=self._in.peak,
            out_total_bytes=self._out.total,
            in_total_bytes=self._in.total,
        )


@dataclass(slots=True)
class Tally:
    """Counts since the engine started; the fields of :class:`.records.Totals` that the loop counts itself."""

    prefilled_tokens: int = 0
    reprefilled_tokens: int = 0
    generated_tokens: int = 0
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    steps: int = 0
    prefill_s: float = 0.0

    def totals(self, dropped_blocks: int, unmatched_signals: int) -> Totals:
        """The counts as a record, with what others counted."""
        return Totals(
            prefilled_tokens=self.prefilled_tokens,
            reprefilled_tokens=self.reprefilled_tokens,
            generated_tokens=self.generated_tokens,
            cached_device_tokens=self.cached_device_tokens,
            cached_host_tokens=self.cached_host_tokens,
            dropped_blocks=dropped_blocks,
            unmatched_signals=unmatched_signals,
            steps=self.steps,
            prefill_s=self.prefill_s,
        )
