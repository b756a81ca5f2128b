"""Attention from the raw projection as one torch operator: norm and rotation of the heads, KV write and attention.

``torch.ops.kvtrace.rotated_attention`` saves the pass over query and key in between, for decoders that have merged q, k and
v. The CPU runs the two operators one after the other, which is the reference.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from .ops import paged_attention

_SCHEMA: Final = (
    "(Tensor states, Tensor? head_norm, Tensor rotary, Tensor(a!) pool, int layer, Tensor write_slots, Tensor query_starts, "
    "Tensor key_lengths, Tensor tables, int heads, float scale, float eps, bool decode, int window=0, bool whole=False) -> Tensor"
)


@torch.library.custom_op("kvtrace::rotated_attention", mutates_args={"pool"}, device_types="cpu", schema=_SCHEMA)
def rotated_attention(
    states: Tensor,
    head_norm: Tensor | None,
    rotary: Tensor,
    pool: Tensor,
    layer: int,
    write_slots: Tensor,
    query_starts: Tensor,
    key_lengths: Tensor,
    tables: Tensor,
    heads: int,
    scale: float,
    eps: float,
    decode: bool,
    window: int = 0,
    whole: bool = False,
) -> Tensor:
    """A packed step from the merged projection.

    Args:
        states: ``[tokens, (heads + 2 kv_heads) * head_dim]``: heads of q, then of k, then of v; rows may be further apart.
        head_norm: ``[heads + kv_heads, head_dim]``, the norms' weights; ``None`` where heads are not normed.
        rotary: ``[tokens, 2, head_dim / 2]``, cosine and sine of each token's position.
        pool: as in :func:`.ops.paged_attention`, like all others but ``heads`` and ``eps``.
        layer: which layer of the pool.
        write_slots: where each token's KV goes.
        query_starts: where each sequence's queries begin.
        key_lengths: keys of each sequence.
        tables: the blocks of each sequence.
        heads: query heads.
        scale: factor on the scores.
        eps: of the norms.
        decode: every sequence has exactly one query.
        window: how many positions a query sees.
        whole: the step is one sequence from its first position on.

    Returns:
        ``[tokens, heads, head_dim]``, contiguous.
    """
    query, key, value = _apart(states, head_norm, rotary, heads, pool, eps)
    step = (write_slots, query_starts, key_lengths, tables)
    output: Tensor = paged_attention(query, key, value, pool, layer, *step, scale, decode, window, whole)
    return output


@rotated_attention.register_fake
def _shape_only(
    states: Tensor,
    head_norm: Tensor | None,
    rotary: Tensor,
    pool: Tensor,
    layer: int,
    write_slots: Tensor,
    query_starts: Tensor,
    key_lengths: Tensor,
    tables: Tensor,
    heads: int,
    scale: float,
    eps: float,
    decode: bool,
    window: int = 0,
    whole: bool = False,
) -> Tensor:
    return states.new_empty((states.shape[0], heads, pool.shape[5]))


@rotated_attention.register_kernel("cuda")
def _on_gpu(
    states: Tensor,
    head_norm: Tensor | None,
    rotary: Tensor,
    pool: Tensor,
    layer: int,
    write_slots: Tensor,
    query_starts: Tensor,
    key_lengths: Tensor,
    tables: Tensor,
    heads: int,
    scale: float,
    eps: float,
    decode: bool,
    window: int = 0,
    whole: bool = False,
) -> Tensor:
    # Triton comes with the GPU builds of torch and is not there for the CPU.
    from . import gpu

    step = (write_slots, query_starts, key_lengths, tables)
    with torch.cuda.device(states.device):
        if whole:  # may be computed without the pool, from keys that lie beside the queries
            apart = _apart(states, head_norm, rotary, heads, pool, eps)
            return gpu.paged_attention(*apart, pool, layer, *step, scale, decode, window, whole)
        return gpu.rotated_attention(states, head_norm, rotary, pool, layer, *step, heads, scale, eps, decode, window)


def _apart(
    states: Tensor, head_norm: Tensor | None, rotary: Tensor, heads: int, pool: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value by head, the first two normed and rotated."""
    from ..model.lean_ops import norm_rotate  # the model's package imports this one

    kv_heads, head_dim = pool.shape[3], pool.shape[5]
    both = heads + kv_heads
    turned = norm_rotate(states, head_norm, rotary, both, eps)
    return turned[:, :heads], turned[:, heads:], states[:, both * head_dim :].view(-1, kv_heads, head_dim)
