"""Paged attention in plain torch: the reference that faster forms are compared with, and what the CPU runs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .batch import Group, PagedBatch


def write_kv(batch: PagedBatch, layer: int, key: Tensor, value: Tensor) -> None:
    """Store ``key`` and ``value``, each ``[tokens, kv_heads, head_dim]``, in the pool; positions not to write are skipped."""
    if batch.writes is not None:
        key, value = key[batch.writes], value[batch.writes]
    for kind, states in enumerate((key, value)):
        batch.pool[:, layer, kind].transpose(1, 2).index_put_((batch.write_blocks, batch.write_rows), states)


def attend(batch: PagedBatch, layer: int, query: Tensor, scaling: float) -> Tensor:
    """Causal attention of ``query`` ``[tokens, heads, head_dim]`` over the pool; the result has the same shape."""
    output = torch.empty_like(query)
    for group in batch.groups:
        output[group.rows] = _attend_group(batch.pool, layer, group, query[group.rows], scaling)
    return output


def _attend_group(pool: Tensor, layer: int, group: Group, query: Tensor, scaling: float) -> Tensor:
    """Attention of one group; ``query`` and result are ``[chunks, queries, heads, head_dim]``."""
    chunks, queries, heads, head_dim = query.shape
    kv_heads = pool.shape[3]
    shared = heads // kv_heads
    key, value = _gather(pool, layer, group)
    # Query heads that share a KV head become further queries of it, so that no KV is repeated in memory.
    packed = query.view(chunks, queries, kv_heads, shared, head_dim).permute(0, 2, 3, 1, 4)
    packed = packed.reshape(chunks, kv_heads, shared * queries, head_dim)
    mask = None if group.mask is None else group.mask.repeat(shared, 1)
    result = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    result = result.view(chunks, kv_heads, shared, queries, head_dim).permute(0, 3, 1, 2, 4)
    return result.reshape(chunks, queries, heads, head_dim)


def _gather(pool: Tensor, layer: int, group: Group) -> tuple[Tensor, Tensor]:
    """Keys and values of a group, each ``[chunks, kv_heads, keys, head_dim]``.

    The last block's rows past ``keys`` were perhaps never written: they are cut off, since even a masked NaN spoils
    a sum.
    """
    _, _, _, kv_heads, block_tokens, head_dim = pool.shape
    chunks, blocks = group.tables.shape
    paged = pool[:, layer].permute(1, 2, 0, 3, 4).index_select(2, group.tables.view(-1))
    rows = paged.view(2, kv_heads, chunks, blocks * block_tokens, head_dim)[:, :, :, : group.keys]
    key, value = rows.transpose(1, 2).unbind(0)
    return key, value
