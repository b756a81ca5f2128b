"""Which tiles the kernels use on which device. Torch-free and pure: tables, so that a new card is a new row.

Measured on an H200 (sm_90) with ``benchmarks/attention.py``. The rows of AMD cards follow from their limits (64 KiB of
LDS a workgroup; tiles of at most 32 keys and one stage on RDNA) and from compiling for them; no such card has run them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

_MOST_SPLITS: Final = 32
PREFILL_SPLITS: Final = (1, 2, 4, 8)
_WELL_USED: Final = 0.7  # share of the device's time, in whole waves of programs, that needs no better


@dataclass(frozen=True, slots=True)
class Target:
    """A device as the choice of tiles sees it: ``architecture`` reads like ``sm_90`` or ``gfx1201``."""

    architecture: str
    processors: int


@dataclass(frozen=True, slots=True)
class PrefillTiles:
    """``rows`` query rows (queries × heads of one KV head) against ``keys`` keys at a time."""

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class DecodeTiles:
    """``keys`` keys at a time; each sequence's keys are divided among ``splits`` programs.

    ``join``: the last program to finish combines the splits; otherwise a second kernel does.
    """

    keys: int
    splits: int
    warps: int
    stages: int
    join: bool


def prefill_tiles(target: Target, head_dim: int, element_bytes: int) -> PrefillTiles:
    """Tiles of the prefill kernel, for any head size and for elements of 2 or 4 bytes."""
    if element_bytes > 2:  # no matrix units: small tiles keep registers and compile time in bounds
        return PrefillTiles(32, 32 if head_dim <= 128 else 16, 4, 1)
    if _is_rdna(target):
        return PrefillTiles(32, 32, 4, 1)
    if target.architecture.startswith("gfx"):
        return PrefillTiles(64, 64 if head_dim <= 128 else 32, 4, 1)
    return PrefillTiles(128, 128, 8, 3) if head_dim <= 128 else PrefillTiles(128, 64, 8, 2)


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
        most_keys: keys that a block table can hold; the splits suit every length up to it, so that a captured graph
            stays right while sequences grow.
    """
    if element_bytes > 2 or target.architecture.startswith("gfx"):
        keys, warps, stages = 32 if head_dim * element_bytes <= 512 else 16, 4, 1
    else:
        keys, warps, stages = 64 if head_dim <= 128 else 32, 4, 5
    # Two programs a processor hide each other's waits; a power of two keeps the compiled variants few.
    wanted = 2 * target.processors // max(1, sequences * kv_heads)
    splits = 1
    while splits * 2 <= min(wanted, _MOST_SPLITS) and splits * keys < most_keys:
        splits *= 2
    return DecodeTiles(keys, splits, warps, stages, join=not target.architecture.startswith("gfx"))


def prefill_splits(target: Target, tiles: PrefillTiles, tokens: int, heads: int, kv_heads: int, most_keys: int) -> int:
    """Among how many programs to divide the keys of a prefill step: more than one where few programs would run.

    A turn that comes back has few new tokens and many keys: undivided, most of the device would idle.
    """
    queries = max(1, tiles.rows // (heads // kv_heads))
    programs = ceil(tokens / queries) * kv_heads
    best, most_used = 1, 0.0
    for splits in PREFILL_SPLITS:
        waves = splits * programs / target.processors
        used = waves / ceil(waves)
        if most_used > _WELL_USED or splits * tiles.keys > max(most_keys, tiles.keys):
            break
        if used > 1.1 * most_used:  # more splits cost traffic of their own
            best, most_used = splits, used
    return best


def _is_rdna(target: Target) -> bool:
    """RDNA (gfx10 to gfx12), not CDNA (gfx9)."""
    return target.architecture.startswith(("gfx10", "gfx11", "gfx12"))
