"""Which part of a file is read again, decided from what is known of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvtrace.analysis import cache
from kvtrace.analysis.cache import Entry, Stored
from kvtrace.analysis.catching_up import todo
from kvtrace.analysis.pieces import Part, Piece

LATER_NS = 10**9  # a read long after the file was written, as the file system's clock goes


def stored(begin: int, end: int, settled: bool = True) -> Stored:
    return Stored("p.parquet", Part("OTLP JSON", begin, end, settled=settled))


def decide(
    tmp_path: Path, size: int, known: Entry | None, same: bool = True
) -> tuple[list[int], tuple[int, int] | None]:
    """Ends of the kept parts, and what is to be read of a file of ``size`` bytes."""
    path = tmp_path / "f"
    path.write_bytes(b"x" * size)
    os.utime(path, ns=(5, 5))
    plan = todo(str(path), path.stat(), known, {"p.parquet"}, lambda _: same)
    assert plan.piece is None or plan.piece == Piece(str(path), plan.piece.begin, size)
    read = None if plan.piece is None else (plan.piece.begin, plan.piece.end)
    return [each.part.end for each in plan.kept], read


@pytest.mark.parametrize(
    ("size", "mtime_ns", "parts", "kept", "read"),
    [
        (100, 5, [stored(0, 100)], [100], None),
        (100, 4, [stored(0, 100)], [100], None),
        (110, 5, [stored(0, 100)], [100], (100, 110)),
        (110, 5, [stored(0, 100), stored(100, 105, settled=False)], [100], (100, 110)),
        (160, 5, [stored(0, 100)], [], (0, 160)),
        (112, 5, [stored(0, 90), stored(90, 105), stored(105, 108)], [90, 105], (105, 112)),
        (90, 5, [stored(0, 100)], [], (0, 90)),
        (110, 5, [stored(0, 100, settled=False)], [], (0, 110)),
    ],
)
def test_only_what_is_new_is_read(
    tmp_path: Path, size: int, mtime_ns: int, parts: list[Stored], kept: list[int], read: tuple[int, int] | None
) -> None:
    before = size if mtime_ns == 4 or read is None else parts[-1].part.end
    assert decide(tmp_path, size, Entry(before, mtime_ns, tuple(parts), LATER_NS)) == (kept, read)


def test_other_content_or_a_missing_pack_means_everything(tmp_path: Path) -> None:
    assert decide(tmp_path, 110, Entry(100, 4, (stored(0, 100),)), same=False) == ([], (0, 110))
    gone = Entry(110, 5, (Stored("gone.parquet", Part("OTLP JSON", 0, 110, settled=True)),))
    assert decide(tmp_path, 110, gone) == ([], (0, 110))
    assert decide(tmp_path, 110, None) == ([], (0, 110))


@pytest.mark.parametrize(("read_ns", "again"), [(5, True), (10_000_005, True), (LATER_NS, False)])
def test_a_file_read_in_the_moment_of_its_writing_is_read_again(
    tmp_path: Path, read_ns: int, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_TICK_NS", 20_000_000)
    kept, read = decide(tmp_path, 100, Entry(100, 5, (stored(0, 100),), read_ns))
    assert (kept, read) == (([], (0, 100)) if again else ([100], None))


def test_a_file_read_after_every_line_keeps_few_parts(tmp_path: Path) -> None:
    parts: list[Stored] = []
    for size in range(10, 3000, 10):
        kept, read = decide(tmp_path, size, Entry(size - 10, 4, tuple(parts)) if parts else None)
        assert read is not None
        parts = [each for each in parts if each.part.end in kept] + [stored(read[0], size)]
        assert len(parts) < 10
