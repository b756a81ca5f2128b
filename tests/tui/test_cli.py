"""The command line's contract: exit codes, what goes to stdout, and no traceback for a user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kvtrace.tui import cli as cli_module
from kvtrace.tui.exits import CommandError, ExitCode


def _kvtrace(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvtrace.tui", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.parametrize("verb", sorted(cli_module.COMMANDS))
def test_every_command_answers_help(verb: str) -> None:
    result = CliRunner().invoke(cli_module.cli, [verb, "--help"])
    assert result.exit_code == 0, result.output
    assert f"kvtrace {verb}" in result.output or f"cli {verb}" in result.output


def test_version_names_the_installed_version() -> None:
    from importlib.metadata import version

    done = _kvtrace("--version")
    assert done.stdout == f"kvtrace {version('kvtrace')}\n"


def test_unknown_command_is_a_usage_error_on_stderr() -> None:
    done = _kvtrace("prak")
    assert done.returncode == ExitCode.USAGE
    assert done.stdout == ""
    assert "prak" in done.stderr


def _main_with(monkeypatch: pytest.MonkeyPatch, problem: BaseException) -> int:
    @click.command()
    def command() -> None:
        raise problem

    monkeypatch.setattr(cli_module, "cli", command)
    with pytest.raises(SystemExit) as end:
        cli_module.main([])
    assert isinstance(end.value.code, int)
    return end.value.code


def test_command_error_gives_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main_with(monkeypatch, CommandError("no spans here", ExitCode.NO_DATA)) == ExitCode.NO_DATA
    assert capsys.readouterr().err == "kvtrace: no spans here\n"


def test_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _main_with(monkeypatch, KeyboardInterrupt()) == ExitCode.INTERRUPTED


def test_fault_of_ours_shows_one_sentence_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KVTRACE_TRACEBACK", raising=False)
    assert _main_with(monkeypatch, ZeroDivisionError("division by zero")) == ExitCode.FAILED
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert "division by zero" in shown


def test_closed_pipe_ends_quietly() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"'{sys.executable}' -m kvtrace.tui doctor --json | head -c 1; exit 0"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "{"
    assert done.stderr == ""


def test_doctor_prints_json_without_secrets(tmp_path: Path) -> None:
    done = _kvtrace("doctor", "--json", KVTRACE_DIR=str(tmp_path), OTEL_EXPORTER_OTLP_HEADERS="authorization=hunter2")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["packages"]["kvtrace"]
    assert facts["span_files"] == facts["span_files"] | {"directory": str(tmp_path), "runs": 0, "writable": True}
    assert "hunter2" not in done.stdout
    assert facts["settings"]["OTEL_EXPORTER_OTLP_HEADERS"] == "(set)"
