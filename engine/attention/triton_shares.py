"""Dividing the keys of a decoding step evenly among a fixed number of programs, and combining what they found.

All sequences' tiles of keys stand in one row, and after those of each ``BORDER`` units for what it costs to go on to the
next. The row is cut into runs of one length (``share``), so that contexts of 500 and of 20,000 tokens keep the device
equally busy; the lengths are on the device, so a captured graph stays right. A program serves one run for one KV head. The
programs of one run do the same for all heads at about the same time, side by side in each block of the pool: a block of
all layers is larger than a page of the device's memory, and a page that is looked up for one head serves all.

The sequences' borders cut a run into parts. The parts of a sequence are found in the runs ``first`` … ``first + parts -
1``; the part of run ``r`` lies at place ``r + sequence``, where no two parts meet and those of one sequence are neighbours.
A part's sum is that of softmax weights times values; its logarithm, in base 2, is that of the sum of exponentials.

After Sanovar et al., Lean Attention (2024).
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

BORDER: Final = 4  # in tiles, measured: what a program loses between two sequences
_CHUNK_ELEMENTS: Final = 8192  # of 2 warps: 128 registers a thread


@triton.jit
def keys_in_pool(length: tl.tensor, slot: tl.tensor) -> tl.tensor:
    """Of ``length`` keys those that the pool has already: a step's own key, written to ``slot`` in it, is not there yet."""
    return tl.where((slot >= 0) & (length > 0), length - 1, length)


@triton.jit
def divide(
    key_lengths: tl.tensor,
    write_slots: tl.tensor,
    query_starts: tl.tensor,
    sequences: tl.tensor,
    window: tl.tensor,
    runs: tl.tensor,
    SEQUENCES: tl.constexpr,
    TILE: tl.constexpr,
    BORDER: tl.constexpr,
    WINDOWED: tl.constexpr,
    BESIDE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Where the units of each sequence end, how many there are, and how many of them are one run.

    A sequence without keys has one tile as well, since its output is to be written. ``BESIDE``: only sequences with one
    query count.
    """
    index = tl.arange(0, SEQUENCES)
    counted = index < sequences
    lengths = tl.load(key_lengths + index, mask=counted, other=0)
    if BESIDE:
        first = tl.load(query_starts + index, mask=counted, other=0)
        after = tl.load(query_starts + index + 1, mask=counted, other=0)
        counted = counted & (after - first == 1)
        tiles = tl.cdiv(lengths, TILE)
    else:
        slots = tl.load(write_slots + index, mask=counted, other=-1)
        tiles = tl.cdiv(keys_in_pool(lengths, slots), TILE)
    if WINDOWED:
        tiles -= tl.maximum(lengths - window, 0) // TILE
    units = tl.where(counted, tl.maximum(tiles, 1) + BORDER, 0)
    all_units = tl.sum(units, 0)
    return tl.cumsum(units, 0), all_units, tl.maximum(tl.cdiv(all_units, runs), 1)


@triton.jit
def sequence_at(unit: tl.tensor, ends: tl.tensor, all_units: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The sequence that ``unit`` belongs to, and where its units begin and end."""
    before = ends <= unit
    sequence = tl.sum(before.to(tl.int32), 0)
    return sequence, tl.max(tl.where(before, ends, 0), 0), tl.min(tl.where(before, all_units, ends), 0)


@triton.jit
def parts_of(begin: tl.tensor, end: tl.tensor, share: tl.tensor, BORDER: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The first run that has a part of the sequence with units ``begin`` … ``end - 1``, and how many have one."""
    first = begin // share
    return first, (end - BORDER - 1) // share - first + 1


@triton.jit
def weigh(
    sums: tl.tensor,
    logs: tl.tensor,
    output: tl.tensor,
    place: tl.tensor,
    parts: tl.tensor,
    target: tl.tensor,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
) -> None:
    """Weigh a pair's ``parts`` from ``place`` on by their sums of exponentials; the result is that of pair ``target``.

    ``CHUNK`` parts are loaded at once: their loads wait for memory together, not one after the other.
    """
    heads = tl.arange(0, HEADS)
    dims = tl.arange(0, DIMS)
    real = heads < GROUP
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    cells = heads[:, None] * HEAD_DIM + dims[None, :]
    peak = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    result = tl.zeros([HEADS, DIMS], tl.float32)
    for start in range(0, parts, CHUNK):
        some = start + tl.arange(0, CHUNK)
        there = some < parts
        log = tl.load(
            logs + ((place + some) * GROUP)[:, None] + heads[None, :],
            mask=there[:, None] & real[None, :],
            other=float("-inf"),
            cache_modifier=".cg",
        )
        part = tl.load(
            sums + ((place + some) * (GROUP * HEAD_DIM))[:, None, None] + cells[None, :, :],
            mask=there[:, None, None] & inside[None, :, :],
            other=0.0,
            cache_modifier=".cg",
        )
        higher = tl.maximum(peak, tl.max(log, 0))
        base = tl.where(real, higher, 0.0)
        weights = tl.exp2(log - base[None, :])
        kept = tl.exp2(peak - base)
        total = total * kept + tl.sum(weights, 0)
        result = result * kept[:, None] + tl.sum(part * weights[:, :, None], 0)
        peak = higher
    result = result / tl.where(real, total, 1.0)[:, None]
    tl.store(output + target * (GROUP * HEAD_DIM) + cells, result.to(output.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["sequences", "window", "runs"])
def weigh_kernel(
    key_lengths: tl.tensor,
    write_slots: tl.tensor,
    query_starts: tl.tensor,
    sums: tl.tensor,
    logs: tl.tensor,
    output: tl.tensor,
    sequences: tl.tensor,
    window: tl.tensor,
    runs: tl.tensor,
    SEQUENCES: tl.constexpr,
    TILE: tl.constexpr,
    BORDER: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    WINDOWED: tl.constexpr,
    BESIDE: tl.constexpr,
) -> None:
    """Weigh the parts of one sequence and KV head, where they are several; grid ``(sequences, kv_heads)``."""
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    step = (key_lengths, write_slots, query_starts, sequences, window, runs)
    ends, _, share = divide(*step, SEQUENCES, TILE, BORDER, WINDOWED, BESIDE)
    index = tl.arange(0, SEQUENCES)
    begin = tl.sum(tl.where(index == sequence - 1, ends, 0), 0)
    end = tl.sum(tl.where(index == sequence, ends, 0), 0)
    first, parts = parts_of(begin, end, share, BORDER)
    token = sequence
    if BESIDE:
        token = tl.load(query_starts + sequence)
    if (end > begin) & (parts > 1):
        place = (kv_head * (runs + sequences) + first + sequence).to(tl.int64)
        target = token.to(tl.int64) * tl.num_programs(1) + kv_head
        weigh(sums, logs, output, place, parts, target, CHUNK, GROUP, HEADS, HEAD_DIM, DIMS)


def room_for_parts(places: int, group: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Room for the parts' sums and logarithms; ``places`` is KV heads · (runs + sequences)."""
    sums = torch.empty(places * group * head_dim, dtype=torch.float32, device=device)
    return sums, torch.empty(places * group, dtype=torch.float32, device=device)


def parts_at_once(group: int, head_dim: int) -> int:
    """How many parts to load together so that they fit in the registers of a program; a power of two."""
    row: int = triton.next_power_of_2(group) * triton.next_power_of_2(head_dim)
    return max(1, _CHUNK_ELEMENTS // row)
