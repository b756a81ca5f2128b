"""What the server's own state tells over a run: bytes moved, and how much idle KV was handed to others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import aiohttp

_PERIOD_S: Final = 0.5
_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)
_WAITING: Final = frozenset({"blocked_resident", "parking", "parked"})


@dataclass(slots=True)
class Moved:
    """Bytes copied each way in a run, and byte-seconds of its waiting agents' KV.

    ``idle_byte_s`` is all of it, ``freed_byte_s`` what had left VRAM, and ``handed_byte_s`` what had left it less the
    room that lay unused: so much of the idle KV's room was in the hands of agents at work. A policy that frees more than
    anybody needs raises the second figure and not the third.
    """

    out_bytes: int = 0
    in_bytes: int = 0
    idle_byte_s: float = 0.0
    freed_byte_s: float = 0.0
    handed_byte_s: float = 0.0

    def see(self, state: Mapping[str, Any], own: str, seconds: float) -> None:
        """Add ``seconds`` in which the engine was as ``state`` says; agents count whose id begins with ``own``."""
        idle = freed = held = 0
        for agent in state["agents"]:
            if agent["state"] in _WAITING and agent["agent"].startswith(own):
                # A block can be in both tiers, so the larger one is the most that is known to exist.
                whole = max(agent["vram_bytes"], agent["host_bytes"])
                idle += whole
                freed += whole - agent["vram_bytes"]
                held += agent["vram_bytes"]
        vram = state["tiers"]["vram"]
        unused = max(0, vram["kv_pool_bytes"] - vram["kv_active_bytes"] - held)
        self.idle_byte_s += idle * seconds
        self.freed_byte_s += freed * seconds
        self.handed_byte_s += max(0, freed - unused) * seconds

    @property
    def freed_share(self) -> float | None:
        """How much of the idle byte-seconds was free for others."""
        return self.freed_byte_s / self.idle_byte_s if self.idle_byte_s else None


async def read_state(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    """The server's ``/v1/kv/state``; ``None`` where it has none, or something else of that name."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
        async with session.get(f"{url.rstrip('/')}/v1/kv/state", timeout=_TIMEOUT) as response:
            if response.status == 200:
                state: Any = await response.json()
                return state if _ours(state) else None
    return None


def _ours(state: Any) -> bool:
    try:
        return isinstance(state["tiers"]["host"]["total_bytes"], int) and {"policy", "device"} <= state.keys()
    except (AttributeError, KeyError, TypeError):
        return False


def _copied(moved: Moved, first: Mapping[str, Any], last: Mapping[str, Any] | None) -> Moved | None:
    """``moved`` with the bytes that crossed between two states; ``None`` where the server went away or began anew."""
    if last is None:
        return None
    try:
        out, back = (last["link"][name] - first["link"][name] for name in ("out_total_bytes", "in_total_bytes"))
    except (KeyError, TypeError):
        return None
    return None if min(out, back) < 0 else replace(moved, out_bytes=out, in_bytes=back)


class Watcher:
    """Looks at the state twice a second from ``async with`` to its end.

    Afterwards ``moved`` is complete, or ``None`` where the server told too little.

    Args:
        url: base URL of the server.
        own: what the ids of this run's agents begin with; the server may know those of earlier runs.
        key: bearer key of the server.
    """

    def __init__(self, url: str, own: str = "", key: str | None = None) -> None:
        self._url, self._own = url, own
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._task: asyncio.Task[None] | None = None
        self._first: dict[str, Any] | None = None
        self.moved: Moved | None = None

    async def __aenter__(self) -> Watcher:
        self._session = aiohttp.ClientSession(headers=self._headers)
        self._first = await read_state(self._session, self._url)
        if self._first is not None:
            self.moved = Moved()
            self._task = asyncio.create_task(self._watch(self.moved))
        return self

    async def __aexit__(self, *problem: object) -> None:
        if self._task is not None and self.moved is not None and self._first is not None:
            self._task.cancel()
            (ended,) = await asyncio.gather(self._task, return_exceptions=True)
            last = await read_state(self._session, self._url)
            self.moved = _copied(self.moved, self._first, last) if isinstance(ended, asyncio.CancelledError) else None
        await self._session.close()

    async def _watch(self, moved: Moved) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        while True:
            await asyncio.sleep(_PERIOD_S)
            state = await read_state(self._session, self._url)
            now = loop.time()
            if state is not None:
                moved.see(state, self._own, now - before)
            before = now
