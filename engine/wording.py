"""Words of messages that people read. Torch-free."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A count with its noun: ``1 request``, ``2,000 requests``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
