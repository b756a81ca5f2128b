"""Inspect AI logs: samples are agents, spans tell sub-agents, and the archive says the same as the document."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis import NoDataError

from .support import calls, iso, records, report, states, write_document

Event = dict[str, Any]


def event(kind: str, at: float, span: str | None = None, **more: Any) -> Event:
    return {"event": kind, "timestamp": iso(at, zone="+00:00"), "span_id": span, **more}


def model(at: float, until: float, span: str | None = None, **more: Any) -> Event:
    usage = {"input_tokens": 10, "output_tokens": 4, "input_tokens_cache_read": 90}
    return event("model", at, span, model="m", completed=iso(until), output={"usage": usage}, **more)


def tool(at: float, until: float | None, span: str | None, call_id: str, **more: Any) -> Event:
    ended = {"completed": iso(until)} if until is not None else {"pending": True}
    return event("tool", at, span, id=call_id, function="bash", **ended, **more)


def begin(at: float, span: str, kind: str, parent: str | None) -> Event:
    return event("span_begin", at, span, id=span, name=span, type=kind, parent_id=parent)


EVENTS = [
    event("sample_init", 0),
    begin(0, "solver", "solver", None),
    begin(0, "react", "agent", "solver"),
    model(1, 4, "react", working_time=2.0, uuid="a"),
    begin(4, "call", "tool", "react"),
    tool(4, 10, "call", "c1"),
    begin(5, "helper", "agent", "call"),
    model(5, 8, "helper"),
    event("span_end", 9, "helper", id="helper"),
    event("span_end", 10, "call", id="call"),
    model(10, 12, "react"),
    begin(13, "scorers", "scorers", None),
    model(13, 60, "scorers"),
    event("score", 60, "scorers"),
]
SAMPLE = {"id": "q1", "epoch": 1, "uuid": "u", "events": EVENTS}
LOG = {"version": 2, "status": "success", "eval": {"eval_id": "e", "run_id": "r", "task": "t"}}


def test_sample_with_a_sub_agent_in_a_tool(tmp_path: Path) -> None:
    path = write_document(tmp_path / "log.json", {**LOG, "samples": [SAMPLE]})
    main, sub = report(path).agents
    assert (main.agent, main.name, main.parent, main.tool_calls) == ("u", "q1", None, 1)
    # A second of the first model call was spent waiting, and scoring is nobody's time.
    assert (main.generating_s, main.queued_s, main.blocked_s, main.wall_s) == (5, 1, 6, 12)
    assert (sub.agent, sub.name, sub.parent, sub.generating_s, sub.wall_s) == ("u/helper", "helper", "u", 3, 4)
    assert main.model_elsewhere_s == 3
    found, _ = records(path)
    assert {record.input_tokens for record in found if record.kind == "model"} == {100}


def test_archive_equals_the_document(tmp_path: Path) -> None:
    document = write_document(tmp_path / "log.json", {**LOG, "samples": [SAMPLE]})
    archive = tmp_path / "log.eval"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("_journal/start.json", json.dumps(LOG))
        file.writestr("samples/q1_epoch_1.json", json.dumps(SAMPLE))
        file.writestr("samples/q2_epoch_1.json", "{broken")
        file.writestr("summaries.json", "[]")
    assert report(archive).agents == report(document).agents
    assert [skip.why.split(" is")[0] for skip in records(archive)[1].skips] == ["samples/q2_epoch_1.json"]


def test_call_that_names_the_agent_it_starts_holds_its_run(tmp_path: Path) -> None:
    # As of version 0.3.285: the call is filed under the span of the agent that makes it, not under its own.
    events = [
        begin(0, "react", "agent", None),
        model(0, 2, "react"),
        begin(2, "call", "tool", "react"),
        tool(2, 9, "react", "c1", agent_span_id="helper"),
        begin(3, "helper", "agent", "call"),
        model(3, 5, "helper"),
        event("span_end", 8, "helper", id="helper"),
        model(9, 10, "react"),
    ]
    found = report(write_document(tmp_path / "log.json", {**LOG, "samples": [{**SAMPLE, "events": events}]}))
    main, sub = found.agents
    assert (main.tool_calls, main.blocked_s, main.model_elsewhere_s) == (1, 7, 2)
    assert (sub.parent, sub.wall_s) == (main.agent, 5)
    assert [each.tool for each in found.tools] == ["bash"]


def test_archive_compressed_with_zstandard_is_read(tmp_path: Path) -> None:
    archives = pytest.importorskip("zipfile" if sys.version_info >= (3, 14) else "backports.zstd.zipfile")
    document = write_document(tmp_path / "log.json", {**LOG, "samples": [SAMPLE]})
    with archives.ZipFile(tmp_path / "log.eval", "w", archives.ZIP_ZSTANDARD) as file:
        file.writestr("_journal/start.json", json.dumps(LOG))
        file.writestr("samples/q1_epoch_1.json", json.dumps(SAMPLE))
    assert report(tmp_path / "log.eval").agents == report(document).agents


def test_pending_events_are_open(tmp_path: Path) -> None:
    events = [model(0, 2), tool(2, None, None, "c1"), event("info", 7)]
    path = write_document(tmp_path / "log.json", {**LOG, "samples": [{"id": 1, "epoch": 1, "events": events}]})
    pooled = report(path).pooled
    assert (pooled.open_calls, pooled.b_low) == (1, 0)
    assert pooled.b_high == pytest.approx(5 / 7)


def test_older_logs_nest_events_and_tell_lengths_only(tmp_path: Path) -> None:
    inner = event("model", 3, working_time=1.0, model="m")
    outer = event("tool", 2, id="c1", function="ask", working_time=4.0, events=[inner], error={"type": "timeout"})
    path = write_document(tmp_path / "log.json", {**LOG, "samples": [{"id": 1, "epoch": 2, "events": [outer]}]})
    assert calls(path) == [("ask", 2, 6)]
    assert calls(path, "model") == [("m", 3, 4)]
    (agent,) = report(path).agents
    assert (agent.agent, states(agent)) == ("e/1/2", (4, 1, 3, 0))


def test_samples_and_epochs_are_agents_of_their_own(tmp_path: Path) -> None:
    samples = [{"id": "q", "epoch": epoch, "events": [model(0, 1), tool(1, 2, None, "c1")]} for epoch in (1, 2)]
    found = report(write_document(tmp_path / "log.json", {**LOG, "samples": [*samples, 3]}))
    assert [(agent.agent, agent.tool_calls) for agent in found.agents] == [("e/q/1", 1), ("e/q/2", 1)]


def test_bad_logs_are_named(tmp_path: Path) -> None:
    events = [model(0, 1), event("tool", 0) | {"timestamp": "?"}]
    path = write_document(tmp_path / "log.json", {**LOG, "samples": [{"id": 1, "events": events}]})
    assert [skip.why for skip in records(path)[1].skips] == ["sample 1: timestamp is no instant: '?'"]
    (tmp_path / "cut.json").write_text(json.dumps({**LOG, "samples": []})[:-5])
    with pytest.raises(NoDataError, match=r"cut\.json is not JSON"):
        report(tmp_path / "cut.json")
