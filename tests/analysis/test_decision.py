"""One word and one sentence for every kind of evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvtrace.analysis.capacity import capacity
from kvtrace.analysis.decision import Decision, Evidence, decide

USUAL = Evidence(
    b=0.59, b_low=0.59, b_evictable=0.58, short_windows=0.27, model_calls=9, tool_calls=9, slots=8, round_trip_ms=41
)


def decision(round_trips: float = 0.01, **changes: Any) -> Decision:
    evidence = replace(USUAL, **{"b_low": changes.get("b", USUAL.b), **changes})
    return decide(evidence, capacity(evidence.b, evidence.slots, round_trips))


def test_long_waits_pay_and_short_ones_are_warned_of() -> None:
    found = decision()
    assert found.verdict == "pays"
    assert found.multiple == pytest.approx(2.27, abs=0.01)
    assert "2.3 times" in found.sentence
    assert "27 % of waits under 41 ms" in found.sentence


def test_few_short_waits_are_not_mentioned() -> None:
    assert "leave alone" not in decision(short_windows=0.05).sentence


def test_little_waiting_gains_little() -> None:
    assert decision(b=0.15, b_evictable=0.15).verdict == "marginal"


def test_no_waiting_does_not_pay() -> None:
    found = decision(b=0.01, b_evictable=0.01)
    assert found.verdict == "no"
    assert "1 % of the time" in found.sentence


def test_without_tools_there_is_nothing_to_park_for() -> None:
    assert "no tool" in decision(b=0.0, b_evictable=0.0, tool_calls=0).sentence


def test_waits_shorter_than_a_round_trip_do_not_pay() -> None:
    found = decision(round_trips=0.9, b=0.5, b_evictable=0.0)
    assert found.verdict == "no"
    assert "41 ms" in found.sentence


def test_open_calls_that_decide_leave_it_open() -> None:
    assert decision(b_low=0.01).verdict == "unknown"


@pytest.mark.parametrize("changes", [{"b": None}, {"b": 1.0}, {"model_calls": 0}])
def test_missing_evidence_gives_no_verdict(changes: dict[str, Any]) -> None:
    found = decision(**changes)
    assert (found.verdict, found.multiple) == ("unknown", None)
    assert found.sentence.startswith("Cannot tell")
