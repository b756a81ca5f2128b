"""An agent that is killed in the middle of a tool call leaves a trace that can be read: b as a range."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvtrace.analysis import build_report

AGENT = """
import time
from kvtrace.tracer import agent, generation, traced_tool

@traced_tool
def quick():
    time.sleep(0.05)

@traced_tool
def stuck():
    print("in the tool", flush=True)
    time.sleep(600)

with agent("doomed", id="doomed"):
    with generation("m"):
        time.sleep(0.2)
    quick()
    with generation("m"):
        time.sleep(0.2)
    stuck()
"""


@pytest.fixture
def victim(tmp_path: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "KVTRACE_DIR": str(tmp_path)}
    environment.pop("KVTRACE_RUN", None)
    child = subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    assert child.stdout.readline() == "in the tool\n"
    return child


def test_killed_agent_shows_its_open_call_and_b_as_a_range(victim: subprocess.Popen[str], tmp_path: Path) -> None:
    time.sleep(2.5)  # long enough for the heartbeat to show that it lived on inside the tool
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    report = build_report([], data_folder=tmp_path)
    (doomed,) = report.agents
    assert (doomed.agent, doomed.tool_calls, doomed.open_calls, doomed.running) == ("doomed", 2, 1, False)
    assert doomed.b_low is not None
    assert doomed.b_high is not None
    assert 0 < doomed.b_low < 0.3 < doomed.b_high < 1
    assert {tool.tool: tool.open_calls for tool in report.tools} == {"quick": 0, "stuck": 1}


def test_agent_that_still_waits_is_shown_as_running_until_now(victim: subprocess.Popen[str], tmp_path: Path) -> None:
    try:
        first = build_report([], data_folder=tmp_path).agents[0]
        time.sleep(0.5)
        later = build_report([], data_folder=tmp_path).agents[0]
    finally:
        victim.kill()
        victim.communicate()
    assert first.running
    assert first.open_calls == 1
    assert later.blocked_s >= first.blocked_s + 0.4
