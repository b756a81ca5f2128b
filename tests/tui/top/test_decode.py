"""Snapshots of any kvtrace are read; what is none is refused with a sentence; nothing reaches the terminal unasked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvtrace.engine.records import AgentState
from kvtrace.tui.feed.contract import FeedError, SourceKind
from kvtrace.tui.feed.decode import sample_from
from kvtrace.tui.feed.simulation import SimulatedEngine

from .conftest import NS, START_NS, record, sample


def _document() -> Any:
    engine = SimulatedEngine(14, 0, START_NS)
    engine.advance(START_NS + 60 * NS)
    return json.loads(json.dumps(engine.snapshot().as_json()))


def test_snapshot_survives_json() -> None:
    document = _document()
    assert json.loads(json.dumps(sample_from(document, "here").snapshot.as_json())) == document


def test_unknown_keys_and_kinds_of_a_later_version_are_passed_over() -> None:
    document = _document()
    document["later"] = document["tiers"]["vram"]["later"] = {"a": 1}
    document["agents"][0]["later"] = [1]
    document["events"].append(dict(document["events"][0], kind="teleport"))
    shown = sample_from(document, "here").snapshot
    assert len(shown.agents) == len(document["agents"])
    assert len(shown.events) == len(document["events"]) - 1


def test_missing_keys_of_an_earlier_version_are_zero_or_unknown() -> None:
    document = {"time_unix_ns": 5, "agents": [{"agent": "a", "state": "idle"}], "tiers": {"vram": {}, "host": {}}}
    shown = sample_from(document, "here").snapshot
    (agent,) = shown.agents
    assert (agent.vram_bytes, agent.b, agent.tokens_per_s, shown.tiers.vram.total_bytes) == (0, None, None, None)


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"agents": 3}, {"agents": [3]}, {"agents": [{"agent": "a", "state": "levitating"}]}, {"agents": [{"state": "idle", "b": "x"}]}],
)  # fmt: skip
def test_what_is_no_snapshot_is_refused_with_the_place(document: object) -> None:
    with pytest.raises(FeedError, match="here"):
        sample_from(document, "here")


@pytest.mark.parametrize("number", [1e308, -1e308, float("nan"), float("inf"), 10**30])
def test_numbers_beyond_calculation_are_refused(number: float) -> None:
    document = _document()
    document["agents"][0]["since_s"] = number
    with pytest.raises(FeedError, match="since_s is"):
        sample_from(document, "here")


def test_nothing_that_a_terminal_obeys_gets_through() -> None:
    document = _document()
    document["agents"][0]["agent"] = "a\x1b]0;owned\x07\n\u202e"
    document["model"] = "m\x9b31m"
    shown = sample_from(document, "here").snapshot
    assert shown.agents[0].agent == "a?]0;owned???"
    assert shown.model.isprintable()


def test_spans_alone_say_null_for_what_they_cannot_know_and_come_back_the_same() -> None:
    told = sample(record(state=AgentState.BLOCKED_RESIDENT, tool="bash"), kind=SourceKind.SPANS).as_json()
    assert (told["tiers"], told["link"], told["model"], told["agents"][0]["vram_bytes"]) == (None, None, None, None)
    assert told["source"] == {"kind": "spans", "where": "test"}
    again = sample_from(json.loads(json.dumps(told)), "there")
    assert again.kind is SourceKind.SPANS
    assert again.as_json()["agents"] == told["agents"]
