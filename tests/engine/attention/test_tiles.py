from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.attention.tiles import Target, beside_tiles, decode_tiles, prefill_tiles

ARCHITECTURES = ("gfx1201", "gfx942", "sm_90", "sm_120", "gfx1100")
TARGETS = st.builds(Target, st.sampled_from(ARCHITECTURES), st.integers(16, 304))
HEADS = st.sampled_from([(1, 1), (32, 8), (9, 3), (64, 1)])


@given(TARGETS, st.sampled_from([64, 128, 256]), st.integers(1, 256), HEADS, st.integers(1, 4000))
def test_decode_programs_fill_the_device_and_no_more(
    target: Target, head_dim: int, sequences: int, heads: tuple[int, int], blocks: int
) -> None:
    kv_heads = heads[1]
    tiles = decode_tiles(target, head_dim, 2, sequences, kv_heads, 16 * blocks)
    most = sequences * kv_heads * -(-16 * blocks // tiles.keys)
    assert tiles.programs == max(kv_heads, min(most, 2 * target.processors))


@given(TARGETS, st.sampled_from([64, 128, 256]), st.integers(1, 10_000), HEADS, st.integers(1, 4000), st.booleans())
def test_prefill_is_divided_only_where_much_of_the_device_would_idle(
    target: Target, head_dim: int, tokens: int, heads: tuple[int, int], blocks: int, beside: bool
) -> None:
    tiles = prefill_tiles(target, head_dim, 2, tokens, *heads, 16 * blocks, beside=beside)
    queries = max(1, tiles.rows // (heads[0] // heads[1]))
    programs = -(-tokens // queries) * heads[1]
    assert tiles.splits == 1 or programs * tiles.splits <= 2 * target.processors
    assert tiles.splits == 1 or tiles.splits * tiles.keys <= 16 * blocks
    # The kernel that combines where no program does takes powers of two.
    assert tiles.join or tiles.splits & (tiles.splits - 1) == 0
    # Half of them yield only to a kernel that runs at the same time.
    assert tiles.yields == 0 or (beside and tiles.splits > 1)


def test_a_short_turn_over_a_long_context_is_divided() -> None:
    def splits(tokens: int, most_keys: int) -> int:
        return prefill_tiles(Target("sm_90", 132), 128, 2, tokens, 32, 8, most_keys).splits

    assert splits(112, 8192) == 4  # what 100 are padded to
    assert splits(128, 8192) == 4
    assert splits(256, 8192) == 2
    assert splits(6900, 8192) == 1
    assert splits(112, 64) == 1


@pytest.mark.parametrize("tokens", [32, 112, 256, 512, 1024])
def test_a_processor_has_room_for_programs_of_prefill_and_decoding_at_once(tokens: int) -> None:
    target = Target("sm_90", 132)
    tiles = prefill_tiles(target, 128, 2, tokens, 32, 8, 8192, beside=True)
    decode = beside_tiles(target, tiles, decode_tiles(target, 128, 2, 8, 8, 8192))
    others = decode.programs // target.processors
    assert 32 * (tiles.warps * tiles.registers + others * decode.warps * decode.registers) < 65536
    # With half of the splits no processor has two programs of a small step's prefill.
    assert tiles.splits == 1 or tiles.yields == 66
    assert -(-tokens // (tiles.rows // 4)) * 8 * max(1, tiles.splits // 2) <= 132 or tokens > 512


def test_a_card_without_measured_tiles_decodes_beside_prefill_as_it_does_alone() -> None:
    target = Target("sm_89", 128)
    alone = decode_tiles(target, 128, 2, 8, 8, 8192)
    assert beside_tiles(target, prefill_tiles(target, 128, 2, 100, 32, 8, 8192, beside=True), alone) == alone


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_amd_combines_by_a_kernel_of_its_own(architecture: str) -> None:
    """Joining by the last program relies on the order of other programs' stores, seen right on NVIDIA alone."""
    assert decode_tiles(Target(architecture, 64), 128, 2, 1, 8, 4096).join == architecture.startswith("sm_")
    assert prefill_tiles(Target(architecture, 64), 128, 2, 100, 8, 8, 4096).join == architecture.startswith("sm_")
