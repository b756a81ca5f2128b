"""What the cache finds: of a request's context, and of where an agent's last one is. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from operator import is_not
from typing import Self, TypeVar, cast

from .blocks import Piece

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Match:
    """What the cache has of a request's context: full blocks from the first on, then rows of the agent's own tail."""

    pieces: tuple[Piece, ...]
    tail_rows: int = 0
    tail: Piece | None = None

    @property
    def found(self) -> tuple[Piece, ...]:
        """All pieces in order, the tail last."""
        return self.pieces if self.tail is None else (*self.pieces, self.tail)


@dataclass(frozen=True, slots=True)
class Hits:
    """Positions of one request that needed no computing, by the tier that had them (the host: if still on its way).

    ``copies`` are the ids of the copies in that were started for it.
    """

    device_tokens: int = 0
    host_tokens: int = 0
    copies: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Residency:
    """Where an agent's last context is, in blocks. ``kept_tokens`` of it have KV in either tier."""

    blocks: int
    device_blocks: int
    host_blocks: int
    kept_tokens: int

    @classmethod
    def of(cls, pieces: Sequence[Piece], blocks: int, block_tokens: int) -> Self:
        """Count the ``pieces`` that are left of a context of ``blocks`` blocks."""
        return cls(
            blocks,
            device_blocks=sum(piece.device is not None for piece in pieces),
            host_blocks=sum(piece.host is not None for piece in pieces),
            kept_tokens=sum(block_tokens if piece.key is not None else len(piece.tokens) for piece in pieces),
        )


def leading(found: Iterable[T | None]) -> list[T]:
    """What comes before the first ``None``."""
    return cast("list[T]", list(takewhile(partial(is_not, None), found)))
