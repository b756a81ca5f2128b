"""Combining the splits of divided keys: each split's softmax-weighted sum, and the logarithm of its sum of exponentials.

Layout of both: ``[pairs, splits, heads of the KV head, …]``, a pair being a (token, KV head); scores are in base 2, so
the logarithms are too. A split without keys has -inf for its logarithm and no sum at all.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_CHUNK_ELEMENTS: Final = 4096  # of 4 warps: 32 registers a thread


@triton.jit
def combine_splits(
    sums: tl.tensor,
    logs: tl.tensor,
    output: tl.tensor,
    pair: tl.tensor,
    target: tl.tensor,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
) -> None:
    """Weigh the splits of one pair by their sums of exponentials and store the result as that of pair ``target``.

    ``CHUNK`` splits are loaded at once: their loads wait for memory together, not one after the other.
    """
    heads = tl.arange(0, HEADS)
    dims = tl.arange(0, DIMS)
    real = heads < GROUP
    first = pair * SPLITS
    every = tl.arange(0, SPLITS)
    all_logs = tl.load(
        logs + ((first + every) * GROUP)[:, None] + heads[None, :],
        mask=real[None, :],
        other=float("-inf"),
        cache_modifier=".cg",
    )
    peak = tl.max(all_logs, 0)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp2(all_logs - base[None, :]), 0)
    result = tl.zeros([HEADS, DIMS], tl.float32)
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    cells = heads[:, None] * HEAD_DIM + dims[None, :]
    for start in tl.static_range(0, SPLITS, CHUNK):
        some = first + start + tl.arange(0, CHUNK)
        log = tl.load(
            logs + (some * GROUP)[:, None] + heads[None, :],
            mask=real[None, :],
            other=float("-inf"),
            cache_modifier=".cg",
        )
        part = tl.load(
            sums + (some * (GROUP * HEAD_DIM))[:, None, None] + cells[None, :, :],
            mask=inside[None, :, :],
            other=0.0,
            cache_modifier=".cg",
        )
        # A split without keys stored no sum: what lies there may be NaN, which a weight of 0 would not silence.
        part = tl.where((log > float("-inf"))[:, :, None], part, 0.0)
        result += tl.sum(part * tl.exp2(log - base[None, :])[:, :, None], 0)
    result = result / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(output + target * (GROUP * HEAD_DIM) + cells, result.to(output.dtype.element_ty), mask=inside)


@triton.jit
def combine_rows(
    sums: tl.tensor,
    logs: tl.tensor,
    output: tl.tensor,
    pair: tl.tensor,
    head: tl.tensor,
    wanted: tl.tensor,
    shares: tl.tensor,
    SPLITS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
) -> None:
    """The same for rows of many pairs: row ``r`` is ``head[r]`` of those that share a KV head in ``pair[r]``.

    Only the first ``shares`` of the splits have stored anything. The splits' loads follow each other with nothing in between
    that waits for them.
    """
    dims = tl.arange(0, DIMS)
    first = pair * (SPLITS * GROUP) + head
    stored_until = tl.where(wanted, shares, 0)
    peak = tl.full(head.shape, float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        stored = stored_until > split
        log = tl.load(logs + first + split * GROUP, mask=stored, other=float("-inf"), cache_modifier=".cg")
        peak = tl.maximum(peak, log)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.zeros(head.shape, tl.float32)
    result = tl.zeros([head.shape[0], DIMS], tl.float32)
    for split in tl.static_range(SPLITS):
        at = first + split * GROUP
        stored = stored_until > split
        log = tl.load(logs + at, mask=stored, other=float("-inf"), cache_modifier=".cg")
        # A split without keys stored no sum: what lies there may be NaN.
        there = (stored & (log > float("-inf")))[:, None] & (dims < HEAD_DIM)[None, :]
        part = tl.load(sums + at[:, None] * HEAD_DIM + dims[None, :], mask=there, other=0.0, cache_modifier=".cg")
        weight = tl.exp2(log - base)
        total += weight
        result += part * weight[:, None]
    result = result / tl.where(total == 0.0, 1.0, total)[:, None]
    cells = (pair * GROUP + head)[:, None] * HEAD_DIM + dims[None, :]
    inside = wanted[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(output + cells, result.to(output.dtype.element_ty), mask=inside)


@triton.jit
def combine_kernel(
    sums: tl.tensor,
    logs: tl.tensor,
    output: tl.tensor,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
) -> None:
    """Combine the splits of one pair; grid ``(pairs,)``."""
    pair = tl.program_id(0).to(tl.int64)
    combine_splits(sums, logs, output, pair, pair, SPLITS, CHUNK, GROUP, HEADS, HEAD_DIM, DIMS)


def partial_sums(pairs: int, splits: int, group: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Room for the splits' sums and logarithms."""
    sums = torch.empty(pairs * splits * group * head_dim, dtype=torch.float32, device=device)
    return sums, torch.empty(pairs * splits * group, dtype=torch.float32, device=device)


def chunk_of(splits: int, group: int, head_dim: int) -> int:
    """How many splits to load at once so that they fit in the registers of a program."""
    row: int = triton.next_power_of_2(group) * triton.next_power_of_2(head_dim)
    return max(1, min(splits, _CHUNK_ELEMENTS // row))


def combine(sums: Tensor, logs: Tensor, output: Tensor, kv_heads: int, splits: int) -> None:
    """Combine all splits (a power of two) into ``output`` ``[tokens, heads, head_dim]``."""
    tokens, heads, head_dim = output.shape
    group = heads // kv_heads
    combine_kernel[(tokens * kv_heads,)](
        sums,
        logs,
        output,
        SPLITS=splits,
        CHUNK=chunk_of(splits, group, head_dim),
        GROUP=group,
        HEADS=triton.next_power_of_2(group),
        HEAD_DIM=head_dim,
        DIMS=triton.next_power_of_2(head_dim),
        num_warps=4,
        enable_fp_fusion=True,
    )
