from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine.errors import ConfigError
from kvtrace.engine.geometry import KVGeometry
from kvtrace.engine.storage import Storage

GEOMETRY = KVGeometry(layers=2, kv_heads=2, head_dim=4, element_bytes=4)
DEVICE, HOST = 6, 7


def _random_storage(seed: int, chunk_bytes: int = 1 << 11) -> Storage:
    """A pool of arbitrary bit patterns, NaN among them; blocks of 2,048 bytes cross the borders of smaller chunks."""
    storage = Storage(GEOMETRY, DEVICE, HOST, host_chunk_bytes=chunk_bytes)
    generator = torch.Generator().manual_seed(seed)
    storage.pool.view(torch.uint8).random_(0, 256, generator=generator)
    return storage


def _device_bytes(storage: Storage) -> list[bytes]:
    return [storage.pool[block].view(torch.uint8).numpy().tobytes() for block in range(storage.device_blocks)]


@given(
    block=st.integers(0, DEVICE - 1),
    back=st.integers(0, DEVICE - 1),
    slot=st.integers(0, HOST - 1),
    count=st.integers(1, DEVICE),
    chunk_bytes=st.sampled_from([256, 1000, 2048, 3000, 4096, 1 << 20]),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_round_trip_keeps_every_byte(block: int, back: int, slot: int, count: int, chunk_bytes: int, seed: int) -> None:
    count = min(count, DEVICE - block, DEVICE - back, HOST - slot)
    storage = _random_storage(seed, chunk_bytes)
    before = _device_bytes(storage)
    storage.copy_out(block, slot, count)
    assert _device_bytes(storage) == before

    storage.pool.view(torch.uint8).random_(0, 256, generator=torch.Generator().manual_seed(seed + 1))
    scrambled = _device_bytes(storage)
    storage.copy_in(slot, back, count)
    after = _device_bytes(storage)
    assert after[back : back + count] == before[block : block + count]
    assert after[:back] + after[back + count :] == scrambled[:back] + scrambled[back + count :]


def test_copy_out_leaves_other_slots_alone() -> None:
    storage = _random_storage(seed=1)
    for slot in range(HOST):
        storage.copy_out(0, slot)
    zero = _device_bytes(storage)[0]
    storage.copy_out(1, 4, 2)
    found = []
    for slot in range(HOST):
        storage.copy_in(slot, 5)
        found.append(_device_bytes(storage)[5] == zero)
    assert found == [True, True, True, True, False, False, True]


def test_one_block_is_one_contiguous_piece() -> None:
    storage = _random_storage(seed=2)
    assert storage.pool[3].is_contiguous()
    assert storage.pool.shape == (DEVICE, 2, 2, 2, 16, 4)
    assert storage.pool[3].nbytes == storage.pool.stride(0) * 4 == GEOMETRY.block_bytes


@pytest.mark.parametrize(
    ("block", "slot", "count"), [(-1, 0, 1), (0, -1, 1), (5, 0, 2), (0, 6, 2), (6, 0, 1), (0, 0, 0)]
)
def test_runs_outside_the_tiers_are_refused(block: int, slot: int, count: int) -> None:
    storage = _random_storage(seed=3)
    with pytest.raises(IndexError, match=r"outside the (pool|host tier)"):
        storage.copy_out(block, slot, count)
    with pytest.raises(IndexError, match=r"outside the (pool|host tier)"):
        storage.copy_in(slot, block, count)


def test_element_size_must_match_the_geometry() -> None:
    with pytest.raises(ConfigError, match="2 bytes an element, the KV geometry 4"):
        Storage(GEOMETRY, 1, 1, dtype=torch.bfloat16)


def test_too_little_memory_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="give fewer blocks"):
        Storage(GEOMETRY, 1 << 50, 0)


def test_a_host_tier_of_no_slots_is_possible() -> None:
    storage = Storage(GEOMETRY, 2, 0)
    assert storage.host_blocks == storage.pinned_bytes == 0
    with pytest.raises(IndexError):
        storage.copy_out(0, 0)


def test_a_host_tier_that_cannot_be_pinned_is_there_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """Without an accelerator pinning fails for real; ``meta`` is a device that is not the CPU."""
    storage = Storage(GEOMETRY, 2, HOST, device="meta", host_chunk_bytes=1 << 12)
    assert storage.ready_host_blocks == 0
    with pytest.raises(IndexError, match="0 of them ready"):
        next(storage.host_runs(0))
    with caplog.at_level(logging.WARNING):
        storage.wait_ready(30)
    assert storage.ready_host_blocks == HOST
    if not torch.cuda.is_available():
        assert storage.pinned_bytes == 0
        assert [record.getMessage().count("pageable") for record in caplog.records] == [1]
    assert sum(part.numel() for part in storage.host_runs(0, HOST)) == HOST * GEOMETRY.block_bytes
    storage.close()


def test_closing_ends_the_pinning() -> None:
    storage = Storage(GEOMETRY, 2, HOST, device="meta")
    storage.start_pinning()
    storage.start_pinning()
    storage.close()
    storage.close()
