"""The cache that agents hold over time, at work and idle, as geometry below their lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..chart import Chart, Held, Stretch
from ..options import BYTES_PER_GB
from .words import percent

HEIGHT: Final = 80


@dataclass(frozen=True, slots=True)
class Area:
    """What is held in one stretch: outlines of all of it and of the idle part, as SVG paths in units of the stretch."""

    stretch: int
    whole: str
    idle: str


@dataclass(frozen=True, slots=True)
class HeldPicture:
    """``most`` says what full height means, ``says`` the whole in a sentence."""

    areas: tuple[Area, ...]
    most: str
    says: str


def draw_held(chart: Chart, bytes_per_token: int, units_per_ns: Sequence[float]) -> HeldPicture | None:
    """Areas of each stretch, ``units_per_ns`` apart; ``None`` where no tokens are known."""
    most_tokens = max((held.working_tokens + held.idle_tokens for held in chart.held), default=0.0)
    if not most_tokens:
        return None
    idle = sum(held.idle_tokens for held in chart.held)
    whole = sum(held.working_tokens for held in chart.held) + idle
    most = f"{most_tokens * bytes_per_token / BYTES_PER_GB:,.1f} GB"
    return HeldPicture(
        areas=tuple(
            _area(stretch, chart, units, HEIGHT / most_tokens)
            for stretch, units in zip(chart.stretches, units_per_ns, strict=True)
        ),
        most=most,
        says=f"Cache held, estimated from the tokens of model calls at {bytes_per_token:,} B each: at most {most}, "
        f"{percent(idle / whole)} of it idle over time.",
    )


def _area(stretch: Stretch, chart: Chart, units: float, scale: float) -> Area:
    bins = {held.bin: held for held in chart.held if held.stretch == stretch.stretch}
    count = -(-stretch.length_ns // chart.held_bin_ns)
    edges = [min(number * chart.held_bin_ns, stretch.length_ns) * units for number in range(count + 1)]

    def outline(size: Callable[[Held], float]) -> str:
        heights = [size(bins[number]) * scale if number in bins else 0.0 for number in range(count)]
        steps = "".join(f"V{HEIGHT - height:.1f}H{edge:.1f}" for height, edge in zip(heights, edges[1:], strict=True))
        return f"M0 {HEIGHT}{steps}V{HEIGHT}z"

    return Area(
        stretch.stretch,
        outline(lambda held: held.working_tokens + held.idle_tokens),
        outline(lambda held: held.idle_tokens),
    )
