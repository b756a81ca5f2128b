"""What the server under test is and takes."""

from __future__ import annotations

import contextlib

import aiohttp

from .watcher import read_state

_TIMEOUT = aiohttp.ClientTimeout(total=10)


async def find_model(url: str, key: str | None = None) -> str | None:
    """The id of the first model that the server lists; ``None`` where nobody answers."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError, KeyError, IndexError):
        async with _session(key) as session, session.get(f"{url.rstrip('/')}/v1/models") as response:
            if response.status == 200:
                return str((await response.json())["data"][0]["id"])
    return None


async def takes_spans(url: str, key: str | None = None) -> bool:
    """Whether the server is one of ours, which acts on the spans of tools."""
    async with _session(key) as session:
        return await read_state(session, url) is not None


def _session(key: str | None) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(timeout=_TIMEOUT, headers=headers)
