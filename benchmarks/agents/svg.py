"""A line plot as SVG text that reads on a light and on a dark page. No library, so that the file stays small and stable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

Point = tuple[float, float]

_LEAST_APART: Final = 20.0  # pixels between the middles of two numbers of two digits

_STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #57606a }
.title { font-weight: 600; fill: #24292f }
.grid { stroke: #d0d7de; stroke-width: 1 }
.line { fill: none; stroke-width: 2 }
.k0 { stroke: #0969da; fill: #0969da } .k1 { stroke: #cf222e; fill: #cf222e } .k2 { stroke: #8250df; fill: #8250df }
.k3 { stroke: #bc4c00; fill: #bc4c00 } .k4 { stroke: #1a7f37; fill: #1a7f37 } .k5 { stroke: #6e7781; fill: #6e7781 }
text.k0, text.k1, text.k2, text.k3, text.k4, text.k5 { stroke: none }
.line.k0, .line.k1, .line.k2, .line.k3, .line.k4, .line.k5 { fill: none }
.dashed { stroke-dasharray: 6 4 } .dotted { stroke-dasharray: 1 4; stroke-linecap: round }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 } .title { fill: #f0f6fc } .grid { stroke: #3d444d }
  .k0 { stroke: #4493f8; fill: #4493f8 } .k1 { stroke: #f85149; fill: #f85149 } .k2 { stroke: #ab7df8; fill: #ab7df8 }
  .k3 { stroke: #db6d28; fill: #db6d28 } .k4 { stroke: #3fb950; fill: #3fb950 } .k5 { stroke: #9198a1; fill: #9198a1 }
}
"""


@dataclass(frozen=True, slots=True)
class Line:
    """Points in ascending x. ``kind``: a colour, 0 to 5. ``dash``: nothing, ``dashed`` or ``dotted``; those have no dots."""

    name: str
    points: tuple[Point, ...]
    kind: int
    dash: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: lines over a common x. ``log``: a logarithmic y; then all y must be above 0."""

    title: str
    x_title: str
    lines: tuple[Line, ...]
    log: bool = False
    size: Point = (400.0, 300.0)
    _inset: tuple[float, float, float, float] = field(default=(46.0, 28.0, 12.0, 40.0))  # left, top, right, bottom

    def svg(self, left: float) -> list[str]:
        """The elements, ``left`` pixels from the picture's edge."""
        xs = sorted({x for line in self.lines for x, _ in line.points})
        named = self._named(xs)
        ticks = _log_ticks(self._ys()) if self.log else _ticks(max(self._ys()))
        start = self._inset[0]
        parts = [f'<g transform="translate({left:g} 0)">']
        parts.append(f'<text class="title" x="{start:g}" y="16">{escape(self.title)}</text>')
        right, bottom = self.size[0] - self._inset[2], self.size[1] - self._inset[3]
        for tick in ticks:
            y = self._y(tick, ticks)
            parts.append(f'<line class="grid" x1="{start:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{start - 6:g}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>')
        at = bottom + 16
        parts += [f'<text x="{self._x(x, xs):.1f}" y="{at:g}" text-anchor="middle">{x:g}</text>' for x in named]
        middle = (start + right) / 2
        parts.append(
            f'<text x="{middle:g}" y="{self.size[1] - 6:g}" text-anchor="middle">{escape(self.x_title)}</text>'
        )
        for line in self.lines:
            placed = [(self._x(x, xs), self._y(y, ticks)) for x, y in line.points]
            parts += _drawn(line, placed)
        return [*parts, "</g>"]

    def _named(self, xs: Sequence[float]) -> list[float]:
        """Where lines have points, from the right: whose number would touch the one beside it goes without."""
        named: list[float] = []
        for x in sorted({x for line in self.lines if not line.dash for x, _ in line.points}, reverse=True):
            if not named or self._x(named[-1], xs) - self._x(x, xs) >= _LEAST_APART:
                named.append(x)
        return named

    def _ys(self) -> list[float]:
        return [y for line in self.lines for _, y in line.points]

    def _x(self, x: float, xs: Sequence[float]) -> float:
        left, right = self._inset[0] + 10, self.size[0] - self._inset[2] - 10
        return left + (x - xs[0]) / max(xs[-1] - xs[0], 1e-9) * (right - left)

    def _y(self, y: float, ticks: Sequence[float]) -> float:
        top, bottom = self._inset[1], self.size[1] - self._inset[3]
        low, high = ticks[0], ticks[-1]
        share = math.log(max(y, low) / low) / math.log(high / low) if self.log else (y - low) / (high - low)
        return bottom - share * (bottom - top)


def picture(panels: Sequence[Panel], title: str) -> str:
    """The panels side by side, with one legend below for all of their lines."""
    width, height = sum(panel.size[0] for panel in panels), max(panel.size[1] for panel in panels)
    lines = list({line.name: line for panel in panels for line in panel.lines}.values())
    legend, below = _legend(lines, width, height + 14)
    size = f'width="{width:g}" height="{below:g}" viewBox="0 0 {width:g} {below:g}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
    ]
    left = 0.0
    for panel in panels:
        parts += panel.svg(left)
        left += panel.size[0]
    return "\n".join([*parts, *legend, "</svg>"]) + "\n"


def _legend(lines: Sequence[Line], width: float, top: float) -> tuple[list[str], float]:
    parts, x, y = [], 20.0, top
    for line in lines:
        needs = 44 + 6.4 * len(line.name)
        if x + needs > width:
            x, y = 20.0, y + 18
        parts.append(f'<line class="line k{line.kind} {line.dash}" x1="{x:g}" x2="{x + 22:g}" y1="{y:g}" y2="{y:g}"/>')
        parts.append(f'<text x="{x + 28:g}" y="{y + 4:g}">{escape(line.name)}</text>')
        x += needs
    return parts, y + 14


def _drawn(line: Line, placed: Sequence[Point]) -> list[str]:
    way = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    parts = [f'<polyline class="line k{line.kind} {line.dash}" points="{way}"/>']
    if not line.dash:
        parts += [f'<circle class="k{line.kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in placed]
    return parts


def _ticks(most: float) -> list[float]:
    """From 0 to at least ``most`` in four to eight round steps."""
    power = 10 ** math.floor(math.log10(max(most, 1e-9) / 4))
    step = next(power * times for times in (1, 2, 5, 10) if most / (power * times) <= 8)
    return [step * number for number in range(math.ceil(most / step) + 1)]


def _log_ticks(values: Sequence[float]) -> list[float]:
    """Powers of ten around ``values``."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]
