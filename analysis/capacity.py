"""From b to the number of agents one card can serve: pure arithmetic.

With ``S`` slots and agents that are blocked a share ``b`` of their time, letting blocked agents leave the card makes
room for ``N = S / (1 - b)``. That every slot is then always busy is a ceiling: sometimes fewer than ``S`` agents are
ready (the queue takes its part), and leaving and coming back costs time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_NEGLIGIBLE: Final = 1e-18
_NEVER_BLOCKED: Final = 1e-12
_ENDLESS: Final = 10**9  # so many agents that the queue costs less than 0.01 %


@dataclass(frozen=True, slots=True)
class Capacity:
    """Agents served on a card against agents that hold their slot all the time; ``None`` where unknown.

    ``added_wait_generations`` is the queueing a generation meets under ``queue_corrected``, in lengths of a generation.
    """

    ideal: float | None
    queue_corrected: float | None
    swap_corrected: float | None
    added_wait_generations: float | None


def capacity(b: float | None, slots: int, round_trips_share: float | None) -> Capacity:
    """The multiples that follow from ``b``.

    ``round_trips_share`` is the time one round trip a window would take over the same time that ``b`` is a share
    of: 2s/T of a cycle, for s one way and T from window to window.
    """
    multiple = ideal(b)
    if b is None or multiple is None:
        return Capacity(None, None, None, None)
    agents = max(slots, math.floor(slots * multiple + 0.5))
    queued, wait = machine_repair(b, slots, agents) if agents < _ENDLESS else (multiple, None)
    swapped = None if round_trips_share is None else 1 / (1 - b + round_trips_share)
    return Capacity(multiple, queued, swapped, wait)


def ideal(b: float | None) -> float | None:
    """1/(1-b), or ``None`` where b is unknown or 1."""
    return None if b is None or b >= 1 else 1 / (1 - b)


def machine_repair(b: float, slots: int, agents: int) -> tuple[float, float]:
    """Throughput and added wait of ``agents`` that share ``slots``, with exponential times and free moves.

    The machine-repair model: an agent generates for a mean of 1 on one of the slots, then is blocked for a mean of
    b/(1-b) off it. Returns its throughput over that of ``slots`` agents which hold their slot while blocked, and the
    mean wait for a slot over the mean generation. ``0 <= b < 1`` and ``agents >= slots >= 1``.
    """
    if b < _NEVER_BLOCKED:
        return 1.0, agents / slots - 1
    calls_per_generation = (1 - b) / b
    weight = weights = 1.0
    busy = waiting = 0.0
    for ready in range(1, agents + 1):
        weight *= (agents - ready + 1) * calls_per_generation / min(ready, slots)
        weights += weight
        busy += min(ready, slots) * weight
        waiting += max(0, ready - slots) * weight
        if weights > 1e200:
            weight, weights, busy, waiting = (value / 1e200 for value in (weight, weights, busy, waiting))
        # The weights rise once and fall once; far down the far side nothing more is added.
        if weight < weights * _NEGLIGIBLE and ready > slots:
            break
    throughput = busy / weights
    return throughput / (slots * (1 - b)), waiting / weights / throughput
