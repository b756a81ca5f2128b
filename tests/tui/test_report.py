"""``kvtrace report`` as a user runs it, over spans that the real tracer wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis.testing import otlp_span, write_otlp
from kvtrace.tui.exits import ExitCode

pytestmark = pytest.mark.usefixtures("own_cache")

AGENT = """
import sys, time
from kvtrace.tracer import agent, generation, traced_tool

@traced_tool
def read_file(): time.sleep(0.001)

@traced_tool
def hang():
    print("hanging", flush=True)
    time.sleep(60)

with agent("worker"):
    with generation(model="tiny"): time.sleep(0.05)
    read_file()
    if "hang" in sys.argv: hang()
"""


def run(folder: Path, *args: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvtrace.tui", "report", *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KVTRACE_DIR": str(folder), "COLUMNS": "80", "NO_COLOR": "1", **environment},
    )


def as_json(folder: Path, *args: str | Path) -> Any:
    done = run(folder, "--json", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def start_agent(folder: Path, *args: str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("KVTRACE_", "OTEL_"))}
    return subprocess.Popen(
        [sys.executable, "-c", AGENT, *args],
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, "KVTRACE_DIR": str(folder)},
    )


def test_killed_agent_leaves_an_open_call_and_a_range(tmp_path: Path) -> None:
    agent = start_agent(tmp_path, "hang")
    assert agent.stdout is not None
    assert agent.stdout.readline() == "hanging\n"
    alive = as_json(tmp_path)
    agent.send_signal(signal.SIGKILL)
    agent.communicate()
    dead = as_json(tmp_path)
    for report, running in ((alive, True), (dead, False)):
        (found,) = report["agents"]
        assert (found["name"], found["tool_calls"], found["open_calls"]) == ("worker", 2, 1)
        assert found["running"] is running
        assert found["b_low"] < found["b_high"]
        assert found["b_low"] <= found["b"] <= found["b_high"]
    assert "1 tool call never ended: b is between" in run(tmp_path).stdout.replace("\n  ", " ")


def test_newest_run_is_reported_unless_all_are_asked_for(tmp_path: Path) -> None:
    for _ in range(2):
        start_agent(tmp_path).communicate()
    newest, everything = as_json(tmp_path), as_json(tmp_path, "--all")
    assert (newest["pooled"]["agents"], everything["pooled"]["agents"]) == (1, 2)
    assert newest["pooled"]["open_calls"] == 0


def test_assumptions_can_be_given(tmp_path: Path) -> None:
    path = write_otlp(tmp_path / "a.jsonl", [otlp_span("chat", 0, 4, span=1), otlp_span("execute_tool", 4, 9, span=2)])
    found = as_json(tmp_path, path, "--round-trip-ms", "1000", "--slots", "1")["pooled"]
    assert (found["assumptions"]["round_trip_ms"], found["assumptions"]["slots"]) == (1000, 1)
    assert found["b_evictable"] == pytest.approx(4 / 9)


def test_text_goes_to_stdout_and_nothing_to_stderr(tmp_path: Path) -> None:
    path = write_otlp(tmp_path / "a.jsonl", [otlp_span("chat", 0, 4, span=1), otlp_span("execute_tool", 4, 9, span=2)])
    done = run(tmp_path, path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "blocked fraction b  0.56" in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_without_data_one_sentence_and_exit_5(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    for done in (run(tmp_path), run(tmp_path, tmp_path / "empty.jsonl")):
        assert (done.returncode, done.stdout) == (ExitCode.NO_DATA, "")
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "args", [["missing.jsonl"], ["--slots", "0"], ["--round-trip-ms", "-1"], ["--round-trip-ms", "nan"], ["--all", "."]]
)
def test_misuse_is_exit_2(tmp_path: Path, args: list[str]) -> None:
    done = run(tmp_path, *args)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "Traceback" not in done.stderr


def test_forecast_is_written_beside_the_report(tmp_path: Path) -> None:
    path = write_otlp(tmp_path / "a.jsonl", [otlp_span("chat", 0, 4, span=1), otlp_span("execute_tool", 4, 9, span=2)])
    done = run(tmp_path, path, "--forecast", tmp_path / "forecast.json")
    assert done.returncode == 0
    assert "blocked fraction b" in done.stdout
    assert json.loads((tmp_path / "forecast.json").read_text())["tools"][0]["p50_s"] == 5
    unwritable = run(tmp_path, path, "--forecast", tmp_path / "no" / "such" / "folder.json")
    assert unwritable.returncode == ExitCode.FAILED
    assert "cannot be written" in unwritable.stderr
