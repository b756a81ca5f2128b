"""How sure a pooled share is, given that agents differ: a bootstrap over agents, never over spans."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

_MAX_DRAWS: Final = 2_000_000
_MIN_REPLICATES: Final = 200


def ratio_interval(
    parts: Sequence[int], wholes: Sequence[int], random: Random, replicates: int, level: float = 0.95
) -> tuple[float, float] | None:
    """Percentile interval of ``sum(parts) / sum(wholes)`` when agents are drawn anew with replacement.

    ``None`` below two agents, or where there is no whole. Many agents need fewer replicates, since the draws are
    bounded. Deterministic for a seeded ``random`` and a fixed order.
    """
    count = len(parts)
    if count < 2 or sum(wholes) == 0:
        return None
    times = min(replicates, max(_MIN_REPLICATES, _MAX_DRAWS // count))
    indices = range(count)
    shares = []
    for _ in range(times):
        drawn = random.choices(indices, k=count)
        whole = sum([wholes[i] for i in drawn])
        if whole:
            shares.append(sum([parts[i] for i in drawn]) / whole)
    shares.sort()
    tail = (1 - level) / 2
    return _quantile(shares, tail), _quantile(shares, 1 - tail)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Quantile of sorted values, interpolated between the two nearest."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
