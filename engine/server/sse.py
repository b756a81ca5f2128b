"""Answers that take a while: streams of events, and what to do when the client goes away meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

SILENCE_S: Final = 1.5
"""After this long without an event a stream sends a comment; clients are promised one every 2 s."""

_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class ClientGone(Exception):
    """Nobody is there to read the answer."""


class EventStream(Response):
    """A response whose body comes piece by piece from ``events``.

    ``on_end`` is called once, whatever happens, with what ended the stream early: :class:`ClientGone` where the client
    went away. ``events`` is then closed at the point where it waits.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        on_end: Callable[[BaseException | None], None] = lambda _: None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._events = events
        self._on_end = on_end
        super().__init__(None, 200, {**_HEADERS, **(headers or {})})
        # An empty body has a length; this one has none that is known.
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or as much as the client wants."""
        ended: BaseException | None = None
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await unless_gone(receive, self._send_all(send))
        except ClientGone as gone:
            ended = gone
        except asyncio.CancelledError as cancelled:
            # Only the end of the server cancels, and it wants no report of it; what was to be said of it is sent.
            ended = cancelled
        except BaseException as error:
            ended = error
            raise
        finally:
            self._on_end(ended)

    async def _send_all(self, send: Send) -> None:
        try:
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._events.aclose()


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled where the client goes away first.

    Raises:
        ClientGone: it did.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, watching):
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
