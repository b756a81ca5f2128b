"""A small HTTP server on loopback for as long as somebody asks it something."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

pytest.importorskip("aiohttp")

from aiohttp import web

T = TypeVar("T")


def asked(app: web.Application, ask: Callable[[str], Awaitable[T]]) -> T:
    """Serve ``app``; what ``ask`` makes of it at its URL."""

    async def both() -> T:
        runner = web.AppRunner(app)
        await runner.setup()
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            await web.SockSite(runner, listening).start()
            try:
                return await ask(f"http://127.0.0.1:{listening.getsockname()[1]}")
            finally:
                await runner.cleanup()

    return asyncio.run(both())
