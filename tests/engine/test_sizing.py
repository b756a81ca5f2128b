from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.device import DeviceMemory, device_memory, host_available_bytes
from kvtrace.engine.errors import ConfigError
from kvtrace.engine.geometry import KVGeometry
from kvtrace.engine.sizing import Pools, parse_bytes, plan_pools, size_pools
from kvtrace.engine.swap.limits import staging_bytes

GIB = 2**30
QWEN = KVGeometry(layers=36, kv_heads=8, head_dim=128, element_bytes=2)
CARD = DeviceMemory(
    "cuda",
    "RX 9070 XT",
    total_bytes=16 * GIB,
    free_bytes=15 * GIB,
    own_bytes=0,
    other_bytes=GIB,
    host_available_bytes=60 * GIB,
)
CPU = DeviceMemory("cpu", "8 cores", 32 * GIB, 32 * GIB, 0, 0, 32 * GIB)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * GIB),
        ("8 gib", 8 * GIB),
        ("8G", 8 * GIB),
        ("8GB", 8 * 10**9),
        ("1.5GiB", 3 * GIB // 2),
        ("512M", 2**29),
        ("64kB", 64_000),
        ("4096", 4096),
        ("4096B", 4096),
        ("0", 0),
        ("2T", 2**41),
        ("1_000_000", 1_000_000),
    ],
)
def test_sizes_are_read_with_binary_and_decimal_units(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "8 potatoes", "1.2.3G", "8GiBs", "8PiB", "1e9", "٣G" * 2])
def test_what_is_no_size_is_refused_with_the_text_and_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a size.*8GiB"):
        parse_bytes(text)


@given(st.integers(0, 2**45))
def test_plain_bytes_keep_every_digit(size: int) -> None:
    assert parse_bytes(str(size)) == size


def test_a_card_gives_what_is_free_less_the_margin_and_the_weights_to_come() -> None:
    pools = size_pools(QWEN, 8 * GIB, CARD, None, None, 8192, 8)
    assert pools.device_bytes == pools.device_blocks * QWEN.block_bytes
    most = 6 * GIB - staging_bytes(QWEN.block_bytes, 6 * GIB)
    assert most - QWEN.block_bytes < pools.device_bytes <= most
    assert 30 * GIB - QWEN.block_bytes < pools.host_bytes <= 30 * GIB


def test_a_mover_without_buffers_leaves_their_share_to_the_pool() -> None:
    pools = size_pools(QWEN, 8 * GIB, CARD, None, None, 8192, 8, staged=False)
    assert 6 * GIB - QWEN.block_bytes < pools.device_bytes <= 6 * GIB


def test_loaded_weights_are_not_subtracted_twice() -> None:
    loaded = replace(CARD, free_bytes=7 * GIB, own_bytes=8 * GIB)
    before = size_pools(QWEN, 8 * GIB, CARD, None, None, 8192, 8)
    assert size_pools(QWEN, 8 * GIB, loaded, None, None, 8192, 8) == before


def test_sizes_asked_for_are_taken_and_rounded_down_to_blocks() -> None:
    pools = size_pools(QWEN, 8 * GIB, CARD, 2 * GIB, GIB, 8192, 8)
    assert pools == Pools(854, 455, 854 * QWEN.block_bytes, 455 * QWEN.block_bytes)
    assert pools.device_bytes + staging_bytes(QWEN.block_bytes, pools.device_bytes) <= 2 * GIB


def test_no_host_tier_is_a_size_too() -> None:
    assert size_pools(QWEN, 8 * GIB, CARD, None, 0, 8192, 8).host_blocks == 0


def test_too_much_vram_names_need_free_holder_and_what_to_try() -> None:
    with pytest.raises(ConfigError) as refused:
        size_pools(QWEN, 8 * GIB, replace(CARD, free_bytes=9 * GIB, other_bytes=7 * GIB), 4 * GIB, None, 8192, 8)
    message = str(refused.value)
    assert "4.0 GiB beside 8.0 GiB of weights" in message
    assert "RX 9070 XT has 9.0 GiB of 16.0 GiB free (7.0 GiB held by other processes)" in message
    assert "--kv-vram at most 0 MiB" in message


