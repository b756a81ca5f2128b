"""Paged attention as one torch operator: write a layer's new KV into the pool, then attend over it.

``torch.ops.kvtrace.paged_attention`` can stand inside ``torch.compile`` and inside device graphs: it never waits for
the device, and its shapes and launches follow from the arguments' shapes alone. The CPU runs plain torch
(:mod:`.reference`), CUDA and ROCm run Triton kernels.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from .reference import attend, groups_of, write_kv

_SCHEMA: Final = (
    "(Tensor query, Tensor key, Tensor value, Tensor(a!) pool, int layer, Tensor write_slots, Tensor query_starts, "
    "Tensor key_lengths, Tensor tables, float scale, bool decode, int window=0, bool whole=False) -> Tensor"
)


@torch.library.custom_op("kvtrace::paged_attention", mutates_args={"pool"}, device_types="cpu", schema=_SCHEMA)
def paged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pool: Tensor,
    layer: int,
    write_slots: Tensor,
    query_starts: Tensor,
    key_lengths: Tensor,
    tables: Tensor,
    scale: float,
    decode: bool,
    window: int = 0,
    whole: bool = False,
) -> Tensor:
    """Write this layer's KV of a packed step and attend causally: of q queries and k keys, query i sees 0 … k - q + i.

    Args:
        query: ``[tokens, heads, head_dim]`` of the packed step.
        key: ``[tokens, kv_heads, head_dim]``.
        value: ``[tokens, kv_heads, head_dim]``.
        pool: ``[blocks, layers, 2, kv_heads, block_tokens, head_dim]``, changed in place.
        layer: which layer of the pool.
        write_slots: int64 ``[tokens]``, block * block_tokens + row of each position's KV; -1 writes nothing.
        query_starts: int32 ``[sequences + 1]``, where each sequence's queries begin in the packed axis.
        key_lengths: int32 ``[sequences]``, keys of each sequence, those of this step included; 0 marks a padding row.
        tables: int32 ``[sequences, max_blocks]``, the blocks of each sequence's positions.
        scale: factor on the scores.
        decode: every sequence has exactly one query (tokens == sequences).
        window: how many positions a query sees, itself included; 0 for all before it.
        whole: the step is one sequence from its first position on (tokens == keys), so that ``key`` and ``value``
            are all there is to attend to.

    Returns:
        ``[tokens, heads, head_dim]``, contiguous; zero in padding rows and in rows of no sequence.
    """
    write_kv(pool, layer, key, value, write_slots)
    groups = groups_of(query_starts, key_lengths, tables, pool.shape[4])
    return attend(pool, layer, groups, query, scale, window)


@paged_attention.register_fake
def _shape_only(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pool: Tensor,
    layer: int,
    write_slots: Tensor,
    query_starts: Tensor,
    key_lengths: Tensor,
    tables: Tensor,
    scale: float,
    decode: bool,
    window: int = 0,
    whole: bool = False,
) -> Tensor:
    return query.new_empty(query.shape)


@paged_attention.register_kernel("cuda")
def _on_gpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pool: Tensor,
    layer: int,
    write_slots: Tensor,
    query_starts: Tensor,
    key_lengths: Tensor,
    tables: Tensor,
    scale: float,
    decode: bool,
    window: int = 0,
    whole: bool = False,
) -> Tensor:
    # Triton comes with the GPU builds of torch and is not there for the CPU.
    from . import gpu

    with torch.cuda.device(query.device):  # Triton launches on the current device, whatever the tensors say
        return gpu.paged_attention(
            query,
            key,
            value,
            pool,
            layer,
            write_slots,
            query_starts,
            key_lengths,
            tables,
            scale,
            decode,
            window,
            whole,
        )
