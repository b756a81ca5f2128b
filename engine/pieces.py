"""Work that can be cut: a generator that stops between its pieces, so that each can be made to wait for something of its own.

Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

Result = TypeVar("Result")
Pieces = Generator[None, None, Result]
"""Yields once between every two pieces, and returns what all of them come to."""

Before = Callable[[int], None]
"""Called with the number of a piece, from 0 on, before it runs."""


def at_once(piece: int) -> None:
    """A :data:`Before` that has no piece wait for anything."""


def next_piece(pieces: Pieces[Result]) -> tuple[Result] | None:
    """Run one more piece; after the last one the result, in a tuple."""
    try:
        next(pieces)
    except StopIteration as stop:
        return (stop.value,)
    return None


def run_pieces(pieces: Pieces[Result], before: Before = at_once) -> Result:
    """Run them all, one after the other."""
    piece, over = 0, None
    while over is None:
        before(piece)
        over = next_piece(pieces)
        piece += 1
    return over[0]
