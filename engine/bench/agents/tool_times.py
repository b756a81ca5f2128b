"""How long tools take: the mixture that 260 public coding-agent sessions showed, drawn from by seed. Pure."""

from __future__ import annotations

from bisect import bisect_right
from math import exp, log
from random import Random
from typing import Final

from .workload import ToolCall, Tools

LONGEST_S: Final = 60.0
_SHARES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)
# Calls seen, and the quantiles of their seconds at _SHARES.
REAL: Final[dict[str, tuple[int, tuple[float, ...]]]] = {
    "Bash": (5548, (0.083, 0.405, 2.448, 7.166, 27.977)),
    "Read": (4555, (0.002, 0.003, 0.043, 0.172, 0.431)),
    "Edit": (3891, (0.005, 0.021, 0.105, 1.822, 24.221)),
    "Grep": (2443, (0.243, 0.302, 0.443, 0.602, 1.166)),
    "TaskUpdate": (527, (0.001, 0.002, 0.002, 0.003, 0.009)),
    "TodoWrite": (337, (0.024, 0.038, 0.069, 0.142, 0.336)),
    "Glob": (239, (0.232, 0.342, 0.468, 0.755, 1.219)),
    "Write": (211, (0.005, 0.021, 0.310, 13.605, 99.386)),
    "Task": (197, (9.776, 42.583, 64.489, 161.547, 622.067)),
}


def real_tools(seed: int, longest_s: float = LONGEST_S) -> Tools:
    """Draw a tool by how often it was called, then its time, each agent and turn by themselves.

    Between two quantiles the logarithm of the time is interpolated; beyond the last one its slope goes on, below the
    first the time is the first. ``longest_s`` cuts the tail, which a benchmark of minutes cannot wait for.
    """

    def call(agent: int, turn: int) -> ToolCall:
        rng = Random(f"{seed}/tool/{agent}/{turn}")  # noqa: S311 - a workload, not a secret
        name = rng.choices(list(REAL), weights=[calls for calls, _ in REAL.values()])[0]
        return ToolCall(name, min(longest_s, quantile(REAL[name][1], rng.random())))

    return call


def quantile(known: tuple[float, ...], share: float) -> float:
    """The time that ``share`` of the calls stay below, from the times ``known`` at 10, 25, 50, 75 and 90 %."""
    if share <= _SHARES[0]:
        return known[0]
    upper = min(bisect_right(_SHARES, share), len(_SHARES) - 1)
    low, high = _SHARES[upper - 1], _SHARES[upper]
    slope = (log(known[upper]) - log(known[upper - 1])) / (high - low)
    return exp(log(known[upper - 1]) + slope * (share - low))
