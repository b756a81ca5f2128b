"""Counts and rates. Torch-free."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .records import Link, Totals
from .swap.contract import CopyDone, Direction

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


class BusyRate:
    """Amount per second of work under way, newer work weighing more; ``None`` before any was seen."""

    def __init__(self) -> None:
        self._amount = 0.0
        self._busy_ns = 0
        self._ended_ns = 0

    def add(self, amount: int, spans: Iterable[tuple[int, int]]) -> None:
        """Count ``amount`` of work from one instant to another, for each span.

        What overlaps with earlier work took no further time.
        """
        busy_ns, ended_ns = self._busy_ns, self._ended_ns
        for started, ended in spans:
            self._amount += amount
            if ended > ended_ns:
                busy_ns += ended - (started if started > ended_ns else ended_ns)
                ended_ns = ended
        self._busy_ns, self._ended_ns = busy_ns, ended_ns
        if busy_ns > _SECOND_NS:
            self._amount, self._busy_ns = self._amount / 2, busy_ns // 2

    @property
    def per_s(self) -> float | None:
        """The rate."""
        return self._amount / self._busy_ns * 1e9 if self._busy_ns else None


class LinkMeter:
    """Bytes copied between the tiers, each way."""

    def __init__(self) -> None:
        self._out = RateMeter()
        self._in = RateMeter()
        self._busy = {direction: BusyRate() for direction in Direction}

    def copied(self, done: Iterable[CopyDone], now_ns: int, block_bytes: int) -> None:
        """Count copies that ended, and learn from them how fast the link is."""
        spans: dict[Direction, list[tuple[int, int]]] = {direction: [] for direction in Direction}
        for copy, started_ns, ended_ns, _ in done:
            spans[copy.direction].append((started_ns, ended_ns))
        for direction, those in spans.items():
            if those:
                self._busy[direction].add(block_bytes, those)
                self.add(direction, now_ns, len(those) * block_bytes)

    def bytes_per_s(self, direction: Direction) -> float | None:
        """How fast the link is while it copies that way; ``None`` before it has."""
        return self._busy[direction].per_s

    def add(self, direction: Direction, now_ns: int, moved_bytes: int) -> None:
        """Count bytes that were copied."""
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

    def totals(self, dropped_blocks: int, unmatched_signals: int, matched_signals: int) -> Totals:
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
            matched_signals=matched_signals,
        )
