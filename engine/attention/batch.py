"""What attention needs to know about one packed forward step, as tensors on the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
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

    @classmethod
    def of(cls, queries: int, keys: int, firsts: Sequence[int], tables: Tensor) -> Group:
        """The group whose chunks begin at ``firsts`` in the packed axis; ``tables`` as in the class."""
        rows = torch.tensor(firsts, device=tables.device)[:, None] + torch.arange(queries, device=tables.device)
        mask = causal_mask(queries, keys, 0, tables.device) if queries > 1 else None
        return cls(queries, keys, rows, tables, mask)


def causal_mask(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """``[queries, keys]``, true where a query may look: up to itself, and no further back than ``window`` (0: anywhere)."""
    mask = torch.ones((queries, keys), dtype=torch.bool, device=device).tril(keys - queries)
    return mask.triu(keys - queries - window + 1) if window else mask


@dataclass(frozen=True, slots=True)
class StepTensors:
    """One packed step as the attention op takes it; see :func:`.ops.paged_attention` for shapes and meaning."""

    write_slots: Tensor
    query_starts: Tensor
    key_lengths: Tensor
    tables: Tensor
    decode: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """One packed step over the block pool: for the op's kernels on a GPU, in groups of one shape on the CPU.

    Attributes:
        pool: ``[blocks, layers, 2, kv_heads, block_tokens, head_dim]``.
        write_slots: ``[tokens]``, block * block_tokens + row that each position's KV goes to; -1 where none is written.
        groups: every chunk, in groups of one shape; empty where ``step`` is given.
        step: the op's tensors; ``None`` on the CPU.
    """

    pool: Tensor
    write_slots: Tensor
    groups: tuple[Group, ...]
    step: StepTensors | None

    @classmethod
    def pack(cls, chunks: Sequence[Chunk], pool: Tensor) -> PagedBatch:
        """Lay ``chunks`` out one after the other along the packed axis, in their order."""
        if pool.device.type == "cpu":
            slots = torch.tensor(_write_slots(chunks, pool.shape[4]), dtype=torch.long)
            return cls(pool, slots, _groups(chunks, pool.shape[4]), None)
        step = pack_step(chunks, pool.shape[4], pool.device)
        return cls(pool, step.write_slots, (), step)


def pack_step(chunks: Sequence[Chunk], block_tokens: int, device: torch.device) -> StepTensors:
    """The op's tensors for ``chunks``, moved to ``device`` in one copy (from pinned memory, without waiting, to a GPU)."""
    starts, lengths = [0], []
    for chunk in chunks:
        starts.append(starts[-1] + len(chunk.tokens))
        lengths.append(chunk.start + len(chunk.tokens))
    width = max(-(-length // block_tokens) for length in lengths)
    tokens, sequences = starts[-1], len(chunks)
    # 64-bit slots first, so that both views are aligned.
    sizes = [2 * tokens, sequences + 1, sequences, sequences * width]
    staged = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
    slots, query_starts, key_lengths, tables = torch.split(staged, sizes)
    slots.view(torch.int64).copy_(torch.tensor(_write_slots(chunks, block_tokens), dtype=torch.int64))
    query_starts.copy_(torch.tensor(starts))
    key_lengths.copy_(torch.tensor(lengths))
    for row, chunk in zip(tables.view(sequences, width), chunks, strict=True):
        used = chunk.table[:width]
        row[: len(used)] = torch.tensor(used, dtype=torch.int32)
    slots, query_starts, key_lengths, tables = torch.split(staged.to(device, non_blocking=True), sizes)
    return StepTensors(
        write_slots=slots.view(torch.int64),
        query_starts=query_starts,
        key_lengths=key_lengths,
        tables=tables.view(sequences, width),
        decode=tokens == sequences,
        whole=len(chunks) == 1 and chunks[0].start == 0 and tokens > 1,
    )


def _write_slots(chunks: Iterable[Chunk], block_tokens: int) -> list[int]:
    slots = []
    for chunk in chunks:
        for position in range(chunk.start, chunk.start + len(chunk.tokens)):
            block, row = divmod(position, block_tokens)
            slots.append(chunk.table[block] * block_tokens + row if position >= chunk.write_from else -1)
    return slots


def _groups(chunks: Sequence[Chunk], block_tokens: int) -> tuple[Group, ...]:
    shapes: dict[tuple[int, int], list[tuple[int, Chunk]]] = defaultdict(list)
    first = 0
    for chunk in chunks:
        shapes[len(chunk.tokens), chunk.start + len(chunk.tokens)].append((first, chunk))
        first += len(chunk.tokens)
    groups = []
    for (queries, keys), members in shapes.items():
        tables = torch.tensor([chunk.table[: -(-keys // block_tokens)] for _, chunk in members])
        groups.append(Group.of(queries, keys, [start for start, _ in members], tables))
    return tuple(groups)
