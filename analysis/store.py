"""The database in memory and how records get into it."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import duckdb

from .normal import RECORD_TYPES, SpanRecord

_COLUMNS = ", ".join(f"{name} {kind}" for name, kind in RECORD_TYPES.items())
_PROCESSES = "create table processes (process integer, last_sign_ns bigint, running boolean)"


class Store:
    """An in-memory DuckDB with the tables ``records`` and ``processes``, closed by ``with``.

    Records are first appended to a CSV file that DuckDB then reads in one go: row by row inserts are a hundred
    times slower, and a bulk interface would need numpy or pyarrow.
    """

    def __init__(self) -> None:
        self.connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
        self.connection.execute(f"create table records ({_COLUMNS})")
        self.connection.execute(_PROCESSES)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.connection.close()

    def load(self, records: Iterable[SpanRecord]) -> None:
        """Append records in bulk. An exception raised by ``records`` leaves the table as it was.

        Texts hold no control characters (importers see to that), so that a record is a line.
        """
        with tempfile.TemporaryDirectory(prefix="kvtrace-") as folder:
            path = Path(folder) / "records.csv"
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(records)
            if path.stat().st_size:
                self._read_csv(path)

    def add_process(self, process: int, last_sign_ns: int | None, running: bool) -> None:
        """Say when a process was last known to live, beside what its spans show."""
        self.connection.execute("insert into processes values (?, ?, ?)", [process, last_sign_ns, running])

    def _read_csv(self, path: Path) -> None:
        self.connection.execute(
            "insert into records select * from read_csv($path, header = false, auto_detect = false, columns = $columns,"
            " delim = ',', quote = '\"', escape = '\"', nullstr = '', new_line = '\\n', max_line_size = 16000000)",
            {"path": str(path), "columns": RECORD_TYPES},
        )
