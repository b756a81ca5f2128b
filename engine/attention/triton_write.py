"""Triton kernels that store the new KV of a packed step in the pool: as it is, or from the raw projection."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_TOKENS = 16  # rows of one program: enough bytes for whole cache lines at every head size
_HEADS = 8  # heads of one program that rotates: enough bytes to stream, and enough programs where a step has few tokens


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


@triton.jit(do_not_specialize=["layer"])
def rotate_kernel(
    states: tl.tensor,
    head_norm: tl.tensor,
    rotary: tl.tensor,
    query: tl.tensor,
    pool: tl.tensor,
    write_slots: tl.tensor,
    eps: tl.tensor,
    layer: tl.tensor,
    state_stride: tl.tensor,
    pool_block_stride: tl.tensor,
    pool_layer_stride: tl.tensor,
    pool_kind_stride: tl.tensor,
    BLOCK_TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    NORMED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """``BLOCK`` heads of one token, of q, k and v side by side; grid ``(tokens, ceil((HEADS + 2 KV_HEADS) / BLOCK))``."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dims = tl.arange(0, HALF_PADDED)
    own = (dims < HALF)[None, :]
    is_turned = (heads < HEADS + KV_HEADS)[:, None]
    mask = (heads < HEADS + 2 * KV_HEADS)[:, None] & own
    cells = heads[:, None] * (2 * HALF) + dims[None, :]
    kind = query.dtype.element_ty
    slot = tl.load(write_slots + token)
    first_raw = tl.load(states + token * state_stride + cells, mask=mask, other=0.0)
    second_raw = tl.load(states + token * state_stride + cells + HALF, mask=mask, other=0.0)
    turns = rotary + token * (2 * HALF) + dims
    cosine = tl.load(turns, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    sine = tl.load(turns + HALF, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    first, second = first_raw.to(tl.float32), second_raw.to(tl.float32)
    if NORMED:
        normed = is_turned & own
        first_weight = tl.load(head_norm + cells, mask=normed, other=0.0).to(tl.float32)
        second_weight = tl.load(head_norm + cells + HALF, mask=normed, other=0.0).to(tl.float32)
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        factor = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
        # Rounded where transformers rounds.
        first = (first * factor).to(kind).to(tl.float32) * first_weight
        second = (second * factor).to(kind).to(tl.float32) * second_weight
    # Values pass as they are.
    first_result = tl.where(is_turned, (first * cosine - second * sine).to(kind), first_raw)
    second_result = tl.where(is_turned, (second * cosine + first * sine).to(kind), second_raw)
    place = query + token * (HEADS * 2 * HALF) + cells
    queried = (heads < HEADS)[:, None] & own
    tl.store(place, first_result, mask=queried)
    tl.store(place + HALF, second_result, mask=queried)
    first_kept = tl.where(slot >= 0, HEADS, HEADS + 2 * KV_HEADS)  # none where the slot is -1
    kept = (heads >= first_kept)[:, None] & mask
    # 64 bits throughout: a pool has more than 2^31 elements.
    cell = pool + layer.to(tl.int64) * pool_layer_stride + (slot // BLOCK_TOKENS) * pool_block_stride
    rows = cell + (heads >= HEADS + KV_HEADS).to(tl.int64) * pool_kind_stride
    rows += (heads - HEADS) % KV_HEADS * (BLOCK_TOKENS * 2 * HALF) + (slot % BLOCK_TOKENS) * (2 * HALF)
    tl.store(rows[:, None] + dims[None, :], first_result, mask=kept)
    tl.store(rows[:, None] + dims[None, :] + HALF, second_result, mask=kept)


def rotate_and_write(
    states: Tensor,
    head_norm: Tensor | None,
    rotary: Tensor,
    pool: Tensor,
    layer: int,
    write_slots: Tensor,
    heads: int,
    eps: float,
) -> Tensor:
    """The normed and rotated queries ``[tokens, heads, head_dim]``; key, rotated too, and value go to the pool.

    Arguments as in :func:`.rotated.rotated_attention`; ``head_norm`` and ``rotary`` are contiguous.
    """
    tokens, kv_heads, head_dim = states.shape[0], pool.shape[3], pool.shape[5]
    query = states.new_empty((tokens, heads, head_dim))
    rotate_kernel[(tokens, triton.cdiv(heads + 2 * kv_heads, _HEADS))](
        *(states, states if head_norm is None else head_norm, rotary, query, pool, write_slots),
        *(eps, layer, states.stride(0)),
        *pool.stride()[:3],
        BLOCK_TOKENS=pool.shape[4],
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        HALF_PADDED=triton.next_power_of_2(head_dim // 2),
        NORMED=head_norm is not None,
        BLOCK=_HEADS,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return query
