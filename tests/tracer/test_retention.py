from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.tracer.retention import RecordedRun, choose, clean
from kvtrace.tracer.runtime import process_is_alive, process_start_unix_ns
from kvtrace.tracer.settings import read_settings
from kvtrace.tracer.spanfile import SpanFile
from kvtrace.tracer.testing import read_records

if TYPE_CHECKING:
    from tests.tracer.conftest import Program

DAY = 86_400.0
NOW = 1_700_000_000.0

runs = st.lists(
    st.builds(
        RecordedRun,
        path=st.integers(0, 10**9).map(lambda n: Path(f"/runs/{n}")),
        size_bytes=st.integers(0, 1000),
        written_s=st.floats(NOW - 100 * DAY, NOW),
        processes=st.just(frozenset()),
    ),
    unique_by=lambda run: run.path,
)


@given(runs, st.integers(0, 5000), st.floats(0, 50))
def test_choice_keeps_the_newest_and_meets_its_limits(found: list[RecordedRun], most: int, days: float) -> None:
    chosen = choose(found, max_bytes=most, max_days=days, now_s=NOW)
    left = [run for run in found if run not in chosen]
    old_left = [run for run in left if NOW - run.written_s > 3600]
    assert all(NOW - run.written_s > 3600 for run in chosen)
    if days > 0:
        assert all(NOW - run.written_s <= days * DAY for run in old_left)
    if most > 0 and old_left:
        assert sum(run.size_bytes for run in left) <= most
    if chosen and old_left:
        assert max(run.written_s for run in chosen) <= min(run.written_s for run in old_left)
    if most == 0 and days == 0:
        assert chosen == []


def make_run(root: Path, name: str, days_old: float, size: int = 10, process: str = "1-2") -> Path:
    folder = root / "runs" / name
    folder.mkdir(parents=True)
    file = folder / f"{process}.jsonl"
    file.write_text("x" * size)
    for path in (file, folder):
        os.utime(path, (NOW - days_old * DAY, NOW - days_old * DAY))
    return folder


def tidy(root: Path, is_alive: Callable[[str], bool] = lambda _: False, now_s: float = NOW) -> list[str]:
    removed = clean(root, max_bytes=100, max_days=30, now_s=now_s, keep=root / "runs" / "mine", is_alive=is_alive)
    return sorted(path.name for path in removed)


def test_old_and_large_runs_are_removed_whole(tmp_path: Path) -> None:
    old, large, new = make_run(tmp_path, "old", 40), make_run(tmp_path, "large", 5, 95), make_run(tmp_path, "new", 1)
    assert tidy(tmp_path) == ["large", "old"]
    assert not old.exists()
    assert not large.exists()
    assert (new / "1-2.jsonl").exists()


def test_runs_of_live_processes_and_ones_own_stay(tmp_path: Path) -> None:
    make_run(tmp_path, "live", 40, process="7-8")
    make_run(tmp_path, "mine", 40)
    assert tidy(tmp_path, lambda stem: stem == "7-8") == []


def test_nobody_looks_twice_within_an_hour(tmp_path: Path) -> None:
    make_run(tmp_path, "first", 40)
    assert tidy(tmp_path) == ["first"]
    make_run(tmp_path, "second", 40)
    assert tidy(tmp_path, now_s=NOW + 60) == []
    assert tidy(tmp_path, now_s=NOW + 3601) == ["second"]


def test_files_of_others_and_links_are_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "1-2.jsonl").write_text("x")
    run = make_run(tmp_path, "old", 40)
    (run / "notes.txt").write_text("mine")
    os.utime(run / "notes.txt", (NOW - 40 * DAY, NOW - 40 * DAY))
    os.utime(run, (NOW - 40 * DAY, NOW - 40 * DAY))
    (tmp_path / "runs" / "link").symlink_to(elsewhere)
    tidy(tmp_path)
    assert (run / "notes.txt").exists()
    assert (elsewhere / "1-2.jsonl").exists()


def test_notes_of_hooks_go_by_age(tmp_path: Path) -> None:
    gone, kept = make_run(tmp_path, "session-gone", 40), make_run(tmp_path, "session-kept", 1)
    for run, name, days in (
        (gone, "hook-s.0000000000000001.open", 40),
        (kept, "hook-s.0000000000000002.open", 40),
        (kept, "hook-s.0000000000000003.open", 1),
        (kept, "notes.open", 40),
    ):
        (run / name).write_text("{}")
        os.utime(run / name, (NOW - days * DAY, NOW - days * DAY))
        os.utime(run, (NOW - 40 * DAY, NOW - 40 * DAY))
    assert tidy(tmp_path) == ["session-gone"]
    assert not gone.exists()
    left = {path.name for path in kept.iterdir()}
    assert left == {"1-2.jsonl", "hook-s.0000000000000003.open", "notes.open"}


def test_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert tidy(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_this_process_is_alive_and_its_pid_alone_is_not() -> None:
    me, start = os.getpid(), process_start_unix_ns(os.getpid())
    assert process_is_alive(f"{me}-{start}")
    assert not process_is_alive(f"{me}-{start - 60_000_000_000}")
    assert not process_is_alive("nonsense")


def test_first_span_of_a_process_cleans_up(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "old"
    folder.mkdir(parents=True)
    (folder / "1-2.jsonl").write_text("x")
    for path in (folder / "1-2.jsonl", folder):
        os.utime(path, (NOW - 400 * DAY, NOW - 400 * DAY))
    done = program("from kvtrace.tracer import traced_tool; traced_tool(lambda: None)()")
    assert done.returncode == 0, done.stderr
    assert not folder.exists()
    assert len(read_records(tmp_path)) == 2


def test_limits_come_from_the_environment(caplog: pytest.LogCaptureFixture) -> None:
    settings = read_settings({"KVTRACE_MAX_BYTES": "1e6", "KVTRACE_MAX_DAYS": "0.5"}, new_run_id="new")
    assert (settings.max_bytes, settings.max_days) == (1_000_000, 0.5)
    defaults = read_settings({"KVTRACE_MAX_BYTES": "lots", "KVTRACE_MAX_DAYS": ""}, new_run_id="new")
    assert (defaults.max_bytes, defaults.max_days) == (2 * 1024**3, 30)
    assert "KVTRACE_MAX_BYTES" in caplog.text


def test_files_rotate_by_size(tmp_path: Path) -> None:
    file = SpanFile(tmp_path / "1-2.jsonl", rotate_bytes=10)
    for n in range(5):
        assert file.append(f"{n}2345\n")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "1-2.jsonl": "02345\n12345\n",
        "1-2.1.jsonl": "22345\n32345\n",
        "1-2.2.jsonl": "42345\n",
    }


def test_heartbeat_keeps_all_files_of_a_process_fresh(tmp_path: Path) -> None:
    file = SpanFile(tmp_path / "1-2.jsonl", rotate_bytes=1)
    file.append("1\n")
    file.append("2\n")
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    file.touch()
    assert all(path.stat().st_mtime > 1 for path in tmp_path.iterdir())
