"""The skinny products: the kernel by Triton's interpreter and compiled for cards that are not there, and the tilings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.model import load_model
from kvtrace.engine.model.lean import lean_weights
from kvtrace.engine.model.skinny_ops import arguments
from kvtrace.engine.model.skinny_tiles import MOST_ROWS, ModelSizes, Tiling, layer_tilings, padded_rows, tiling_for

pytest.importorskip("triton", reason="Triton is there for Linux alone")

from kvtrace.engine.attention import gpu
from kvtrace.engine.attention.tiles import Target
from kvtrace.engine.choose import skinny_tilings
from tests.engine.skinny_interpreted import planned

ROOT = Path(__file__).parents[2]
QWEN3_8B: Final = ModelSizes(4096, 6144, 4096, 12_288, 151_936)


@pytest.fixture(scope="module")
def results() -> dict[str, str | None]:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-m", "tests.engine.skinny_interpreted"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", planned())
def test_the_interpreted_kernel_matches_the_reference(name: str, results: dict[str, str | None]) -> None:
    assert results[name] is None


def _compiled(card: str, width: int, depth: int, tiling: Tiling, batch: int, *, gated: bool, adds: bool) -> Any:
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kvtrace.engine.model.triton_skinny import linear_kernel

    targets = {"sm_90": GPUTarget("cuda", 90, 32), "gfx1201": GPUTarget("hip", "gfx1201", 32)}
    state = torch.empty((batch, depth), dtype=torch.bfloat16, device="meta")
    weight = torch.empty((width * (1 + gated), depth), dtype=torch.bfloat16, device="meta")
    extra: dict[str, Any] = {"squares": torch.empty((64, batch), device="meta"), "gated": gated}
    if adds:
        extra = {"residual": state.new_empty((batch, width)), "norm": state.new_empty(width)}
    _, values, constants, _ = arguments(state, weight, tiling, **extra)
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages")}
    kinds = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32"}
    signature = dict.fromkeys(constants, "constexpr")
    for name, value in zip(linear_kernel.arg_names, values, strict=False):
        plain = "fp32" if isinstance(value, float) else "i32"
        signature[name] = kinds[value.dtype] if isinstance(value, torch.Tensor) else plain
    aligned = {
        (place,): [["tt.divisibility", 16]] for place, value in enumerate(values) if isinstance(value, torch.Tensor)
    }
    source = ASTSource(linear_kernel, signature, constants, aligned)
    return compile_kernel(source, target=targets[card], options=options | {"enable_fp_fusion": True})


def test_the_products_of_an_8b_model_compile_for_sm_90() -> None:
    hidden, mlp = QWEN3_8B.hidden, QWEN3_8B.mlp
    tilings = layer_tilings("sm_90", 132, 32, QWEN3_8B)
    assert tilings is not None
    for width, depth, tiling, gated, adds in (
        (mlp, hidden, tilings.gate_up, True, False),
        (hidden, mlp, tilings.down, False, True),
    ):
        compiled = _compiled("sm_90", width, depth, tiling, 32, gated=gated, adds=adds)
        assert compiled.metadata.shared <= 227 * 1024
        assert len(compiled.asm["ptx"]) > 0


def test_the_kernel_compiles_for_rdna_within_its_shared_memory() -> None:
    compiled = _compiled("gfx1201", 4096, 4096, Tiling(32, 64, 4, 4, 1), 8, gated=False, adds=True)
    assert compiled.metadata.shared <= 64 * 1024
    assert len(compiled.asm["hsaco"]) > 0


def test_the_small_kernels_compile_for_rdna() -> None:
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kvtrace.engine.model.triton_rotary import rotary_kernel, silu_mul_kernel

    rotary: dict[str, Any] = {"HEADS": 40, "HALF": 64, "HALF_PADDED": 64, "NORMED": True, "BLOCK": 8}
    gate: dict[str, Any] = {"WIDTH": 12_288, "BLOCK": 2048}
    for kernel, constants in ((rotary_kernel, rotary), (silu_mul_kernel, gate)):
        kinds = {"eps": "fp32", "state_stride": "i32"} | dict.fromkeys(constants, "constexpr")
        signature = {name: kinds.get(name, "*bf16") for name in kernel.arg_names}
        source = ASTSource(kernel, signature, constants)
        compiled = compile_kernel(source, target=GPUTarget("hip", "gfx1201", 32), options={"enable_fp_fusion": True})
        assert compiled.metadata.shared <= 64 * 1024
        assert len(compiled.asm["hsaco"]) > 0


def test_nothing_is_used_where_nobody_measured() -> None:
    assert layer_tilings("gfx1201", 64, 8, QWEN3_8B) is None
    assert layer_tilings("sm_90", 132, MOST_ROWS + 1, QWEN3_8B) is None
    assert layer_tilings("sm_90", 132, 8, QWEN3_8B._replace(vocabulary=151_937)) is None


def test_they_multiply_numbers_of_16_bits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 bits they would be TF32, whose ten bits of mantissa change a token here and there."""
    monkeypatch.setattr(gpu, "target_of", lambda device: Target("sm_90", 132))
    found = {
        dtype: skinny_tilings(lean_weights(load_model("random:tiny", dtype=dtype).model, 64))(8)
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    }
    assert found[torch.bfloat16] == found[torch.float16] is not None
    assert found[torch.float32] is None


@given(st.integers(1, 400), st.integers(1, 200), st.integers(1, 32), st.booleans(), st.booleans())
def test_a_tiling_comes_out_even_or_there_is_none(width: int, depth: int, batch: int, gated: bool, adds: bool) -> None:
    tiling = tiling_for(width * 32, depth * 32, batch, gated=gated, adds=adds)
    if tiling is None:
        assert width % 2 or depth % 2
    else:
        assert tiling.fits(width * 32, depth * 32)


def test_a_tiling_that_does_not_divide_is_refused() -> None:
    state, weight = torch.zeros(2, 100), torch.zeros(64, 100)
    with pytest.raises(ValueError, match="64 columns and depth 100"):
        arguments(state, weight, Tiling(64, 64, 1, 4, 2))


@given(st.integers(1, 64))
def test_padding_holds_the_batch_and_is_a_power_of_two(batch: int) -> None:
    rows = padded_rows(batch)
    assert rows >= max(16, batch)
    assert rows & (rows - 1) == 0
    assert rows == 16 or rows < 2 * batch
