"""Triton kernels for decoding: one query a sequence, the keys of all sequences divided evenly among many programs.

A program serves one KV head, all query heads that share it, and a run of tiles of keys (:mod:`.triton_shares`), so that
every byte of KV is read once and no program reads more than another. The step's own key and value come straight from the
arguments: the program with a sequence's first tile begins its sum with them and writes them to the pool, where no other
program reads them in this step. One launch therefore does the whole layer, with a second one to combine the parts
where the last program to finish does not do that.

In a step of prefill the same kernel serves the sequences that decode beside it (:func:`decode_beside`): 128 rows of a tile
with one query in them would take most of such a step's attention.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import DecodeTiles
from .triton_shares import (
    BORDER,
    divide,
    keys_in_pool,
    parts_at_once,
    parts_of,
    room_for_parts,
    sequence_at,
    weigh,
    weigh_kernel,
)
from .triton_turn import turned

_MOST_COUNTERS: Final = 1 << 16
# By device: how many parts of each (KV head, sequence) are done. Never freed, since captured graphs hold its address.
_counters: dict[torch.device, Tensor] = {}


@triton.jit
def _attend_tile(
    queries: tl.tensor,
    result: tl.tensor,
    total: tl.tensor,
    peak: tl.tensor,
    places: tl.tensor,
    seen: tl.tensor,
    scale2: tl.tensor,
    pool_kind_stride: tl.tensor,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Add the keys at ``places`` that are ``seen`` to the running sums."""
    if HEAD_DIM == DIMS:
        keys = tl.load(places)
        values = tl.load(places + pool_kind_stride)
    else:
        own = (tl.arange(0, DIMS) < HEAD_DIM)[None, :]
        keys = tl.load(places, mask=own, other=0.0)
        values = tl.load(places + pool_kind_stride, mask=own, other=0.0)
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale2
    scores = tl.where(seen[None, :], scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    kept = tl.exp2(peak - higher)
    result = tl.dot(weights.to(values.dtype), values, result * kept[:, None], input_precision="ieee")
    return result, total * kept + tl.sum(weights, 1), higher


@triton.jit(do_not_specialize=["sequences", "layer", "window", "table_stride"])
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
    sequences: tl.tensor,
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
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    TILE: tl.constexpr,
    SEQUENCES: tl.constexpr,
    BORDER: tl.constexpr,
    CHUNK: tl.constexpr,
    HEADS: tl.constexpr,
    JOIN: tl.constexpr,
    ROTATED: tl.constexpr,
    NORMED: tl.constexpr,
    WINDOWED: tl.constexpr,
    BESIDE: tl.constexpr,
) -> None:
    """Attention of one KV head over one run of tiles; grid ``(runs * KV_HEADS,)``.

    ``ROTATED``: query and key come as the projection gives them; ``NORMED``: each head is normed before it is rotated.
    ``BESIDE``: the step has sequences of many queries too, which are left alone, and all KV is in the pool already.
    """
    run = tl.program_id(0) // KV_HEADS
    kv_head = tl.program_id(0) % KV_HEADS
    runs = tl.num_programs(0) // KV_HEADS
    step = (key_lengths, write_slots, query_starts, sequences, window, runs)
    ends, all_units, share = divide(*step, SEQUENCES, TILE, BORDER, WINDOWED, BESIDE)
    begin = run * share
    stop = tl.minimum(begin + share, all_units)
    if begin >= stop:
        return

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIMS)
    lanes = tl.arange(0, TILE)
    real = rows < GROUP
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    cells = rows[:, None] * HEAD_DIM + dims[None, :]
    heads = kv_head * GROUP + rows
    scale2 = scale * 1.4426950408889634  # scores in base 2: exp2 is one instruction
    # 64 bits throughout: a pool has more than 2^31 elements.
    layer_base = pool + layer.to(tl.int64) * pool_layer_stride + kv_head * (BLOCK_TOKENS * HEAD_DIM)
    unit = begin
    while unit < stop:
        sequence, first_unit, end_unit = sequence_at(unit, ends, all_units)
        # Tiles of this sequence that come before the run, and where those in the run end.
        skipped = unit - first_unit
        until = tl.minimum(end_unit - BORDER, stop) - first_unit
        if skipped < until:
            length = tl.load(key_lengths + sequence)
            if BESIDE:
                token = tl.load(query_starts + sequence).to(tl.int64)
                slot = tl.full((), -1, tl.int64)
            else:
                token = sequence.to(tl.int64)
                slot = tl.load(write_slots + sequence)
            # Keys in the pool that this sequence sees: low … high - 1.
            high = keys_in_pool(length, slot)
            low = 0
            if WINDOWED:
                low = tl.maximum(length - window, 0)
            first_tile = low // TILE
            # Positions past the keys take the last one's row, since others may hold NaN. The blocks of a tile are loaded
            # one tile ahead: as a load of the same round they would cost the pipeline half of its depth.
            last = tl.maximum(high - 1, 0)
            table = tables + sequence.to(tl.int64) * table_stride
            positions = tl.minimum((first_tile + skipped) * TILE + lanes, last)
            blocks = tl.load(table + positions // BLOCK_TOKENS)

            query_rows = token * query_token_stride + heads * query_head_stride
            turns = rotary + token * HEAD_DIM
            if ROTATED:
                queries = turned(query, query_rows, head_norm, heads, turns, real, eps, HEAD_DIM, DIMS, NORMED)
            else:
                queries = tl.load(query + query_rows[:, None] + dims[None, :], mask=inside, other=0.0)

            peak = tl.full([ROWS], float("-inf"), tl.float32)
            total = tl.zeros([ROWS], tl.float32)
            result = tl.zeros([ROWS, DIMS], tl.float32)
            if (high < length) & (skipped == 0):
                own = dims < HEAD_DIM
                value_row = token * value_token_stride + kv_head * value_head_stride
                new_value = tl.load(value + value_row + dims, mask=own, other=0.0)
                key_row = token * key_token_stride + kv_head * key_head_stride
                if ROTATED:
                    one = tl.arange(0, 1)
                    norm_row = one + KV_HEADS * GROUP + kv_head
                    row = one + key_row
                    new = turned(key, row, head_norm, norm_row, turns, one == 0, eps, HEAD_DIM, DIMS, NORMED)
                    new_key = tl.reshape(new, [DIMS])
                else:
                    new_key = tl.load(key + key_row + dims, mask=own, other=0.0)
                peak = tl.sum(queries.to(tl.float32) * new_key.to(tl.float32)[None, :], 1) * scale2
                total += 1.0
                result += new_value.to(tl.float32)[None, :]
                cell = layer_base + (slot // BLOCK_TOKENS) * pool_block_stride + (slot % BLOCK_TOKENS) * HEAD_DIM + dims
                tl.store(cell, new_key, mask=own)
                tl.store(cell + pool_kind_stride, new_value, mask=own)

            for tile in range(first_tile + skipped, tl.minimum(first_tile + until, tl.cdiv(high, TILE))):
                starts = blocks.to(tl.int64) * pool_block_stride + (positions % BLOCK_TOKENS) * HEAD_DIM
                places = layer_base + starts[:, None] + dims[None, :]
                here = tile * TILE + lanes
                positions = tl.minimum(here + TILE, last)
                blocks = tl.load(table + positions // BLOCK_TOKENS)
                seen = here < high
                if WINDOWED:
                    seen = seen & (here >= low)
                result, total, peak = _attend_tile(
                    queries, result, total, peak, places, seen, scale2, pool_kind_stride, HEAD_DIM, DIMS
                )

            result = result / tl.where(total == 0.0, 1.0, total)[:, None]
            _, parts = parts_of(first_unit, end_unit, share, BORDER)
            if parts == 1:
                target = (token * KV_HEADS + kv_head) * (GROUP * HEAD_DIM)
                tl.store(output + target + cells, result.to(output.dtype.element_ty), mask=inside)
            else:
                place = (kv_head * (runs + sequences) + run + sequence).to(tl.int64)
                tl.store(sums + place * (GROUP * HEAD_DIM) + cells, result, mask=inside)
                tl.store(logs + place * GROUP + rows, peak + tl.log2(total), mask=real)
        unit = end_unit

    if JOIN:
        # Every thread's stores come before the one thread's releasing count, by the barrier. Only the first and the last
        # sequence of a run have parts elsewhere.
        tl.debug_barrier()
        for at_end in tl.static_range(2):
            sequence, first_unit, end_unit = sequence_at(stop - 1 if at_end else begin, ends, all_units)
            first, parts = parts_of(first_unit, end_unit, share, BORDER)
            has_part = first_unit > begin if at_end else begin < end_unit - BORDER
            if has_part & (parts > 1):
                counter = counters + kv_head * sequences + sequence
                done = tl.atomic_add(counter, 1, sem="acq_rel")
                if done == parts - 1:
                    tl.store(counter, 0)
                    token = tl.load(query_starts + sequence) if BESIDE else sequence
                    target = token.to(tl.int64) * KV_HEADS + kv_head
                    place = (kv_head * (runs + sequences) + first + sequence).to(tl.int64)
                    weigh(sums, logs, output, place, parts, target, CHUNK, GROUP, HEADS, HEAD_DIM, DIMS)


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

    With ``rotary``, query and key are normed and rotated first: see :func:`.rotated.rotated_attention`.
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

    Their KV is in the pool already. Arguments as in :func:`.ops.paged_attention`; ``output`` is contiguous.
    """
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
    kv_heads, group = pool.shape[3], query.shape[1] // pool.shape[3]
    head_dim, runs = query.shape[2], max(1, tiles.programs // kv_heads)
    starts = key_lengths if query_starts is None else query_starts
    sums, logs = room_for_parts(kv_heads * (runs + sequences), group, head_dim, query.device)
    counters = _counters_of(query.device, sequences * kv_heads) if tiles.join else None
    division = {
        "SEQUENCES": triton.next_power_of_2(sequences),
        "TILE": tiles.keys,
        "BORDER": BORDER,
        "CHUNK": parts_at_once(group, head_dim),
        "GROUP": group,
        "HEADS": triton.next_power_of_2(group),
        "HEAD_DIM": head_dim,
        "DIMS": max(16, triton.next_power_of_2(head_dim)),
        "WINDOWED": window > 0,
        "BESIDE": query_starts is not None,
    }
    decode_kernel[(runs * kv_heads,)](
        *(*states, pool, write_slots, key_lengths, tables, sums, logs),
        *(tables if counters is None else counters, output),
        *(query if head_norm is None else head_norm, query if rotary is None else rotary, starts),
        *(eps, scale, sequences, layer, window),
        *(stride for one in states for stride in one.stride()[:2]),
        *pool.stride()[:3],
        tables.stride(0),
        BLOCK_TOKENS=pool.shape[4],
        KV_HEADS=kv_heads,
        ROWS=max(16, triton.next_power_of_2(group)),
        JOIN=counters is not None,
        ROTATED=rotary is not None,
        NORMED=head_norm is not None,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        enable_fp_fusion=True,
        **division,
        **({"maxnreg": tiles.registers} if tiles.registers else {}),
    )
    if counters is None:
        step = (key_lengths, write_slots, starts, sums, logs, output, sequences, window, runs)
        weigh_kernel[sequences, kv_heads](*step, num_warps=tiles.warps, enable_fp_fusion=True, **division)


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
