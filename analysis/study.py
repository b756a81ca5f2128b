"""A report together with the database it was measured in, for whoever draws or exports more than figures."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from .report import Report


@dataclass(frozen=True, slots=True)
class Study:
    """``connection`` holds the tables ``spans`` (the normal form) and ``timeline`` until the study is closed."""

    report: Report
    connection: duckdb.DuckDBPyConnection
