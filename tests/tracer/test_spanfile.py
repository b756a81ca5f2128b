from __future__ import annotations

import errno
import logging
import os
import resource
import stat
from pathlib import Path

import pytest

from kvtrace.tracer import traced_tool
from kvtrace.tracer.diagnostics import COUNTS
from kvtrace.tracer.spanfile import SpanFile
from kvtrace.tracer.testing import capture


@pytest.fixture
def file(tmp_path: Path) -> SpanFile:
    return SpanFile(tmp_path / "root" / "runs" / "run" / "1-2.jsonl")


def test_file_appears_with_its_first_record(file: SpanFile) -> None:
    assert not file.path.exists()
    assert file.append("{}\n")
    assert file.path.read_text() == "{}\n"


def test_only_the_owner_may_read(file: SpanFile) -> None:
    file.append("{}\n")
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    folders = [file.path.parent, file.path.parent.parent, file.path.parent.parent.parent]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700] * 3


def test_deleted_file_is_begun_anew(file: SpanFile) -> None:
    file.append("1\n")
    file.path.unlink()
    file.append("2\n")
    assert file.path.read_text() == "2\n"


def test_descriptor_taken_over_by_the_program_is_left_alone(file: SpanFile, tmp_path: Path) -> None:
    file.append("1\n")
    mine = tmp_path / "users-own-file"
    fd = file._fd
    assert fd is not None
    taken = os.open(mine, os.O_CREAT | os.O_WRONLY)
    os.dup2(taken, fd)
    file.append("2\n")
    os.close(taken)
    os.close(fd)
    assert mine.read_text() == ""
    assert file.path.read_text() == "1\n2\n"


def test_record_after_a_torn_one_begins_a_line(file: SpanFile) -> None:
    file.append("1\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, before[1]))
    try:
        assert not file.append("234567\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.append("8\n")
    assert file.path.read_text() == "1\n234\n8\n"
    assert COUNTS.lost_records == 1


def test_unwritable_folder_costs_records_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "root").write_text("a file where a folder should be")
    file = SpanFile(tmp_path / "root" / "runs" / "run" / "1-2.jsonl")
    with caplog.at_level(logging.WARNING):
        assert [file.append("{}\n") for _ in range(3)] == [False] * 3
    assert COUNTS.lost_records == 3
    assert len(caplog.records) == 1
    assert "KVTRACE_DIR" in caplog.text


def test_full_disk_lets_the_tool_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with capture() as captured:
        monkeypatch.setattr("kvtrace.tracer.spanfile.os.write", full)
        assert traced_tool(lambda: 3)() == 3
        monkeypatch.undo()
        assert len(captured.signals) == 2
        assert captured.records == []
    assert COUNTS.lost_records == 2


def test_one_record_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = []
    write = os.write

    def counting(fd: int, data: bytes) -> int:
        writes.append(data)
        return write(fd, data)

    with capture():
        monkeypatch.setattr("kvtrace.tracer.spanfile.os.write", counting)
        traced_tool(lambda: None)()
    assert len(writes) == 2
    assert all(data.endswith(b"\n") and data.count(b"\n") == 1 for data in writes)


def test_closed_file_still_takes_the_end_of_open_spans(file: SpanFile) -> None:
    file.append("start\n")
    file.heartbeat.enter("a")
    file.close()
    file.append("end\n")
    file.span_ended("a")
    assert file._fd is None
    assert file.path.read_text() == "start\nend\n"
