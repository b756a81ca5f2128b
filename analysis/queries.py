"""The SQL files beside this module: loaded once, run with parameters, rows turned into typed records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeVar

import duckdb

Row = TypeVar("Row")

_BATCH: Final = 10_000


@cache
def sql(name: str) -> str:
    """Text of ``sql/<name>.sql``; its first comment is the question it answers."""
    return files("kvtrace.analysis").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def number_terms(connection: duckdb.DuckDBPyConnection) -> None:
    """Number the texts in the table ``terms``, for :func:`derive`."""
    connection.execute("create type term as enum (select term from terms where term is not null order by term)")


def derive(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    form: str = "table",
    terms: Sequence[str] = (),
    keep_as: str | None = None,
) -> None:
    """Keep the answer of a question as a table of the same name (or ``keep_as``), or the question itself as a view.

    The columns ``terms`` are kept as the numbers of :func:`number_terms`; they read as texts all the same.
    """
    selected = "*"
    if terms:
        selected = f"* replace ({', '.join(f'{column}::term as {column}' for column in terms)})"
    connection.execute(f'create or replace {form} "{keep_as or name}" as select {selected} from ({sql(name)})')  # noqa: S608 - ours


def rows(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    row_type: type[Row],
    parameters: Mapping[str, Any] | None = None,
) -> list[Row]:
    """Answer a question as records; a column without a field, or the reverse, is a ``TypeError``."""
    return list(stream(connection, name, row_type, parameters))


def stream(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    row_type: type[Row],
    parameters: Mapping[str, Any] | None = None,
) -> Iterator[Row]:
    """As :func:`rows`, a batch at a time; nothing else may use the connection meanwhile."""
    result = connection.execute(sql(name), dict(parameters or {}))
    columns = [column[0] for column in result.description or ()]
    while batch := result.fetchmany(_BATCH):
        for row in batch:
            yield row_type(**dict(zip(columns, row, strict=True)))
