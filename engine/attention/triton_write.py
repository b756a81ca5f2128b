"""Triton kernel that stores the new KV of a packed step in the pool."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_TOKENS = 16  # rows of one program: enough bytes for whole cache lines at every head size


@triton.jit(do_not_specialize=["layer", "tokens"])
def write_kernel(
    key: tl.tensor,
    value: tl.tensor,
    pool: tl.tensor,
    write_slots: tl.tensor,
    layer: tl.tensor,
    tokens: tl.tensor,
    key_token_stride: tl.tensor,
    key_head_stride: tl.tensor,
    value_token_stride: tl.tensor,
    value_head_stride: tl.tensor,
    pool_block_stride: tl.tensor,
    pool_layer_stride: tl.tensor,
    pool_kind_stride: tl.tensor,
    BLOCK_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """One program: ``TOKENS`` positions of one KV head, key and value."""
    head = tl.program_id(1)
    rows = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    dims = tl.arange(0, DIMS)
    slots = tl.load(write_slots + rows, mask=rows < tokens, other=-1)
    kept = (slots >= 0)[:, None] & (dims < HEAD_DIM)[None, :]
    # 64 bits throughout: a pool has more than 2^31 elements.
    target = pool + layer.to(tl.int64) * pool_layer_stride + head * (BLOCK_TOKENS * HEAD_DIM)
    target += (slots // BLOCK_TOKENS)[:, None] * pool_block_stride
    target += (slots % BLOCK_TOKENS)[:, None] * HEAD_DIM + dims[None, :]
    from_row = rows.to(tl.int64)[:, None]
    keys = tl.load(key + from_row * key_token_stride + head * key_head_stride + dims[None, :], mask=kept, other=0)
    tl.store(target, keys, mask=kept)
    values = tl.load(
        value + from_row * value_token_stride + head * value_head_stride + dims[None, :], mask=kept, other=0
    )
    tl.store(target + pool_kind_stride, values, mask=kept)


def write_kv(key: Tensor, value: Tensor, pool: Tensor, layer: int, write_slots: Tensor) -> None:
    """Store ``key`` and ``value`` ``[tokens, kv_heads, head_dim]`` at ``write_slots`` of ``layer``; -1 is skipped."""
    tokens, kv_heads, head_dim = key.shape
    write_kernel[triton.cdiv(tokens, _TOKENS), kv_heads](
        key,
        value,
        pool,
        write_slots,
        layer,
        tokens,
        *key.stride()[:2],
        *value.stride()[:2],
        *pool.stride()[:3],
        BLOCK_TOKENS=pool.shape[4],
        HEAD_DIM=head_dim,
        DIMS=triton.next_power_of_2(head_dim),
        TOKENS=_TOKENS,
        num_warps=4,
        enable_fp_fusion=True,
    )
