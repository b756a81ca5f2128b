"""Pieces read into one pack: a Parquet file of the rows of many parts."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from .normal import RECORD_TYPES
from .pieces import Part, Piece, read_piece
from .queries import sql
from .rows import OWN, SHARED, RowWriter

_ROW_TYPES: Final = {
    "part": "BIGINT",
    "process": "INTEGER",
    **{name: RECORD_TYPES[name] for name in OWN},
    "shared": "INTEGER",
}
_SHARED_TYPES: Final = {"shared": "INTEGER", **{name: RECORD_TYPES[name] for name in SHARED}}
_CONFIG: Final = {
    "autoinstall_known_extensions": "false",
    "memory_limit": "400MB",
    "threads": "1",
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Pieces that become one pack, the file ``pack`` in ``folder``, their parts numbered from ``first_part``."""

    folder: str
    pack: str
    first_part: int
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """What there is to read."""
        return sum(piece.bytes for piece in self.pieces)


def read_batch(batch: Batch) -> list[list[Part]]:
    """Read the pieces of a batch, and leave the pack behind unless they hold no rows; the parts of each piece.

    The pack appears under its name when it is whole. Raises ``OSError`` where it cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="packing-", dir=batch.folder) as work:
        with RowWriter(Path(work), batch.first_part) as rows:
            parts = [read_piece(piece, rows) for piece in batch.pieces]
        if rows.written:
            _pack(rows, Path(work) / batch.pack)
            os.replace(Path(work) / batch.pack, Path(batch.folder) / batch.pack)  # noqa: PTH105 - both are paths already
    return parts


def _pack(rows: RowWriter, target: Path) -> None:
    with duckdb.connect(":memory:", config=dict(_CONFIG)) as connection:
        connection.execute("set preserve_insertion_order = false")
        connection.execute("set enable_progress_bar = false")
        connection.execute(
            sql("cache/pack"),
            {
                "rows": str(rows.rows_path),
                "row_types": _ROW_TYPES,
                "shared": str(rows.shared_path),
                "shared_types": _SHARED_TYPES,
                "target": str(target),
            },
        )
