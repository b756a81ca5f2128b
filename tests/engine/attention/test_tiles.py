from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.attention.tiles import PREFILL_SPLITS, Target, decode_tiles, prefill_splits, prefill_tiles

ARCHITECTURES = ("gfx1201", "gfx942", "sm_90", "sm_120", "gfx1100")
TARGETS = st.builds(Target, st.sampled_from(ARCHITECTURES), st.integers(16, 304))
HEADS = st.sampled_from([(1, 1), (32, 8), (9, 3), (64, 1)])


@given(TARGETS, st.sampled_from([64, 128, 256]), st.integers(1, 256), HEADS, st.integers(1, 4000))
def test_decode_splits_fill_the_device_and_no_more(
    target: Target, head_dim: int, sequences: int, heads: tuple[int, int], blocks: int
) -> None:
    kv_heads = heads[1]
    tiles = decode_tiles(target, head_dim, 2, sequences, kv_heads, 16 * blocks)
    assert tiles.splits & (tiles.splits - 1) == 0
    assert tiles.splits == 1 or sequences * kv_heads * tiles.splits <= 2 * target.processors
    assert tiles.splits == 1 or (tiles.splits // 2) * tiles.keys < 16 * blocks


@given(TARGETS, st.integers(1, 10_000), HEADS, st.integers(1, 4000))
def test_prefill_is_divided_only_where_much_of_the_device_would_idle(
    target: Target, tokens: int, heads: tuple[int, int], blocks: int
) -> None:
    tiles = prefill_tiles(target, 128, 2)
    splits = prefill_splits(target, tiles, tokens, *heads, 16 * blocks)
    assert splits in PREFILL_SPLITS
    queries = tiles.rows // min(tiles.rows, heads[0] // heads[1])
    if (tokens // queries + 1) * heads[1] > 4 * target.processors:
        assert splits == 1


def test_a_short_turn_over_a_long_context_is_divided() -> None:
    target = Target("sm_90", 132)
    tiles = prefill_tiles(target, 128, 2)
    assert prefill_splits(target, tiles, 100, 32, 8, 8192) == 4
    assert prefill_splits(target, tiles, 128, 32, 8, 8192) == 4  # what it is padded to
    assert prefill_splits(target, tiles, 6900, 32, 8, 8192) == 1
    assert prefill_splits(target, tiles, 100, 32, 8, tiles.keys) == 1


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_amd_combines_by_a_kernel_of_its_own(architecture: str) -> None:
    """Joining by the last program relies on the order of other programs' stores, seen right on NVIDIA alone."""
    assert decode_tiles(Target(architecture, 64), 128, 2, 1, 8, 4096).join == architecture.startswith("sm_")
