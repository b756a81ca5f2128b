"""Where a table of the Collector's is: ``clickhouse://user:password@host:port/database/table``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from ..errors import SourceNotFoundError

# A path loses the second slash when it is normalised.
_SCHEME: Final = re.compile(r"clickhouse:/+")
_DATABASE: Final = "default"
_TABLE: Final = "otel_traces"
_FORM: Final = "clickhouse://user:password@host:port/database[/table][?secure=1]"


@dataclass(frozen=True, slots=True)
class Target:
    """A table, and the HTTP interface it is reached through."""

    host: str
    port: int
    secure: bool
    user: str
    password: str = field(repr=False)
    database: str
    table: str

    @property
    def quoted(self) -> str:
        """The table's full name in SQL."""
        return f"{_quoted(self.database)}.{_quoted(self.table)}"

    def __str__(self) -> str:
        """What may be shown: everything but the password."""
        return f"clickhouse://{self.host}:{self.port}/{self.database}/{self.table}"


def is_clickhouse(source: str) -> bool:
    """Whether a source is a table rather than a file."""
    return _SCHEME.match(source) is not None


def parse_target(source: str, environment: Mapping[str, str] = os.environ) -> Target:
    """Read a source; user and password may stand in ``CLICKHOUSE_USER`` and ``CLICKHOUSE_PASSWORD`` instead.

    Raises :class:`SourceNotFoundError` for one that names no host or more than a table.
    """
    url = urlsplit(_SCHEME.sub("//", source, count=1))
    path = [unquote(part) for part in url.path.split("/") if part]
    try:
        port = url.port
    except ValueError:
        port = -1
    if not url.hostname or port == -1 or len(path) > 2:
        raise SourceNotFoundError(f"this names no table in ClickHouse; write {_FORM}")
    secure = parse_qs(url.query).get("secure", ["0"])[-1] in ("1", "true")
    return Target(
        host=url.hostname,
        port=port or (8443 if secure else 8123),
        secure=secure,
        user=unquote(url.username or "") or environment.get("CLICKHOUSE_USER", "default"),
        password=unquote(url.password or "") or environment.get("CLICKHOUSE_PASSWORD", ""),
        database=path[0] if path else _DATABASE,
        table=path[1] if len(path) > 1 else _TABLE,
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"
