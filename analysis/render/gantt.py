"""The timelines as geometry: lanes of bars, with idle gaps squeezed and with time as it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ..chart import Chart, Mark, State, Stretch
from ..options import NS_PER_S
from ..report import AgentReport
from .axis import time_step_s
from .held import HeldPicture, draw_held
from .lanes import Place
from .words import agent_labels, counted, plain, ratio, seconds

UNITS: Final = 10_000
LANE_HEIGHT: Final = 24
_GAP_PERCENT: Final = 2.5
_GAPS_PERCENT: Final = 24
_TICKS: Final = 10
_TICK_PERCENT: Final = 7.5
_LAST_TICK: Final = 94
_NAME_WIDTH: Final = 40


@dataclass(frozen=True, slots=True)
class Shape:
    """How a state looks: its word, its CSS class, and its vertical place in a lane, so that colour is never needed."""

    word: str
    css: str
    top: int
    height: int


SHAPES: Final[dict[State, Shape]] = {
    "generating": Shape("generating", "g", 2, 20),
    "blocked_tool": Shape("blocked on a tool", "b", 6, 12),
    "blocked_human": Shape("waiting for a person", "h", 10, 4),
    "queued": Shape("queued", "q", 14, 8),
    "overhead": Shape("overhead", "o", 11, 2),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One state of a lane; ``x`` and ``width`` are units of its stretch."""

    x: float
    width: float
    shape: Shape
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One agent: ``stretches`` pairs the number of a stretch with the bars in it."""

    label: str
    b: str
    depth: int
    top: int
    summary: str
    stretches: tuple[tuple[int, tuple[Bar, ...]], ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a stretch, or the gap before it, lies in one layout; positions in per cent of the width."""

    start: float
    width: float
    gap_start: float
    gap_width: float
    gap_label: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled instant; ``at`` is per cent of the width."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to lay out the stretches side by side."""

    name: str
    slots: tuple[Slot, ...]
    ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class Gantt:
    """``layouts`` holds one where there is no gap to squeeze, else the squeezed one and the true one."""

    lanes: tuple[Lane, ...]
    layouts: tuple[Layout, ...]
    height: int
    held: HeldPicture | None
    note: str


def draw_gantt(
    chart: Chart, places: Sequence[Place], agents: Sequence[AgentReport], bytes_per_token: int
) -> Gantt | None:
    """Lay a chart out; ``None`` where nothing took any time.

    ``places`` are the lanes, ``agents`` all agents there are, ``bytes_per_token`` is the cache of one token over all
    layers.
    """
    if not chart.stretches:
        return None
    labels = agent_labels(agents)
    squeezed = _squeezed(chart.stretches)
    layouts = [_layout("true", chart.stretches, _true(chart.stretches))]
    if len(chart.stretches) > 1:
        layouts.insert(0, _layout("squeezed", chart.stretches, squeezed))
    by_agent: dict[str, list[Mark]] = {}
    for mark in chart.marks:
        by_agent.setdefault(mark.agent, []).append(mark)
    lanes = tuple(
        _lane(
            place,
            plain(labels[place.agent.agent], _NAME_WIDTH),
            row,
            by_agent.get(place.agent.agent, []),
            chart,
            squeezed,
        )
        for row, place in enumerate(places)
    )
    return Gantt(
        lanes=lanes,
        layouts=tuple(layouts),
        height=LANE_HEIGHT * len(lanes),
        held=draw_held(chart, bytes_per_token, [_units(*pair) for pair in zip(chart.stretches, squeezed, strict=True)]),
        note=_note(chart, len(places), len(agents)),
    )


def _layout(name: str, stretches: Sequence[Stretch], slots: tuple[Slot, ...]) -> Layout:
    return Layout(name, slots, _ticks(stretches, slots))


def _units(stretch: Stretch, slot: Slot) -> float:
    """Units of width a nanosecond."""
    return slot.width / 100 * UNITS / max(stretch.length_ns, 1)


def _lane(place: Place, label: str, row: int, marks: Sequence[Mark], chart: Chart, squeezed: Sequence[Slot]) -> Lane:
    agent = place.agent
    origin_ns = chart.stretches[0].start_ns
    stretches = []
    for stretch, slot in zip(chart.stretches, squeezed, strict=True):
        bars = tuple(_bar(mark, stretch, slot, origin_ns) for mark in marks if mark.stretch == stretch.stretch)
        if bars:
            stretches.append((stretch.stretch, bars))
    summary = (
        f"{label}: b {ratio(agent.b)}, blocked {seconds(agent.blocked_s)} of {seconds(agent.wall_s)}, "
        f"{counted(agent.tool_calls, 'tool call')}"
    )
    return Lane(label, ratio(agent.b), place.depth, row * LANE_HEIGHT, summary, tuple(stretches))


