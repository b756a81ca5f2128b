"""Where ticks go on an axis of time and on a logarithmic one."""

from __future__ import annotations

import math
from typing import Final

_MINUTES: Final = (60, 120, 180, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)


def time_step_s(length_s: float, most: int) -> float:
    """The least pleasant step (1, 2, 5 times a power of ten; minutes, hours, days) of which ``most`` fill a length.

    >>> [time_step_s(length, 8) for length in (0.03, 9, 60, 400, 7200, 1e6)]
    [0.005, 2, 10, 60, 900, 172800]
    """
    least = length_s / most
    if least <= 0:
        return 1
    if least > 43_200:
        return 86_400 * _one_two_five(least / 86_400)
    return next(step for step in _MINUTES if step >= least) if least > 30 else _one_two_five(least)


def _one_two_five(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    return round(step) if step >= 1 else float(f"{step:.0e}")


class LogScale:
    """Maps lengths in seconds to per cent of a width, over whole decades."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self.low = math.floor(math.log10(least_s) + 1e-9)
        self.high = max(math.ceil(math.log10(most_s) - 1e-9), self.low + 1)

    def percent(self, length_s: float) -> float:
        """Position in 0..100; what lies outside stays at the edge."""
        position = (math.log10(length_s) - self.low) / (self.high - self.low) if length_s > 0 else 0.0
        return 100 * min(1.0, max(0.0, position))

    def decades_s(self) -> list[float]:
        """The powers of ten from edge to edge."""
        return [10.0**power for power in range(self.low, self.high + 1)]