def test_a_card_too_full_for_one_context_names_what_is_missing() -> None:
    with pytest.raises(ConfigError) as refused:
        size_pools(QWEN, 14 * GIB, CARD, None, None, 40_000, 8)
    message = str(refused.value)
    assert "one context of 40,000 tokens needs 5.5 GiB of KV beside 14.0 GiB of weights" in message
    assert "15.0 GiB of 16.0 GiB free" in message
    assert "--context" in message


def test_a_pool_asked_for_must_hold_one_context() -> None:
    with pytest.raises(
        ConfigError,
        match=r"holds 455 blocks of 16 tokens, one context of 8,192 needs 512: give --kv-vram 1152MiB or more",
    ):
        size_pools(QWEN, 0, CARD, GIB, None, 8192, 8)
    with pytest.raises(ConfigError, match=r"a KV pool of 8 bytes holds 0 blocks of 16 tokens"):
        size_pools(QWEN, GIB, CARD, 8, None, 8192, 8)
    large = replace(QWEN, block_tokens=128)
    with pytest.raises(
        ConfigError, match=r"holds 7 blocks of 128 tokens, one context of 1,000 needs 8: give --kv-vram 144MiB"
    ):
        size_pools(large, 0, CARD, 8 * large.block_bytes - 1, None, 1000, 8)
    assert size_pools(large, 0, CARD, 144 << 20, None, 1000, 8).device_blocks == 8


def test_host_tier_beyond_the_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"host tier of 64\.0 GiB.*only 60\.0 GiB.*--kv-host"):
        size_pools(QWEN, 0, CARD, GIB * 2, 64 * GIB, 8192, 8)


def test_the_cpu_gives_what_the_slots_need_and_no_more_than_a_quarter() -> None:
    small = size_pools(QWEN, 0, CPU, None, None, 512, 4)
    assert small.device_blocks == 4 * 512 // 16 + 1
    large = size_pools(QWEN, 0, CPU, None, None, 32_768, 64)
    assert large.device_bytes <= 8 * GIB
    assert large.device_bytes + large.host_bytes < CPU.host_available_bytes
    with pytest.raises(ConfigError, match=r"33\.0 GiB is asked for, but only 32\.0 GiB"):
        size_pools(QWEN, 0, CPU, 33 * GIB, None, 512, 4)


@given(
    free=st.integers(0, 200 * GIB),
    host=st.integers(0, 500 * GIB),
    weights=st.integers(0, 100 * GIB),
    slots=st.integers(1, 64),
)
def test_plans_never_exceed_what_is_free(free: int, host: int, weights: int, slots: int) -> None:
    memory = DeviceMemory("cuda", "card", 200 * GIB, free, 0, 200 * GIB - free, host)
    try:
        pools = size_pools(QWEN, weights, memory, None, None, 2048, slots)
    except ConfigError:
        assert free - weights < QWEN.blocks_for(2048) * QWEN.block_bytes + 9 * GIB
    else:
        assert pools.device_bytes + weights < free
        assert pools.host_bytes <= host / 2


def test_this_machine_can_be_planned_for() -> None:
    geometry = KVGeometry(layers=30, kv_heads=3, head_dim=64, element_bytes=4)
    pools = plan_pools(geometry, 0, "cpu", None, None, 128, 2)
    assert pools.device_blocks == 17
    assert pools.host_blocks > 0


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="no device cuda:63"):
        device_memory("cuda:63")


@pytest.mark.parametrize(
    ("limit", "used", "cache"),
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_a_containers_limit_counts(tmp_path: Path, limit: str, used: str, cache: str) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1000 kB\nMemAvailable:     500 kB\nHugePages_Total:       0\n", encoding="ascii")
    (tmp_path / used).write_text("130000\n", encoding="ascii")
    (tmp_path / "memory.stat").write_text(f"anon 100000\n{cache} 30000\n", encoding="ascii")
    (tmp_path / limit).write_text("max\n", encoding="ascii")
    assert host_available_bytes(meminfo, (tmp_path,)) == 512_000
    (tmp_path / limit).write_text("300000\n", encoding="ascii")
    assert host_available_bytes(meminfo, (tmp_path,)) == 200_000
    assert host_available_bytes(tmp_path / "absent", ()) == 0
