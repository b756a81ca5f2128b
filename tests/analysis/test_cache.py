"""What was read before is not read again, and nothing that can happen to files or cache changes a figure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.analysis import ReadOptions, build_report, loading
from kvtrace.analysis import pieces as pieces_module
from kvtrace.analysis import pool as pool_module
from kvtrace.analysis.cache import SpanCache, default_folder
from kvtrace.analysis.loading import load_files
from kvtrace.analysis.report import Report
from kvtrace.analysis.store import Store
from kvtrace.analysis.testing import FixedHost, otlp_line, otlp_span
from kvtrace.tracer import attributes as names
from kvtrace.tracer.attributes import ENV_CACHE


class Listener:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.bytes = 0

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        self.bytes = max(self.bytes, total_bytes)

    def derive(self, done_spans: int, total_spans: int) -> None:
        pass

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)


def lines_of(count: int, seed: int = 0) -> list[bytes]:
    """Lines of spans of three agents, the same for the same seed."""
    random = Random(seed)
    found = []
    for number in range(1, count + 1):
        start = random.randrange(200)
        span = otlp_span(
            random.choice(("chat", "execute_tool")),
            start,
            random.choice((start + 1, start + random.randrange(20), None)),
            span=number,
            parent=random.randrange(number),
            agent=random.choice("abc"),
        )
        found.append(otlp_line([span], {names.PROCESS_PID: 7, names.PROCESS_START: 1}).encode() + b"\n")
    return found


def report(paths: list[Path], folder: Path, listener: Listener | None = None) -> Report:
    options = ReadOptions(cache_folder=folder, progress=listener or Listener())
    return build_report(paths, host=FixedHost(), reading=options)


def fresh(paths: list[Path]) -> Report:
    return build_report(paths, host=FixedHost(), reading=ReadOptions(cache=False))


def overwrite_in_place(path: Path, begin: int, end: int) -> None:
    """Make bytes useless without the file looking any different from outside."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(b"x" * (end - begin))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_unchanged_files_are_not_read_again(tmp_path: Path, cache_folder: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.txt"]
    paths[0].write_bytes(b"".join(lines_of(30)) + b"bad\n")
    paths[1].write_bytes(b"".join(lines_of(30, seed=1)))
    paths[2].write_bytes(b"no spans here")
    first = report(paths, cache_folder)
    for path in paths:
        overwrite_in_place(path, 0, path.stat().st_size)
    listener = Listener()
    assert report(paths, cache_folder, listener) == first
    assert listener.bytes == 0
    assert [source.skipped for source in first.sources] == [1, 0, 1]


def test_grown_file_is_read_from_where_it_ended(tmp_path: Path, cache_folder: Path) -> None:
    lines = lines_of(200)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(lines[:180]))
    report([path], cache_folder)
    overwrite_in_place(path, 9000, 10_000)
    with path.open("ab") as file:
        file.write(b"".join(lines[180:]) + b"bad\n")
    listener = Listener()
    grown = report([path], cache_folder, listener)
    assert listener.bytes == sum(map(len, lines[180:])) + 4
    assert grown.sources[0].skipped_lines[0].line == 201
    path.write_bytes(b"".join(lines) + b"bad\n")
    assert grown == fresh([path])


def test_unfinished_last_line_counts_once_it_is_finished(tmp_path: Path, cache_folder: Path) -> None:
    lines = lines_of(40)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(lines[:39]) + lines[39][:100])
    cut_off = report([path], cache_folder)
    assert [skip.why for skip in cut_off.sources[0].skipped_lines] == ["cut off inside the line"]
    assert report([path], cache_folder) == cut_off
    path.write_bytes(b"".join(lines))
    finished = report([path], cache_folder)
    assert finished == fresh([path])
    assert finished.sources[0].skipped == 0


def test_file_with_another_beginning_is_read_anew(tmp_path: Path, cache_folder: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(lines_of(20)))
    report([path], cache_folder)
    path.write_bytes(b"".join(lines_of(30, seed=5)))
    assert report([path], cache_folder) == fresh([path])


