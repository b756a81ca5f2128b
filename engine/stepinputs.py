"""What one step needs on the device: one flat buffer there, filled by one small copy from pinned memory.

The buffer never moves, so a captured graph can read it; its first part means different things in steps of different
shapes (:class:`Layout`). On the host it exists twice: while the copy of one step may still wait behind the step
before, the next step is written elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .batch import UNREAD, Chunk
from .small_copies import SmallCopy, by_copy_engine

_ALIGN: Final = 32
"""Sections begin at multiples of this many int32, so that compiled code finds every input aligned."""
_STAGES: Final = 2

Ints = NDArray[Any]


class Layout(NamedTuple):
    """How a step lies in the buffer: room for ``tokens``, for ``sequences``, and for tables of ``width`` blocks."""

    tokens: int
    sequences: int
    width: int

    def sizes(self) -> tuple[int, ...]:
        """Lengths of the sections in int32: write slots (64 bit), ids, sources, positions, starts, lengths, rows, tables."""
        tokens, sequences, width = self
        return (2 * tokens, tokens, tokens, tokens, sequences + 1, sequences, sequences, sequences * width)

    def starts(self) -> list[int]:
        """Where each section begins, and the whole length at the end."""
        return list(accumulate((-(-size // _ALIGN) * _ALIGN for size in self.sizes()), initial=0))


class StepViews(NamedTuple):
    """The sections of one step, as tensors on the device or arrays on the host.

    ``write_slots`` int64; the others int32: ``ids``, ``source`` (row of what the launch before sampled, or -1) and
    ``positions`` by token, ``query_starts`` ``[sequences + 1]``, ``key_lengths`` and ``rows`` (which tokens sample)
    by sequence, ``tables`` ``[sequences, width]``.
    """

    write_slots: Any
    ids: Any
    source: Any
    positions: Any
    query_starts: Any
    key_lengths: Any
    rows: Any
    tables: Any


class _Stage:
    """One host copy of the buffer, and which tables stand in it."""

    def __init__(self, ints: int, pinned: bool) -> None:
        self.tensor = torch.zeros(ints, dtype=torch.int32, pin_memory=pinned)
        self.copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]
        self.layout: Layout | None = None
        self.views: StepViews
        self.tables: list[tuple[int, ...]] = []
        self._array: Ints = self.tensor.numpy()

    def lay_out(self, layout: Layout) -> StepViews:
        if layout != self.layout:
            self.layout, self.tables = layout, [()] * layout.sequences
            self.views = _views(self._array, layout, np.int64)
        return self.views


class StepInputs:
    """The buffer for steps of up to the largest of ``layouts``, on ``device``, for blocks of ``block_tokens``.

    ``copy`` takes a step's inputs there.
    """

    def __init__(
        self, layouts: Sequence[Layout], block_tokens: int, device: torch.device, copy: SmallCopy = by_copy_engine
    ) -> None:
        ints = max(layout.starts()[-1] for layout in layouts)
        pinned = device.type == "cuda"
        self._block_tokens = block_tokens
        self._copy = copy
        self._device = torch.zeros(ints, dtype=torch.int32, device=device)
        self._stages = [_Stage(ints, pinned) for _ in range(_STAGES)]
        self._next = 0

    def views(self, layout: Layout) -> StepViews:
        """Where a step of ``layout`` finds its inputs on the device; always the same place."""
        return _views(self._device, layout, torch.int64)

    def fill(self, layout: Layout, chunks: Sequence[Chunk], before: Mapping[int, int]) -> None:
        """Put a step into the buffer, behind everything that runs on the current stream.

        Args:
            layout: at least as large as the step; what is over is padding that nobody reads and nothing is written for.
            chunks: the step.
            before: by sequence id, the row in which the launch before left its token, for unread ones.
        """
        stage = self._stages[self._next]
        self._next = (self._next + 1) % len(self._stages)
        if stage.copied is not None:
            stage.copied.synchronize()
        write_step(stage.lay_out(layout), stage.tables, chunks, before, self._block_tokens)
        used = layout.starts()[-1]
        self._copy(self._device[:used], stage.tensor[:used])
        if stage.copied is not None:
            stage.copied.record()


def write_step(
    views: StepViews,
    tables: list[tuple[int, ...]],
    chunks: Sequence[Chunk],
    before: Mapping[int, int],
    block_tokens: int,
) -> None:
    """Write ``chunks`` into host arrays; ``tables`` says which tables stand there already, row by row."""
    counts = [len(chunk.tokens) for chunk in chunks]
    starts = [0, *accumulate(counts)]
    used, sequences = starts[-1], len(chunks)
    views.ids[:used] = list(chain.from_iterable(chunk.tokens for chunk in chunks))
    views.source[:] = -1
    for place in np.flatnonzero(views.ids[:used] == UNREAD):
        chunk = chunks[int(np.searchsorted(starts, place, side="right")) - 1]
        views.ids[place], views.source[place] = 0, before[chunk.sequence_id]
    views.ids[used:] = 0
    views.positions[used:] = 0
    views.write_slots[used:] = -1
    if used == sequences:
        views.positions[:used] = [chunk.start for chunk in chunks]
        views.write_slots[:used] = [_slot(chunk, block_tokens) for chunk in chunks]
    else:
        for chunk, first, count in zip(chunks, starts, counts, strict=False):
            if count == 1:  # arrays would take several times as long
                views.positions[first], views.write_slots[first] = chunk.start, _slot(chunk, block_tokens)
            else:
                views.positions[first : first + count] = np.arange(chunk.start, chunk.start + count)
                views.write_slots[first : first + count] = _slots(chunk, block_tokens)
    views.query_starts[: sequences + 1] = starts
    # One query for each padding row of a decoding step, none for that of another.
    padding = len(views.key_lengths) - sequences
    decode = used == sequences and len(views.ids) == len(views.key_lengths)
    views.query_starts[sequences + 1 :] = np.arange(used + 1, used + 1 + padding) if decode else used
    views.key_lengths[:sequences] = [chunk.start + count for chunk, count in zip(chunks, counts, strict=True)]
    views.key_lengths[sequences:] = 0
    rows = [end - 1 for chunk, end in zip(chunks, starts[1:], strict=True) if chunk.sample]
    views.rows[: len(rows)] = rows
    views.rows[len(rows) :] = 0
    for row, chunk in enumerate(chunks):
        # A table changes once in a block's time; comparing costs a fraction of converting.
        if tables[row] != chunk.table:
            tables[row] = chunk.table
            fitting = chunk.table[: views.tables.shape[1]]  # a table may have room beyond the longest context
            views.tables[row, : len(fitting)] = fitting


def _slots(chunk: Chunk, block_tokens: int) -> Ints:
    positions = np.arange(chunk.start, chunk.start + len(chunk.tokens))
    first = chunk.start // block_tokens
    blocks = np.asarray(chunk.table[first : positions[-1] // block_tokens + 1])[positions // block_tokens - first]
    return np.where(positions >= chunk.write_from, blocks * block_tokens + positions % block_tokens, -1)


def _slot(chunk: Chunk, block_tokens: int) -> int:
    if chunk.start < chunk.write_from:
        return -1
    block, row = divmod(chunk.start, block_tokens)
    return chunk.table[block] * block_tokens + row


def _views(buffer: Any, layout: Layout, wide: Any) -> StepViews:
    slots, ids, source, positions, query_starts, key_lengths, rows, tables = (
        buffer[start : start + size] for start, size in zip(layout.starts(), layout.sizes(), strict=False)
    )
    tables = tables.reshape(layout.sequences, layout.width)
    return StepViews(slots.view(wide), ids, source, positions, query_starts, key_lengths, rows, tables)
