"""Whether parking caches pays, in one word and one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from .capacity import Capacity, ideal

Verdict = Literal["pays", "marginal", "no", "unknown"]

PAYS_FROM: Final = 1.25
MARGINAL_FROM: Final = 1.05


@dataclass(frozen=True, slots=True)
class Decision:
    """``multiple`` is how many times the agents a card serves when it parks; ``None`` where unknown."""

    verdict: Verdict
    multiple: float | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a decision is made from; shares are ``None`` where unknown."""

    b: float | None
    b_low: float | None
    b_evictable: float | None
    short_windows: float | None
    model_calls: int
    tool_calls: int
    slots: int
    round_trip_ms: float


def decide(evidence: Evidence, capacity: Capacity) -> Decision:
    """Judge by what is left after queueing, and after moving caches only where that beats not moving them."""
    if not evidence.model_calls:
        return Decision(
            "unknown", None, "Cannot tell: no model call was recorded, so nobody knows what ran between the tools."
        )
    if evidence.b is None:
        return Decision("unknown", None, "Cannot tell: nothing in these spans took any time.")
    multiple = _multiple(evidence, capacity)
    if multiple is None:
        return Decision("unknown", None, "Cannot tell: these agents never generated, they only waited for tools.")
    if multiple < MARGINAL_FROM:
        return Decision("no", multiple, f"Parking does not pay: {_why_not(evidence)}.")
    certain = ideal(evidence.b_low)
    if certain is not None and certain < MARGINAL_FROM:
        return Decision(
            "unknown", multiple, "Cannot tell yet: open tool calls make all the difference between no gain and some."
        )
    if multiple < PAYS_FROM:
        return Decision(
            "marginal", multiple, f"Parking gains little: about {multiple:.2f} times as many agents on a card."
        )
    return Decision("pays", multiple, f"Parking pays: {_gain(evidence, multiple)}.")


def _multiple(evidence: Evidence, capacity: Capacity) -> float | None:
    """Ceiling by the queue, and by the better of parking at every wait and parking at long waits alone."""
    if capacity.queue_corrected is None:
        return None
    moved = [value for value in (capacity.swap_corrected, ideal(evidence.b_evictable)) if value is not None]
    return min(capacity.queue_corrected, max(moved, default=capacity.queue_corrected))


def _why_not(evidence: Evidence) -> str:
    if not evidence.tool_calls:
        return "these agents called no tool"
    if evidence.b is not None and evidence.b >= 1 - 1 / MARGINAL_FROM:
        return f"the waits are too short for a round trip of {evidence.round_trip_ms:g} ms"
    return f"tools block these agents only {100 * (evidence.b or 0):.2g} % of the time"


def _gain(evidence: Evidence, multiple: float) -> str:
    slots = "1 slot" if evidence.slots == 1 else f"{evidence.slots} slots"
    gain = f"about {multiple:.1f} times as many agents share a card of {slots}"
    short = evidence.short_windows or 0
    if short < 0.1:
        return gain
    return f"{gain}, but leave alone the {100 * short:.0f} % of waits under {evidence.round_trip_ms:g} ms"
