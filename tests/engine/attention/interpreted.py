"""Run every case by Triton's interpreter: ``TRITON_INTERPRET=1 python -m tests.engine.attention.interpreted``.

A process of its own, since Triton decides when it is imported. Prints one JSON object: each test's error, or null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvtrace.engine.attention import gpu, triton_decode, triton_prefill, triton_write
from kvtrace.engine.attention.tiles import DecodeTiles, PrefillTiles, Target
from kvtrace.engine.geometry import BLOCK_SIZES

from .cases import (
    Attend,
    Case,
    beside_cases,
    build,
    check,
    check_rotated,
    decode_cases,
    prefill_cases,
    rotated_cases,
)

# What the devices' tables choose, and divisions of every kind: one program a head, runs that hold many sequences, sequences
# of many runs, programs without work; joined by the last or by a kernel.
DECODE: Final = (
    DecodeTiles(32, 1, 4, 1, join=True),
    DecodeTiles(32, 10, 4, 1, join=False),
    DecodeTiles(64, 24, 2, 1, join=True),
)
PREFILL: Final = (
    PrefillTiles(32, 32, 4, 1),
    PrefillTiles(64, 32, 4, 1, splits=4),
    PrefillTiles(128, 64, 8, 1),
    PrefillTiles(64, 32, 4, 1, splits=3, join=True),
)

TARGETS: Final = (Target("sm_90", 4), Target("gfx1201", 3))  # with few processors, so that keys are divided


def by_decode(tiles: DecodeTiles) -> Attend:
    """The op by the decode kernel."""

    def attend(query: Tensor, key: Tensor, value: Tensor, pool: Tensor, layer: int, *step: Any) -> Tensor:
        slots, _, lengths, tables, scale, _, window, _ = step
        # One layer's view of the pool, as a decoder passes it that has one compiled region for all layers.
        view = pool[:, layer : layer + 1]
        return triton_decode.decode(query, key, value, view, 0, slots, lengths, tables, scale, window, tiles)

    return attend


def by_prefill(tiles: PrefillTiles, beside: DecodeTiles | None = None) -> Attend:
    """The op by the kernels that write and prefill; ``beside`` leaves single queries to the decode kernel."""

    def attend(query: Tensor, key: Tensor, value: Tensor, pool: Tensor, layer: int, *step: Any) -> Tensor:
        slots, starts, lengths, tables, scale, _, window, _ = step
        triton_write.write_kv(key, value, pool, layer, slots)
        places = (starts, lengths, tables, scale, window)
        output = triton_prefill.prefill(query, pool, layer, *places, tiles, singles=beside is None)
        if beside is not None:
            triton_decode.decode_beside(query, pool, layer, *places, beside, output)
        return output

    return attend


def by_gpu(target: Target, attend: Attend) -> Attend:
    """An entrance of :mod:`kvtrace.engine.attention.gpu` as it is, with the tiles that its tables have for ``target``."""

    def on_target(*arguments: Any) -> Tensor:
        gpu.target_of = lambda device: target  # type: ignore[assignment]  # this process is the interpreter's alone
        torch.cuda.is_current_stream_capturing = lambda: False
        return attend(*arguments)

    return on_target


QUERIES_OF_KEYS: Final = st.integers(1, 70).flatmap(
    lambda keys: st.tuples(st.integers(1, min(keys, 20)), st.just(keys))
)
SEQUENCES: Final = st.lists(st.one_of(QUERIES_OF_KEYS, st.just((1, 0))), min_size=1, max_size=3).map(tuple)
HEADS: Final = st.sampled_from([(1, 1, 32), (3, 1, 16), (4, 2, 16), (8, 1, 24)])
WINDOWS: Final = st.sampled_from([0, 0, 1, 16, 50])
BLOCKS: Final = st.sampled_from(BLOCK_SIZES)


@given(
    SEQUENCES, HEADS, WINDOWS, BLOCKS, st.sampled_from([2, 3, 5]), st.sampled_from([0, 1, 4]), st.sampled_from([0, 3])
)
@settings(max_examples=10, deadline=None, derandomize=True, database=None)
def any_joined_prefill(
    sequences: tuple[tuple[int, int], ...],
    heads: tuple[int, int, int],
    window: int,
    block_tokens: int,
    splits: int,
    yields: int,
    extra: int,
) -> None:
    """Any step, its keys divided, with and without the decode kernel for single queries, is what the reference computes."""
    case = Case(sequences, *heads, window, extra_tokens=extra, block_tokens=block_tokens)
    tiles = PrefillTiles(16, 32, 4, 1, splits=splits, join=True, yields=yields)
    step = build(case, 5, "cpu", torch.float32)
    check(case, step, by_prefill(tiles), 1e-4)
    check(case, step, by_prefill(tiles, DECODE[2]), 1e-4)


@given(SEQUENCES, HEADS, WINDOWS, BLOCKS, st.booleans(), st.booleans())
@settings(max_examples=6, deadline=None, derandomize=True, database=None)
def any_rotated_prefill(
    sequences: tuple[tuple[int, int], ...],
    heads: tuple[int, int, int],
    window: int,
    block_tokens: int,
    normed: bool,
    unwritten: bool,
) -> None:
    """Rotation and KV write by one kernel are what the reference computes in two."""
    first = (0,) if unwritten else ()
    case = Case(sequences, *heads, window, unwritten=first, extra_tokens=1, block_tokens=block_tokens)
    for target in TARGETS:
        check_rotated(case, build(case, 6, "cpu", torch.float32), normed, by_gpu(target, gpu.rotated_attention), 1e-4)


KEYS: Final = st.sampled_from([0, 1, 2, 16, 17, 32, 33, 64, 65, 130])


@given(
    st.lists(KEYS, min_size=1, max_size=5),
    HEADS,
    WINDOWS,
    BLOCKS,
    st.sampled_from([1, 2, 3, 5, 8, 13]),
    st.sampled_from([16, 32, 64]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def any_division(
    keys: list[int],
    heads: tuple[int, int, int],
    window: int,
    block_tokens: int,
    programs: int,
    tile: int,
    join: bool,
    unwritten: bool,
) -> None:
    """Sequences of any lengths, divided among any number of programs, are what the reference computes."""
    sequences, first = tuple((1, one) for one in keys), (0,) if unwritten else ()
    case = Case(sequences, *heads, window, unwritten=first, block_tokens=block_tokens)
    tiles = DecodeTiles(tile, programs, 2, 1, join)
    check(case, build(case, 7, "cpu", torch.float32), by_decode(tiles), 1e-4)
    # A count left over would show in a later step alone.
    assert not any(counters.any() for counters in triton_decode._counters.values())


def planned() -> dict[str, Callable[[], None]]:
    """Every test by its name. bfloat16 is missing: the interpreter's ``tl.dot`` gets it wrong."""
    tests: dict[str, Callable[[], None]] = {
        "any lengths among any number of programs": any_division,
        "any step of prefill, divided and joined": any_joined_prefill,
        "any step of prefill from the raw projection": any_rotated_prefill,
    }

    def add(mark: str, case: Case, attend: Attend, dtype: torch.dtype = torch.float32, tolerance: float = 1e-4) -> None:
        tests[f"{mark}-{case}"] = lambda: check(case, build(case, 3, "cpu", dtype), attend, tolerance)

    for case in decode_cases():
        for tiles in DECODE:
            add(f"decode-{tiles.keys}x{tiles.programs}{'-joined' * tiles.join}", case, by_decode(tiles))
    for case in prefill_cases():
        for shape in PREFILL if len(case.sequences) < 9 else PREFILL[:1]:
            mark = f"prefill-{shape.rows}x{shape.keys}x{shape.splits}{'-joined' * shape.join}"
            add(mark, case, by_prefill(shape))
    for case in beside_cases():
        add("beside-undivided", case, by_prefill(PREFILL[0], DecodeTiles(64, 1, 4, 1, join=True)))
        add("beside-joined", case, by_prefill(PREFILL[3], DECODE[2]))
        add("beside-combined", case, by_prefill(PREFILL[0], DECODE[1]))
        for splits in (3, 4):  # which become 1 and 2 in all of these
            yielding = replace(PREFILL[3], splits=splits, yields=1)
            add(f"beside-yielding-{splits}", case, by_prefill(yielding, DECODE[2]))
        for target in TARGETS:
            add(f"beside-{target.architecture}", case, by_gpu(target, gpu.paged_attention))
    half = Case(((1, 33), (1, 0), (1, 70), (1, 1)), 8, 2, 128)
    add("decode-float16", half, by_decode(DECODE[2]), torch.float16, 4e-3)
    add("prefill-float16", half, by_prefill(PREFILL[1]), torch.float16, 4e-3)
    for case, normed in rotated_cases():
        step = build(case, 3, "cpu", torch.float32)
        for target in TARGETS:
            attend = by_gpu(target, gpu.rotated_attention)
            tests[f"rotated-{target.architecture}-{case}"] = partial(check_rotated, case, step, normed, attend, 1e-4)
    return tests


def main() -> None:
    """Run them all."""
    torch.set_num_threads(1)
    found: dict[str, str | None] = {}
    for name, test in planned().items():
        try:
            test()
        except Exception as error:  # reported by the test of this name
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = None
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
