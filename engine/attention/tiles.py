"""Which tiles the kernels use on which device. Torch-free and pure: tables, so that a new card is a new row.

Measured on an H200 (sm_90) with ``benchmarks/attention.py``. The rows of AMD cards follow from their limits (64 KiB of
LDS a workgroup; tiles of at most 32 keys and one stage on RDNA) and from compiling for them; no such card has run them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

_DECODE_PROGRAMS: Final = 2  # of a processor
_MOST_PREFILL_SPLITS: Final = 8
_ROOMY: Final = (
    "sm_90",
    "sm_100",
    "sm_103",
)  # 227 KiB of shared memory; other NVIDIA cards from Ampere on have 99 at least


@dataclass(frozen=True, slots=True)
class Target:
    """A device as the choice of tiles sees it: ``architecture`` reads like ``sm_90`` or ``gfx1201``."""

    architecture: str
    processors: int


@dataclass(frozen=True, slots=True)
class PrefillTiles:
    """``rows`` query rows (queries × heads of one KV head) against ``keys`` keys at a time.

    The keys are divided among ``splits`` programs. ``join`` and ``registers`` are those of :class:`DecodeTiles`. ``yields``:
    half of the splits are left out where decoding, at the same time, has at least that many keys to read, of all KV heads,
    for each key that a program then has; 0 for never.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    splits: int = 1
    join: bool = False
    registers: int = 0
    yields: int = 0


@dataclass(frozen=True, slots=True)
class DecodeTiles:
    """``keys`` keys at a time; all sequences' keys are divided evenly among ``programs``, at most, of all KV heads together.

    ``join``: the last program to finish combines what several found of one sequence; otherwise a second kernel does.
    ``registers``: the most that a thread may use, 0 for as many as it needs.
    """

    keys: int
    programs: int
    warps: int
    stages: int
    join: bool
    registers: int = 0


def prefill_tiles(
    target: Target,
    head_dim: int,
    element_bytes: int,
    tokens: int,
    heads: int,
    kv_heads: int,
    most_keys: int,
    beside: bool = False,
) -> PrefillTiles:
    """Tiles of the prefill kernel, for any head size and for elements of 2 or 4 bytes.

    The keys are divided where few programs would run: a turn that comes back has few new tokens and many keys, and
    undivided, most of the device would idle.

    Args:
        target: the device.
        head_dim: elements of a head.
        element_bytes: 2 or 4.
        tokens: new tokens of the step, padding included.
        heads: query heads.
        kv_heads: KV heads.
        most_keys: keys that a block table can hold, as in :func:`decode_tiles`.
        beside: the decode kernel runs at the same time.
    """
    small, large, at_once = _prefill_shapes(target, head_dim, element_bytes, beside)
    programs = ceil(tokens / max(1, small.rows // (heads // kv_heads))) * kv_heads
    if programs > target.processors * (1 if beside else at_once):
        return large
    splits = max(1, min(at_once * target.processors // programs, _MOST_PREFILL_SPLITS, most_keys // small.keys))
    if not small.join:  # the kernel that combines takes powers of two
        splits = 1 << (splits.bit_length() - 1)
    return replace(small, splits=splits, yields=target.processors // 2 if beside and splits > 1 else 0)


def _prefill_shapes(
    target: Target, head_dim: int, element_bytes: int, beside: bool
) -> tuple[PrefillTiles, PrefillTiles, int]:
    """For steps whose programs all run at once, for larger ones, and how many of the first a processor runs at once."""
    if element_bytes == 2 and target.architecture in _ROOMY and head_dim <= 128:
        # With registers and shared memory left for a program or two of the decode kernel.
        large = PrefillTiles(128, 64, 8, 3, join=True, registers=168)
        if not beside:
            large = PrefillTiles(128, 128, 8, 3, join=True)
        return PrefillTiles(64, 64, 4, 3, join=True, registers=224), large, 2
    if element_bytes > 2:  # no matrix units: small tiles keep registers and compile time in bounds
        tiles = PrefillTiles(32, 32 if head_dim <= 128 else 16, 4, 1)
    elif _is_rdna(target):
        tiles = PrefillTiles(32, 32, 4, 1)
    elif target.architecture.startswith("gfx"):
        tiles = PrefillTiles(64, 64 if head_dim <= 128 else 32, 4, 1)
    elif target.architecture in _ROOMY:
        tiles = PrefillTiles(128, 64, 8, 2)
    else:
        tiles = PrefillTiles(64, 64 if head_dim <= 128 else 32, 4, 2)
    tiles = replace(tiles, join=not target.architecture.startswith("gfx"))
    return tiles, tiles, 1


def decode_tiles(
    target: Target, head_dim: int, element_bytes: int, sequences: int, kv_heads: int, most_keys: int
) -> DecodeTiles:
    """Tiles of the decode kernel.

    Args:
        target: the device.
        head_dim: elements of a head.
        element_bytes: 2 or 4.
        sequences: rows of the batch, padding included.
        kv_heads: KV heads.
        most_keys: keys that a block table can hold. The programs suit every length up to it, so that a captured graph stays
            right while sequences grow.
    """
    if element_bytes > 2 or target.architecture.startswith("gfx"):
        keys, warps, stages = 32 if head_dim * element_bytes <= 512 else 16, 4, 1
    elif head_dim > 128:
        keys, warps, stages = 32, 4, 2
    else:
        # Few warps, since they wait for each other several times a tile, and two tiles of keys under way.
        keys, warps, stages = 64, 2, 3 if target.architecture in _ROOMY else 2
    # Two programs a processor hide each other's waits; more than tiles would have nothing to do.
    programs = min(_DECODE_PROGRAMS * target.processors, sequences * kv_heads * ceil(most_keys / keys))
    return DecodeTiles(keys, max(kv_heads, programs), warps, stages, join=not target.architecture.startswith("gfx"))


def beside_tiles(target: Target, prefill: PrefillTiles, alone: DecodeTiles) -> DecodeTiles:
    """Tiles of the decode kernel that fit on a processor together with one program of ``prefill``; ``alone`` if none do.

    128 registers leave room to spare: with 176, of which none were left over, a profile had the two kernels one after the other.
    That the number was the reason is a guess, and 128 was run for right results alone.
    """
    if prefill.registers == 0:
        return alone
    keys, per_processor, stages = (32, 2, 4) if prefill.warps == 4 else (128, 1, 2)
    programs = min(per_processor * target.processors, alone.programs)
    return DecodeTiles(keys, programs, 4, stages, alone.join, registers=128)


def _is_rdna(target: Target) -> bool:
    """RDNA (gfx10 to gfx12), not CDNA (gfx9)."""
    return target.architecture.startswith(("gfx10", "gfx11", "gfx12"))
