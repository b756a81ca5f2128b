"""The SQL files beside this module: loaded once, run with parameters, rows turned into typed records."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import duckdb

Row = TypeVar("Row")


@cache
def sql(name: str) -> str:
    """Text of ``sql/<name>.sql``; its first comment is the question it answers."""
    return files("kvtrace.analysis").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def derive(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Keep the answer of a question as a table of the same name, for the questions that build on it."""
    connection.execute(f'create or replace table "{name}" as {sql(name)}')


def rows(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    row_type: type[Row],
    parameters: Mapping[str, Any] | None = None,
) -> list[Row]:
    """Answer a question as records; a column without a field, or the reverse, is a ``TypeError``."""
    result = connection.execute(sql(name), dict(parameters or {}))
    columns = [column[0] for column in result.description or ()]
    return [row_type(**dict(zip(columns, row, strict=True))) for row in result.fetchall()]
