"""Paged attention on a GPU: which kernels a call runs. CUDA and ROCm are one torch device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Final

import torch
from torch import Tensor

from ..graphs import MOST_TOKENS, prefill_sizes
from . import dense, triton_decode, triton_prefill, triton_write
from .tiles import Target, beside_tiles, decode_tiles, prefill_tiles

_MOST_PREPARED: Final = 4096  # tokens: larger steps are like those of that size
_LONG: Final = 1 << 20  # keys: no context is too short to be divided


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
    tokens, _, head_dim = query.shape
    kv_heads, most_keys = key.shape[1], tables.shape[1] * pool.shape[4]
    if decode:
        shape = decode_tiles(target, head_dim, query.element_size(), tokens, kv_heads, most_keys)
        return triton_decode.decode(
            query, key, value, pool, layer, write_slots, key_lengths, tables, scale, window, shape
        )
    triton_write.write_kv(key, value, pool, layer, write_slots)
    if whole and not 0 < window < tokens and dense.ready(query, key, value):
        return dense.attend(query, key, value, scale)
    return _prefill(query, pool, layer, query_starts, key_lengths, tables, scale, window)


def _prefill(
    query: Tensor,
    pool: Tensor,
    layer: int,
    query_starts: Tensor,
    key_lengths: Tensor,
    tables: Tensor,
    scale: float,
    window: int,
) -> Tensor:
    """Attention of a step of prefill whose KV is in the pool already."""
    target = target_of(query.device)
    tokens, heads, head_dim = query.shape
    kv_heads, most_keys = pool.shape[3], tables.shape[1] * pool.shape[4]
    step = (query_starts, key_lengths, tables, scale, window)
    # The same tiles with a graph and without: what is run before a capture is what the capture needs compiled.
    at_once = len(key_lengths) > 1 and tokens <= MOST_TOKENS
    shape = (target, head_dim, query.element_size(), tokens, heads, kv_heads, most_keys)
    tiles = prefill_tiles(*shape, beside=at_once)
    # Of several sequences those with one query decode, which the other kernel does in less than half the time; but where
    # another kernel combines a prefill's splits, it does not know which rows are whose.
    if len(key_lengths) == 1 or not tiles.join:
        return triton_prefill.prefill(query, pool, layer, *step, tiles)
    # One of them at least does not decode, or this were no prefill.
    beside = decode_tiles(target, head_dim, query.element_size(), len(key_lengths) - 1, kv_heads, most_keys)
    if at_once:
        beside = beside_tiles(target, tiles, beside)
    output = query.new_empty(query.shape)
    with _side_by_side(query.device) as aside:
        # First, so that each processor gets its share of both: a prefill's programs would fill them.
        with aside:
            triton_decode.decode_beside(query, pool, layer, *step, beside, output)
        triton_prefill.prefill(query, pool, layer, *step, tiles, singles=False, output=output)
    return output


@contextmanager
def _side_by_side(device: torch.device) -> Iterator[AbstractContextManager[object]]:
    """Gives the context for work that may run at the same time as what follows it here; both are over at the end.

    Decoding waits for memory while prefill computes. Only graphs are forked: launched one by one, the events would cost the
    host what the device gains.
    """
    if not torch.cuda.is_current_stream_capturing():
        yield nullcontext()
        return
    main, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(main)
    yield torch.cuda.stream(side)
    main.wait_stream(side)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def rotated_attention(
    states: Tensor,
    head_norm: Tensor | None,
    rotary: Tensor,
    pool: Tensor,
    layer: int,
    write_slots: Tensor,
    query_starts: Tensor,
    key_lengths: Tensor,
    tables: Tensor,
    heads: int,
    scale: float,
    eps: float,
    decode: bool,
    window: int,
) -> Tensor:
    """What :func:`.rotated.rotated_attention` describes, of steps that are no whole prompt."""
    norm, rotary = None if head_norm is None else head_norm.contiguous(), rotary.contiguous()
    if not decode:
        query = triton_write.rotate_and_write(states, norm, rotary, pool, layer, write_slots, heads, eps)
        return _prefill(query, pool, layer, query_starts, key_lengths, tables, scale, window)
    sequences, kv_heads, head_dim = states.shape[0], pool.shape[3], pool.shape[5]
    by_head = states.view(sequences, heads + 2 * kv_heads, head_dim)
    query, key, value = torch.split(by_head, [heads, kv_heads, kv_heads], dim=1)
    most_keys = tables.shape[1] * pool.shape[4]
    tiles = decode_tiles(target_of(states.device), head_dim, states.element_size(), sequences, kv_heads, most_keys)
    step = (write_slots, key_lengths, tables, scale, window)
    return triton_decode.decode(query, key, value, pool, layer, *step, tiles, rotary, norm, eps)


def prepare(
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_tokens: int,
    scale: float,
    dtype: torch.dtype,
    device: torch.device,
    most_tokens: int,
) -> None:
    """Do once what would else delay the first prompts: compile the kernels for prefill, make plans for whole prompts.

    To be called by the thread that runs the steps, since plans belong to a thread; what is compiled serves all.
    ``most_tokens`` is the longest prompt that one step computes whole.
    """
    target = target_of(device)
    with torch.cuda.device(device):
        pool = torch.zeros((1, 1, 2, kv_heads, block_tokens, head_dim), dtype=dtype, device=device)
        states = torch.zeros((1, heads + 2 * kv_heads, head_dim), dtype=dtype, device=device)
        query, key, value = torch.split(states, [heads, kv_heads, kv_heads], dim=1)
        nowhere = torch.full((1,), -1, dtype=torch.int64, device=device)
        numbers = torch.zeros(2, dtype=torch.int32, device=device)
        triton_write.write_kv(key, value, pool, 0, nowhere)
        sizes = (*prefill_sizes(MOST_TOKENS), _MOST_PREPARED)  # what steps are padded to, with graphs or without
        shape = (heads, kv_heads, _LONG)
        for tiles in {prefill_tiles(target, head_dim, dtype.itemsize, n, *shape, n <= MOST_TOKENS) for n in sizes}:
            step = (numbers, numbers[:1], numbers[None], scale, 0)
            triton_prefill.prefill(query, pool, 0, *step, tiles, singles=not tiles.join)
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
