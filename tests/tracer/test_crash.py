from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.tracer.testing import read_records
from tests.tracer.counting import open_and_ended, tools

if TYPE_CHECKING:
    from tests.tracer.conftest import Program

LOOP = """
import os, sys, time
from kvtrace.tracer import agent, traced_tool

@traced_tool
def step(i):
    os.write(1, b"%d\\n" % i)
    time.sleep(0.0005)

with agent("worker", id=sys.argv[1]):
    os.write(1, b"up\\n")
    i = 0
    while True:
        step(i)
        i += 1
"""


def test_kill_inside_a_tool_leaves_its_start(tmp_path: Path, child_environment: dict[str, str]) -> None:
    source = """
import time
from kvtrace.tracer import agent, traced_tool
@traced_tool
def hang():
    print("in", flush=True)
    time.sleep(60)
with agent("worker", id="w"):
    hang()
"""
    with subprocess.Popen([sys.executable, "-c", source], env=child_environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.kill()
    records = read_records(tmp_path)
    assert [(record.name, record.end_unix_ns) for record in records] == [
        ("invoke_agent worker", None),
        ("execute_tool hang", None),
    ]
    assert records[1].attributes["kvtrace.agent.id"] == "w"
    assert records[1].resource["process.pid"] == child.pid


def test_heartbeat_moves_the_mtime_while_a_tool_runs(tmp_path: Path, program: Program) -> None:
    done = program("""
import os, time
from kvtrace.tracer import configure, traced_tool
@traced_tool
def slow():
    folder = configured.run_directory
    (file,) = folder.iterdir()
    os.utime(file, (1, 1))
    deadline = time.monotonic() + 20
    while file.stat().st_mtime < 1000 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert file.stat().st_mtime > 1000
configured = configure()
slow()
""")
    assert done.returncode == 0, done.stderr


def test_exit_with_an_open_span_keeps_its_start(tmp_path: Path, program: Program) -> None:
    done = program("""
import os
from kvtrace.tracer import agent, traced_tool
@traced_tool
def leave():
    os._exit(7)
with agent("a"):
    leave()
""")
    assert done.returncode == 7
    assert len(read_records(tmp_path)) == 2


# One import for all: a zygote forks the 1,000, so that what is measured is records, not start-up time.
ZYGOTE = """
import gc, os, random, signal, sys, time
import kvtrace.tracer.agents, kvtrace.tracer.decorators
gc.freeze()
folder, source = sys.argv[1], compile(sys.argv[2], "loop", "exec")
chance = random.Random(7)

def start(name):
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.path.join(folder, name + ".out"), os.O_CREAT | os.O_WRONLY, 0o600), 1)
        sys.argv = ["loop", name]
        exec(source, {})
    return pid

def has_called(name):
    try:
        return os.path.getsize(os.path.join(folder, name + ".out")) > len("up\\n")
    except OSError:
        return False

for batch in range(250):
    names = [str(batch * 4 + n) for n in range(4)]
    pids = [start(name) for name in names]
    for n, (name, pid) in enumerate(zip(names, pids)):
        # Half of them die anywhere, start-up included; half among their calls.
        while n % 2 and not has_called(name):
            time.sleep(0.0005)
        time.sleep(chance.uniform(0.0, 0.005))
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
"""


def test_1000_processes_killed_at_random_lose_no_start(tmp_path: Path, child_environment: dict[str, str]) -> None:
    subprocess.run(
        [sys.executable, "-c", ZYGOTE, str(tmp_path), LOOP],
        env=child_environment | {"KVTRACE_RUN": "killed"},
        check=True,
        timeout=240,
    )
    records = tools(read_records(tmp_path))
    starts, ends = open_and_ended(records)
    entered = {path.stem: path.read_text().splitlines() for path in tmp_path.glob("*.out")}
    assert len(entered) >= 500
    by_agent = Counter(record.attributes["kvtrace.agent.id"] for record in records if record.end_unix_ns is None)
    ended_by_agent = Counter(record.attributes["kvtrace.agent.id"] for record in records if record.end_unix_ns)
    assert len(by_agent) >= 500
    assert set(by_agent) <= set(entered)
    for name, lines in entered.items():
        calls = sum(line.isdigit() for line in lines)
        # Killed between the start record and the tool's first word, a start is there whose tool said nothing.
        assert calls <= by_agent[name] <= calls + 1
        assert max(calls - 1, 0) <= ended_by_agent[name] <= calls
    assert set(starts.values()) == {1}
    assert set(ends.values()) == {1}
    assert set(ends) <= set(starts)


def test_forked_child_writes_its_own_file(tmp_path: Path, program: Program) -> None:
    done = program("""
import os
from kvtrace.tracer import agent, traced_tool
@traced_tool
def before(): pass
@traced_tool
def inside(): pass
@traced_tool
def forks():
    pid = os.fork()
    if pid == 0:
        for _ in range(3):
            inside()
        return 0
    os.waitpid(pid, 0)
    return pid
with agent("a", id="a"):
    before()
    pid = forks()
""")
    assert done.returncode == 0, done.stderr
    files = sorted(tmp_path.rglob("*.jsonl"))
    assert len(files) == 2
    assert len({file.parent for file in files}) == 1
    records = read_records(tmp_path)
    assert {record.resource["process.pid"] for record in records if record.name == "execute_tool inside"} == {
        int(file.name.split("-")[0]) for file in files
    } - {record.resource["process.pid"] for record in records if record.name == "execute_tool before"}
    starts, ends = open_and_ended(records)
    # The child returns through spans that its parent opened: each ends once, in the parent's file.
    assert set(starts.values()) == set(ends.values()) == {1}
    assert set(starts) == set(ends)
    assert {record.attributes["kvtrace.agent.id"] for record in records} == {"a"}


def test_ids_differ_after_fork_even_when_random_is_seeded(tmp_path: Path, program: Program) -> None:
    done = program("""
import os, random
from kvtrace.tracer import traced_tool
@traced_tool
def tool(): pass
tool()
for _ in range(5):
    if os.fork() == 0:
        random.seed(0)
        tool()
        os._exit(0)
    os.wait()
""")
    assert done.returncode == 0, done.stderr
    starts, _ = open_and_ended(read_records(tmp_path))
    assert len(starts) == 6
    assert set(starts.values()) == {1}


def test_seeded_programs_draw_the_same_numbers(program: Program) -> None:
    source = """
import random
from kvtrace.tracer import traced_tool
random.seed(1)
tool = traced_tool(lambda: None)
tool()
print([random.random() for _ in range(3)])
"""
    assert program(source).stdout == program(source, KVTRACE_DISABLED="1").stdout != ""


def test_spawned_and_pooled_children_join_the_run(tmp_path: Path, child_environment: dict[str, str]) -> None:
    script = tmp_path / "main.py"
    script.write_text("""
import json, multiprocessing, os, subprocess, sys
from concurrent.futures import ProcessPoolExecutor
from kvtrace.tracer import PropagatingExecutor, agent, propagate, traced_tool

@traced_tool
def tool(n):
    return os.getpid()

if __name__ == "__main__":
    with agent("a", id="a"):
        tool(0)
        inner = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        with PropagatingExecutor(inner) as pool:
            spawned = pool.submit(tool, 1).result()
    print(json.dumps([os.getpid(), spawned]))
""")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env=child_environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pids = set(json.loads(done.stdout))
    records = read_records(tmp_path)
    assert {record.resource["process.pid"] for record in records} == pids
    assert len({record.resource["kvtrace.run.id"] for record in records}) == 1
    assert {record.attributes["kvtrace.agent.id"] for record in records} == {"a"}
    owners = {record.span_id: record.name for record in records}
    assert [owners[record.parent_id or ""] for record in tools(records)] == ["invoke_agent a"] * 4


def test_fork_sees_no_thread_of_ours(program: Program) -> None:
    # Python 3.12 and later warn about a fork of a process with threads; -W error would make that fatal.
    done = program("""
import os, threading
from kvtrace.tracer import traced_tool
@traced_tool
def tool():
    assert threading.active_count() == 2
    pid = os.fork()
    if pid == 0:
        os._exit(threading.active_count())
    assert threading.active_count() == 1
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
tool()
""")
    assert done.returncode == 0, done.stderr


def test_subscribers_stay_in_the_parent(program: Program) -> None:
    done = program("""
import os
from kvtrace.tracer import subscribe, traced_tool
seen = []
subscribe(seen.append)
tool = traced_tool(lambda: None)
pid = os.fork()
tool()
if pid == 0:
    os._exit(len(seen))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert len(seen) == 2
""")
    assert done.returncode == 0, done.stderr
