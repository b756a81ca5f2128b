"""What was read before, remembered in the user's cache folder: packs of rows, and an index of what they came from.

``spans/<format>/`` below the cache folder holds ``index.sqlite`` and Parquet packs, which are never changed. A file is
known by its device and inode, and unchanged while its size and modification time are. Where these differ, a file of
lines whose first and last read bytes are still the same has grown, and is read from there; any other is read anew, and
so is one that was written in the very moment in which it was read: it may have been written again before the file
system's clock went on.
The folder may be deleted at any time, and used by several processes at once: the index is a transactional database,
packs are complete when they appear under their names, and a pack that nothing refers to goes after an hour.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Final

import duckdb
import msgspec
import platformdirs

from kvtrace.tracer.attributes import ENV_CACHE

from .pieces import Part

_INDEX: Final = "index.sqlite"
_SCHEMA: Final = """
create table if not exists entries (device integer, inode integer, body blob, primary key (device, inode));
create table if not exists uses (pack text, device integer, inode integer);
create table if not exists packs (number integer primary key autoincrement, pack text unique);
create index if not exists uses_by_file on uses (device, inode);
"""
_TICK_NS: Final = 20_000_000  # file systems take their times from the kernel's tick, 10 ms at most, with some to spare
_ORPHAN_AGE_S: Final = 3600
_BUSY_S: Final = 30


@dataclass(frozen=True, slots=True)
class Stored:
    """A part and the pack that holds its rows; the pack is ``None`` where there are no rows."""

    pack: str | None
    part: Part


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as it was when its parts were read; ``read_ns`` is the wall clock's time just before."""

    size: int
    mtime_ns: int
    stored: tuple[Stored, ...]
    read_ns: int = 0

    @property
    def settled(self) -> bool:
        """Whether a later write must have changed the modification time."""
        return self.mtime_ns + _TICK_NS < self.read_ns

    def is_of(self, stat: os.stat_result) -> bool:
        """Whether nothing happened to the file since."""
        return self.size == stat.st_size and self.mtime_ns == stat.st_mtime_ns


_DECODE: Final = msgspec.json.Decoder(Entry).decode


class SpanCache:
    """The cache in ``folder``; ``packs`` are those that were there at first. Raises ``OSError``, ``sqlite3.Error``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self._index = sqlite3.connect(folder / _INDEX, timeout=_BUSY_S, isolation_level=None)
        self._index.executescript(_SCHEMA)
        self.packs = {path.name for path in folder.glob("*.parquet")}

    def close(self) -> None:
        """Let go of the index."""
        self._index.close()

    def pack_path(self, pack: str) -> Path:
        """Where a pack lies."""
        return self.folder / pack

    def get(self, stat: os.stat_result) -> Entry | None:
        """What is known of a file."""
        row = self._index.execute(
            "select body from entries where device = ? and inode = ?", (stat.st_dev, _signed(stat.st_ino))
        ).fetchone()
        try:
            return None if row is None else _DECODE(row[0])
        except msgspec.MsgspecError:
            return None

    def put(self, entries: Iterable[tuple[os.stat_result, Entry]]) -> None:
        """Remember files in place of what was known of them."""
        with self._transaction():
            for stat, entry in entries:
                key = (stat.st_dev, _signed(stat.st_ino))
                body = msgspec.json.encode(entry)
                self._index.execute("insert or replace into entries values (?, ?, ?)", (*key, body))
                self._index.execute("delete from uses where device = ? and inode = ?", key)
                packs = {stored.pack for stored in entry.stored if stored.pack is not None}
                self._index.executemany("insert into uses values (?, ?, ?)", [(pack, *key) for pack in packs])

    def numbers(self, packs: Iterable[str]) -> dict[str, int]:
        """A number for each pack that no other ever has, so that rows can be told from each other in every report."""
        wanted = sorted(packs)
        with self._transaction():
            self._index.executemany("insert or ignore into packs (pack) values (?)", [(pack,) for pack in wanted])
            known = dict(self._index.execute("select pack, number from packs"))
        return {pack: known[pack] for pack in wanted}

    def sweep(self) -> None:
        """Delete packs that nothing refers to any more, unless another process may be about to."""
        used = {pack for (pack,) in self._index.execute("select distinct pack from uses")}
        oldest = time.time() - _ORPHAN_AGE_S
        for path in self.folder.glob("*.parquet"):
            with contextlib.suppress(OSError):
                if path.name not in used and path.stat().st_mtime < oldest:
                    path.unlink()

    def forget(self) -> None:
        """Forget everything, so that it is read anew; packs go by and by."""
        with self._transaction():
            self._index.execute("delete from entries")
            self._index.execute("delete from uses")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._index.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._index.execute("rollback")
            raise
        self._index.execute("commit")


def default_folder() -> Path:
    """Where spans are remembered unless somebody says otherwise."""
    root = Path(os.environ.get(ENV_CACHE) or platformdirs.user_cache_dir("kvtrace"))
    return root / "spans" / _format()


@cache
def _format() -> str:
    """Names everything that packs depend on: how spans are read, and what hashes their ids."""
    digest = blake2b(duckdb.__version__.encode(), digest_size=8)
    package = files("kvtrace.analysis")
    texts = [package.joinpath("normal.py"), package.joinpath("rows.py"), package.joinpath("sql", "cache", "pack.sql")]
    sources = sorted(package.joinpath("sources").iterdir(), key=lambda each: each.name)
    for text in [*texts, *(each for each in sources if each.name.endswith(".py"))]:
        digest.update(text.read_bytes())
    return digest.hexdigest()


def _signed(inode: int) -> int:
    """An inode as SQLite's integers go."""
    return inode - (1 << 64) if inode >= 1 << 63 else inode
