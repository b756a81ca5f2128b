"""What is remembered from sample to sample: dated states, waits, b, rates, events."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtrace.engine.records import AgentState, EngineEvent, EventKind
from kvtrace.tui.feed.contract import SourceKind
from kvtrace.tui.top.history import History
from kvtrace.tui.top.looks import Shown

from .conftest import NS, START_NS, record, sample

WAITING = AgentState.BLOCKED_RESIDENT


def _spells(history: History, name: str = "api-1", until_s: float = 100.0) -> list[tuple[float, float, str]]:
    between = history.tracks[name].between(START_NS - 100 * NS, START_NS + round(until_s * NS))
    return [((a - START_NS) / NS, (b - START_NS) / NS, spell.state or "unseen") for a, b, spell in between]


def _event(at_s: float, kind: EventKind, bytes_: int, agent: str = "api-1") -> EngineEvent:
    return EngineEvent(START_NS + round(at_s * NS), agent, kind, "bash", bytes_, None, "why")


def test_states_are_dated_by_what_the_engine_says_not_by_the_sample() -> None:
    history = History()
    history.add(sample(record(since_s=2.0), at_s=0))
    history.add(sample(record(state=WAITING, tool="bash", since_s=0.25), at_s=1))
    assert _spells(history) == [(-2.0, 0.75, "generating"), (0.75, 1.0, "resident")]


def test_one_wait_counts_as_one_whatever_becomes_of_the_kv() -> None:
    history = History()
    for at_s, state in ((0, AgentState.PARKING), (1, WAITING), (2, AgentState.PARKED)):
        history.add(sample(record(state=state, tool="bash", since_s=0.5 + at_s), at_s=at_s))
    history.add(sample(record(since_s=0.25), at_s=3))
    assert [state for _, _, state in _spells(history)] == ["parking", "resident", "parked", "generating"]
    (wait,) = history.tracks["api-1"].tools().values()
    assert wait.calls == 1
    assert wait.total_s == pytest.approx(3.25)
    assert history.ended[-1].lasted_s == pytest.approx(3.25)


def test_two_waits_between_which_a_sample_missed_the_work_are_two() -> None:
    history = History()
    history.add(sample(record(state=WAITING, tool="bash", since_s=5.0), at_s=0))
    history.add(sample(record(state=WAITING, tool="bash", since_s=0.5), at_s=2))
    assert history.tracks["api-1"].tools()["bash"].calls == 2


def test_wait_under_way_counts_among_the_tools() -> None:
    history = History()
    history.add(sample(record(state=WAITING, tool="pytest", since_s=40.0)))
    wait = history.tracks["api-1"].tools()["pytest"]
    assert (wait.calls, wait.total_s, wait.longest_s) == (1, 40.0, 40.0)


def test_b_is_agent_time_waiting_over_agent_time_without_people_and_finished_runs() -> None:
    history = History()
    agents = [
        record("a", WAITING, tool="bash"),
        record("b", AgentState.GENERATING),
        record("c", AgentState.HUMAN),
        record("d", AgentState.IDLE, since_s=500.0),
        record("e", AgentState.IDLE, since_s=1.0),
    ]
    for at_s in range(5):
        history.add(sample(*agents, at_s=at_s))
    assert history.b(60, START_NS + 4 * NS) == pytest.approx(1 / 3)


def test_b_of_a_minute_forgets_what_is_older_and_that_of_five_does_not() -> None:
    history = History()
    for at_s in range(0, 200, 2):
        state = WAITING if at_s < 100 else AgentState.GENERATING
        history.add(sample(record(state=state, tool="bash"), at_s=at_s))
    at_ns = START_NS + 198 * NS
    assert history.b(60, at_ns) == 0.0
    assert history.b(300, at_ns) == pytest.approx(0.5, abs=0.02)


def test_b_counts_no_time_in_which_nothing_was_seen() -> None:
    history = History()
    history.add(sample(record(state=WAITING, tool="bash"), at_s=0))
    history.add(sample(record(), at_s=100))
    assert history.b(300, START_NS + 100 * NS) is None
    history.add(sample(record(), at_s=101))
    assert history.b(300, START_NS + 101 * NS) == 0.0


def test_time_in_which_nobody_looked_is_no_state() -> None:
    history = History()
    history.add(sample(record(state=WAITING, tool="bash", since_s=5.0), at_s=0))
    history.add(sample(record(since_s=10.0), at_s=60))
    assert _spells(history) == [(-5.0, 0.0, "resident"), (0.0, 50.0, "unseen"), (50.0, 60.0, "generating")]
    assert history.tracks["api-1"].tools()["bash"].total_s == 5.0


def test_wait_that_went_on_while_nobody_looked_is_one_wait() -> None:
    history = History()
    for at_s in (0, 60):
        history.add(sample(record(state=WAITING, tool="bash", since_s=5.0 + at_s), at_s=at_s))
    assert _spells(history) == [(-5.0, 60.0, "resident")]


def test_rare_samples_are_no_gap() -> None:
    history = History()
    for at_s in range(0, 300, 40):
        history.add(sample(record(state=WAITING, tool="bash", since_s=1.0), at_s=at_s))
    assert history.b(300, START_NS + 280 * NS) == 1.0


def test_event_is_noted_once_though_many_samples_tell_it() -> None:
    history = History()
    first, second = _event(1, EventKind.PARK, 10), _event(2, EventKind.RESTORE, 10)
    twin = replace(second, agent="docs-2")
    history.add(sample(record(), at_s=1, events=(first,)))
    history.add(sample(record(), at_s=2, events=(first, second)))
    history.add(sample(record(), at_s=3, events=(first, second, twin)))
    assert list(history.events) == [first, second, twin]


def test_losses_block_by_block_are_one_event() -> None:
    history = History()
    blocks = tuple(_event(1 + at / 1000, EventKind.RECLAIM, 100) for at in range(10))
    history.add(sample(record(), at_s=2, events=blocks))
    assert [event.bytes for event in history.events] == [1000]


def test_engine_started_anew_tells_no_negative_rate() -> None:
    history = History()
    before = sample(record(), at_s=0)
    after = sample(record(), at_s=5)
    restarted = replace(after.snapshot, link=replace(after.snapshot.link, out_total_bytes=0, out_bytes_per_s=7.0))
    history.add(
        replace(before, snapshot=replace(before.snapshot, link=replace(before.snapshot.link, out_total_bytes=10**9)))
    )
    history.add(replace(after, snapshot=restarted))
    assert history.out_rates[-1] == 7.0


def test_rates_over_long_intervals_come_from_totals() -> None:
    history = History()
    for at_s, total in ((0, 0), (10, 5 * 10**9)):
        shown = sample(record(), at_s=at_s)
        link = replace(shown.snapshot.link, in_total_bytes=total, in_bytes_per_s=0.0)
        history.add(replace(shown, snapshot=replace(shown.snapshot, link=link)))
    assert history.in_rates[-1] == pytest.approx(5e8)


def test_time_that_runs_backwards_begins_a_new_history() -> None:
    history = History()
    history.add(sample(record("old"), at_s=50))
    history.add(sample(record("new"), at_s=0))
    assert set(history.tracks) == {"new"}


def test_reset_keeps_what_agents_are_doing() -> None:
    history = History()
    for at_s in range(3):
        history.add(sample(record(state=WAITING, tool="bash", since_s=float(at_s)), at_s=at_s))
    history.reset()
    assert (len(history.out_rates), history.b(60, START_NS + 2 * NS)) == (0, None)
    history.add(sample(record(state=WAITING, tool="bash", since_s=3.0), at_s=3))
    assert _spells(history)[-1][2] == "resident"


def test_agents_that_are_long_gone_are_forgotten() -> None:
    history = History()
    history.add(sample(record("a"), record("b"), at_s=0))
    for at_s in range(0, 1000, 10):
        history.add(sample(record("b"), at_s=at_s))
    assert set(history.tracks) == {"b"}


def test_recompute_cost_follows_the_engines_own_prefill_rate() -> None:
    history = History()
    shown = sample(record())
    totals = replace(shown.snapshot.totals, prefilled_tokens=2000, prefill_s=2.0)
    history.add(replace(shown, snapshot=replace(shown.snapshot, totals=totals)))
    assert history.recompute_s(147_456 * 500) == pytest.approx(0.5)


@pytest.mark.parametrize(("size", "tokens"), [(16, 1008), (128, 1024), (0, 1000)])
def test_bytes_a_token_are_those_of_whole_blocks(size: int, tokens: int) -> None:
    history = History()
    one = sample(record(vram_bytes=tokens * 500))
    history.add(replace(one, snapshot=replace(one.snapshot, block_tokens=size)))
    assert history.token_bytes == pytest.approx(500)


def test_spans_alone_wait_for_tools_and_are_nowhere() -> None:
    history = History()
    history.add(sample(record(state=WAITING, tool="bash"), kind=SourceKind.SPANS))
    assert history.tracks["api-1"].state is Shown.TOOL
    assert len(history.vram_used) == 0
