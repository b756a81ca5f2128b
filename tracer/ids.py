"""Where trace and span ids come from: injected, never the program's own random numbers."""

from __future__ import annotations

import os
import random
from typing import Protocol


class IdSource(Protocol):
    """Makes ids, each a non-zero integer."""

    def trace_id(self) -> int:
        """Return 128 bits."""
        ...

    def span_id(self) -> int:
        """Return 64 bits."""
        ...


class RandomIds:
    """Random ids from a private generator.

    The ``random`` module's own generator is left alone: using it would change a seeded program, and a program that
    seeds it in every worker would give every worker the same ids. The fork hook calls :meth:`reseed` in a child.
    """

    def __init__(self) -> None:
        self._random = random.Random()  # noqa: S311 - ids are not secrets
        self.reseed()

    def reseed(self) -> None:
        """Start a new sequence, from the operating system's randomness."""
        self._random.seed(os.urandom(32))

    def trace_id(self) -> int:
        """Return 128 random bits, not all zero."""
        return self._random.getrandbits(128) or 1

    def span_id(self) -> int:
        """Return 64 random bits, not all zero."""
        return self._random.getrandbits(64) or 1
