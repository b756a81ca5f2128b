"""Processes that end, stop or cannot write at the worst moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.tracer.testing import read_records
from tests.tracer.counting import open_and_ended, tools

if TYPE_CHECKING:
    from tests.tracer.conftest import Program


def test_exit_in_a_forked_child_keeps_its_records(tmp_path: Path, program: Program) -> None:
    done = program("""
import os
from kvtrace.tracer import agent, traced_tool
@traced_tool
def short(): pass
@traced_tool
def leave(): os._exit(0)
with agent("a", id="a"):
    for _ in range(20):
        if (pid := os.fork()) == 0:
            short()
            leave()
        os.waitpid(pid, 0)
""")
    assert done.returncode == 0, done.stderr
    starts, ends = open_and_ended(tools(read_records(tmp_path)))
    assert (len(starts), len(ends)) == (40, 20)
    assert set(starts.values()) == set(ends.values()) == {1}


def test_stopped_process_has_its_last_call_on_disk(tmp_path: Path, child_environment: dict[str, str]) -> None:
    source = """
import os, signal
from kvtrace.tracer import agent, traced_tool
with agent("a"):
    for _ in range(50):
        traced_tool(lambda: None)()
    os.kill(os.getpid(), signal.SIGSTOP)
"""
    with subprocess.Popen([sys.executable, "-c", source], env=child_environment) as child:
        os.waitpid(child.pid, os.WUNTRACED)
        starts, ends = open_and_ended(tools(read_records(tmp_path)))
        child.kill()
    assert (len(starts), len(ends)) == (50, 50)


def test_abandoned_event_loop_keeps_every_start(tmp_path: Path, program: Program) -> None:
    done = program("""
import asyncio
from kvtrace.tracer import agent, traced_tool
@traced_tool
async def wait(): await asyncio.sleep(60)
@traced_tool
async def quick(): pass
async def main():
    global tasks
    with agent("a", id="a"):
        tasks = [asyncio.ensure_future(wait()) for _ in range(5)]
        await quick()
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
import os
os._exit(0)  # the loop is never closed
""")
    assert done.returncode == 0, done.stderr
    starts, ends = open_and_ended(tools(read_records(tmp_path)))
    assert (len(starts), len(ends)) == (6, 1)


def test_normal_exit_with_an_open_span_ends_or_leaves_it_once(tmp_path: Path, program: Program) -> None:
    done = program("""
from kvtrace.tracer import agent, traced_tool
@traced_tool
def steps():
    yield 1
    yield 2
kept = steps()
next(kept)
agent("a").__enter__()
""")
    assert done.returncode == 0, done.stderr
    starts, ends = open_and_ended(read_records(tmp_path))
    assert len(starts) == 2
    assert set(starts.values()) == {1}
    assert set(ends.values()) <= {1}
    assert set(ends) <= set(starts)


def test_full_disk_costs_records_and_not_the_agent(tmp_path: Path, program: Program) -> None:
    done = program("""
import resource, signal
from kvtrace.tracer import COUNTS, agent, traced_tool
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
tool = traced_tool(lambda n: n)
with agent("a"):
    assert [tool(n) for n in range(50)] == list(range(50))
print(COUNTS.lost_records)
""")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) + len(read_records(tmp_path)) == 102
    assert done.stderr.count("cannot write spans") == 1


def test_read_only_folder_costs_records_and_not_the_agent(child_environment: dict[str, str]) -> None:
    source = """
from kvtrace.tracer import COUNTS, agent, traced_tool
with agent("a"):
    assert traced_tool(lambda: 3)() == 3
assert COUNTS.lost_records == 4
"""
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=child_environment | {"KVTRACE_DIR": "/proc/kvtrace"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot write spans") == 1
