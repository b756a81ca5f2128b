"""Triton kernels for decoding: one query a sequence, its keys divided among several programs (split-KV).

A program serves one (sequence, KV head, split) and all query heads of that KV head, so that every byte of KV is read
once. The step's own key and value come straight from the arguments: the program that has split 0 adds them to its sum
and writes them to the pool, where no other program reads them in this step. One launch therefore does the whole layer,
with a second one to combine the splits where the last program to finish does not do that.

In a step of prefill the same kernel serves the sequences that decode beside it (:func:`decode_beside`): 128 rows of a tile
with one query in them would take most of such a step's attention.

The way of dividing: Dao et al., Flash-Decoding (2023).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import DecodeTiles
from .triton_combine import chunk_of, combine, combine_splits, partial_sums

_MOST_COUNTERS: Final = 1 << 16
# By device: how many splits of each (sequence, KV head) are done. Never freed, since captured graphs hold its address.
_counters: dict[torch.device, Tensor] = {}


@triton.jit
def _turned(
    states: tl.tensor,
    rows: tl.tensor,
    head_norm: tl.tensor,
    norm_rows: tl.tensor,
    turns: tl.tensor,
    real: tl.tensor,
    eps: tl.tensor,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    NORMED: tl.constexpr,
) -> tl.tensor:
    """Heads at ``states + rows``, normed where the model does that, and rotated, as the kernel for prefill does it.

    Each element needs the one half a head away: it is loaded a second time rather than moved between threads.
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    dims = tl.arange(0, DIMS)
    other = (dims + HALF) % HEAD_DIM
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    kind = states.dtype.element_ty
    own_part = tl.load(states + rows[:, None] + dims[None, :], mask=inside, other=0.0).to(tl.float32)
    other_part = tl.load(states + rows[:, None] + other[None, :], mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        factor = tl.rsqrt(tl.sum(own_part * own_part, 1) / HEAD_DIM + eps)[:, None]
        weights = head_norm + norm_rows[:, None] * HEAD_DIM
        own_weights = tl.load(weights + dims[None, :], mask=inside, other=0.0).to(tl.float32)
        other_weights = tl.load(weights + other[None, :], mask=inside, other=0.0).to(tl.float32)
        own_part = (own_part * factor).to(kind).to(tl.float32) * own_weights
        other_part = (other_part * factor).to(kind).to(tl.float32) * other_weights
    cosine = tl.load(turns + dims % HALF, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
    sine = tl.load(turns + HALF + dims % HALF, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
    sine = tl.where(dims < HALF, -sine, sine)
    return (own_part * cosine[None, :] + other_part * sine[None, :]).to(kind)


@triton.jit(do_not_specialize=["layer", "window", "table_stride"])
def decode_kernel(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    pool: tl.tensor,
    write_slots: tl.tensor,
    key_lengths: tl.tensor,
    tables: tl.tensor,
    sums: tl.tensor,
    logs: tl.tensor,
    counters: tl.tensor,
    output: tl.tensor,
    head_norm: tl.tensor,
    rotary: tl.tensor,
    query_starts: tl.tensor,
    eps: tl.tensor,
    scale: tl.tensor,
    layer: tl.tensor,
    window: tl.tensor,
    query_token_stride: tl.tensor,
    query_head_stride: tl.tensor,
    key_token_stride: tl.tensor,
    key_head_stride: tl.tensor,
    value_token_stride: tl.tensor,
    value_head_stride: tl.tensor,
    pool_block_stride: tl.tensor,
    pool_layer_stride: tl.tensor,
    pool_kind_stride: tl.tensor,
    table_stride: tl.tensor,
    BLOCK_TOKENS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    HEADS: tl.constexpr,
    JOIN: tl.constexpr,
    ROTATED: tl.constexpr,
    NORMED: tl.constexpr,
    BESIDE: tl.constexpr,
) -> None:
    """Attention of one (sequence, KV head, split); grid ``(sequences, kv_heads, SPLITS)``.

    ``ROTATED``: query and key come as the projection gives them; ``NORMED``: each head is normed before it is rotated.
    ``BESIDE``: the step has sequences of many queries too, which are left alone, and all KV is in the pool already.
    """
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(key_lengths + sequence)
    if BESIDE:
        first = tl.load(query_starts + sequence)
        if tl.load(query_starts + sequence + 1) - first != 1:
            return
        token = first.to(tl.int64)
        slot = tl.full((), -1, tl.int64)
    else:
        token = sequence.to(tl.int64)
        slot = tl.load(write_slots + sequence)
    fresh = (slot >= 0) & (length > 0)

    # Keys in the pool that this sequence sees: low … high - 1. A fresh key is not there yet.
    high = tl.where(fresh, length - 1, length)
    low = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    first_tile = low // TILE
    tiles = tl.maximum(tl.cdiv(high, TILE) - first_tile, 0)
    share = tl.cdiv(tiles, SPLITS)
    begin = first_tile + split * share
    end = tl.minimum(begin + share, first_tile + tiles)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    real = rows < GROUP
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    heads = kv_head * GROUP + rows
    query_rows = token * query_token_stride + heads * query_head_stride
    turns = rotary + token * HEAD_DIM
    if ROTATED:
        queries = _turned(query, query_rows, head_norm, heads, turns, real, eps, HEAD_DIM, DIMS, NORMED)
    else:
        queries = tl.load(query + query_rows[:, None] + dims[None, :], mask=inside, other=0.0)
    scale2 = scale * 1.4426950408889634  # scores in base 2: exp2 is one instruction
    # 64 bits throughout: a pool has more than 2^31 elements.
    layer_base = pool + layer.to(tl.int64) * pool_layer_stride + kv_head * (BLOCK_TOKENS * HEAD_DIM)
    table = tables + sequence.to(tl.int64) * table_stride

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, DIMS], tl.float32)
    for tile in range(begin, end):
        positions = tile * TILE + tl.arange(0, TILE)
        seen = (positions >= low) & (positions < high)
        blocks = tl.load(table + positions // BLOCK_TOKENS, mask=seen, other=0)
        starts = blocks.to(tl.int64) * pool_block_stride + (positions % BLOCK_TOKENS) * HEAD_DIM
        places = layer_base + starts[:, None] + dims[None, :]
        wanted = seen[:, None] if HEAD_DIM == DIMS else seen[:, None] & (dims < HEAD_DIM)[None, :]
        keys = tl.load(places, mask=wanted, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale2
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        kept = tl.exp2(peak - higher)
        values = tl.load(places + pool_kind_stride, mask=wanted, other=0.0)
        result = result * kept[:, None]
        result = tl.dot(weights.to(values.dtype), values, result, input_precision="ieee")
        total = total * kept + tl.sum(weights, 1)
        peak = higher

    if fresh & (split == 0):
        own = dims < HEAD_DIM
        key_row = token * key_token_stride + kv_head * key_head_stride
        if ROTATED:
            one = tl.arange(0, 1)
            norm_row = one + tl.num_programs(1) * GROUP + kv_head
            turned = _turned(key, one + key_row, head_norm, norm_row, turns, one == 0, eps, HEAD_DIM, DIMS, NORMED)
            new_key = tl.reshape(turned, [DIMS])
        else:
            new_key = tl.load(key + key_row + dims, mask=own, other=0.0)
        new_value = tl.load(
            value + token * value_token_stride + kv_head * value_head_stride + dims, mask=own, other=0.0
        )
        score = tl.sum(queries.to(tl.float32) * new_key.to(tl.float32)[None, :], 1) * scale2
        higher = tl.maximum(peak, score)
        weight = tl.exp2(score - higher)
        kept = tl.exp2(peak - higher)
        result = result * kept[:, None] + weight[:, None] * new_value.to(tl.float32)[None, :]
        total = total * kept + weight
        peak = higher
        cell = layer_base + (slot // BLOCK_TOKENS) * pool_block_stride + (slot % BLOCK_TOKENS) * HEAD_DIM + dims
        tl.store(cell, new_key, mask=own)
        tl.store(cell + pool_kind_stride, new_value, mask=own)

    result = result / tl.where(total == 0.0, 1.0, total)[:, None]
    pair = sequence.to(tl.int64) * tl.num_programs(1) + kv_head
    target = token * tl.num_programs(1) + kv_head
    cells = rows[:, None] * HEAD_DIM + dims[None, :]
    if SPLITS == 1:
        tl.store(output + target * (GROUP * HEAD_DIM) + cells, result.to(output.dtype.element_ty), mask=inside)
    else:
        at = pair * SPLITS + split
        tl.store(sums + at * (GROUP * HEAD_DIM) + cells, result, mask=inside & (total > 0.0)[:, None])
        tl.store(logs + at * GROUP + rows, peak + tl.log2(total), mask=real)
        if JOIN:
            # Every thread's stores come before the one thread's releasing count, by the barrier.
            tl.debug_barrier()
            done = tl.atomic_add(counters + pair, 1, sem="acq_rel")
            if done == SPLITS - 1:
                tl.store(counters + pair, 0)
                combine_splits(sums, logs, output, pair, target, SPLITS, CHUNK, GROUP, HEADS, HEAD_DIM, DIMS)


def decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pool: Tensor,
    layer: int,
    write_slots: Tensor,
    key_lengths: Tensor,
    tables: Tensor,
    scale: float,
    window: int,
    tiles: DecodeTiles,
    rotary: Tensor | None = None,
    head_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """One step of decoding: writes each sequence's KV and attends; arguments as in :func:`.ops.paged_attention`.

    With ``rotary``, query and key are normed and rotated first: see :func:`.rotated.rotated_decode`.
    Launches on one device must follow each other (one stream): with ``tiles.join`` they share the counters.
    """
    output = query.new_empty(query.shape)
    step = (write_slots, None, key_lengths, tables)
    _launch((query, key, value), pool, layer, *step, scale, window, tiles, output, rotary, head_norm, eps)
    return output


def decode_beside(
    query: Tensor,
    pool: Tensor,
    layer: int,
    query_starts: Tensor,
    key_lengths: Tensor,
    tables: Tensor,
    scale: float,
    window: int,
    tiles: DecodeTiles,
    output: Tensor,
) -> None:
    """Attention of those sequences of a packed step that have one query, into their rows of ``output`` and no others.

    Their KV is in the pool already. Arguments as in :func:`.ops.paged_attention`; ``output`` is contiguous. ``tiles`` must
    be of the kind that joins, since a kernel that combines does not know the rows.
    """
    if tiles.splits > 1 and _counters_of(query.device, key_lengths.shape[0] * pool.shape[3]) is None:
        tiles = replace(tiles, splits=1)
    step = (key_lengths, query_starts, key_lengths, tables)  # nothing looks at where to write
    _launch((query, query, query), pool, layer, *step, scale, window, tiles, output)


def _launch(
    states: tuple[Tensor, Tensor, Tensor],
    pool: Tensor,
    layer: int,
    write_slots: Tensor,
    query_starts: Tensor | None,
    key_lengths: Tensor,
    tables: Tensor,
    scale: float,
    window: int,
    tiles: DecodeTiles,
    output: Tensor,
    rotary: Tensor | None = None,
    head_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Start the kernel, and the one that combines where that is needed; without ``query_starts`` all sequences decode."""
    query, (sequences,) = states[0], key_lengths.shape
    heads, head_dim = query.shape[1:]
    kv_heads = pool.shape[3]
    group = heads // kv_heads
    rows, dims = max(16, triton.next_power_of_2(group)), max(16, triton.next_power_of_2(head_dim))
    sums, logs, counters = output, output, None  # unused where nothing is divided
    if tiles.splits > 1:
        pairs = sequences * kv_heads
        sums, logs = partial_sums(pairs, tiles.splits, group, head_dim, query.device)
        counters = _counters_of(query.device, pairs) if tiles.join else None
    decode_kernel[sequences, kv_heads, tiles.splits](
        *(*states, pool, write_slots, key_lengths, tables, sums, logs),
        *(tables if counters is None else counters, output),
        *(query if head_norm is None else head_norm, query if rotary is None else rotary),
        key_lengths if query_starts is None else query_starts,
        *(eps, scale, layer, window),
        *(stride for one in states for stride in one.stride()[:2]),
        *pool.stride()[:3],
        tables.stride(0),
        BLOCK_TOKENS=pool.shape[4],
        GROUP=group,
        ROWS=rows,
        HEAD_DIM=head_dim,
        DIMS=dims,
        TILE=tiles.keys,
        SPLITS=tiles.splits,
        CHUNK=chunk_of(tiles.splits, group, head_dim),
        HEADS=triton.next_power_of_2(group),
        JOIN=counters is not None,
        ROTATED=rotary is not None,
        NORMED=head_norm is not None,
        BESIDE=query_starts is not None,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        enable_fp_fusion=True,
    )
    if tiles.splits > 1 and counters is None:
        combine(sums, logs, output, kv_heads, tiles.splits)


def _counters_of(device: torch.device, pairs: int) -> Tensor | None:
    """Counters at zero, shared by all launches on ``device``; ``None`` where there are none for these.

    They cannot be made while a graph is captured: the zeroing would be captured with it instead of done.
    """
    if pairs > _MOST_COUNTERS:
        return None
    if device not in _counters:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        _counters[device] = torch.zeros(_MOST_COUNTERS, dtype=torch.int32, device=device)
    return _counters[device]
