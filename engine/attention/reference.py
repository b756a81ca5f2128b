"""Paged attention in plain torch: the reference that faster forms are compared with, and what the CPU runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .batch import Group, causal_mask


def write_kv(pool: Tensor, layer: int, key: Tensor, value: Tensor, slots: Tensor) -> None:
    """Store ``key`` and ``value``, each ``[tokens, kv_heads, head_dim]``, at ``slots`` of the pool; -1 is skipped."""
    kept = slots >= 0
    if not bool(kept.all()):
        key, value, slots = key[kept], value[kept], slots[kept]
    blocks, rows = slots // pool.shape[4], slots % pool.shape[4]
    for kind, states in enumerate((key, value)):
        pool[:, layer, kind].transpose(1, 2).index_put_((blocks, rows), states)


def attend(pool: Tensor, layer: int, groups: Iterable[Group], query: Tensor, scaling: float, window: int = 0) -> Tensor:
    """Causal attention of ``query`` ``[tokens, heads, head_dim]`` over the pool; the result has the same shape.

    ``window`` is how many positions a query sees, itself included (0: all before it). Rows in no group are zero.
    """
    output = query.new_zeros(query.shape)
    for group in groups:
        output[group.rows] = _attend_group(pool, layer, group, query[group.rows], scaling, window)
    return output


def groups_of(query_starts: Tensor, key_lengths: Tensor, tables: Tensor, block_tokens: int) -> list[Group]:
    """The groups of a step that is given as the op's tensors; sequences without keys are in none."""
    starts, lengths = query_starts.tolist(), key_lengths.tolist()
    shapes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, keys in enumerate(lengths):
        queries = starts[index + 1] - starts[index]
        if keys and queries:
            shapes[queries, keys].append(index)
    return [
        Group.of(
            queries, keys, [starts[index] for index in members], tables[members, : -(-keys // block_tokens)].long()
        )
        for (queries, keys), members in shapes.items()
    ]


def _attend_group(pool: Tensor, layer: int, group: Group, query: Tensor, scaling: float, window: int) -> Tensor:
    """Attention of one group; ``query`` and result are ``[chunks, queries, heads, head_dim]``."""
    chunks, queries, heads, head_dim = query.shape
    kv_heads = pool.shape[3]
    shared = heads // kv_heads
    key, value = _gather(pool, layer, group)
    # Query heads that share a KV head become further queries of it, so that no KV is repeated in memory.
    packed = query.reshape(chunks, queries, kv_heads, shared, head_dim).permute(0, 2, 3, 1, 4)
    packed = packed.reshape(chunks, kv_heads, shared * queries, head_dim)
    narrow = 0 < window < group.keys
    mask = causal_mask(queries, group.keys, window, pool.device) if narrow else group.mask
    mask = None if mask is None else mask.repeat(shared, 1)
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
    paged = pool[:, layer].permute(1, 2, 0, 3, 4).index_select(2, group.tables.reshape(-1))
    rows = paged.view(2, kv_heads, chunks, blocks * block_tokens, head_dim)[:, :, :, : group.keys]
    key, value = rows.transpose(1, 2).unbind(0)
    return key, value
