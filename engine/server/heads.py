"""What a request may cost before it is one: the size of its head, and how long it takes to arrive."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES: Final = 128 << 10
"""Bytes of request line and header fields, besides the piece they arrive in; other servers take 8 to 64 KiB."""

MOST_HEAD_S: Final = 30.0
"""From the connection, or from a head's first byte on one that is kept alive, to the head's end."""


class BoundedHead(HttpToolsProtocol):
    """uvicorn's protocol, which by itself collects a head of any size, before any key is looked at, and waits for ever."""

    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a head, but not for ever."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._head_done()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._head_bytes = 0
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """A head ends."""
        self._head_done()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Read on, unless the head is too large by now."""
        super().data_received(data)
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"The head of the request has more than {MOST_HEAD_BYTES} bytes.")

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(MOST_HEAD_S, self._too_slow)

    def _head_done(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
