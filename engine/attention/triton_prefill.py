"""Triton kernel for prefill: chunks of many positions, decoding sequences mixed in, over the paged pool.

A program serves one KV head and a run of queries of one sequence; the query heads that share the KV head stand side by
side as rows, so that KV is read once for all of them and a sequence with a single query still fills a tile. Which
sequence a program serves it finds itself from ``query_starts``, so that the grid follows from shapes alone.

The running softmax: Dao, FlashAttention-2 (2023), with scores in base 2.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .tiles import PrefillTiles
from .triton_combine import combine, partial_sums

_SEARCH = 64  # sequences looked at together when a program looks for its own


@triton.jit
def _attend_tile(
    queries: tl.tensor,
    result: tl.tensor,
    total: tl.tensor,
    peak: tl.tensor,
    layer_base: tl.tensor,
    table: tl.tensor,
    tile_start: tl.tensor,
    seen_from: tl.tensor,
    seen_to: tl.tensor,
    keys_end: tl.tensor,
    scale2: tl.tensor,
    pool_block_stride: tl.tensor,
    pool_kind_stride: tl.tensor,
    BLOCK_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Add one tile of keys to the running sums; row ``r`` sees keys ``seen_from[r] … seen_to[r]`` of it."""
    positions = tile_start + tl.arange(0, TILE)
    dims = tl.arange(0, DIMS)
    there = positions < keys_end
    if MASKED:
        blocks = tl.load(table + positions // BLOCK_TOKENS, mask=there, other=0)
    else:
        blocks = tl.load(table + positions // BLOCK_TOKENS)
    cells = blocks.to(tl.int64) * pool_block_stride + (positions % BLOCK_TOKENS) * HEAD_DIM
    cells = cells[:, None] + dims[None, :]
    # Rows past the keys may hold NaN: they are not loaded, since a weight of 0 would not silence them.
    if MASKED and HEAD_DIM == DIMS:
        keys = tl.load(layer_base + cells, mask=there[:, None], other=0.0)
    elif HEAD_DIM == DIMS:
        keys = tl.load(layer_base + cells)
    else:
        keys = tl.load(layer_base + cells, mask=there[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    if MASKED:
        seen = (positions[None, :] <= seen_to[:, None]) & (positions[None, :] >= seen_from[:, None])
        scores = tl.where(seen & there[None, :], scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, 1) * scale2)
    # With a window a row may have seen no key yet.
    base = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
    weights = tl.exp2(scores * scale2 - base[:, None])
    kept = tl.exp2(peak - base)
    total = total * kept + tl.sum(weights, 1)
    result = result * kept[:, None]
    if MASKED and HEAD_DIM == DIMS:
        values = tl.load(layer_base + pool_kind_stride + cells, mask=there[:, None], other=0.0)
    elif HEAD_DIM == DIMS:
        values = tl.load(layer_base + pool_kind_stride + cells)
    else:
        values = tl.load(
            layer_base + pool_kind_stride + cells, mask=there[:, None] & (dims < HEAD_DIM)[None, :], other=0.0
        )
    result = tl.dot(weights.to(values.dtype), values, result, input_precision="ieee")
    return result, total, higher


@triton.jit(do_not_specialize=["layer", "tokens", "sequences", "window", "table_stride"])
def prefill_kernel(
    query: tl.tensor,
    pool: tl.tensor,
    query_starts: tl.tensor,
    key_lengths: tl.tensor,
    tables: tl.tensor,
    sums: tl.tensor,
    logs: tl.tensor,
    output: tl.tensor,
    scale: tl.tensor,
    layer: tl.tensor,
    tokens: tl.tensor,
    sequences: tl.tensor,
    window: tl.tensor,
    query_token_stride: tl.tensor,
    query_head_stride: tl.tensor,
    pool_block_stride: tl.tensor,
    pool_layer_stride: tl.tensor,
    pool_kind_stride: tl.tensor,
    table_stride: tl.tensor,
    BLOCK_TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIDE: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOWED: tl.constexpr,
    DIVIDED: tl.constexpr,
    SINGLES: tl.constexpr,
    SEARCH: tl.constexpr,
) -> None:
    """``ROWS // SIDE`` queries of one sequence, ``SIDE`` of the ``GROUP`` heads of one KV head.

    Grid ``((tokens // (ROWS // SIDE) + sequences + 1) * kv_heads * PARTS, splits)``: each sequence begins a run of its own,
    and one more beyond the last stands for rows of no sequence, whose output becomes zero. ``DIVIDED``: the keys are
    divided among several splits, whose sums another kernel combines. Without ``SINGLES``, sequences with one query are
    left to another kernel.
    """
    QUERIES: tl.constexpr = ROWS // SIDE
    WIDTH: tl.constexpr = HEADS // GROUP * PARTS
    # The last queries of a prompt have the most keys: they go first, those of all heads, so that no long program is left
    # alone at the end.
    number = tl.program_id(0)
    run = tl.num_programs(0) // WIDTH - 1 - number // WIDTH
    kv_head = number % WIDTH // PARTS
    part = number % PARTS

    sequence = -1
    for base in range(0, sequences + 1, SEARCH):
        index = base + tl.arange(0, SEARCH)
        starts = tl.load(query_starts + index, mask=index <= sequences, other=0)
        before = (starts // QUERIES + index <= run) & (index <= sequences)
        sequence += tl.sum(before.to(tl.int32), 0)
    first_row = tl.load(query_starts + sequence)
    is_real = sequence < sequences
    last_row = tl.load(query_starts + sequence + 1, mask=is_real, other=0)
    queries_here = tl.where(is_real, last_row, tokens) - first_row
    if not SINGLES:
        queries_here = tl.where(is_real & (queries_here == 1), 0, queries_here)
    first_query = (run - (first_row // QUERIES + sequence)) * QUERIES
    if first_query >= queries_here:
        return
    keys_end = tl.load(key_lengths + sequence, mask=is_real, other=0)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    query_number = first_query + rows // SIDE
    head_in_group = part * SIDE + rows % SIDE
    real = (rows < QUERIES * SIDE) & (query_number < queries_here) & (head_in_group < GROUP)
    head = kv_head * GROUP + head_in_group
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    token = (first_row + query_number).to(tl.int64)
    queries = tl.load(
        query + token[:, None] * query_token_stride + head[:, None] * query_head_stride + dims[None, :],
        mask=inside,
        other=0.0,
    )
    scale2 = scale * 1.4426950408889634
    # 64 bits throughout: a pool has more than 2^31 elements.
    layer_base = pool + layer.to(tl.int64) * pool_layer_stride + kv_head * (BLOCK_TOKENS * HEAD_DIM)
    table = tables + tl.cast(sequence, tl.int64) * table_stride

    first_position = keys_end - queries_here + first_query
    seen_to = keys_end - queries_here + query_number
    seen_from = seen_to * 0
    first_tile = 0
    if WINDOWED:
        seen_from = seen_to - window + 1
        first_tile = tl.maximum(first_position - window + 1, 0) // TILE
        masked_from = first_tile
    else:
        # Tiles that every row sees whole need no mask.
        masked_from = tl.where(keys_end > 0, (first_position + 1) // TILE, 0)
    end = tl.cdiv(tl.minimum(first_position + QUERIES, keys_end), TILE)
    end = tl.where(keys_end > 0, end, 0)
    begin = first_tile
    if DIVIDED:
        share = tl.cdiv(end - first_tile, tl.num_programs(1))
        begin = first_tile + tl.program_id(1) * share
        end = tl.minimum(begin + share, end)

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, DIMS], tl.float32)
    if not WINDOWED:
        for tile in range(begin, tl.minimum(masked_from, end)):
            result, total, peak = _attend_tile(
                queries,
                result,
                total,
                peak,
                layer_base,
                table,
                tile * TILE,
                seen_from,
                seen_to,
                keys_end,
                scale2,
                pool_block_stride,
                pool_kind_stride,
                BLOCK_TOKENS,
                HEAD_DIM,
                DIMS,
                TILE,
                False,
            )
    for tile in range(tl.maximum(masked_from, begin), end):
        result, total, peak = _attend_tile(
            queries,
            result,
            total,
            peak,
            layer_base,
            table,
            tile * TILE,
            seen_from,
            seen_to,
            keys_end,
            scale2,
            pool_block_stride,
            pool_kind_stride,
            BLOCK_TOKENS,
            HEAD_DIM,
            DIMS,
            TILE,
            True,
        )
    result = result / tl.where(total == 0.0, 1.0, total)[:, None]
    if DIVIDED:
        # Laid out as the decode kernel's: for each (token, KV head) and split the heads that share the KV head.
        pair = token * (HEADS // GROUP) + kv_head
        at = pair * tl.num_programs(1) + tl.program_id(1)
        cells = (at * GROUP + head_in_group)[:, None] * HEAD_DIM + dims[None, :]
        tl.store(sums + cells, result, mask=inside & (total > 0.0)[:, None])
        tl.store(logs + at * GROUP + head_in_group, peak + tl.log2(total), mask=real)
    else:
        target = (token * HEADS + head)[:, None] * HEAD_DIM + dims[None, :]
        tl.store(output + target, result.to(output.dtype.element_ty), mask=inside)


def prefill(
    query: Tensor,
    pool: Tensor,
    layer: int,
    query_starts: Tensor,
    key_lengths: Tensor,
    tables: Tensor,
    scale: float,
    window: int,
    tiles: PrefillTiles,
    splits: int = 1,
    singles: bool = True,
) -> Tensor:
    """Attention of a packed step whose KV is in the pool already; arguments as in :func:`.ops.paged_attention`.

    With ``splits`` above 1 the keys are divided among that many programs, for steps too small to fill the device. Without
    ``singles`` the rows of sequences with one query get anything, for :func:`.triton_decode.decode_beside` to fill.
    """
    tokens, heads, head_dim = query.shape
    kv_heads = pool.shape[3]
    group = heads // kv_heads
    side = min(group, tiles.rows)
    parts = triton.cdiv(group, side)
    sequences = key_lengths.shape[0]
    output = query.new_empty(query.shape)
    sums, logs = output, output  # unused where nothing is divided
    if splits > 1:
        sums, logs = partial_sums(tokens * kv_heads, splits, group, head_dim, query.device)
    dims = max(16, triton.next_power_of_2(head_dim))
    runs = tokens // (tiles.rows // side) + sequences + 1
    prefill_kernel[runs * kv_heads * parts, splits](
        *(query, pool, query_starts, key_lengths, tables, sums, logs, output),
        *(scale, layer, tokens, sequences, window),
        *query.stride()[:2],
        *pool.stride()[:3],
        tables.stride(0),
        BLOCK_TOKENS=pool.shape[4],
        HEADS=heads,
        GROUP=group,
        SIDE=side,
        PARTS=parts,
        ROWS=tiles.rows,
        HEAD_DIM=head_dim,
        DIMS=dims,
        TILE=tiles.keys,
        WINDOWED=window > 0,
        DIVIDED=splits > 1,
        SINGLES=singles,
        SEARCH=_SEARCH,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        enable_fp_fusion=True,
    )
    if splits > 1:
        combine(sums, logs, output, kv_heads, splits)
    return output