def _bar(mark: Mark, stretch: Stretch, slot: Slot, origin_ns: int) -> Bar:
    units, shape = _units(stretch, slot), SHAPES[mark.state]
    return Bar(
        x=round((mark.start_ns - stretch.start_ns) * units, 1),
        # A hundredth of a per cent is what still shows.
        width=max(1.0, round((mark.stop_ns - mark.start_ns) * units, 1)),
        shape=shape,
        title=f"{_words(mark, shape)}, {seconds((mark.stop_ns - mark.start_ns) / NS_PER_S)}, "
        f"from {seconds((mark.start_ns - origin_ns) / NS_PER_S)}",
    )


def _words(mark: Mark, shape: Shape) -> str:
    words = shape.word
    if mark.tools:
        more = mark.tool_count - len(mark.tools)
        names = ", ".join(plain(tool, _NAME_WIDTH) for tool in mark.tools)
        words = f"blocked on {names}{f' and {more} more' if more else ''}"
    return words if mark.changes == 1 else f"mostly {words} ({mark.changes:,} changes)"


def _squeezed(stretches: Sequence[Stretch]) -> tuple[Slot, ...]:
    gap = min(_GAP_PERCENT, _GAPS_PERCENT / max(1, len(stretches) - 1))
    busy_ns = max(1, sum(stretch.length_ns for stretch in stretches))
    room = 100 - gap * (len(stretches) - 1)
    return _slots(stretches, [stretch.length_ns / busy_ns * room for stretch in stretches], [gap] * len(stretches))


def _true(stretches: Sequence[Stretch]) -> tuple[Slot, ...]:
    whole_ns = max(1, stretches[-1].stop_ns - stretches[0].start_ns)
    widths = [100 * stretch.length_ns / whole_ns for stretch in stretches]
    gaps = [0.0, *(100 * (after.start_ns - before.stop_ns) / whole_ns for before, after in pairwise(stretches))]
    return _slots(stretches, widths, gaps)


def _slots(stretches: Sequence[Stretch], widths: Sequence[float], gaps: Sequence[float]) -> tuple[Slot, ...]:
    """Side by side, from the left edge; the first has no gap before it."""
    slots: list[Slot] = []
    at = 0.0
    for number, (stretch, width) in enumerate(zip(stretches, widths, strict=True)):
        idle_s = (stretch.start_ns - stretches[number - 1].stop_ns) / NS_PER_S if number else 0.0
        gap = gaps[number] if number else 0.0
        slots.append(Slot(at + gap, width, at, gap, f"nobody busy for {seconds(idle_s)}" if number else ""))
        at += gap + width
    return tuple(slots)


def _ticks(stretches: Sequence[Stretch], slots: Sequence[Slot]) -> tuple[Tick, ...]:
    """Each stretch's beginning and round instants, since the first of all; no two closer than a label is wide."""
    origin_ns = stretches[0].start_ns
    shown_s = sum(stretch.length_ns for stretch in stretches) / NS_PER_S * 100 / max(1e-9, sum(s.width for s in slots))
    step_s = time_step_s(shown_s, _TICKS)
    ticks: list[Tick] = []
    for stretch, slot in zip(stretches, slots, strict=True):
        start_s, length_s = (stretch.start_ns - origin_ns) / NS_PER_S, stretch.length_ns / NS_PER_S
        first = math.floor(start_s / step_s) + 1
        rounds = [number * step_s for number in range(first, math.floor((start_s + length_s) / step_s) + 1)]
        for at_s in (start_s, *rounds):
            at = slot.start + slot.width * (at_s - start_s) / max(length_s, 1e-9)
            if at <= _LAST_TICK and (not ticks or at - ticks[-1].at >= _TICK_PERCENT):
                ticks.append(Tick(round(at, 3), seconds(at_s)))
    return tuple(ticks)


def _note(chart: Chart, shown: int, agents: int) -> str:
    sentences = []
    if shown < agents:
        sentences.append(f"The {shown} agents of the longest wall clock out of {agents:,}.")
    if chart.bin_ns is not None:
        sentences.append(
            f"{chart.changes:,} changes of state are drawn as {len(chart.marks):,} bars: each "
            f"{seconds(chart.bin_ns / NS_PER_S)} shows the state that held longest."
        )
    return " ".join(sentences)
