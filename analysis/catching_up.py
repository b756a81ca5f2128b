"""What has to be read of a file, given what was read of it before: a decision, and no more."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from .cache import Entry, Stored
from .pieces import Piece

_WORTH_REREADING: Final = 2


@dataclass(frozen=True, slots=True)
class Todo:
    """Parts that stay as they are, and what is still to be read; ``None`` where nothing is."""

    kept: tuple[Stored, ...]
    piece: Piece | None


def todo(
    path: str,
    stat: os.stat_result,
    known: Entry | None,
    packs: Collection[str],
    looks_like: Callable[[Stored], bool],
) -> Todo:
    """Decide by a file's state now.

    ``packs`` are those that exist; ``looks_like`` says whether the file up to the end of a part still is what was read.
    """
    everything = Todo((), Piece(path, 0, stat.st_size))
    if known is None or any(stored.pack is not None and stored.pack not in packs for stored in known.stored):
        return everything
    if known.is_of(stat):
        return Todo(known.stored, None) if known.settled else everything
    settled = [stored for stored in known.stored if stored.part.settled]
    if not settled or settled[-1].part.end > stat.st_size or not looks_like(settled[-1]):
        return everything
    begin = settled[-1].part.end
    # A file read after every line of it would become a pack a line: small parts are read again with what is new.
    while settled and _length(settled[-1]) < _WORTH_REREADING * (stat.st_size - begin):
        begin = settled.pop().part.begin
    if begin == stat.st_size:
        return Todo(tuple(settled), None)
    return Todo(tuple(settled), Piece(path, begin, stat.st_size))


def _length(stored: Stored) -> int:
    return stored.part.end - stored.part.begin
