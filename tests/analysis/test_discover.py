"""Files, folders, patterns and nothing at all lead to the files to read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvtrace.analysis import NoDataError, SourceNotFoundError
from kvtrace.analysis.discover import find_files


def touch(path: Path, at_s: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (at_s, at_s))
    return path


def test_folder_gives_its_span_files_at_any_depth(tmp_path: Path) -> None:
    wanted = [touch(tmp_path / "a" / "b" / "one.jsonl"), touch(tmp_path / "two.json")]
    touch(tmp_path / "notes.txt")
    assert find_files([tmp_path]) == wanted


def test_named_file_is_taken_whatever_its_suffix(tmp_path: Path) -> None:
    path = touch(tmp_path / "trace.log")
    assert find_files([path]) == [path]


def test_pattern_gives_files_and_folders(tmp_path: Path) -> None:
    wanted = [touch(tmp_path / "run1" / "x.jsonl"), touch(tmp_path / "run2.jsonl")]
    assert find_files([tmp_path / "run*"]) == wanted


def test_same_file_by_two_names_is_read_once(tmp_path: Path) -> None:
    path = touch(tmp_path / "x.jsonl")
    (tmp_path / "y.jsonl").symlink_to(path)
    assert len(find_files([tmp_path, path, tmp_path / "*.jsonl"])) == 1


@pytest.mark.parametrize("name", ["missing.jsonl", "*.nothing"])
def test_path_that_names_nothing_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceNotFoundError, match="check the spelling"):
        find_files([tmp_path / name])


def test_folder_without_span_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="holds no"):
        find_files([tmp_path])


def test_without_paths_the_run_written_to_last_is_read(tmp_path: Path) -> None:
    old = touch(tmp_path / "runs" / "zz" / "1.jsonl", 100)
    new = [touch(tmp_path / "runs" / "aa" / "1.jsonl", 50), touch(tmp_path / "runs" / "aa" / "2.jsonl", 200)]
    (tmp_path / "runs" / "empty").mkdir()
    assert find_files([], data_folder=tmp_path) == new
    assert find_files([], every_run=True, data_folder=tmp_path) == [*new, old]


def test_nothing_recorded_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(NoDataError, match=str(tmp_path)):
        find_files([], data_folder=tmp_path)


def test_data_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = touch(tmp_path / "runs" / "r" / "1.jsonl")
    monkeypatch.setenv("KVTRACE_DIR", str(tmp_path))
    assert find_files([]) == [path]
