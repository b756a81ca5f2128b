"""The waits on a logarithmic scale beside the cost of moving and of rebuilding a cache, as geometry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..report import PooledReport, WindowBinReport
from .axis import LogScale
from .words import counted, percent, seconds

HALF_HEIGHT: Final = 96
_LEAST_S: Final = 0.001
_MOST_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class StripBar:
    """One bin: a bar upwards for its waits and one downwards for their time; heights in pixels, the rest per cent."""

    left: float
    width: float
    up: float
    down: float
    short: bool
    title: str


@dataclass(frozen=True, slots=True)
class Marker:
    """A vertical line with a label, on the side of it that has room."""

    at: float
    label: str
    to_the_left: bool


@dataclass(frozen=True, slots=True)
class Strip:
    """Bars, decade ticks and the two costs; ``tallest`` and ``deepest`` say what full height means."""

    bars: tuple[StripBar, ...]
    ticks: tuple[tuple[float, str], ...]
    swap: Marker
    recompute: Marker
    tallest: str
    deepest: str


def draw_strip(pooled: PooledReport) -> Strip | None:
    """The strip of all windows together, or ``None`` where there was none."""
    bins = pooled.windows.histogram
    if not bins:
        return None
    swap_s, recompute_s = pooled.assumptions.round_trip_ms / 1e3, pooled.assumptions.recompute_s
    scale = LogScale(
        min(_LEAST_S, bins[0].from_s, *_positive(swap_s, recompute_s)),
        max(_MOST_S, bins[-1].to_s, swap_s, recompute_s),
    )
    most_windows, most_s = max(each.windows for each in bins), max(each.blocked_s for each in bins)
    return Strip(
        bars=tuple(_bar(each, scale, pooled, most_windows, most_s) for each in bins),
        ticks=tuple((scale.percent(decade), decade_label(decade)) for decade in scale.decades_s()),
        swap=_marker(scale, swap_s, f"swap out and back {seconds(swap_s)}"),
        recompute=_marker(scale, recompute_s, f"recompute {seconds(recompute_s)}"),
        tallest=counted(most_windows, "wait"),
        deepest=seconds(most_s),
    )


def _positive(*lengths_s: float) -> Sequence[float]:
    return [length_s for length_s in lengths_s if length_s > 0]


def _bar(each: WindowBinReport, scale: LogScale, pooled: PooledReport, most_windows: int, most_s: float) -> StripBar:
    left, right = scale.percent(each.from_s), scale.percent(each.to_s)
    of_waits, of_time = each.windows / pooled.windows.count, each.blocked_s / pooled.blocked_s
    return StripBar(
        left=round(left, 3),
        width=round(right - left, 3),
        up=_height(each.windows / most_windows),
        down=_height(each.blocked_s / most_s),
        short=each.to_s <= pooled.assumptions.round_trip_ms / 1e3,
        title=f"{seconds(each.from_s)} to {seconds(each.to_s)}: {counted(each.windows, 'wait')} ({percent(of_waits)}), "
        f"{seconds(each.blocked_s)} blocked ({percent(of_time)})",
    )


def _height(share: float) -> float:
    """Pixels; what is there at all shows."""
    return max(1.0, round(share * HALF_HEIGHT, 1)) if share else 0.0


def _marker(scale: LogScale, at_s: float, label: str) -> Marker:
    at = round(scale.percent(at_s), 3)
    return Marker(at, label, to_the_left=at > 60)


def decade_label(decade_s: float) -> str:
    """A power of ten seconds in its shortest unit, not in minutes: a scale of tens should read as one.

    >>> [decade_label(10.0**power) for power in (-6, -4, -1, 0, 3, 4)]
    ['1 µs', '100 µs', '100 ms', '1 s', '1,000 s', '10,000 s']
    """
    for unit_s, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if decade_s >= unit_s * 0.999:
            return f"{decade_s / unit_s:,.0f} {unit}"
    return f"{decade_s * 1e9:,.0f} ns"
