"""What the server under test is and takes, and when it is ready to be measured."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import aiohttp

from .watcher import read_state

OURS: Final = "kvtrace"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10)
_LOOK_S: Final = 0.25
_STEADY_S: Final = 3.0  # a chunk of the host tier is pinned in less
_LONGEST_S: Final = 180.0
_PACKAGES: Final = ("kvtrace", "aiohttp", "torch", "triton", "transformers")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Who answers: ``kvtrace``, ``vllm`` or ``other``; what only a server of ours tells is ``None`` elsewhere."""

    engine: str
    version: str | None
    policy: str | None = None
    device: str | None = None
    device_name: str | None = None
    host_bytes: int | None = None
    block_tokens: int | None = None

    @property
    def takes_spans(self) -> bool:
        """Whether it acts on the spans of tools."""
        return self.engine == OURS


async def find_model(url: str, key: str | None = None) -> str | None:
    """The id of the first model that the server lists; ``None`` where nobody answers."""
    with contextlib.suppress(KeyError, IndexError, TypeError):
        return str((await _read(url, "/v1/models", key))["data"][0]["id"])
    return None


async def find_context(url: str, key: str | None = None) -> int | None:
    """The longest context of that model, where the server tells."""
    with contextlib.suppress(KeyError, IndexError, TypeError, ValueError):
        return int((await _read(url, "/v1/models", key))["data"][0]["max_model_len"])
    return None


async def answers(url: str, key: str | None = None) -> bool:
    """Whether anything at all answers at ``url``."""
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with _session(key) as session, session.get(f"{url.rstrip('/')}/v1/models"):
            return True
    return False


async def identify(url: str, key: str | None = None) -> ServerFacts:
    """What serves at ``url``, by its own state or, as vLLM has it, its ``/version``."""
    async with _session(key) as session:
        state = await read_state(session, url)
    if state is not None:
        return ServerFacts(
            OURS,
            _version(OURS),
            state["policy"],
            state["device"],
            state.get("device_name"),
            state["tiers"]["host"]["total_bytes"],
            state.get("block_tokens"),
        )
    with contextlib.suppress(KeyError, TypeError):
        return ServerFacts("vllm", str((await _read(url, "/version", key))["version"]))
    return ServerFacts("other", None)


async def wait_for_host_tier(
    url: str, key: str | None = None, *, steady_s: float = _STEADY_S, longest_s: float = _LONGEST_S
) -> float | None:
    """Wait until the host tier of a server of ours has not grown for ``steady_s``; tell how many seconds it grew.

    On a GPU it is pinned in the background while the server answers already, and steps take longer meanwhile. On a CPU
    it is whole from the start. ``None``: it still grew after ``longest_s``.
    """
    loop = asyncio.get_running_loop()
    began = grew = loop.time()
    seen = -1
    async with _session(key) as session:
        while loop.time() - began < longest_s:
            state = await read_state(session, url)
            if state is None or str(state["device"]).startswith("cpu"):
                return 0.0
            if (total := state["tiers"]["host"]["total_bytes"]) != seen:
                seen, grew = total, loop.time()
            if loop.time() - grew >= steady_s or (total == 0 and not _uses_host(state)):
                return grew - began
            await asyncio.sleep(_LOOK_S)
    return None


def client_machine() -> dict[str, Any]:
    """The machine that the client runs on, as plain JSON values; for a server on it, its own as well."""
    return {
        "cpu_count": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def _uses_host(state: dict[str, Any]) -> bool:
    return state["policy"] not in ("keep", "recompute")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


async def _read(url: str, path: str, key: str | None) -> Any:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
        async with _session(key) as session, session.get(f"{url.rstrip('/')}{path}") as response:
            if response.status == 200:
                return await response.json()
    return None


def _session(key: str | None) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(timeout=_TIMEOUT, headers=headers)
