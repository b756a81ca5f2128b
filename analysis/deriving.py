"""Figures of many spans: agents derived before are read from layers, only those that files were added to are derived anew.

The same questions of ``sql/`` as in :mod:`.timeline` give the same answers; here the tables they are asked of are views
of :mod:`.layers`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Final

import duckdb

from .layers import FOLDER_PREFIX, Shelf, quoted
from .options import WINDOW_CAP_NS
from .progress import Progress
from .queries import Row, derive, rows, sql
from .store import Store
from .timeline import STEPS, Measured, answers, measure, take_steps

_CHUNK_ROWS: Final = 2_000_000  # derived at once: what fits into the database's memory
_MOST_LAYERS: Final = 24
_SIGNS: Final = "alive"  # depends on all spans of a process, whatever group they are of
_CHUNK: Final = "read_parquet($files, hive_partitioning = false)"
_LAYER_QUESTIONS: Final = (
    "cache/records",
    *(f"layers/{name}" for name in ("pairs", "homes", "groups", "named", "opened", "spread")),
)


def measure_kept(
    store: Store, folder: Path, round_trip_ns: int, progress: Progress, window_cap_ns: int = WINDOW_CAP_NS
) -> Measured:
    """Measure ``records`` and ``processes`` as :func:`~kvtrace.analysis.timeline.measure` does, with layers in ``folder``.

    Leaves ``spans``, ``contexts`` and ``timeline`` behind as views. Raises ``OSError`` and ``duckdb.Error`` where the
    layers cannot be written or read.
    """
    connection = store.connection
    if not store.is_packed:
        return measure(connection, round_trip_ns, window_cap_ns)
    key = store.digest()
    shelf = Shelf(folder, connection)
    is_known = shelf.recall(key)
    if not is_known:
        _group(store)
        shelf.survey()
        derive(connection, "layers/found", keep_as="used")
    derive(connection, _SIGNS, STEPS[_SIGNS])
    is_outdated = _drop_outdated(connection, shelf)
    if is_known and is_outdated:
        _group(store)
    if is_outdated or not is_known:
        _derive_rest(connection, shelf, progress)
        shelf.remember(key)
    if not shelf.layers():
        return measure(connection, round_trip_ns, window_cap_ns)
    shelf.attach()
    connection.execute("create view kept as select *, row as id from records join alive using (process)")
    derive(connection, "spans", "view")

    def ask(name: str, row_type: type[Row], parameters: Mapping[str, int]) -> list[Row]:
        return rows(connection, name, row_type, parameters)

    return answers(ask, round_trip_ns, window_cap_ns)


@cache
def derivation() -> str:
    """Name of the folder of layers: tells apart whatever derives otherwise."""
    digest = blake2b(duckdb.__version__.encode(), digest_size=8)
    package = files("kvtrace.analysis")
    for step in [*STEPS, *_LAYER_QUESTIONS]:
        digest.update(sql(step).encode())
    for module in ("timeline.py", "layers.py", "deriving.py"):
        digest.update(package.joinpath(module).read_bytes())
    return FOLDER_PREFIX + digest.hexdigest()


def _group(store: Store) -> None:
    """Find the groups of spans, and what each consists of: ``homes`` by trace, and ``groups``."""
    connection = store.connection
    store.ask_packs("pairs", sql("layers/pairs"))
    connection.execute("create or replace table edges as select distinct trace_key, node from pairs")
    connection.execute(
        "create or replace table homes as select trace_key, min(node) as home from edges group by trace_key"
    )
    changed = True
    while changed:
        derive(connection, "layers/homes", keep_as="nearer")
        different = "select 1 from nearer join homes using (trace_key) where nearer.home <> homes.home limit 1"
        changed = connection.execute(different).fetchone() is not None
        connection.execute("create or replace table homes as from nearer")
    derive(connection, "layers/groups", keep_as="groups")


def _drop_outdated(connection: duckdb.DuckDBPyConnection, shelf: Shelf) -> bool:
    """Take groups out of ``used`` whose open calls are known to have lasted longer by now; whether there were any."""
    if len(shelf.layers()) > _MOST_LAYERS:
        connection.execute("delete from used")
        return True
    if not shelf.attach_opened():
        return False
    derive(connection, "layers/outdated", keep_as="outdated")
    dropped = connection.execute("delete from used where home in (from outdated) returning home").fetchall()
    return bool(dropped)


def _derive_rest(connection: duckdb.DuckDBPyConnection, shelf: Shelf, progress: Progress) -> None:
    """Make layers of all groups that are not in ``used``."""
    connection.execute(f"create or replace table chunks as {sql('layers/chunks')}", {"chunk_rows": _CHUNK_ROWS})
    sized = connection.execute("select chunk, sum(rows)::bigint from chunks group by chunk order by chunk").fetchall()
    chunks, total = [chunk for chunk, _ in sized], sum(size for _, size in sized)
    connection.execute("alter view records rename to everything")
    is_all = len(chunks) == 1 and not shelf.layers()
    with tempfile.TemporaryDirectory(prefix="kvtrace-") as work:
        if chunks and not is_all:
            connection.execute(sql("layers/spread").replace("$target", quoted(Path(work))))
        done = 0
        for chunk, size in sized:
            progress.derive(done, total)
            rows_of = (
                "everything"
                if is_all
                else _CHUNK.replace("$files", quoted(Path(work) / f"chunk={chunk}" / "*.parquet"))
            )
            connection.execute(f"create view records as from {rows_of}")
            take_steps(connection, [step for step in STEPS if step != _SIGNS])
            shelf.add(chunk)
            _forget(connection)
            done += size
        progress.derive(total, total)
    connection.execute("alter view everything rename to records")


def _forget(connection: duckdb.DuckDBPyConnection) -> None:
    """Drop what was derived, the last first."""
    for step, form in reversed(STEPS.items()):
        if step != _SIGNS:
            connection.execute(f'drop {form} "{step}"')
    connection.execute("drop view records")
    connection.execute("drop table named")
    connection.execute("drop type term")
