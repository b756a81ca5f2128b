"""What follows from the shape of a model's KV."""

from __future__ import annotations

from kvtrace.engine.geometry import BLOCK_SIZES, KVGeometry, default_block_tokens


def test_a_gpu_has_larger_blocks_than_a_cpu() -> None:
    assert (default_block_tokens(gpu=False), default_block_tokens(gpu=True)) == (16, 32)
    assert {16, 32} < set(BLOCK_SIZES)


def test_a_block_holds_its_tokens_of_every_layer_and_the_last_one_of_a_context_is_whole() -> None:
    for tokens in BLOCK_SIZES:
        shape = KVGeometry(36, 8, 128, 2, tokens)
        assert shape.block_bytes == 147_456 * tokens == shape.layer_bytes * 36
        assert shape.blocks_for(tokens) == 1
        assert shape.blocks_for(tokens + 1) == 2
