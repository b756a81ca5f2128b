"""Triton kernel for prefill: chunks of many positions, decoding sequences mixed in, over the paged pool.

A program serves one KV head and a run of queries of one sequence; the query heads that share the KV head stand side by
side as rows, so that KV is read once for all of them and a sequence with a single query still fills a tile. Which
sequence a program serves it finds itself from ``query_starts``, so that the grid follows from shapes alone.

Where few programs would run, the keys are divided among several; the last of them to finish combines what all found.

The running softmax: Dao, FlashAttention-2 (2023), with scores in base 2.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import PrefillTiles
from .triton_combine import combine, combine_rows, partial_sums

_SEARCH: Final = 32  # sequences looked at together when a program looks for its own: one for each thread of a warp
_MOST_COUNTERS: Final = 1 << 16
_JOINED_ELEMENTS: Final = 64  # a thread, of all splits: loads that wait for memory together
# By device: how many splits of each program are done. Not the decode kernel's, which may run meanwhile. Never freed, since
# captured graphs hold its address.
_counters: dict[torch.device, Tensor] = {}


@triton.jit
def _blocks_of(
    table: tl.tensor, tile: tl.tensor, keys_end: tl.tensor, BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr
) -> tl.tensor:
    """The block of each position of a tile; unsigned, which spares the rounding of signed division."""
    positions = tile * TILE + tl.arange(0, TILE)
    return tl.load(table + positions.to(tl.uint32) // BLOCK_TOKENS, mask=positions < keys_end, other=0)


@triton.jit
def _attend_tile(
    queries: tl.tensor,
    result: tl.tensor,
    total: tl.tensor,
    peak: tl.tensor,
    layer_base: tl.tensor,
    blocks: tl.tensor,
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
    WINDOWED: tl.constexpr,
    MASKED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Add one tile of keys to the running sums; row ``r`` sees keys ``seen_from[r] … seen_to[r]`` of it."""
    lanes = tl.arange(0, TILE)
    positions = tile_start + lanes
    dims = tl.arange(0, DIMS)
    there = positions < keys_end
    # A pool has more than 2^31 elements, a block far fewer than 2^32: one wide product finds it.
    starts = blocks.to(tl.uint32).to(tl.uint64) * pool_block_stride.to(tl.uint32).to(tl.uint64)
    # In whole blocks a row of the tile is always the same row of a block.
    lanes = lanes if TILE % BLOCK_TOKENS == 0 else positions
    within = (lanes.to(tl.uint32) % BLOCK_TOKENS * HEAD_DIM)[:, None] + dims.to(tl.uint32)[None, :]
    places = layer_base + within + starts[:, None]
    # Rows past the keys may hold NaN: they are not loaded, since a weight of 0 would not silence them.
    if MASKED and HEAD_DIM == DIMS:
        keys = tl.load(places, mask=there[:, None], other=0.0)
    elif HEAD_DIM == DIMS:
        keys = tl.load(places)
    else:
        keys = tl.load(places, mask=there[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    if MASKED:
        seen = positions[None, :] <= seen_to[:, None]
        if WINDOWED:
            seen = seen & (positions[None, :] >= seen_from[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, 1) * scale2)
    # With a window, or where the keys are divided, a row may have seen no key yet.
    base = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
    weights = tl.exp2(scores * scale2 - base[:, None])
    kept = tl.exp2(peak - base)
    total = total * kept + tl.sum(weights, 1)
    result = result * kept[:, None]
    if MASKED and HEAD_DIM == DIMS:
        values = tl.load(places + pool_kind_stride, mask=there[:, None], other=0.0)
    elif HEAD_DIM == DIMS:
        values = tl.load(places + pool_kind_stride)
    else:
        values = tl.load(places + pool_kind_stride, mask=there[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
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
    counters: tl.tensor,
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
    SPLITS: tl.constexpr,
    JOINED: tl.constexpr,
    SINGLES: tl.constexpr,
    SEARCH: tl.constexpr,
    STAGES: tl.constexpr,
    YIELDS: tl.constexpr,
) -> None:
    """``ROWS // SIDE`` queries of one sequence, ``SIDE`` of the ``GROUP`` heads of one KV head.

    Grid ``((tokens // (ROWS // SIDE) + sequences + 1) * kv_heads * PARTS * SPLITS,)``: each sequence begins a run of its
    own, and one more beyond the last stands for rows of no sequence, whose output becomes zero. The keys are divided among
    ``SPLITS`` programs; with ``JOINED`` above 0 the last of them combines their sums, ``JOINED`` rows at once, otherwise
    another kernel does. Without ``SINGLES``, sequences with one query are left to another kernel; half of the programs
    yield to it, with ``YIELDS`` above 0, if it has that many keys to read, of all heads, for each key of a program.
    """
    QUERIES: tl.constexpr = ROWS // SIDE
    WIDTH: tl.constexpr = HEADS // GROUP * PARTS
    # The last queries of a prompt have the most keys: they go first, those of all heads, so that no long program is left
    # alone at the end.
    number = tl.program_id(0) // SPLITS
    split = tl.program_id(0) % SPLITS
    run = tl.num_programs(0) // (WIDTH * SPLITS) - 1 - number // WIDTH
    kv_head = number % WIDTH // PARTS
    part = number % PARTS

    # All that a program must know of its sequence comes in one trip to memory. Those that begin before the run are a head
    # of the list, the last of them is its own, and the next one's start, if there is one, its end.
    sequence, first_row, keys_end, elsewhere = -1, 0, 0, 0
    last_row = tokens
    for base in range(0, sequences + 1, SEARCH):
        index = base + tl.arange(0, SEARCH)
        starts = tl.load(query_starts + index, mask=index <= sequences, other=0)
        lengths = tl.load(key_lengths + index, mask=index < sequences, other=0)
        before = (starts // QUERIES + index <= run) & (index <= sequences)
        found = tl.sum(before.to(tl.int32), 0)
        sequence += found
        first_row = tl.maximum(first_row, tl.max(tl.where(before, starts, 0), 0))
        last_row = tl.minimum(last_row, tl.min(tl.where(before | (index > sequences), tokens, starts), 0))
        own = tl.sum(tl.where(index == sequence, lengths, 0), 0)
        keys_end = tl.where(found > 0, own, keys_end)
        if YIELDS > 0:
            after = tl.load(query_starts + index + 1, mask=index < sequences, other=0)
            elsewhere += tl.sum(tl.where(after - starts == 1, lengths, 0), 0)
    queries_here = last_row - first_row
    if not SINGLES:
        queries_here = tl.where((sequence < sequences) & (queries_here == 1), 0, queries_here)
    first_query = (run - (first_row // QUERIES + sequence)) * QUERIES
    shares = SPLITS
    if YIELDS > 0:
        yields = elsewhere * (HEADS // GROUP) >= YIELDS * tl.cdiv(keys_end, SPLITS // 2)
        shares = tl.where(yields, SPLITS // 2, SPLITS)
    if (first_query >= queries_here) | (split >= shares):
        return

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
    seen_to = tl.minimum(keys_end - queries_here + query_number, keys_end - 1)
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
    share = tl.cdiv(end - first_tile, shares)
    begin = first_tile + split * share
    end = tl.minimum(begin + share, end)

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, DIMS], tl.float32)
    # The table is read one tile ahead by hand: a compiler that pipelines that load too spends a stage on it, and then waits
    # for each tile's keys and values as soon as it has asked for them.
    blocks = _blocks_of(table, begin, keys_end, BLOCK_TOKENS, TILE)
    if not WINDOWED:
        for tile in range(begin, tl.minimum(masked_from, end)):
            later = _blocks_of(table, tile + 1, keys_end, BLOCK_TOKENS, TILE)
            result, total, peak = _attend_tile(
                queries,
                result,
                total,
                peak,
                layer_base,
                blocks,
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
                WINDOWED,
                False,
            )
            blocks = later
    # Without a window one or two tiles are left: not worth a pipeline, nor registers kept for it in the loop before.
    EDGE: tl.constexpr = STAGES if WINDOWED else 1
    for tile in tl.range(tl.maximum(masked_from, begin), end, num_stages=EDGE):
        if WINDOWED:
            later = _blocks_of(table, tile + 1, keys_end, BLOCK_TOKENS, TILE)
        else:
            blocks = _blocks_of(table, tile, keys_end, BLOCK_TOKENS, TILE)
            later = blocks
        result, total, peak = _attend_tile(
            queries,
            result,
            total,
            peak,
            layer_base,
            blocks,
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
            WINDOWED,
            True,
        )
        blocks = later
    result = result / tl.where(total == 0.0, 1.0, total)[:, None]
    if shares == 1:
        target = (token * HEADS + head)[:, None] * HEAD_DIM + dims[None, :]
        tl.store(output + target, result.to(output.dtype.element_ty), mask=inside)
    else:
        # For each (token, KV head) and split the heads that share the KV head.
        at = ((token * (HEADS // GROUP) + kv_head) * SPLITS + split) * GROUP + head_in_group
        tl.store(sums + at[:, None] * HEAD_DIM + dims[None, :], result, mask=inside & (total > 0.0)[:, None])
        tl.store(logs + at, peak + tl.log2(total), mask=real)
        if JOINED > 0:
            # Every thread's stores come before the one thread's releasing count, by the barrier.
            tl.debug_barrier()
            done = tl.atomic_add(counters + number, 1, sem="acq_rel")
            if done == shares - 1:
                tl.store(counters + number, 0)
                for start in range(0, ROWS, JOINED):
                    some = start + tl.arange(0, JOINED)
                    number_of = first_query + some // SIDE
                    in_group = part * SIDE + some % SIDE
                    wanted = (some < QUERIES * SIDE) & (number_of < queries_here) & (in_group < GROUP)
                    pair = (first_row + number_of).to(tl.int64) * (HEADS // GROUP) + kv_head
                    combine_rows(sums, logs, output, pair, in_group, wanted, shares, SPLITS, GROUP, HEAD_DIM, DIMS)


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
    singles: bool = True,
    output: Tensor | None = None,
) -> Tensor:
    """Attention of a packed step whose KV is in the pool already; arguments as in :func:`.ops.paged_attention`.

    Without ``singles`` the rows of sequences with one query are :func:`.triton_decode.decode_beside`'s to fill: with
    ``tiles.join`` nothing is stored there, else anything. ``output``: where the result goes, contiguous, unless a new tensor
    shall be made. Launches on one device must follow each other: with ``tiles.join`` they share the counters.
    """
    tokens, heads, head_dim = query.shape
    sequences, kv_heads = key_lengths.shape[0], pool.shape[3]
    group = heads // kv_heads
    side, dims = min(group, tiles.rows), max(16, triton.next_power_of_2(head_dim))
    parts = triton.cdiv(group, side)
    output = query.new_empty(query.shape) if output is None else output
    programs = (tokens // (tiles.rows // side) + sequences + 1) * kv_heads * parts
    counters = _counters_of(query.device, programs) if tiles.join and tiles.splits > 1 else None
    splits = 1 if tiles.join and counters is None else tiles.splits
    joined = 0 if counters is None else _rows_at_once(tiles, dims)
    sums, logs = output, output  # unused where nothing is divided
    if splits > 1:
        sums, logs = partial_sums(tokens * kv_heads, splits, group, head_dim, query.device)
    prefill_kernel[(programs * splits,)](
        *(query, pool, query_starts, key_lengths, tables, sums, logs, query_starts if counters is None else counters),
        *(output, scale, layer, tokens, sequences, window),
        *(*query.stride()[:2], *pool.stride()[:3], tables.stride(0)),
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
        SPLITS=splits,
        JOINED=joined,
        SINGLES=singles,
        SEARCH=_SEARCH,
        STAGES=tiles.stages,
        YIELDS=tiles.yields if splits > 1 and not singles else 0,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        enable_fp_fusion=True,
        **({"maxnreg": tiles.registers} if tiles.registers else {}),  # other backends do not know it
    )
    if splits > 1 and joined == 0:
        combine(sums, logs, output, kv_heads, splits)
    return output


def _rows_at_once(tiles: PrefillTiles, dims: int) -> int:
    """How many rows the last program combines at once, so that those of all splits fit in its registers."""
    most: int = _JOINED_ELEMENTS * 32 * tiles.warps // (dims * triton.next_power_of_2(tiles.splits))
    return max(1, min(tiles.rows, most))


def _counters_of(device: torch.device, programs: int) -> Tensor | None:
    """Counters at zero, shared by all launches on ``device``; ``None`` where there are none for these.

    They cannot be made while a graph is captured: the zeroing would be captured with it instead of done.
    """
    if programs > _MOST_COUNTERS:
        return None
    if device not in _counters:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        _counters[device] = torch.zeros(_MOST_COUNTERS, dtype=torch.int32, device=device)
    return _counters[device]
