"""Every kernel compiles for the cards it is meant for, on a machine that has none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

pytest.importorskip("triton", reason="Triton is there for Linux alone")

from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvtrace.engine.attention import triton_combine, triton_decode, triton_prefill, triton_write
from kvtrace.engine.attention.tiles import DecodeTiles, PrefillTiles, Target, decode_tiles, prefill_tiles
from kvtrace.engine.attention.triton_shares import BORDER, parts_at_once, weigh_kernel
from kvtrace.engine.geometry import BLOCK_SIZES, GPU_BLOCK_TOKENS

LDS: Final = 64 * 1024
# Architecture, Triton's target, the binary it ends in, and the shared memory a workgroup may use.
CARDS: Final = {
    "gfx1201": (GPUTarget("hip", "gfx1201", 32), "hsaco", LDS),
    "gfx942": (GPUTarget("hip", "gfx942", 64), "hsaco", LDS),
    "sm_90": (GPUTarget("cuda", 90, 32), "ptx", 227 * 1024),
}
# An NVIDIA card with less shared memory, for prefill, whose tiles would need it.
OTHER_CARDS: Final = {"sm_89": (GPUTarget("cuda", 89, 32), "ptx", 99 * 1024)}
DTYPES: Final = {"bf16": 2, "fp16": 2, "fp32": 4}
BF16: Final = [(card, head_dim, "bf16") for card in CARDS for head_dim in (64, 128, 256)]
SHAPES: Final = [*BF16, ("gfx1201", 128, "fp16"), ("gfx1201", 64, "fp32"), ("sm_90", 64, "fp32")]
# Types of the kernels' arguments: pointers by name, other numbers 32 bits.
POINTERS: Final = {
    "write_slots": "*i64",
    "query_starts": "*i32",
    "key_lengths": "*i32",
    "tables": "*i32",
    "counters": "*i32",
    "sums": "*fp32",
    "logs": "*fp32",
    "scale": "fp32",
    "eps": "fp32",
}
ELEMENTS: Final = ("states", "query", "key", "value", "pool", "output", "head_norm", "rotary")
UNALIGNED: Final = ("layer", "tokens", "sequences", "runs", "window", "scale", "eps", "table_stride")


def _compile(kernel: Any, constants: Mapping[str, Any], dtype: str, card: str, warps: int, stages: int) -> Any:
    names = kernel.arg_names
    kinds = POINTERS | dict.fromkeys(ELEMENTS, f"*{dtype}")
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if name not in constants and name not in UNALIGNED
    }
    source = ASTSource(kernel, signature, dict(constants), aligned)
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    return compile_kernel(source, target=(CARDS | OTHER_CARDS)[card][0], options=options)


def _assert_fits(compiled: Any, card: str) -> None:
    _, binary, most = (CARDS | OTHER_CARDS)[card]
    assert len(compiled.asm[binary]) > 0
    assert compiled.metadata.shared <= most, f"{compiled.metadata.shared:,} bytes of shared memory"


@pytest.mark.parametrize(("card", "head_dim", "dtype"), SHAPES)
def test_decode_compiles_within_the_cards_limits(card: str, head_dim: int, dtype: str) -> None:
    tiles = decode_tiles(Target(card, 132), head_dim, DTYPES[dtype], 8, 8, 4096)
    _assert_fits(_decode(card, head_dim, dtype, tiles), card)


@pytest.mark.parametrize(
    ("card", "dtype"), [("sm_90", "bf16"), ("sm_90", "fp32"), ("gfx942", "bf16"), ("gfx1201", "fp16")]
)
def test_decoding_beside_prefill_compiles_within_the_cards_limits(card: str, dtype: str) -> None:
    tiles = decode_tiles(Target(card, 132), 128, DTYPES[dtype], 8, 8, 4096)
    _assert_fits(_decode(card, 128, dtype, tiles, beside=True), card)


def _decode(
    card: str,
    head_dim: int,
    dtype: str,
    tiles: DecodeTiles,
    *,
    beside: bool = False,
    block_tokens: int = GPU_BLOCK_TOKENS,
) -> Any:
    constants = {
        "BLOCK_TOKENS": block_tokens,
        "GROUP": 4,
        "ROWS": 16,
        "HEAD_DIM": head_dim,
        "DIMS": head_dim,
        "TILE": tiles.keys,
        "SEQUENCES": 8,
        "BORDER": BORDER,
        "CHUNK": parts_at_once(4, head_dim),
        "HEADS": 4,
        "KV_HEADS": 8,
        "JOIN": tiles.join,
        "WINDOWED": head_dim == 64,
        "ROTATED": head_dim == 128 and not beside,
        "NORMED": head_dim == 128 and not beside,
        "BESIDE": beside,
    }
    return _compile(triton_decode.decode_kernel, constants, dtype, card, tiles.warps, tiles.stages)


@pytest.mark.parametrize(
    ("card", "head_dim", "dtype", "windowed", "tokens"),
    [
        *[(*shape, False, 4096) for shape in SHAPES],
        *[(card, 128, "bf16", True, 40) for card in CARDS],
        ("sm_90", 128, "bf16", False, 200),
        ("sm_90", 256, "bf16", True, 40),
        ("sm_89", 128, "bf16", False, 4096),
        ("sm_89", 256, "bf16", True, 40),
    ],
)
def test_prefill_compiles_within_the_cards_limits(
    card: str, head_dim: int, dtype: str, windowed: bool, tokens: int
) -> None:
    tiles = prefill_tiles(Target(card, 132), head_dim, DTYPES[dtype], tokens, 32, 8, 8192)
    assert (tiles.splits > 1) == (tokens < 4096)
    _assert_fits(_prefill(card, head_dim, dtype, tiles, windowed=windowed), card)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("block_tokens", sorted({*BLOCK_SIZES} - {GPU_BLOCK_TOKENS}))
def test_other_sizes_of_blocks_compile_within_the_cards_limits(card: str, block_tokens: int) -> None:
    target = Target(card, 132)
    decode = _decode(card, 128, "bf16", decode_tiles(target, 128, 2, 8, 8, 4096), block_tokens=block_tokens)
    prefill = _prefill(
        card, 128, "bf16", prefill_tiles(target, 128, 2, 200, 32, 8, 8192), windowed=False, block_tokens=block_tokens
    )
    for compiled in (decode, prefill):
        _assert_fits(compiled, card)


def _prefill(
    card: str,
    head_dim: int,
    dtype: str,
    tiles: PrefillTiles,
    *,
    windowed: bool,
    block_tokens: int = GPU_BLOCK_TOKENS,
) -> Any:
    constants = {
        "BLOCK_TOKENS": block_tokens,
        "HEADS": 32,
        "GROUP": 4,
        "SIDE": 4,
        "PARTS": 1,
        "ROWS": tiles.rows,
        "HEAD_DIM": head_dim,
        "DIMS": head_dim,
        "TILE": tiles.keys,
        "WINDOWED": windowed,
        "SPLITS": tiles.splits,
        "JOINED": 8 if tiles.join and tiles.splits > 1 else 0,
        "SINGLES": not windowed,
        "SEARCH": 32,
        "STAGES": tiles.stages,
        "YIELDS": 66 if tiles.splits > 1 and tiles.join else 0,
    }
    return _compile(triton_prefill.prefill_kernel, constants, dtype, card, tiles.warps, tiles.stages)


@pytest.mark.parametrize("card", CARDS)
def test_the_small_kernels_compile(card: str) -> None:
    shape = {"HEAD_DIM": 128, "DIMS": 128}
    write = {"BLOCK_TOKENS": GPU_BLOCK_TOKENS, "TOKENS": 16} | shape
    _assert_fits(_compile(triton_write.write_kernel, write, "bf16", card, 4, 1), card)
    halves = {"HALF": 64, "HALF_PADDED": 64}
    rotate = {"BLOCK_TOKENS": GPU_BLOCK_TOKENS, "HEADS": 32, "KV_HEADS": 8, "NORMED": True, "BLOCK": 8} | halves
    _assert_fits(_compile(triton_write.rotate_kernel, rotate, "bf16", card, 4, 1), card)
    combine = {"SPLITS": 8, "CHUNK": 4, "GROUP": 3, "HEADS": 4} | shape
    _assert_fits(_compile(triton_combine.combine_kernel, combine, "bf16", card, 4, 1), card)
    weigh = {"CHUNK": parts_at_once(3, 128), "GROUP": 3, "HEADS": 4, "WINDOWED": True, "BESIDE": True} | shape
    weigh |= {"SEQUENCES": 16, "TILE": 32, "BORDER": BORDER}
    _assert_fits(_compile(weigh_kernel, weigh, "bf16", card, 4, 1), card)


def test_tiles_keep_to_what_rdna_can() -> None:
    """At most 32 keys in a tile and one stage: what is known to run there."""
    for head_dim in (64, 128, 256):
        for element_bytes in (2, 4):
            prefill = prefill_tiles(Target("gfx1201", 64), head_dim, element_bytes, 100, 32, 8, 4096)
            decode = decode_tiles(Target("gfx1201", 64), head_dim, element_bytes, 8, 8, 4096)
            assert max(prefill.keys, prefill.rows, decode.keys) <= 32
            assert prefill.stages == decode.stages == 1
