"""The SQL timeline equals the plain definition on random timelines."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from statistics import median

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtrace.analysis.figures import agent_report
from kvtrace.analysis.normal import Kind, SpanRecord
from kvtrace.analysis.records import AgentTime
from kvtrace.analysis.reference import idleness_slowly, measure_slowly
from kvtrace.analysis.store import Store
from kvtrace.analysis.timeline import measure
from kvtrace.tracer.attributes import UNKNOWN_AGENT

ROUND_TRIP_NS = 4
WINDOW_CAP_NS = 6
KINDS: tuple[Kind, ...] = ("tool", "tool", "tool", "model", "model", "model", "agent", "agent", "human", "other")
Signs = dict[int, tuple[int | None, bool]]


def span(random: Random, family: int, number: int) -> SpanRecord:
    """One span of a family, of any length, kind, owner and parent; instants are small, so that they often meet."""
    kind = random.choice(KINDS)
    start = 1000 + random.randrange(30)
    end = start + random.choice((-2, 0, 1, 2, 3, 5, 8, 13, 21))
    queue = [start + random.randrange(-3, 20) for _ in range(2 * random.randrange(3))]
    suspended = [start + random.randrange(-3, 20) for _ in range(2 * random.randrange(3))]
    agent = random.choice((None, None, "a", "a", "b", "c"))
    call_id = random.choice((None, "c1", "c2")) if kind == "tool" else None
    parent = random.choice((None, None, "b", "a"))
    labelled = random.random() < 0.2
    return SpanRecord(
        source=0,
        process=family,
        trace_id=f"t{family}" if random.random() < 0.9 else f"u{family}",
        span_id=f"s{number}",
        parent_span_id=f"s{random.randrange(number + 2)}" if random.random() < 0.7 else None,
        kind=kind,
        name=random.choice(("read", "grep", "bash")),
        call_id=call_id,
        agent_id=UNKNOWN_AGENT if random.random() < 0.05 else agent and f"{agent}{family}",
        agent_label="worker" if labelled else None,
        agent_name=random.choice((None, "one", "two")) if kind != "agent" else random.choice(("one", "two")),
        parent_agent_id=parent and f"{parent}{family}" if kind == "agent" else None,
        conversation_id=f"conversation{family}" if labelled else None,
        start_ns=None if random.random() < 0.04 else start,
        end_ns=None if random.random() < 0.15 else end,
        first_token_ns=None,
        queued_unix_ns=f"[{','.join(map(str, queue))}]" if kind == "model" and queue else None,
        error=None,
        confidence=random.choice(("exact", "exact", "derived")),
        input_tokens=random.choice((None, 0, 7, 900)) if kind == "model" else None,
        output_tokens=random.choice((None, 1, 50)) if kind == "model" else None,
        suspended_unix_ns=f"[{','.join(map(str, suspended))}]" if kind == "tool" and suspended else None,
    )


def family(random: Random, number: int) -> list[SpanRecord]:
    """Spans that may belong to each other, start records and copies of some among them."""
    spans = [span(random, number, i) for i in range(random.randrange(1, 12))]
    starts = [
        record._replace(end_ns=None, queued_unix_ns=None) for record in spans if record.end_ns and random.random() < 0.3
    ]
    copies = [record for record in spans if random.random() < 0.1]
    return starts + spans + copies


def long_family(random: Random, number: int) -> list[SpanRecord]:
    """A dozen waits of one agent and more, far enough apart to be told from each other."""
    spans = [span(random, number, i) for i in range(random.randrange(1, 40))]
    return [
        record._replace(
            start_ns=record.start_ns + 20 * i,
            end_ns=record.end_ns and record.end_ns + 20 * i,
            agent_id=f"a{number}",
            suspended_unix_ns=None,
        )
        if record.start_ns is not None
        else record
        for i, record in enumerate(spans)
    ]


def by_sql(records: Iterable[SpanRecord], signs: Signs) -> dict[str, AgentTime]:
    with Store() as store:
        store.load(records)
        store.add_processes((process, *sign) for process, sign in signs.items())
        return {agent.agent: agent for agent in measure(store.connection, ROUND_TRIP_NS, WINDOW_CAP_NS).agents}


def signs_of(random: Random, families: int) -> Signs:
    return {
        number: (1000 + random.randrange(60), random.random() < 0.3)
        for number in range(families)
        if random.random() < 0.5
    }


def assert_sane(time: AgentTime) -> None:
    """The five states fill the wall clock, nothing is negative, and the range holds b."""
    states = (time.generating_state_ns, time.blocked_ns, time.human_ns, time.queued_ns, time.overhead_ns)
    assert sum(states) == time.wall_ns
    assert min(states) >= 0
    assert time.blocked_ns <= time.tool_union_ns <= time.wall_ns
    assert time.generating_state_ns <= time.generating_ns <= time.wall_ns
    assert 0 <= time.model_elsewhere_ns <= time.blocked_ns
    figures = agent_report(time)
    if figures.b is not None:
        assert figures.b_low is not None
        assert figures.b_high is not None
        assert 0 <= figures.b_low <= figures.b <= figures.b_high <= 1


def test_sql_equals_definition_on_many_timelines() -> None:
    random = Random(20)
    families = [family(random, number) for number in range(2500)]
    signs = signs_of(random, len(families))
    measured = by_sql((record for records in families for record in records), signs)
    expected: dict[str, AgentTime] = {}
    for records in families:
        expected |= measure_slowly(records, signs, ROUND_TRIP_NS, WINDOW_CAP_NS)
    for agent in expected:
        assert measured.get(agent) == expected[agent]
    assert measured.keys() == expected.keys()
    assert len(expected) > 5000
    for time in measured.values():
        assert_sane(time)


def test_sql_idleness_equals_definition() -> None:
    random = Random(21)
    families = [long_family(random, number) for number in range(120)]
    signs = signs_of(random, len(families))
    with Store() as store:
        store.load(record for records in families for record in records)
        store.add_processes((process, *sign) for process, sign in signs.items())
        measured = {each.agent: (each.last, each.median) for each in measure(store.connection, ROUND_TRIP_NS).idleness}
    expected: dict[str, list[float]] = {}
    for records in families:
        expected |= idleness_slowly(records, signs)
    assert measured.keys() == expected.keys()
    for agent, found in expected.items():
        assert measured[agent] == pytest.approx((found[-1], median(found)))
    assert max(map(len, expected.values())) > 8


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False), st.integers(1, 5))
def test_sql_equals_definition_on_shrinkable_timelines(random: Random, count: int) -> None:
    families = [family(random, number) for number in range(count)]
    signs = signs_of(random, count)
    records = [record for records in families for record in records]
    assert by_sql(records, signs) == measure_slowly(records, signs, ROUND_TRIP_NS, WINDOW_CAP_NS)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_order_and_repetition_change_nothing(seed: int, data: st.DataObject) -> None:
    random = Random(seed)
    families = [family(random, number) for number in range(20)]
    signs = signs_of(random, len(families))
    records = [record for records in families for record in records]
    shuffled = data.draw(st.permutations(records))
    assert by_sql(records, signs) == by_sql(shuffled + records, signs)
