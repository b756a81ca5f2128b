"""Paged attention on a GPU: which kernels a call runs. CUDA and ROCm are one torch device."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from . import dense, triton_decode, triton_prefill, triton_write
from .tiles import PREFILL_SPLITS, Target, decode_tiles, prefill_splits, prefill_tiles


def paged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pool: Tensor,
    layer: int,
    write_slots: Tensor,
    query_starts: Tensor,
    key_lengths: Tensor,
    tables: Tensor,
    scale: float,
    decode: bool,
    window: int,
    whole: bool,
) -> Tensor:
    """What :func:`.ops.paged_attention` describes, by Triton kernels."""
    query, key, value = (states if states.stride(2) == 1 else states.contiguous() for states in (query, key, value))
    target = target_of(query.device)
    tokens, heads, head_dim = query.shape
    kv_heads, most_keys = key.shape[1], tables.shape[1] * pool.shape[4]
    if decode:
        shape = decode_tiles(target, head_dim, query.element_size(), tokens, kv_heads, most_keys)
        return triton_decode.decode(
            query, key, value, pool, layer, write_slots, key_lengths, tables, scale, window, shape
        )
    triton_write.write_kv(key, value, pool, layer, write_slots)
    if whole and not 0 < window < tokens and dense.ready(query, key, value):
        return dense.attend(query, key, value, scale)
    tiles = prefill_tiles(target, head_dim, query.element_size())
    splits = prefill_splits(target, tiles, tokens, heads, kv_heads, most_keys)
    step = (query_starts, key_lengths, tables, scale, window)
    # One of them at least does not decode, or this were no prefill.
    decoding = max(1, len(key_lengths) - 1)
    beside = decode_tiles(target, head_dim, query.element_size(), decoding, kv_heads, most_keys)
    # Of several sequences those with one query decode, which the other kernel does in less than half the time.
    apart = len(key_lengths) > 1 and beside.join
    output = triton_prefill.prefill(query, pool, layer, *step, tiles, splits, singles=not apart)
    if apart:
        triton_decode.decode_beside(query, pool, layer, *step, beside, output)
    return output


def rotated_decode(
    states: Tensor,
    head_norm: Tensor | None,
    rotary: Tensor,
    pool: Tensor,
    layer: int,
    write_slots: Tensor,
    key_lengths: Tensor,
    tables: Tensor,
    heads: int,
    scale: float,
    eps: float,
    window: int,
) -> Tensor:
    """What :func:`.rotated.rotated_decode` describes, by the decode kernel."""
    sequences, kv_heads, head_dim = states.shape[0], pool.shape[3], pool.shape[5]
    by_head = states.view(sequences, heads + 2 * kv_heads, head_dim)
    query, key, value = torch.split(by_head, [heads, kv_heads, kv_heads], dim=1)
    most_keys = tables.shape[1] * pool.shape[4]
    tiles = decode_tiles(target_of(states.device), head_dim, states.element_size(), sequences, kv_heads, most_keys)
    return triton_decode.decode(
        query,
        key,
        value,
        pool,
        layer,
        write_slots,
        key_lengths,
        tables,
        scale,
        window,
        tiles,
        rotary.contiguous(),
        None if head_norm is None else head_norm.contiguous(),
        eps,
    )


def prepare(
    heads: int, kv_heads: int, head_dim: int, scale: float, dtype: torch.dtype, device: torch.device, most_tokens: int
) -> None:
    """Do once what would else delay the first prompts: compile the kernels for prefill, make plans for whole prompts.

    To be called by the thread that runs the steps, since plans belong to a thread; what is compiled serves all.
    ``most_tokens`` is the longest prompt that one step computes whole.
    """
    target = target_of(device)
    with torch.cuda.device(device):
        pool = torch.zeros((1, 1, 2, kv_heads, 16, head_dim), dtype=dtype, device=device)
        states = torch.zeros((1, heads + 2 * kv_heads, head_dim), dtype=dtype, device=device)
        query, key, value = torch.split(states, [heads, kv_heads, kv_heads], dim=1)
        nowhere = torch.full((1,), -1, dtype=torch.int64, device=device)
        numbers = torch.zeros(2, dtype=torch.int32, device=device)
        tiles = prefill_tiles(target, head_dim, dtype.itemsize)
        triton_write.write_kv(key, value, pool, 0, nowhere)
        for splits in PREFILL_SPLITS:
            triton_prefill.prefill(query, pool, 0, numbers, numbers[:1], numbers[None], scale, 0, tiles, splits)
        if dense.wins(target, dtype):
            dense.prepare(heads, kv_heads, head_dim, scale, dtype, device, most_tokens)
        torch.cuda.synchronize()


@cache
def target_of(device: torch.device) -> Target:
    """What the choice of tiles needs to know of ``device``."""
    properties = torch.cuda.get_device_properties(device)
    # ROCm's name carries features after colons: gfx942:sramecc+:xnack-
    name = properties.gcnArchName.split(":")[0] if torch.version.hip else f"sm_{properties.major}{properties.minor}"
    return Target(name, properties.multi_processor_count)