@pytest.mark.parametrize("pattern", ["*.parquet", "index.sqlite"])
@pytest.mark.parametrize("damage", ["garbage", "gone"])
def test_damaged_cache_costs_time_but_no_figure(tmp_path: Path, cache_folder: Path, pattern: str, damage: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(lines_of(50)))
    first = report([path], cache_folder)
    for file in cache_folder.glob(pattern):
        file.write_bytes(b"damaged" * 100) if damage == "garbage" else file.unlink()
    listener = Listener()
    assert report([path], cache_folder, listener) == first
    assert len(listener.sentences) == (damage == "garbage")
    listener = Listener()
    assert report([path], cache_folder, listener) == first
    assert report([path], cache_folder, listener) == first
    assert listener.sentences == []


def test_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(lines_of(20)))
    (tmp_path / "file").write_text("in the way")
    listener = Listener()
    assert report([path], tmp_path / "file" / "cache", listener) == fresh([path])
    (sentence,) = listener.sentences
    assert str(tmp_path / "file" / "cache") in sentence


def test_without_cache_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_CACHE, str(tmp_path / "elsewhere"))
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(lines_of(20)))
    fresh([path])
    assert not (tmp_path / "elsewhere").exists()
    build_report([path], host=FixedHost())
    assert (default_folder() / "index.sqlite").is_relative_to(tmp_path / "elsewhere" / "spans")
    assert (default_folder() / "index.sqlite").exists()


def test_two_processes_at_once_agree(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.jsonl").write_bytes(b"".join(lines_of(60, seed=number)))
    program = (
        "import sys; from pathlib import Path; from kvtrace.analysis import *\n"
        "report = build_report([Path(sys.argv[1])], reading=ReadOptions(cache_folder=Path(sys.argv[2])))\n"
        "print(render_json(report))"
    )
    command = [sys.executable, "-c", program, str(tmp_path), str(tmp_path / "cache")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(outputs) == 1


def test_big_files_are_read_by_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(400)
    lines[300] = b"bad\n"
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(lines))
    whole = fresh([path])
    _read_in_pieces(monkeypatch)
    assert fresh([path]) == whole
    assert whole.sources[0].skipped_lines[0].line == 301


def test_processes_that_die_leave_the_work_to_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(lines_of(100)))
    whole = fresh([path])
    _read_in_pieces(monkeypatch)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert fresh([path]) == whole


def _read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_WORTH_A_PROCESS", 0)
    monkeypatch.setattr(pool_module, "_cores", lambda: 2)
    monkeypatch.setattr(pieces_module, "PIECE_BYTES", 20_000)
    monkeypatch.setattr(loading, "PIECE_BYTES", 20_000)


def _figures(found: Report) -> Report:
    """A report without the files it came from, and how often they told the same."""
    anomalies = replace(found.pooled.anomalies, duplicates=0)
    return replace(found, sources=(), pooled=replace(found.pooled, anomalies=anomalies))


def _grown_in_steps(random: Random, content: bytes) -> Iterator[bytes]:
    """The beginnings of a file as somebody may have seen it while it was written."""
    for at in sorted(random.randrange(len(content)) for _ in range(random.randrange(4))):
        yield content[:at]
    yield content


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_shards_order_repetition_and_growth_change_nothing(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    random = Random(seed)
    folder = tmp_path_factory.mktemp("grown")
    lines = lines_of(60, seed)
    whole = folder / "whole.jsonl"
    whole.write_bytes(b"".join(lines))
    expected = _figures(fresh([whole]))
    shuffled = random.sample(lines, len(lines)) + random.sample(lines, random.randrange(10))
    shards = [folder / f"{number}.jsonl" for number in range(random.randrange(1, 4))]
    for number, shard in enumerate(shards):
        for content in _grown_in_steps(random, b"".join(shuffled[number :: len(shards)])):
            shard.write_bytes(content)
            _remember(shard, folder / "cache")
    random.shuffle(shards)
    assert _figures(report(shards, folder / "cache")) == expected
    assert _figures(report(shards, folder / "cache")) == expected


def _remember(path: Path, folder: Path) -> None:
    cache = SpanCache(folder)
    with Store() as store:
        load_files(store, [path], FixedHost(), cache, Listener())
    cache.close()
