"""Agents without an engine: live from span files that real processes write, with the report's own b."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvtrace.analysis import build_report
from kvtrace.analysis.sample import sample_spans
from kvtrace.analysis.testing import EPOCH_NS, FixedHost, otlp_line, otlp_span, write_otlp
from kvtrace.engine.records import AgentRecord, AgentState, EngineEvent, EventKind
from kvtrace.tui.feed.contract import FeedError, Sample, SourceKind
from kvtrace.tui.feed.names import NamedFeed
from kvtrace.tui.feed.replay import Recording, ReplayFeed
from kvtrace.tui.feed.spans import SpanFeed, read_whole

from .conftest import record, sample

AGENT = """
import sys
from kvtrace.tracer import agent, generation, traced_tool

@traced_tool
def wait_for_stdin():
    print("waiting", flush=True)
    sys.stdin.readline()

with agent("worker"):
    with generation(model="tiny") as call:
        call.usage(input_tokens=900, output_tokens=100)
    wait_for_stdin()
    with generation(model="tiny"):
        print("generating", flush=True)
        sys.stdin.readline()
print("done", flush=True)
"""


def _start(folder: Path) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("KVTRACE_", "OTEL_"))}
    return subprocess.Popen(
        [sys.executable, "-c", AGENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, "KVTRACE_DIR": str(folder)},
    )


def _line(agent: subprocess.Popen[str]) -> str:
    assert agent.stdout is not None
    return agent.stdout.readline().strip()


def _go_on(agent: subprocess.Popen[str]) -> None:
    assert agent.stdin is not None
    agent.stdin.write("\n")
    agent.stdin.flush()


def _only(feed: SpanFeed) -> AgentRecord:
    (found,) = feed.read()
    (agent,) = found.snapshot.agents
    return agent


def test_live_agent_is_seen_waiting_working_and_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRACE_DIR", str(tmp_path))
    agent = _start(tmp_path)
    try:
        assert _line(agent) == "waiting"
        feed = SpanFeed((), time.time_ns)
        seen = _only(feed)
        assert (seen.agent, seen.state, seen.tool) == ("worker", AgentState.BLOCKED_RESIDENT, "wait_for_stdin")
        assert seen.context_tokens == 1000
        _go_on(agent)
        assert _line(agent) == "generating"
        assert _only(feed).state is AgentState.GENERATING
        _go_on(agent)
        assert _line(agent) == "done"
        seen = _only(feed)
        assert seen.state is AgentState.HUMAN
        assert seen.b is not None
        assert 0 < seen.b < 1
    finally:
        agent.communicate()


def test_killed_agent_waits_for_nothing_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRACE_DIR", str(tmp_path))
    agent = _start(tmp_path)
    assert _line(agent) == "waiting"
    agent.send_signal(signal.SIGKILL)
    agent.communicate()
    assert _only(SpanFeed((), time.time_ns)).state not in (AgentState.BLOCKED_RESIDENT, AgentState.GENERATING)


def test_line_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    first = otlp_line([otlp_span("chat", 0, None, span=1, agent="a")])
    second = otlp_line([otlp_span("execute_tool", 2, None, span=2, agent="a", attributes={"gen_ai.tool.name": "bash"})])
    path.write_text(first + "\n" + second[:50], encoding="utf-8")
    feed = SpanFeed([path], lambda: EPOCH_NS + 10**10)
    assert _only(feed).state is AgentState.GENERATING
    with path.open("a", encoding="utf-8") as file:
        file.write(second[50:] + "\n" + otlp_line([otlp_span("chat", 0, 1, span=1, agent="a")]) + "\n")
    seen = _only(feed)
    assert (seen.state, seen.tool, seen.since_s) == (AgentState.BLOCKED_RESIDENT, "bash", 8.0)


def test_new_process_of_the_run_joins(tmp_path: Path) -> None:
    feed = SpanFeed([tmp_path], lambda: EPOCH_NS + 10**10)
    write_otlp(tmp_path / "one.jsonl", [otlp_span("chat", 0, None, span=1, agent="a")])
    assert len(feed.read()[0].snapshot.agents) == 1
    write_otlp(tmp_path / "two.jsonl", [otlp_span("chat", 1, None, span=2, agent="b")])
    reads = (len(feed.read()[0].snapshot.agents) for _ in range(10))
    assert 2 in reads


def test_agents_of_a_server_bear_the_names_of_their_spans(tmp_path: Path) -> None:
    ids = [f"{number:016x}" for number in range(4)]
    path = tmp_path / "spans.jsonl"

    def run(number: int, name: str) -> dict[str, object]:
        return otlp_span(
            "invoke_agent", 0, None, span=9 + number, agent=ids[number], attributes={"gen_ai.agent.name": name}
        )

    write_otlp(path, [run(0, "tests"), run(1, "docs"), run(2, "docs")])
    told = sample(*(record(each) for each in (*ids, "mine")), events=(replace(EVENT, agent=ids[0]),))
    feed = NamedFeed(ReplayFeed(Recording([told]), "x", time.monotonic), [path])
    (named,) = feed.read()
    assert [agent.agent for agent in named.snapshot.agents] == ["tests", "docs 0001", "docs 0002", ids[3], "mine"]
    assert named.snapshot.events[0].agent == "tests"


def test_agents_of_a_server_bear_names_from_every_recent_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRACE_DIR", str(tmp_path))
    ids = [f"{number:016x}" for number in range(3)]
    for number, (name, age_s) in enumerate((("first", 60), ("second", 30), ("ancient", 10**6))):
        path = tmp_path / "runs" / f"2026010{number}T000000.000Z-1-aaaaaaaa" / "1-1.jsonl"
        path.parent.mkdir(parents=True)
        named = {"gen_ai.agent.name": name}
        write_otlp(path, [otlp_span("invoke_agent", 0, None, span=9, agent=ids[number], attributes=named)])
        os.utime(path, (time.time() - age_s, time.time() - age_s))
    told = sample(*(record(each) for each in ids))
    (named_sample,) = NamedFeed(ReplayFeed(Recording([told]), "x", time.monotonic)).read()
    assert [agent.agent for agent in named_sample.snapshot.agents] == ["first", "second", ids[2]]


EVENT = EngineEvent(0, "", EventKind.PARK, "bash", 5, 1.0, "why")


def test_nothing_recorded_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRACE_DIR", str(tmp_path))
    with pytest.raises(FeedError, match="No spans recorded yet"):
        SpanFeed((), time.time_ns).read()


def _states(spans: list[dict[str, object]], tmp_path: Path) -> Callable[[float], dict[str, str]]:
    """States by agent at an instant."""
    world = read_whole([write_otlp(tmp_path / "spans.jsonl", spans)])

    def at(seconds: float) -> dict[str, str]:
        now_ns = EPOCH_NS + round(seconds * 1e9)
        world.advance(now_ns)
        return {agent.agent: agent.state.value for agent in world.snapshot(now_ns, 1e9).agents}

    return at


def test_parent_waits_for_its_sub_agent(tmp_path: Path) -> None:
    label = {"gen_ai.agent.name": "boss"}
    below = {"gen_ai.agent.name": "helper", "kvtrace.agent.parent.id": "1"}
    at = _states(
        [
            otlp_span("invoke_agent", 0, 10, span=1, agent="1", attributes=label),
            otlp_span("invoke_agent", 2, 6, span=2, parent=1, agent="2", attributes=below),
            otlp_span("chat", 3, 6, span=3, parent=2, agent="2"),
        ],
        tmp_path,
    )
    assert at(1) == {"boss": "idle"}
    assert at(4) == {"boss": "blocked_resident", "helper": "generating"}
    assert at(7) == {"boss": "idle", "helper": "human"}


def test_tool_inside_a_model_call_blocks_and_person_inside_a_tool_is_a_person(tmp_path: Path) -> None:
    at = _states(
        [
            otlp_span("chat", 0, 10, span=1, agent="a"),
            otlp_span("execute_tool", 2, 8, span=2, parent=1, agent="a"),
            otlp_span("kvtrace.human_wait", 4, 6, span=3, parent=2, agent="a"),
        ],
        tmp_path,
    )
    assert [at(second)["a"] for second in (1, 3, 5, 7, 9)] == [
        "generating",
        "blocked_resident",
        "human",
        "blocked_resident",
        "generating",
    ]


@pytest.mark.usefixtures("own_cache")
def test_b_at_the_end_is_the_reports_b(tmp_path: Path) -> None:
    path = write_otlp(tmp_path / "sample.jsonl", sample_spans(6, 30, seed=1))
    reported = {agent.name: agent.b for agent in build_report([path], host=FixedHost()).agents}
    world = read_whole([path])
    world.advance(world.last_ns)
    mine = {agent.agent: agent.b for agent in world.snapshot(world.last_ns, 1e9).agents}
    assert mine == pytest.approx(reported)


def test_sample_of_spans_knows_no_memory(tmp_path: Path) -> None:
    path = write_otlp(tmp_path / "a.jsonl", [otlp_span("chat", 0, None, span=1, agent="a")])
    (found,) = SpanFeed([path], lambda: EPOCH_NS).read()
    assert isinstance(found, Sample)
    assert (found.kind, found.knows_memory) == (SourceKind.SPANS, False)
