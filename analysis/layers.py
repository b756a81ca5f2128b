"""What was derived before, kept beside the cache: layers of agents' timelines and what follows from them.

Spans that share a trace or an agent, directly or through others, form a group, and no figure of a group depends on the
spans of another. So each is derived once: a layer is a folder of Parquet files with the derived tables of some groups,
never changed after it appeared, and a set says which layers hold the groups of one set of files. Both may be deleted at
any time. Sets that were not used lately go first, then, after an hour, layers that no set refers to; the folders of
other versions after a month.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Template
from typing import Final

import duckdb

from .queries import derive, number_terms, sql

_OF_AGENTS: Final = {
    "facts": ("agent",),
    "timeline": ("agent",),
    "contexts": ("agent",),
    "idleness": ("agent",),
    "tool_calls": ("agent",),
    "calls": ("agent", "trace_key", "call_key", "derived", "tokens"),
}
"""Tables kept by agent, with their columns that are not kept."""
# Parquet has no integers of 128 bits, and would take a double in their place.
_WIDE: Final = {"facts": "idle_token_us"}
_OF_TRACES: Final = ("untimed", "oddities")
_HELPERS: Final = ("members", "named", "opened")
_SEAT_BITS: Final = 24  # groups of a layer, and agents
_LAYER_BITS: Final = 38
_MOST_SETS: Final = 32
_ORPHAN_AGE_S: Final = 3600
_STALE_AGE_S: Final = 30 * 86_400  # of folders that another version of kvtrace wrote
FOLDER_PREFIX: Final = "derived-"


class Shelf:
    """The layers and sets in ``folder``. Raises ``OSError`` and ``duckdb.Error`` where they cannot be written or read."""

    def __init__(self, folder: Path, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._folder = folder
        self._layers = folder / "layers"
        self._sets = folder / "sets"
        for each in (self._layers, self._sets):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)

    def recall(self, key: str) -> bool:
        """Fill ``used`` (group, seat, layer) with what a set says, if it and its layers are there."""
        path = self._sets / f"{key}.parquet"
        self._run("create or replace table used (home ubigint, seat bigint, layer varchar)")
        if not path.exists():
            return False
        with contextlib.suppress(OSError):
            os.utime(path)
        self._run("insert into used from $files", files=_listed([path]))
        return all((self._layers / layer).is_dir() for layer in self.layers())

    def remember(self, key: str) -> None:
        """Keep ``used`` as a set, and sweep out what has had its time."""
        new = self._sets / f".{key}-{secrets.token_hex(4)}"
        self._run("copy used to $file (format parquet)", file=quoted(new))
        new.replace(self._sets / f"{key}.parquet")
        self._sweep()

    def survey(self) -> None:
        """Fill ``shelved`` with the groups of all layers."""
        self._run(
            "create or replace table shelved (home ubigint, print ubigint, pieces bigint, seat bigint, layer varchar)"
        )
        paths = sorted(self._layers.glob("*/members.parquet"))
        if paths:
            self._run(
                "insert into shelved select home, print, pieces, seat, parse_path(filename)[-2] from $files",
                files=_listed(paths, "filename = true"),
            )

    def add(self, chunk: int) -> None:
        """Make a layer of the tables of :mod:`.timeline`, derived for the groups of a chunk, and note it in ``used``."""
        first = {"first": secrets.randbits(_LAYER_BITS) << _SEAT_BITS}
        self._connection.execute(
            "create or replace table members as "
            "select $first + row_number() over () as seat, home, print, pieces from chunks where chunk = $chunk",
            {**first, "chunk": chunk},
        )
        self._connection.execute(f"create or replace table named as {sql('layers/named')}", first)
        derive(self._connection, "layers/opened", keep_as="opened")
        name = secrets.token_hex(12)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=self._layers) as work:
            folder = Path(work) / name
            folder.mkdir()
            for table, query in _kept():
                target = quoted(folder / f"{table}.parquet")
                self._run("copy ($query) to $target (format parquet)", query=query, target=target)
            folder.replace(self._layers / name)
        self._connection.execute("insert into used select home, seat, ? from members", [name])

    def attach(self) -> None:
        """Put views of what ``used`` refers to in the place of the derived tables; agents are numbered texts again."""
        self._run(
            "create or replace table terms as select distinct agent as term from $files", files=self._files("named")
        )
        number_terms(self._connection)
        self._run(
            "create or replace table named as "
            "select number, agent::term as agent from $files semi join used using (seat)",
            files=self._files("named"),
        )
        for table in _OF_AGENTS:
            self._run(
                "create view $table as "
                "select agent, kept.* exclude (number) $wide from $files as kept join named using (number)",
                table=table,
                wide=_widened(table, "hugeint"),
                files=self._files(table),
            )
        for table in _OF_TRACES:
            self._run(
                "create view $table as from $files semi join used using (seat)", table=table, files=self._files(table)
            )

    def attach_opened(self) -> bool:
        """Make ``opened_before`` a view of what calls that never ended depend on; whether there are any."""
        if not self.layers():
            return False
        self._run(
            "create or replace view opened_before as from $files semi join used using (seat)",
            files=self._files("opened"),
        )
        return self._connection.execute("from opened_before limit 1").fetchone() is not None

    def layers(self) -> list[str]:
        """Names of the layers that ``used`` refers to."""
        found = self._connection.execute("select distinct layer from used order by layer").fetchall()
        return [layer for (layer,) in found]

    def _files(self, table: str) -> str:
        return _listed(self._layers / layer / f"{table}.parquet" for layer in self.layers())

    def _sweep(self) -> None:
        sets = sorted(self._sets.glob("*.parquet"), key=_last_used_s, reverse=True)
        for path in sets[_MOST_SETS:]:
            path.unlink(missing_ok=True)
        kept = self._run("select distinct layer from $files", files=_listed(sets[:_MOST_SETS])).fetchall()
        oldest_s = time.time() - _ORPHAN_AGE_S
        for path in self._layers.iterdir():
            if (path.name,) not in kept and _last_used_s(path) < oldest_s:
                shutil.rmtree(path, ignore_errors=True)
        for other in self._folder.parent.glob(f"{FOLDER_PREFIX}*"):
            if other != self._folder and _last_used_s(other / "sets") < time.time() - _STALE_AGE_S:
                shutil.rmtree(other, ignore_errors=True)

    def _run(self, statement: str, **names: str) -> duckdb.DuckDBPyConnection:
        """Run a statement with names of ours and quoted paths for its ``$`` words, where parameters are not allowed."""
        return self._connection.execute(Template(statement).substitute(names))


def _kept() -> Iterator[tuple[str, str]]:
    """The tables of a layer, each with the query that it is the answer of."""
    by_agent = Template("select number, kept.* exclude ($left_out) $wide from $table as kept join named using (agent)")
    for table, left_out in _OF_AGENTS.items():
        yield (
            table,
            by_agent.substitute(table=table, left_out=", ".join(left_out), wide=_widened(table, "decimal(38, 0)")),
        )
    by_trace = Template(
        "select seat, kept.* exclude (trace_key) from $table as kept "
        "join homes using (trace_key) join members using (home)"
    )
    for table in _OF_TRACES:
        yield table, by_trace.substitute(table=table)
    for table in _HELPERS:
        yield table, f"from {table}"


def _widened(table: str, kind: str) -> str:
    column = _WIDE.get(table)
    return f"replace ({column}::{kind} as {column})" if column else ""


def _last_used_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _listed(paths: Iterable[Path], options: str = "") -> str:
    """Files as something to select from."""
    return f"read_parquet([{', '.join(map(quoted, paths))}]{options and f', {options}'})"


def quoted(path: Path) -> str:
    """A path as a text in SQL."""
    return "'" + str(path).replace("'", "''") + "'"
