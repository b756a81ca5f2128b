"""A session over ClickHouse's HTTP interface, with nothing but the standard library.

Two kinds of request are all that is needed, and answers are small, so a client library would bring more than it saves.
"""

from __future__ import annotations

import json
import secrets
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlencode

from ..errors import DatabaseError, SourceNotFoundError, UnreachableError
from .settings import SETTINGS
from .target import Target

_CONNECT_S: Final = 10
_NO_SUCH: Final = ("60", "81")  # table, database
_TRANSPORT: Final = {"default_format": "JSONEachRow", "output_format_json_quote_64bit_integers": "0"}


class Server:
    """A session, closed by ``with``. The server forgets its temporary tables a minute after the last request.

    Raises :class:`UnreachableError`, :class:`SourceNotFoundError` and :class:`DatabaseError`.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        kind = HTTPSConnection if target.secure else HTTPConnection
        self._connection = kind(target.host, target.port, timeout=_CONNECT_S)
        # Without waiting for the end, an error after the first rows would come with a status of success.
        asked = {"session_id": f"kvtrace-{secrets.token_hex(8)}", "wait_end_of_query": "1"}
        self._path = f"/?{urlencode({**asked, **_TRANSPORT, **SETTINGS})}"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def run(self, statement: str) -> None:
        """Carry a statement out."""
        self._post(statement)

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Rows of a query, by column."""
        return [json.loads(line) for line in self._post(query).splitlines()]

    def _post(self, text: str) -> bytes:
        headers = {"X-ClickHouse-User": self._target.user, "X-ClickHouse-Key": self._target.password}
        try:
            if self._connection.sock is None:
                self._connect()
            self._connection.request("POST", self._path, text.encode(), headers)
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, HTTPException) as error:
            raise UnreachableError(f"{self._target} cannot be reached: {error}; check host and HTTP port") from error
        if answer.status != 200:
            self._refuse(answer.headers.get("X-ClickHouse-Exception-Code"), body.decode(errors="replace"))
        return body

    def _connect(self) -> None:
        self._connection.connect()
        # A query may take as long as it takes.
        self._connection.sock.settimeout(None)

    def _refuse(self, code: str | None, text: str) -> None:
        reason = (text.splitlines() or ["no reason given"])[0]
        if code in _NO_SUCH:
            raise SourceNotFoundError(f"{self._target} is no table there ({reason})")
        raise DatabaseError(f"{self._target} refused a query: {reason}")
