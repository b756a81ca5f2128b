"""``kvtrace report``: what goes to stdout, what goes into files, and which options exclude each other."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from kvtrace.analysis.render.csv import CSV_TABLES
from kvtrace.analysis.sample import sample_spans
from kvtrace.analysis.testing import write_otlp
from kvtrace.tui.commands.report import command
from kvtrace.tui.exits import CommandError, ExitCode

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def spans(tmp_path: Path) -> Path:
    return write_otlp(tmp_path / "spans.jsonl", sample_spans(3, 6, seed=1))


def report(*arguments: Any) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_files_are_written_beside_the_text(spans: Path, tmp_path: Path) -> None:
    page, trace = tmp_path / "r.html", tmp_path / "r.pftrace"
    result = report(spans, "--html", page, "--perfetto", trace)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].startswith("blocked fraction b")
    assert result.stderr == f"wrote {page}\nwrote {trace}\n"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(Trace.FromString(trace.read_bytes()).packet) > 50


@pytest.mark.parametrize("table", CSV_TABLES)
def test_csv_is_all_that_stdout_gets(spans: Path, table: str) -> None:
    rows = list(csv.reader(io.StringIO(report(spans, "--csv", table).stdout, newline="")))
    assert len(rows) > 2
    assert len({len(row) for row in rows}) == 1


def test_two_runs_are_compared_as_text_and_json(spans: Path, tmp_path: Path) -> None:
    other = write_otlp(tmp_path / "other.jsonl", sample_spans(3, 9, seed=2))
    assert "B - A" in report(spans, "--vs", other).stdout
    document = json.loads(report(spans, "--vs", other, "--json").stdout)
    assert [document[run]["pooled"]["model_calls"] for run in ("first", "second")] == [18, 27]


def test_round_trip_and_recompute_reach_the_report(spans: Path) -> None:
    assumed = json.loads(report(spans, "--json", "--round-trip-ms", 5, "--recompute-s", 3).stdout)["pooled"][
        "assumptions"
    ]
    assert (assumed["round_trip_ms"], assumed["recompute_s"]) == (5, 3)


@pytest.mark.parametrize(
    "options",
    [["--json", "--csv", "tools"], ["--vs", "x", "--csv", "tools"], ["--vs", "x", "--html", "y"], ["--csv", "x"]],
)
def test_options_that_exclude_each_other_are_a_usage_error(spans: Path, options: list[str]) -> None:
    assert report(spans, *options).exit_code == ExitCode.USAGE


def test_file_that_cannot_be_written_is_named(spans: Path, tmp_path: Path) -> None:
    result = report(spans, "--html", tmp_path / "no" / "r.html")
    assert isinstance(result.exception, CommandError)
    assert str(result.exception) == f"{tmp_path / 'no' / 'r.html'} cannot be written: No such file or directory"


def test_closed_pipe_ends_a_report_quietly(spans: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "kvtrace.tui", "report", str(spans), "--no-cache"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
