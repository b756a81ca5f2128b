"""Who is told how far reading has come. The package itself draws nothing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears from one thread at a time, and must return quickly."""

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        """So many bytes of all that have to be read are read."""
        ...

    def derive(self, done_spans: int, total_spans: int) -> None:
        """So many spans of all that have to be are made into timelines."""
        ...

    def say(self, sentence: str) -> None:
        """Something the user should know though the report is right without it."""
        ...


class Quiet:
    """Nobody is told."""

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        """Do nothing."""

    def derive(self, done_spans: int, total_spans: int) -> None:
        """Do nothing."""

    def say(self, sentence: str) -> None:
        """Do nothing."""
