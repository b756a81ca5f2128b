"""``kvtrace bench return --url`` in a process of its own against a real server: where the KV was, not how long it took."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.server.settings import ServerSettings

from .support import running

pytest.importorskip("aiohttp", reason="the client needs kvtrace[bench]")

TOKEN_BYTES = 384  # of the tiny model
SMALL = ("--tokens", "100", "--new-tokens", "20", "--repeats", "2", "--vocabulary", "256")


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvtrace.tui", "bench", "return", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def measured(folder: Path, policy: PolicyMode, pool_blocks: int, block_tokens: int = 16) -> dict[str, dict[str, Any]]:
    settings = ServerSettings(
        source=str(folder),
        port=0,
        device="cpu",
        kv_vram_bytes=pool_blocks * block_tokens * TOKEN_BYTES,
        kv_host_bytes=4 * pool_blocks * block_tokens * TOKEN_BYTES,
        slots=2,
        context_tokens=160,
        drain_s=5,
        policy=policy,
        block_tokens=block_tokens,
    )
    with running(settings) as server:
        assert server.service.engine.state().block_tokens == block_tokens
        done = bench("--url", f"{server.url}/v1", *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    assert ("is measured sooner" in done.stderr) == (pool_blocks * block_tokens > 8 * 100)
    document = json.loads(done.stdout)
    assert (document["over"], document["policy"], document["server"]["device"]) == ("http", policy.value, "cpu")
    assert document["machine"]["versions"]["torch"]
    return {row["case"]: row for row in document["returns"]}


# A pool that one other agent fills, and one that takes several.
@pytest.mark.parametrize(
    ("policy", "pool_blocks", "size"), [(PolicyMode.AUTO, 10, 16), (PolicyMode.SWAP, 60, 16), (PolicyMode.AUTO, 5, 32)]
)
def test_every_return_finds_its_kv_where_the_case_says(
    tiny_folder: Callable[[str], Path], policy: PolicyMode, pool_blocks: int, size: int
) -> None:
    rows = measured(tiny_folder("llama"), policy, pool_blocks, size)
    assert list(rows) == ["resident", "demand", "prefetched", "recomputed"]
    # 100 tokens: full blocks and a partial one, which the tool's start parks as well.
    blocks = -(-100 // size)
    assert [row["restored_bytes"] // (size * TOKEN_BYTES) for row in rows.values()] == [0, blocks, blocks, 0]
    assert [row["computed_tokens"] for row in rows.values()] == [21, 21, 21, 121]
    assert rows["resident"]["times_resident"] == 1
    assert all(len(row["first_tokens_ms"]) == row["repeats"] == 2 for row in rows.values())


def test_without_a_host_tier_what_was_driven_out_is_computed_again(tiny_folder: Callable[[str], Path]) -> None:
    rows = measured(tiny_folder("llama"), PolicyMode.RECOMPUTE, 30)
    assert {case: row["computed_tokens"] for case, row in rows.items()} == {"resident": 21, "recomputed": 121}


def test_what_cannot_be_measured_is_one_sentence() -> None:
    gone = bench("--url", "http://127.0.0.1:9", *SMALL)
    assert (gone.returncode, gone.stderr.count("\n")) == (3, 1)
    assert "kvtrace serve" in gone.stderr
    both = bench("--url", "http://127.0.0.1:9", "--policy", "swap")
    assert both.returncode == 2
    assert "leave out" in both.stderr
