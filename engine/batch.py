"""What one forward step computes: data that the scheduler's side makes and the runner carries out. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final, Protocol

from .sequence import Sampling
from .swap.contract import Fence

UNREAD: Final = -1
"""Stands in a chunk for the token that the launch just before sampled for the same sequence."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of positions of one sequence: ``tokens`` stand at ``start … start + len(tokens) - 1``.

    KV of a position is written through ``table`` (with blocks of 16 position ``p`` goes to row ``p % 16`` of block
    ``table[p // 16]``) unless the position is below ``write_from``: then it exists already and is only read
    (the one token that a full prefix hit needs must not write into a shared block).
    ``sample`` asks for the next token after the last position; ``generated`` is how many tokens of output
    exist already (the random stream of a seeded request depends on it and on the seed alone). A token may be
    :data:`UNREAD`.
    """

    sequence_id: int
    tokens: tuple[int, ...]
    start: int
    table: tuple[int, ...]
    write_from: int
    sample: bool
    sampling: Sampling
    seed: int
    generated: int


class Pending(Protocol):
    """A step that was launched and perhaps still runs."""

    def done(self) -> bool:
        """Whether :meth:`tokens` would not have to wait."""
        ...

    def tokens(self) -> dict[int, int]:
        """Wait for the step: the token id of each chunk that asked for one, by sequence id.

        Where it samples nothing a runner may leave its end to the device: the mark taken behind the launch tells.
        """
        ...


class Runner(Protocol):
    """Computes chunks. The KV of every position below each chunk's ``start`` is on the device already, or on its way there.

    Steps run in the order of their launches, so the KV that one step writes is there for the next. A chunk's token
    :data:`UNREAD` stands for the one that the launch just before sampled for the same sequence: a step can be
    launched before anybody has read what the step before it brought.
    """

    def launch(self, chunks: Seq[Chunk], arrivals: Seq[Fence] = ()) -> Pending:
        """Start to write the KV of the chunks and to sample; it may run on after the call returns.

        Blocks of the chunks' tables may still be arriving: what the step does with the pool comes after all of
        ``arrivals``, which the runner joins itself, at once or group of layers by group. All are joined when the call
        returns; where it raises, perhaps none.

        Raises:
            ValueError: a chunk has :data:`UNREAD`, but the launch before sampled nothing for its sequence.
        """
        ...

    def run(self, chunks: Seq[Chunk]) -> dict[int, int]:
        """``launch(chunks).tokens()``."""
        ...
