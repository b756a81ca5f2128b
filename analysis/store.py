"""The database in memory and how records get into it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Final

import duckdb

from .normal import RECORD_TYPES, SpanRecord
from .queries import sql
from .rows import as_row

_KEYS: Final = dict.fromkeys(("trace_key", "span_key", "parent_key", "call_key"), "UBIGINT") | {"row": "BIGINT"}
_PROCESS_TYPES: Final = {"process": "INTEGER", "last_sign_ns": "BIGINT", "running": "BOOLEAN"}
_PART_TYPES: Final = {"part": "BIGINT", "source": "INTEGER", "processes": "INTEGER[]", "first_row": "BIGINT"}
_NO_PACKS: Final = "[]"
_ROW_BITS: Final = 40  # rows of a pack
_READ_TSV: Final = (
    "read_csv($path, header = false, auto_detect = false, columns = $columns, delim = '\\t', quote = '', escape = '',"
    " nullstr = '', new_line = '\\n', max_line_size = 16000000)"
)


@dataclass(frozen=True, slots=True)
class PackedPart:
    """Which source the rows filed under ``part`` are of, and the numbers of the processes they count from 0.

    ``pack`` is the number of the pack, the same in every report.
    """

    part: int
    source: int
    processes: Sequence[int]
    pack: int


class Store:
    """An in-memory DuckDB with ``records`` and ``processes``, closed by ``with``.

    Beyond ``memory_limit`` it makes use of ``spill``, a folder on disk.
    """

    def __init__(self, memory_limit: str = "1200MB") -> None:
        self._packs = _NO_PACKS
        self._spill = tempfile.TemporaryDirectory(prefix="kvtrace-")
        self.connection = duckdb.connect(
            ":memory:",
            config={
                "autoinstall_known_extensions": "false",
                "memory_limit": memory_limit,
                "temp_directory": self._spill.name,
                "preserve_insertion_order": "false",
            },
        )
        # It would go to stdout, into the report.
        self.connection.execute("set enable_progress_bar = false")
        self.connection.execute(f"create table records ({_declared(RECORD_TYPES | _KEYS)})")
        self.connection.execute(f"create table processes ({_declared(_PROCESS_TYPES)})")

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.connection.close()
        self._spill.cleanup()

    def load(self, records: Iterable[SpanRecord]) -> None:
        """Append records in bulk. An exception raised by ``records`` leaves the table as it was."""
        self._insert(
            f"insert into records {sql('cache/keyed')} from {_READ_TSV}",
            records,
            RECORD_TYPES,
        )

    def attach(self, packs: Iterable[str], parts: Iterable[PackedPart]) -> None:
        """Make ``records`` a view of the rows that the packs (paths) hold of these parts."""
        self.connection.execute(f"create or replace table parts ({_declared(_PART_TYPES)})")
        self._insert(
            "insert into parts select * from " + _READ_TSV,  # noqa: S608 - a constant
            ((each.part, each.source, list(each.processes), 1 + (each.pack << _ROW_BITS)) for each in parts),
            _PART_TYPES,
        )
        paths = sorted(packs)
        if paths:
            self.connection.execute("drop table if exists records")
            listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
            self._packs = f"[{listed}]"
            self.connection.execute(sql("cache/records").replace("$packs", self._packs))

    @property
    def is_packed(self) -> bool:
        """Whether ``records`` is a view of packs."""
        return self._packs != _NO_PACKS

    def digest(self) -> str:
        """Names the rows that are attached, whatever files they are of."""
        parts = self.connection.execute("select part, first_row from parts order by all").fetchall()
        return blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def ask_packs(self, table: str, query: str) -> None:
        """Keep the answer of a question to the packs themselves, where rows still say which part they are of."""
        self.connection.execute(f"create or replace table {table} as {query.replace('$packs', self._packs)}")

    def add_processes(self, processes: Iterable[tuple[int, int | None, bool]]) -> None:
        """Say when processes were last known to live, beside what their spans show, and whether they still do."""
        self._insert("insert into processes select * from " + _READ_TSV, processes, _PROCESS_TYPES)  # noqa: S608

    def fill(self, table: str, types: dict[str, str], rows: Iterable[Sequence[object]]) -> None:
        """Make a table of rows that come from elsewhere."""
        self.connection.execute(f"create or replace table {table} ({_declared(types)})")
        self._insert(f"insert into {table} from {_READ_TSV}", rows, types)

    def _insert(self, statement: str, rows: Iterable[Sequence[object]], columns: dict[str, str]) -> None:
        """Row by row inserts are a hundred times slower than a file, and a bulk interface would need pyarrow."""
        with tempfile.TemporaryDirectory(prefix="rows-", dir=self._spill.name) as folder:
            path = Path(folder) / "rows.tsv"
            with path.open("w", encoding="utf-8", newline="") as file:
                file.writelines(f"{as_row(row)}\n" for row in rows)
            if path.stat().st_size:
                self.connection.execute(statement, {"path": str(path), "columns": columns})


def _declared(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
