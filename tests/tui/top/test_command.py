"""``kvtrace top`` and ``kvtrace ps`` without a terminal: text, JSON, a stream of JSON, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvtrace.analysis.testing import otlp_span, write_otlp
from kvtrace.tui.cli import cli
from kvtrace.tui.commands.ps import command as ps
from kvtrace.tui.commands.top import SORTS
from kvtrace.tui.commands.top import command as top
from kvtrace.tui.exits import CommandError, ExitCode
from kvtrace.tui.top.settings import LEAST_INTERVAL_S
from kvtrace.tui.top.view import Sort

from .conftest import StateServer


@pytest.fixture(autouse=True)
def _apart(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the user's settings nor their spans nor their server are looked at."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    monkeypatch.setenv("KVTRACE_DIR", str(tmp_path_factory.mktemp("runs")))
    monkeypatch.setenv("KVTRACE_ENGINE", "http://127.0.0.1:9")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("KVTRACE_ENGINE_KEY", raising=False)


def _process(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvtrace.tui", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **more},
    )


def test_once_prints_memory_agents_and_events_that_fit(state_server: StateServer) -> None:
    done = CliRunner().invoke(top, ["--once", "--url", state_server.url])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["VRAM", "HOST", "LINK", "5"]
    assert sum("generating" in line or "parked" in line or "resident" in line for line in lines) >= 1
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in done.output


def test_without_a_terminal_it_prints_once_says_so_and_loads_no_textual(state_server: StateServer) -> None:
    program = (
        "import sys\nfrom kvtrace.tui.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n    code = end.code\n"
        "print([m for m in ('textual', 'duckdb', 'torch') if m in sys.modules], code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "top", "--url", state_server.url],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[0].startswith("VRAM")
    assert done.stdout.splitlines()[-1] == "[] 0"
    assert len(done.stderr.splitlines()) == 1
    assert "--json --watch" in done.stderr


def test_json_is_the_snapshot_with_its_source(state_server: StateServer) -> None:
    for command in (top, ps):
        done = CliRunner().invoke(command, ["--json", "--url", state_server.url])
        told = json.loads(done.stdout)
        assert told["schema_version"] == 1
        assert told["source"] == {"kind": "engine", "where": f"127.0.0.1:{state_server.port}"}
        assert len(told["agents"]) == 5


def test_watch_streams_a_sample_a_line_says_losses_aside_and_its_recording_plays(
    state_server: StateServer, tmp_path: Path
) -> None:
    watch = subprocess.Popen(
        [sys.executable, "-m", "kvtrace.tui", "top", "--json", "--watch", "-i", "0.25", "--url", state_server.url],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watch.stdout is not None
    assert watch.stderr is not None
    lines = [watch.stdout.readline() for _ in range(2)]
    state_server.kill()
    assert "connection refused; asking again" in watch.stderr.readline()
    state_server.start()
    lines.append(watch.stdout.readline())
    watch.send_signal(signal.SIGINT)
    rest, _ = watch.communicate(timeout=30)
    assert watch.returncode == ExitCode.INTERRUPTED
    times = [json.loads(line)["time_unix_ns"] for line in (*lines, *rest.splitlines())]
    assert times == sorted(times)
    recording = tmp_path / "rec.ndjson"
    recording.write_text("".join(lines), encoding="utf-8")
    played = CliRunner().invoke(top, ["--replay", str(recording), "--speed", "1000", "--json", "--watch"])
    assert [json.loads(line)["time_unix_ns"] for line in played.stdout.splitlines()] == times[:3]


def test_ps_is_the_table_alone_and_takes_the_same_words(state_server: StateServer) -> None:
    done = CliRunner().invoke(ps, ["--url", state_server.url, "--sort", "ctx", "--filter", "docs"])
    lines = done.output.splitlines()
    assert "CTX▼" in lines[1]
    assert [line.split()[0] for line in lines[2:]] == ["docs-3"]
    assert done.exit_code == 0


def test_ascii_is_ascii(state_server: StateServer) -> None:
    assert CliRunner().invoke(top, ["--once", "--ascii", "--url", state_server.url]).output.isascii()
    assert CliRunner().invoke(ps, ["--ascii", "--url", state_server.url]).output.isascii()


def test_spans_of_a_file_are_listed_without_an_engine(tmp_path: Path) -> None:
    path = write_otlp(
        tmp_path / "a.jsonl",
        [otlp_span("execute_tool", 1, None, span=1, agent="a", attributes={"gen_ai.tool.name": "pytest"})],
    )
    done = CliRunner().invoke(ps, [str(path)])
    assert "tool:pytest" in done.output
    assert "VRAM" not in done.output


@pytest.mark.parametrize("text", ["", "def f(): ...\n", '{"resourceSpans": [}\n'])
@pytest.mark.parametrize("how", ["--once", "--json"])
def test_a_file_without_any_agents_span_is_exit_5(tmp_path: Path, text: str, how: str) -> None:
    path = tmp_path / "nothing.jsonl"
    path.write_text(text)
    done = CliRunner().invoke(top, [how, str(path)])
    assert isinstance(done.exception, CommandError)
    assert done.exception.code == ExitCode.NO_DATA
    assert "nothing.jsonl: is it a span file" in str(done.exception)


def test_demo_needs_nothing() -> None:
    done = CliRunner().invoke(top, ["--demo", "--once", "--agents", "3"])
    assert "3 agents" in done.output


def test_unreachable_server_is_exit_3_and_a_missing_file_exit_5() -> None:
    for args, code in (
        (["--url", "http://127.0.0.1:9"], ExitCode.UNREACHABLE),
        ([], ExitCode.UNREACHABLE),
        (["--replay", "missing.ndjson"], ExitCode.NO_DATA),
        (["missing.jsonl"], ExitCode.NO_DATA),
    ):
        done = CliRunner().invoke(top, ["--once", *args])
        assert isinstance(done.exception, CommandError)
        assert done.exception.code == code
    done_process = _process("ps", "--url", "http://127.0.0.1:9")
    assert (done_process.returncode, done_process.stdout) == (ExitCode.UNREACHABLE, "")
    assert (
        done_process.stderr
        == "kvtrace: 127.0.0.1:9 cannot be asked: connection refused; is `kvtrace serve` running there?\n"
    )


@pytest.mark.parametrize(
    "args",
    [
        ["top", "--watch"],
        ["top", "--once", "--json"],
        ["top", "--demo", "--url", "x"],
        ["top", "--speed", "2"],
        ["top", "--interval", "0.1"],
        ["top", "--url", "ftp://x", "--once"],
        ["top", "--config", "missing.toml", "--once"],
        ["ps", "--demo", "x.jsonl"],
    ],
)
def test_misuse_is_exit_2(args: list[str]) -> None:
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == ExitCode.USAGE, done.output


def test_settings_file_is_read_and_its_mistakes_end_the_command(tmp_path: Path, state_server: StateServer) -> None:
    config = tmp_path / "kvtrace.toml"
    config.write_text('[top]\nsort = "vram"\nascii = true\n', encoding="utf-8")
    done = CliRunner().invoke(top, ["--once", "--config", str(config), "--url", state_server.url])
    assert "VRAMv" in done.output
    config.write_text("[top]\ninterval_s = 0\n", encoding="utf-8")
    done = CliRunner().invoke(top, ["--once", "--config", str(config)])
    assert isinstance(done.exception, CommandError)
    assert done.exception.code == ExitCode.USAGE


def test_command_line_knows_the_columns_and_bounds_of_the_screen() -> None:
    assert tuple(Sort) == SORTS
    (interval,) = (each for each in top.params if each.name == "interval")
    assert getattr(interval.type, "min", None) == LEAST_INTERVAL_S
