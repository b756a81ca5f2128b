"""The first line (what is watched, and whether it still answers) and the last (keys)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..feed.contract import Sample, SourceKind
from .keys import KEYS, key_text
from .lines import Line, fit, seconds, spread, width_of
from .view import View


@dataclass(frozen=True, slots=True)
class Standing:
    """How it stands with the feed. ``age_s`` is the time since the last sample came, ``trouble`` why no other does."""

    where: str
    interval_s: float
    speed: float | None = None
    age_s: float | None = None
    trouble: str | None = None
    paused: bool = False
    over: bool = False


def title_line(sample: Sample | None, standing: Standing, view: View, width: int) -> Line:
    """What is watched and how live it is; what matters least is left out first."""
    status = _status(standing, sample)
    name: Line = [("kvtrace top", "strong")]
    facts = _facts(sample, standing)
    hint: Line = [("? help", "dim")]
    filtered: Line = [(f"  filter: {view.filter}", "alarm")] if view.filter else []
    for keep in range(len(facts), -1, -1):
        said: Line = [("  ", ""), ((" | " if view.ascii_only else " · ").join(facts[:keep]), "")] if keep else []
        left = [*name, *said, ("  ", ""), *status, *filtered]
        if width_of(left) + width_of(hint) < width:
            return spread(left, hint, width)
    return fit([*status, *filtered], width)


def _facts(sample: Sample | None, standing: Standing) -> list[str]:
    pace = f"every {standing.interval_s:g} s"
    if standing.speed is not None and standing.speed != 1:
        pace = f"{standing.speed:g} times as fast"
    facts = [pace]
    if sample is not None and sample.knows_memory:
        snapshot = sample.snapshot
        policy = f"policy {snapshot.policy}" if snapshot.policy else ""
        facts = [snapshot.model, standing.where, pace, policy, snapshot.device_name or snapshot.device]
    elif sample is not None:
        facts = [f"spans of {standing.where}, no engine", pace]
    return [fact for fact in facts if fact]


def _status(standing: Standing, sample: Sample | None) -> Line:
    if standing.trouble is not None:
        if standing.age_s is None:
            return [(f"WAITING for {standing.where}", "alarm")]
        return [(f"DISCONNECTED, last sample {seconds(standing.age_s)} ago ({standing.trouble})", "alarm")]
    if standing.paused:
        return [(f"PAUSED for {seconds(standing.age_s or 0)}", "alarm")]
    if standing.over:
        return [("ENDED", "live")]
    if standing.age_s is None:
        return [("WAITING", "dim")]
    if standing.age_s > max(3.0, 2.5 * standing.interval_s):
        return [(f"last sample {seconds(standing.age_s)} ago", "alarm")]
    if sample is not None and sample.kind is SourceKind.DEMO:
        return [("SIMULATED", "live")]
    return [("LIVE" if standing.speed is None else "PLAYING", "live")]


def keys_line(keys: Mapping[str, str], width: int) -> Line:
    """The most useful keys, as many as fit."""
    line: Line = []
    for key in KEYS:
        chosen = keys.get(key.name, "").split(",")[0]
        if key.short and chosen:
            text = key.short if key.short.startswith("+") else f"{key_text(chosen)} {key.short}"
            head, _, rest = text.partition(" ")
            piece: Line = [(f" {head}", "strong"), (f" {rest} ", "dim")]
            if width_of(line) + width_of(piece) > width:
                break
            line += piece
    return line


def nothing_yet(sample: Sample | None, standing: Standing, view: View) -> str:
    """What stands in an empty table: why it is empty, and what would fill it."""
    if sample is None and standing.trouble is not None:
        return f"{standing.trouble[:1].upper()}{standing.trouble[1:]}. It is tried again all the time."
    if sample is None:
        return f"Waiting for {standing.where}."
    if view.filter:
        return f"No agent matches {view.filter!r}; esc clears the filter."
    if sample.kind is SourceKind.SPANS:
        return "No agent has recorded a span yet."
    return "No agents yet: one appears with its first request."
