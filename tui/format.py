"""Numbers for people: bytes, seconds and counts in a few characters."""

from __future__ import annotations

from typing import Final

_BYTE_UNITS: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def bytes_text(value: float) -> str:
    """``12_500_000`` → ``12.5 MB`` (decimal units, as link rates use)."""
    for size, unit in _BYTE_UNITS:
        if value >= size:
            return f"{value / size:.1f} {unit}" if value < 100 * size else f"{value / size:.0f} {unit}"
    return f"{value:.0f} B"


def seconds_text(value: float) -> str:
    """``0.0041`` → ``4.1 ms``, ``38.4`` → ``38.4 s``, ``754`` → ``12 m 34 s``."""
    if value < 1:
        return f"{value * 1e3:.1f} ms"
    if value < 120:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes} m {seconds:02d} s"


def count_text(value: int) -> str:
    """``12480`` → ``12,480``."""
    return f"{value:,}"


def counted(number: int, noun: str) -> str:
    """``1 agent``, ``12,480 agents``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
