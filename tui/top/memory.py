"""The panels above the table: VRAM as a stack, the host tier, the link, and the line about all agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvtrace.analysis.capacity import ideal
from kvtrace.engine.records import HostTier, Link, Tiers, VramTier

from ..feed.contract import Sample
from .history import History
from .lines import Line, amount, bar, first_that_fits, gigabytes, of_total, size, spark, width_of
from .looks import LOOKS, Shown, glyph, shown
from .view import Layout

_LABEL: Final = 5
_SPARK: Final = 20


@dataclass(frozen=True, slots=True)
class OtherUse:
    """Memory of other processes as a GPU's own library tells it, and the library's name; ``None`` where it does not."""

    other_bytes: int | None
    counter: str


def panels(
    sample: Sample, history: History, width: int, layout: Layout, ascii_only: bool, other: OtherUse | None = None
) -> list[Line]:
    """Lines about memory; none where nothing is known of it."""
    if not sample.knows_memory:
        return []
    vram, host = sample.snapshot.tiers.vram, sample.snapshot.tiers.host
    if layout is Layout.COMPACT:
        return _compact(sample.snapshot.tiers, sample.snapshot.link, width, ascii_only)
    return [
        _vram_line(history, vram, width, layout, ascii_only, other),
        _host_line(history, host, width, layout, ascii_only),
        _link_line(sample.snapshot.link, history, width, layout, ascii_only),
    ]


def head(sample: Sample, history: History, width: int, ascii_only: bool) -> Line:
    """All agents: how many are in which state, b over one minute and over five, and how many would fit."""
    counts = Counter(shown(agent.state, sample.knows_memory) for agent in sample.snapshot.agents)
    at_ns = sample.snapshot.time_unix_ns
    long_b = history.b(300, at_ns)
    total = len(sample.snapshot.agents)
    said: Line = [(f"{total} agent{'s' * (total != 1)}", "strong")]
    short: Line = [(f"{total}:", "strong")]
    for state in Shown:
        if counts[state]:
            look = LOOKS[state]
            said.append((f"  {glyph(state, ascii_only)} {counts[state]} {look.word}", look.style))
            short.append((f" {glyph(state, ascii_only)}{counts[state]}", look.style))
    middle: Line = [(f"{total} agent{'s' * (total != 1)}", "strong")]
    for state in Shown:
        if counts[state]:
            look = LOOKS[state]
            middle.append((f" {glyph(state, ascii_only)} {counts[state]} {look.short}", look.style))
    share: Line = []
    if long_b is not None:
        share = [("   b ", ""), (_share(history.b(60, at_ns)), "strong"), (" 1 min  ", "dim")]
        share += [(_share(long_b), "strong"), (" 5 min", "dim")]
    room = _room(sample, history, long_b)
    return first_that_fits(
        [
            [*said, *share, *room],
            [*said, *share, *room[:3]],
            [*middle, *share, *room[:3]],
            [*short, *share, *room[:3]],
            [*short, *share],
            [*short, *share[:2]],
        ],
        width,
    )


def _share(b: float | None) -> str:
    return "?" if b is None else f"{b:.2f}"


def _room(sample: Sample, history: History, b: float | None) -> Line:
    """How many agents fit at this b: 1/(1-b) times as many as the pool holds at once."""
    times = ideal(b)
    if times is None:
        return []
    line: Line = [
        ("   x" if times < 100 else "   x>", ""),
        (f"{min(times, 100):.1f}", "strong"),
        (" fit at this b", "dim"),
    ]
    at_once = _held_at_once(sample, history)
    if at_once is not None and times < 100:
        line += [(f" ({at_once:.0f} at once, {at_once * times:.0f} with parking)", "dim")]
    return line


def _held_at_once(sample: Sample, history: History) -> float | None:
    """Agents of the present mean context whose KV fits into the pool together."""
    contexts = [agent.context_tokens for agent in sample.snapshot.agents if agent.context_tokens]
    pool = sample.snapshot.tiers.vram.kv_pool_bytes
    if not contexts or not history.token_bytes or not pool or not sample.knows_memory:
        return None
    held = pool / history.token_bytes / (sum(contexts) / len(contexts))
    return held if held >= 1 else None


def _vram_line(
    history: History, vram: VramTier, width: int, layout: Layout, ascii_only: bool, other: OtherUse | None
) -> Line:
    others = other.other_bytes if other is not None and other.other_bytes is not None else vram.other_bytes
    used = vram.kv_active_bytes + vram.kv_reclaimable_bytes
    pool = vram.kv_pool_bytes
    total = vram.total_bytes or (vram.weights_bytes + pool + (others or 0))
    marks = "=#+." if ascii_only else "▒█▓·"
    parts = [
        (float(vram.weights_bytes), marks[0], "weights"),
        (float(vram.kv_active_bytes), marks[1], "generating"),
        (float(vram.kv_reclaimable_bytes), marks[2], "reclaimable"),
        (float(max(0, pool - used)), marks[3], "free"),
    ]
    tail: list[tuple[float, str, str]] = [(float(others), "x" if ascii_only else "×", "other")] if others else []
    busy = vram.weights_bytes + pool + (others or 0)
    said: Line = [(f" {of_total(busy, vram.total_bytes or None)} ", "strong")]
    items: list[tuple[str, str]] = [
        (f"{marks[0]} weights {gigabytes(vram.weights_bytes)}", "weights"),
        (f"{marks[1]} KV in use {gigabytes(vram.kv_active_bytes)}", "generating"),
        (f"{marks[2]} reclaimable {gigabytes(vram.kv_reclaimable_bytes)}", "reclaimable"),
        (f"{marks[3]} free {gigabytes(max(0, pool - used))}", "free"),
    ]
    if others is not None:
        source = f" ({other.counter})" if other is not None and other.other_bytes is not None else ""
        items.append((f"{'x' if ascii_only else '×'} other {gigabytes(others)}{source}", "other"))
    # What can be reclaimed at once is nobody's hindrance: a pool full of it is not full.
    full = f"KV {vram.kv_active_bytes / pool:.0%}" if pool else ""
    trend = _trend(history.vram_used, float(pool), layout, ascii_only)
    legend: Line = [*said]
    for text, style in items:
        legend.append((f" {text}", style))
    brief: Line = [*said, (f" weights {gigabytes(vram.weights_bytes)} ", "weights")]
    brief.append((f" {full} of {size(pool)} in use ", "strong"))
    if others is not None:
        brief.append((f" other {gigabytes(others)} ", "other"))
    whole: Line = [*legend, (f"  {full} in use", "strong")]
    choices = [whole, brief, [*said, (f" {full} in use ", "strong")], [(f" {full}", "strong")]]
    return _stack("VRAM", parts + tail, float(total), choices, trend, width)


def _host_line(history: History, host: HostTier, width: int, layout: Layout, ascii_only: bool) -> Line:
    marks = "#." if ascii_only else "█·"
    parts = [(float(host.used_bytes), marks[0], "host"), (float(host.free_bytes), marks[1], "free")]
    said: Line = [(f" {of_total(host.used_bytes, host.total_bytes)} ", "strong")]
    tokens: Line = []
    if history.token_bytes:
        held, room = host.used_bytes / history.token_bytes, host.total_bytes / history.token_bytes
        tokens = [(f" {amount(held)} of {amount(room)} tokens ", "")]
    pinned: Line = [(f" {of_total(host.pinned_bytes)} pinned ", "dim")] if host.pinned_bytes else []
    if not host.total_bytes:
        return _stack("HOST", [], 0.0, [[(" no host tier", "dim")]], [], width)
    trend = _trend(history.host_used, float(host.total_bytes), layout, ascii_only)
    return _stack(
        "HOST", parts, float(host.total_bytes), [[*said, *tokens, *pinned], [*said, *tokens], said], trend, width
    )


def _link_line(link: Link, history: History, width: int, layout: Layout, ascii_only: bool) -> Line:
    sides = (
        (
            "out",
            "parking",
            history.out_rates or [link.out_bytes_per_s],
            link.out_peak_bytes_per_s,
            link.out_total_bytes,
        ),
        ("in", "restoring", history.in_rates or [link.in_bytes_per_s], link.in_peak_bytes_per_s, link.in_total_bytes),
    )
    choices: list[Line] = []
    for cells, with_total in ((_SPARK, True), (_SPARK, False), (10, False), (0, False)):
        line: Line = [(f"{'LINK':<{_LABEL}}", "label")]
        for word, style, rates, peak, total in sides:
            now = rates[-1]
            line.append((f"{word} {_rate(now):>8} ", style))
            if cells:
                line += [(spark(list(rates), cells, max([1.0, *rates]), ascii_only), style), (" ", "")]
            line.append((f"peak {_rate(peak)}", "dim"))
            if with_total:
                line.append((f"  {size(total)} in all", "dim"))
            line.append(("    ", ""))
        choices.append(line[:-1])
    return first_that_fits(choices[:2] + choices[2:] if layout is Layout.WIDE else choices[2:], width)


def _rate(bytes_per_s: float) -> str:
    return f"{size(bytes_per_s)}/s"


def _compact(tiers: Tiers, link: Link, width: int, ascii_only: bool) -> list[Line]:
    """One line for both tiers and the link."""
    vram, host = tiers.vram, tiers.host
    used = vram.kv_active_bytes + vram.kv_reclaimable_bytes
    marks = "#+." if ascii_only else "█▓·"
    kv = f"KV {vram.kv_active_bytes / vram.kv_pool_bytes:4.0%} " if vram.kv_pool_bytes else "KV ? "
    parts = [
        (float(vram.kv_active_bytes), marks[0], "generating"),
        (float(vram.kv_reclaimable_bytes), marks[1], "reclaimable"),
        (float(max(0, vram.kv_pool_bytes - used)), marks[2], "free"),
    ]
    held = f"  HOST {host.used_bytes / host.total_bytes:.0%}" if host.total_bytes else ""
    rates: Line = [
        (f"  out {_rate(link.out_bytes_per_s)}", "parking"),
        (f" in {_rate(link.in_bytes_per_s)}", "restoring"),
    ]
    front: Line = [(kv, "strong")]
    for tail in ([(held, "host"), *rates], [(held, "host")], []):
        room = width - width_of(front) - width_of(tail)
        if room >= 6:
            return [[*front, *bar(parts, float(vram.kv_pool_bytes), min(room, 24)), *tail]]
    return [front]


def _trend(values: Sequence[float], top: float, layout: Layout, ascii_only: bool) -> Line:
    if layout is not Layout.WIDE:
        return []
    return [(" ", ""), (spark(list(values), _SPARK, top, ascii_only), "trend")]


def _stack(
    label: str, parts: Sequence[tuple[float, str, str]], total: float, choices: Sequence[Line], trend: Line, width: int
) -> Line:
    """A label, a bar, the most that can be said about it in the room there is, and how it went lately."""
    # The same for every tier, so that their bars stand under each other.
    cells = min(40, max(12, width * 20 // 100))
    room = max(0, width - _LABEL - cells - width_of(trend))
    said = first_that_fits(choices, room)
    gap = room - width_of(said)
    return [(f"{label:<{_LABEL}}", "label"), *bar(parts, total, cells), *said, (" " * max(0, gap), ""), *trend]
