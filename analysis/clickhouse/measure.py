"""Measured times out of a table of the Collector's: the questions of ``sql/``, answered by ClickHouse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, get_type_hints

from ..options import WINDOW_CAP_NS
from ..queries import sql
from ..timeline import STEPS, Measured, answers
from .dialect import Fixpoint, translate
from .vocabulary import records_query

Row = TypeVar("Row")

_NUMBERED: Final = "terms"  # DuckDB sorts numbers in place of texts; ClickHouse has no enums that are made on the way
_PROCESSES: Final = "select 0::UInt64 as process, null::Nullable(Int64) as last_sign_ns, false as running where 0"


class Database(Protocol):
    """A session with ClickHouse: temporary tables last as long as it does, under the settings of :mod:`.dialect`."""

    def run(self, statement: str) -> None:
        """Carry a statement out."""
        ...

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Rows of a query, by column."""
        ...


def measure_table(database: Database, table: str, round_trip_ns: int, window_cap_ns: int = WINDOW_CAP_NS) -> Measured:
    """Measure the spans in ``table``, named in full and quoted, with nothing but temporary tables written."""
    _keep(database, "records", records_query(table))
    _keep(database, "processes", _PROCESSES)
    for step in STEPS:
        if step != _NUMBERED:
            question = translate(sql(step))
            work_out(database, question.fixpoints)
            _keep(database, step, question.query)

    def ask(name: str, row_type: type[Row], parameters: Mapping[str, int]) -> list[Row]:
        question = translate(sql(name), parameters)
        work_out(database, question.fixpoints)
        return [_typed(row, row_type) for row in database.ask(question.query)]

    return answers(ask, round_trip_ns, window_cap_ns)


def _keep(database: Database, table: str, query: str) -> None:
    database.run(f"create temporary table {table} engine = Memory as {query}")


def work_out(database: Database, fixpoints: Sequence[Fixpoint]) -> None:
    """Fill the tables that a query counts on."""
    for each in fixpoints:
        _keep(database, each.table, each.create)
        before, now = -1, _size(database, each.table)
        while now > before:
            database.run(f"insert into {each.table} {each.extend}")
            before, now = now, _size(database, each.table)


def _size(database: Database, table: str) -> int:
    return int(database.ask(f"select count() as rows from {table}")[0]["rows"])  # noqa: S608 - names of ours


def _typed(row: Mapping[str, Any], row_type: type[Row]) -> Row:
    """A row as a record: ClickHouse writes truth as 0 and 1, and big numbers as texts."""
    hints = get_type_hints(row_type)
    return row_type(**{name: _value(value, hints.get(name)) for name, value in row.items()})


def _value(value: Any, hint: Any) -> Any:
    if hint in (bool, int, float):
        return hint(value)
    if isinstance(value, list):
        # Quantiles; those of nothing are nulls.
        return None if None in value else [float(each) for each in value]
    return value
