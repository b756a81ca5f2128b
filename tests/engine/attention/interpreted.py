"""Run every case by Triton's interpreter: ``TRITON_INTERPRET=1 python -m tests.engine.attention.interpreted``.

A process of its own, since Triton decides when it is imported. Prints one JSON object: each test's error, or null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kvtrace.engine.attention import triton_decode, triton_prefill, triton_write
from kvtrace.engine.attention.tiles import DecodeTiles, PrefillTiles

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

# What the devices' tables choose, and splits of every kind: none, some of them empty, joined by the last or by a kernel.
DECODE: Final = (
    DecodeTiles(32, 1, 4, 1, join=False),
    DecodeTiles(32, 4, 4, 1, join=False),
    DecodeTiles(64, 8, 4, 1, join=True),
)
PREFILL: Final = ((PrefillTiles(32, 32, 4, 1), 1), (PrefillTiles(64, 32, 4, 1), 4), (PrefillTiles(128, 64, 8, 1), 1))


def by_decode(tiles: DecodeTiles) -> Attend:
    """The op by the decode kernel."""

    def attend(query: Tensor, key: Tensor, value: Tensor, pool: Tensor, layer: int, *step: Any) -> Tensor:
        slots, _, lengths, tables, scale, _, window, _ = step
        # One layer's view of the pool, as a decoder passes it that has one compiled region for all layers.
        view = pool[:, layer : layer + 1]
        return triton_decode.decode(query, key, value, view, 0, slots, lengths, tables, scale, window, tiles)

    return attend


def by_prefill(tiles: PrefillTiles, splits: int, beside: DecodeTiles | None = None) -> Attend:
    """The op by the kernels that write and prefill; ``beside`` leaves single queries to the decode kernel."""

    def attend(query: Tensor, key: Tensor, value: Tensor, pool: Tensor, layer: int, *step: Any) -> Tensor:
        slots, starts, lengths, tables, scale, _, window, _ = step
        triton_write.write_kv(key, value, pool, layer, slots)
        places = (starts, lengths, tables, scale, window)
        output = triton_prefill.prefill(query, pool, layer, *places, tiles, splits, singles=beside is None)
        if beside is not None:
            triton_decode.decode_beside(query, pool, layer, *places, beside, output)
        return output

    return attend


def by_rotated_decode(tiles: DecodeTiles) -> Attend:
    """The op that decodes from the raw projection, by the decode kernel."""

    def attend(states: Tensor, norm: Tensor | None, rotary: Tensor, pool: Tensor, layer: int, *step: Any) -> Tensor:
        slots, lengths, tables, heads, scale, eps, window = step
        kv_heads, head_dim = pool.shape[3], pool.shape[5]
        by_head = states.view(len(states), -1, head_dim)
        query, key, value = torch.split(by_head, [heads, kv_heads, kv_heads], dim=1)
        return triton_decode.decode(
            query,
            key,
            value,
            pool,
            layer,
            slots,
            lengths,
            tables,
            scale,
            window,
            tiles,
            rotary,
            norm,
            eps,
        )

    return attend


def planned() -> dict[str, Callable[[], None]]:
    """Every test by its name. bfloat16 is missing: the interpreter's ``tl.dot`` gets it wrong."""
    tests: dict[str, Callable[[], None]] = {}

    def add(mark: str, case: Case, attend: Attend, dtype: torch.dtype = torch.float32, tolerance: float = 1e-4) -> None:
        tests[f"{mark}-{case}"] = lambda: check(case, build(case, 3, "cpu", dtype), attend, tolerance)

    for case in decode_cases():
        for tiles in DECODE:
            add(f"decode-{tiles.keys}x{tiles.splits}{'-joined' * tiles.join}", case, by_decode(tiles))
    for case in prefill_cases():
        for shape, splits in PREFILL if len(case.sequences) < 9 else PREFILL[:1]:
            add(f"prefill-{shape.rows}x{shape.keys}x{splits}", case, by_prefill(shape, splits))
    for case in beside_cases():
        add("beside-undivided", case, by_prefill(*PREFILL[0], DecodeTiles(64, 1, 4, 1, join=True)))
        add("beside-joined", case, by_prefill(*PREFILL[1], DECODE[2]))
    half = Case(((1, 33), (1, 0), (1, 70), (1, 1)), 8, 2, 128)
    add("decode-float16", half, by_decode(DECODE[2]), torch.float16, 4e-3)
    add("prefill-float16", half, by_prefill(*PREFILL[1]), torch.float16, 4e-3)
    for case, normed in rotated_cases():
        step = build(case, 3, "cpu", torch.float32)
        tests[f"rotated-{case}"] = partial(check_rotated, case, step, normed, by_rotated_decode(DECODE[1]), 1e-4)
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
