"""Whatever order a transcript's rows come in, the records made of them hold together."""

from __future__ import annotations

from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.analysis.normal import Notes, SpanRecord
from kvtrace.analysis.sources.transcript import Book, Lane, Owner
from kvtrace.analysis.store import Store
from kvtrace.analysis.timeline import measure

S = 10**9


def write(random: Random, rows: int, agent: str = "a") -> list[SpanRecord]:
    """A session of random rows, in time, some of them at the same instant, some days later."""
    book = Book(Notes(Path("x"), 0), agent)
    lane = Lane(book, Owner(agent))
    at, asked = 1000 * S, 0
    for number in range(rows):
        at += random.choice((0, 0, 1, S, 5 * S, 90_000 * S))
        match random.randrange(8):
            case 0:
                lane.message(at, f"m{number}")
            case 1 | 2:
                lane.output(at, f"o{number - random.randrange(3)}")
            case 3 | 4:
                asked += 1
                lane.call(at, f"c{asked}", random.choice(("bash", "AskUserQuestion")))
            case 5 | 6 if lane.pending:
                lane.result(at, random.choice(list(lane.pending)), random.choice((None, 0, S, 9 * S)))
            case 7:
                random.choice((lane.seen, lane.told, lane.stopped))(at)
    lane.finish()
    assert asked == len([record for record in book.made if record.call_id is not None])
    return book.made


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 40))
def test_every_call_is_told_once_and_never_backwards(random: Random, rows: int) -> None:
    made = write(random, rows)
    assert len({record.span_id for record in made if record.kind != "model"}) == len(
        [record for record in made if record.kind != "model"]
    )
    for record in made:
        assert record.start_ns is not None
        assert record.end_ns is None or record.start_ns <= record.end_ns


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_a_persons_time_never_meets_a_turn_that_generates(random: Random, rows: int) -> None:
    made = write(random, rows)
    gaps = [record for record in made if record.name == "next message"]
    for model in (record for record in made if record.kind == "model"):
        for gap in gaps:
            assert model.end_ns is not None
            assert gap.start_ns is not None
            assert gap.end_ns is not None
            assert model.start_ns is not None
            assert model.end_ns <= gap.start_ns or gap.end_ns <= model.start_ns


def test_states_of_many_sessions_fill_their_wall_clocks() -> None:
    random = Random(7)
    sessions = [write(random, random.randrange(60), f"a{number}") for number in range(150)]
    with Store() as store:
        store.load(record for made in sessions for record in made)
        agents = measure(store.connection, 0).agents
    assert len(agents) > 100
    for agent in agents:
        states = (agent.generating_state_ns, agent.blocked_ns, agent.human_ns, agent.queued_ns, agent.overhead_ns)
        assert sum(states) == agent.wall_ns
    assert sum(agent.human_ns for agent in agents) > 0
    assert sum(agent.blocked_ns for agent in agents) > 0
