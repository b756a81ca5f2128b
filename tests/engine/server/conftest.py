"""One server for a whole run, on the tiny model and on the embedded one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.server.settings import ServerSettings

from .support import Running, running


def tiny_settings(folder: Path) -> ServerSettings:
    """A pool for three contexts and two slots: small enough to run short of either."""
    return ServerSettings(
        source=str(folder),
        port=0,
        device="cpu",
        kv_vram_bytes=3 * 16 * 16 * 384,
        kv_host_bytes=64 * 16 * 384,
        slots=2,
        context_tokens=256,
        queue_requests=12,
        drain_s=5,
        policy=PolicyMode.SWAP,  # auto may well leave alone what these tests want to see move
    )


@pytest.fixture(scope="session")
def tiny_server(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    with running(tiny_settings(tiny_folder("llama"))) as server:
        yield server


@pytest.fixture(scope="session")
def smollm2_server() -> Iterator[Running]:
    settings = ServerSettings(
        port=0, device="cpu", kv_vram_bytes=200 << 20, kv_host_bytes=200 << 20, context_tokens=1024, drain_s=5
    )
    with running(settings) as server:
        yield server
