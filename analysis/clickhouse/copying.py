"""What pictures are drawn from, brought here: the spans and timelines of a table that is not too big for that."""

from __future__ import annotations

from typing import Any, Final

from ..errors import DatabaseError
from ..sources.values import text
from ..store import Store
from .measure import Database

MOST_ROWS: Final = 2_000_000
_BIG, _TEXT, _TRUTH, _LIST = "BIGINT", "VARCHAR", "BOOLEAN", "BIGINT[]"
_TABLES: Final = {
    "timeline": dict.fromkeys(("variant", "agent", "state"), _TEXT) | dict.fromkeys(("start_ns", "stop_ns"), _BIG),
    "contexts": {"agent": _TEXT} | dict.fromkeys(("start_ns", "stop_ns", "tokens"), _BIG),
    "spans": dict.fromkeys(("id", "source"), _BIG)
    | dict.fromkeys(("agent", "parent_agent", "kind", "name", "agent_name", "call_id", "trace_id", "span_id"), _TEXT)
    | dict.fromkeys(("parent_span_id", "error", "confidence"), _TEXT)
    | dict.fromkeys(("start_ns", "end_ns", "stop_ns", "alive_ns", "first_token_ns"), _BIG)
    | dict.fromkeys(("input_tokens", "output_tokens"), _BIG)
    | dict.fromkeys(("queued_unix_ns", "suspended_unix_ns", "around"), _LIST)
    | dict.fromkeys(("running", "names_agent", "repeats"), _TRUTH),
}


def copy_rows(database: Database, store: Store) -> None:
    """Copy the tables that renderers ask, once a table has been measured in the same session.

    Raises :class:`DatabaseError` where one has more than :data:`MOST_ROWS` rows.
    """
    for table, types in _TABLES.items():
        count = int(database.ask(f"select count() as rows from {table}")[0]["rows"])  # noqa: S608 - names of ours
        if count > MOST_ROWS:
            raise DatabaseError(
                f"{count:,} rows of {table} are more than the {MOST_ROWS:,} that are drawn; "
                "name a table or view of fewer spans, or leave pictures and windows out"
            )
        rows = database.ask(f"select {', '.join(types)} from {table}")  # noqa: S608 - names of ours
        store.fill(table, types, ([_plain(row[column]) for column in types] for row in rows))


def _plain(value: Any) -> Any:
    return text(value) if isinstance(value, str) else value
