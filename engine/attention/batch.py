"""What attention needs to know about one packed forward step, as tensors on the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..batch import Chunk


@dataclass(frozen=True, slots=True)
class Group:
    """Chunks of one shape: ``queries`` new positions each, attending to ``keys`` positions including themselves.

    Attributes:
        rows: ``[chunks, queries]``, where their queries stand in the packed axis.
        tables: ``[chunks, blocks]``, the device blocks of each chunk's positions.
        mask: ``[queries, keys]``, true where a query may look; ``None`` where it may look everywhere.
    """

    queries: int
    keys: int
    rows: Tensor
    tables: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """One packed step over the block pool.

    Attributes:
        pool: ``[blocks, layers, 2, kv_heads, block_tokens, head_dim]``.
        write_blocks: ``[writes]``, the block that each written position goes to.
        write_rows: ``[writes]``, its row within the block.
        writes: ``[writes]``, where the written positions stand in the packed axis; ``None`` where all are written.
        groups: every chunk, in groups of one shape.
    """

    pool: Tensor
    write_blocks: Tensor
    write_rows: Tensor
    writes: Tensor | None
    groups: tuple[Group, ...]

    @classmethod
    def pack(cls, chunks: Sequence[Chunk], pool: Tensor) -> PagedBatch:
        """Lay ``chunks`` out one after the other along the packed axis, in their order."""
        block_tokens = pool.shape[4]
        shapes: dict[tuple[int, int], list[tuple[int, Chunk]]] = defaultdict(list)
        writes, blocks, rows = [], [], []
        first = 0
        for chunk in chunks:
            end = chunk.start + len(chunk.tokens)
            shapes[len(chunk.tokens), end].append((first, chunk))
            for position in range(max(chunk.start, chunk.write_from), end):
                writes.append(first + position - chunk.start)
                blocks.append(chunk.table[position // block_tokens])
                rows.append(position % block_tokens)
            first += len(chunk.tokens)
        return cls(
            pool=pool,
            write_blocks=torch.tensor(blocks, dtype=torch.long, device=pool.device),
            write_rows=torch.tensor(rows, dtype=torch.long, device=pool.device),
            writes=None if len(writes) == first else torch.tensor(writes, dtype=torch.long, device=pool.device),
            groups=tuple(_group(shape, members, block_tokens, pool.device) for shape, members in shapes.items()),
        )


def _group(shape: tuple[int, int], members: list[tuple[int, Chunk]], block_tokens: int, device: torch.device) -> Group:
    queries, keys = shape
    blocks = -(-keys // block_tokens)
    mask = None
    if queries > 1:
        mask = torch.ones((queries, keys), dtype=torch.bool, device=device).tril(keys - queries)
    return Group(
        queries=queries,
        keys=keys,
        rows=torch.tensor([range(first, first + queries) for first, _ in members], dtype=torch.long, device=device),
        tables=torch.tensor([chunk.table[:blocks] for _, chunk in members], dtype=torch.long, device=device),
        mask=mask,
    )
