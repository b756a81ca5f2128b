"""Run the lean decoder's own kernels by Triton's interpreter: ``TRITON_INTERPRET=1 python -m tests.engine.skinny_interpreted``.

A process of its own, since Triton decides when it is imported. Prints one JSON object: each case's error, or null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from torch import Tensor

from kvtrace.engine.model import triton_layer, triton_rotary
from kvtrace.engine.model.lean_ops import norm_rotate, silu_mul
from kvtrace.engine.model.skinny_ops import launch, skinny_adds, skinny_layer, skinny_normed
from kvtrace.engine.model.skinny_tiles import LayerTiling, Tiling

BATCHES = (5, 20)
SPLITS = (1, 2)
DTYPES = (torch.float32, torch.float16)
ROTATED = ((3, 5, 64, True), (2, 12, 80, True), (4, 3, 8, False))  # tokens, heads, head size, normed
WIDTH, DEPTH = 64, 128


def planned() -> list[str]:
    """Names of all cases."""
    return list(_cases())


def _cases() -> dict[str, Callable[[], None]]:
    cases: dict[str, Callable[[], None]] = {}
    for batch, splits, dtype in product(BATCHES, SPLITS, DTYPES):
        cases[f"{batch} rows, {splits} splits, {dtype}"] = partial(check, batch, splits, dtype)
    cases["a whole layer"] = partial(check_layer, 9)
    cases["gate"] = partial(check_gate, 3, 2100)
    for case in ROTATED:
        cases["rotated: {} tokens, {} heads of {}, normed {}".format(*case)] = partial(check_rotated, *case)
    return cases


def check_rotated(tokens: int, heads: int, head_dim: int, normed: bool) -> None:
    """Compare norm and rotation of the leading heads of wider rows with the reference."""
    torch.manual_seed(heads)
    states = torch.randn(tokens, (heads + 4) * head_dim)
    norm = torch.rand(heads, head_dim) if normed else None
    rotary = torch.randn(tokens, 2, head_dim // 2)
    near(triton_rotary.norm_rotate(states, norm, rotary, heads, 1e-6), norm_rotate(states, norm, rotary, heads, 1e-6))


def check_gate(tokens: int, width: int) -> None:
    """Compare the gate with the reference."""
    gate_up = torch.randn(tokens, 2 * width)
    near(triton_rotary.silu_mul(gate_up), silu_mul(gate_up))


def check_layer(batch: int) -> None:
    """Compare the kernel of a whole layer, one phase after the other, with the reference."""
    torch.manual_seed(batch)
    hidden, attended, mlp, qkv = 64, 96, 80, 144
    tiling = LayerTiling(4, 4, 16, 2, 32, 2, 32, 2, 0)
    given = (
        torch.randn(batch, attended),
        torch.randn(batch, hidden),
        torch.randn(hidden, attended) / attended**0.5,
        torch.rand(hidden) + 0.5,
        torch.randn(2 * mlp, hidden) / hidden**0.5,
        torch.randn(hidden, mlp) / mlp**0.5,
        torch.rand(hidden) + 0.5,
    )
    barriers = torch.zeros(3, dtype=torch.int32)
    for following in (torch.randn(qkv, hidden) / hidden**0.5, None):
        found = triton_layer.layer(*given, following, barriers, 1e-6, tiling, phases=(0, 1, 2, 3))
        for one, other in zip(found, skinny_layer(*given, following, barriers, 1e-6, list(tiling)), strict=True):
            assert one.shape == other.shape
            near(one, other)


def check(batch: int, splits: int, dtype: torch.dtype) -> None:
    """Compare every kind of product with the reference."""
    torch.manual_seed(batch)
    tiling = Tiling(32, 32, splits, 4, 2)
    state = torch.randn((batch, DEPTH), dtype=dtype)
    squares = torch.rand((3, batch)) * DEPTH
    for gated in (False, True):
        weight = torch.randn((WIDTH * (1 + gated), DEPTH), dtype=dtype) / DEPTH**0.5
        (found,) = launch(state, weight, tiling, squares=squares, eps=1e-6, gated=gated)
        near(found, skinny_normed(state, squares, weight, 1e-6, gated, list(tiling)))
        (again,) = launch(state, weight, tiling, squares=squares, eps=1e-6, gated=gated)
        assert torch.equal(found, again), "the counters were not left at zero"
    weight = torch.randn((WIDTH, DEPTH), dtype=dtype) / DEPTH**0.5
    residual, norm = torch.randn((batch, WIDTH), dtype=dtype), torch.rand(WIDTH, dtype=dtype) + 0.5
    filled = launch(state, weight, tiling, residual=residual, norm=norm)
    for one, other in zip(filled, skinny_adds(state, weight, residual, norm, list(tiling)), strict=True):
        near(one, other)


def near(found: Tensor, wanted: Tensor) -> None:
    """Equal but for the rounding of 16 bits and the order of sums."""
    torch.testing.assert_close(found.float(), wanted.float(), rtol=5e-3, atol=5e-3)


def main() -> None:
    """Run all cases."""
    results: dict[str, str | None] = {}
    for name, case in _cases().items():
        try:
            case()
        except Exception as error:  # every case is to be told
            results[name] = f"{type(error).__name__}: {error}"
        else:
            results[name] = None
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
