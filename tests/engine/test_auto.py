"""Policy ``auto``: what it leaves alone, what it gives away, in which order, and that it says why."""

from __future__ import annotations

import pytest

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.outlook import left, waits
from kvtrace.engine.policy import Candidate, Moment, victims
from kvtrace.engine.records import AgentState, EngineEvent, EventKind
from kvtrace.engine.swap.contract import Direction

from .support import World, check_answer, tokens


def world(**sizes: int) -> World:
    return World(PolicyMode.AUTO, **sizes)  # type: ignore[arg-type]


def teach(stage: World, tool: str, seconds: float, calls: int = 4) -> None:
    """Let another agent call ``tool`` a few times."""
    for _ in range(calls):
        stage.ask("teacher", tokens(20, seed=77))
        start = stage.tool_starts("teacher", tool)
        stage.clock.pass_s(seconds)
        stage.tool_ends(start)


def last(stage: World, kind: EventKind) -> EngineEvent:
    return [event for event in stage.events if event.kind is kind][-1]


def device_blocks(stage: World, *agents: str) -> list[int]:
    return [stage.core.cache.residency(agent).device_blocks for agent in agents]


def test_unknown_tool_is_held_for_a_second_and_then_parked() -> None:
    stage = world()
    stage.ask("a", tokens(70))
    stage.tool_starts("a", "mystery")
    stage.step()
    assert EventKind.PARK not in stage.kinds()
    stage.clock.pass_s(1.1)
    stage.run()
    stage.step()
    stage.run()
    assert last(stage, EventKind.PARK).why.startswith("waits for mystery for 1.")
    assert "longer than was expected" in last(stage, EventKind.PARK).why


def test_long_tool_is_parked_at_once_and_says_why() -> None:
    stage = world()
    teach(stage, "pytest", 30.0)
    stage.ask("a", tokens(70))
    stage.tool_starts("a", "pytest")
    stage.run()
    why = last(stage, EventKind.PARK).why
    assert last(stage, EventKind.PARK).agent == "a"
    assert why.startswith("waits for pytest: half of such waits end within 30.0 s")


def test_short_tool_moves_nothing_at_all() -> None:
    stage = world()
    teach(stage, "grep", 0.001)
    context = stage.ask("a", tokens(70)).tokens
    moved = dict(stage.mover.moved)
    start = stage.tool_starts("a", "grep")
    stage.tool_ends(start)
    stage.ask("a", [*context])
    assert stage.mover.moved[Direction.IN] == moved[Direction.IN]
    assert [event for event in stage.events if event.agent == "a"] == []


def test_where_requests_lack_space_even_an_unknown_tool_parks_at_once() -> None:
    stage = world(device_blocks=16)
    stage.ask("a", tokens(70))
    big = stage.submit("big", tokens(150, seed=1), max_tokens=60)
    stage.step(4)
    other = stage.submit("other", tokens(100, seed=2))
    stage.step(3)
    stage.tool_starts("a", "mystery")
    stage.run()
    assert "requests lack 44% of the pool" in last(stage, EventKind.PARK).why
    check_answer(big)
    check_answer(other)


def test_whoever_waits_longest_gives_way_first() -> None:
    stage = world(device_blocks=20)
    teach(stage, "pytest", 60.0)
    teach(stage, "curl", 2.0)
    stage.ask("long", tokens(60, seed=1))
    stage.tool_starts("long", "pytest")
    stage.ask("short", tokens(60, seed=2))
    stage.tool_starts("short", "curl")
    stage.run()
    stage.ask("crowd", tokens(240, seed=3))
    long_blocks, short_blocks = device_blocks(stage, "long", "short")
    assert long_blocks == 0 < short_blocks


def test_agent_that_went_away_for_good_gives_way_before_one_that_waits() -> None:
    stage = world(device_blocks=20)
    teach(stage, "curl", 2.0)
    stage.ask("gone", tokens(60, seed=1))
    stage.clock.pass_s(60)
    stage.ask("waits", tokens(60, seed=2))
    stage.tool_starts("waits", "curl")
    stage.run()
    stage.ask("crowd", tokens(240, seed=3))
    gone, waiting = device_blocks(stage, "gone", "waits")
    assert gone == 0 < waiting


def test_person_who_takes_long_parks_the_agent() -> None:
    stage = world()
    context = stage.ask("a", tokens(70)).tokens
    stage.core.turn_ended("a", {})
    stage.step()
    assert EventKind.PARK not in stage.kinds()
    stage.clock.pass_s(1.5)
    stage.step()
    stage.run()
    event = last(stage, EventKind.PARK)
    assert (event.tool, event.trace_id) == (None, None)
    assert stage.core.snapshot().agents[0].state is AgentState.HUMAN
    assert stage.ask("a", context).usage.reprefilled_tokens == 0


def test_agent_that_says_nothing_is_expected_for_as_long_as_others_like_it_were_away() -> None:
    stage = world()
    context = stage.ask("quiet", tokens(20, seed=7)).tokens
    assert not stage.core.sessions.agents["quiet"].expected, "nothing is known yet of such agents"
    stage.clock.pass_s(4)
    stage.ask("quiet", context)
    stage.ask("a", tokens(70))
    stage.run()
    assert last(stage, EventKind.PARK).agent == "a"
    assert last(stage, EventKind.PARK).why.startswith("is away and says nothing: half of such waits end within 3.")
    session = stage.core.sessions.agents["a"]
    assert session.expected
    stage.clock.pass_s(8)
    stage.step()
    assert not session.gone
    stage.clock.pass_s(4)
    stage.step()
    assert session.gone, "nobody was away for so long"


def test_agent_that_said_nothing_once_is_no_such_agent_any_more_when_it_is_told_of() -> None:
    stage = world()
    for _ in range(2):
        context = stage.ask("a", tokens(20)).tokens
        stage.clock.pass_s(4)
    session, forecasts = stage.core.sessions.agents["a"], stage.core.sessions.forecasts
    assert session.expected
    assert waits(session)
    stage.ask("a", context)
    stage.core.turn_ended("a", {})
    assert waits(session)
    assert left(session, forecasts, stage.clock.unix_ns()) is None, "nobody's pause is known, only silences are"
    stage.ask("a", context)
    stage.tool_ends(stage.tool_starts("a"))
    assert not waits(session), "its request is due"


def test_agent_that_says_nothing_keeps_its_host_copies_before_one_that_is_given_up() -> None:
    stage = world(device_blocks=24, host_blocks=12)
    for _ in range(2):
        stage.ask("quiet", tokens(20, seed=7))
        stage.clock.pass_s(4)
    gone = stage.submit("gone", tokens(70, seed=8), max_tokens=40)
    stage.step(6)
    stage.core.abort(gone.id)
    stage.ask("a", tokens(70))
    stage.run()
    stage.ask("new", tokens(60, seed=9))
    stage.run()
    assert stage.core.cache.residency("a").host_blocks == stage.core.cache.residency("a").blocks


def test_full_host_drops_the_end_of_the_coldest_context_first() -> None:
    stage = world(device_blocks=12, host_blocks=10)
    teach(stage, "pytest", 600.0)
    teach(stage, "curl", 2.0)
    stage.ask("cold", tokens(110, seed=1))
    stage.tool_starts("cold", "pytest")
    stage.run()
    stage.ask("warm", tokens(110, seed=2))
    stage.tool_starts("warm", "curl")
    stage.run()
    stage.ask("crowd", tokens(150, seed=3))
    drops = {event.agent for event in stage.events if event.kind is EventKind.DROP}
    assert "cold" in drops
    cold, warm = (stage.core.cache.residency(agent) for agent in ("cold", "warm"))
    assert cold.kept_tokens < warm.kept_tokens
    # What is left of it is its beginning: that is found again, the end is computed.
    again = stage.ask("cold", tokens(110, seed=1))
    assert again.usage.cached_host_tokens + again.usage.cached_device_tokens > 0


@pytest.mark.parametrize(("told", "true"), [(2.0, 20.0), (2.0, 0.2), (20.0, 0.01), (0.01, 30.0)])
def test_forecast_wrong_by_ten_costs_no_word_and_no_prefill(told: float, true: float) -> None:
    stage = world(device_blocks=14)
    teach(stage, "tool", told)
    context = stage.ask("a", tokens(60, seed=1)).tokens
    start = stage.tool_starts("a", "tool")
    stage.step()
    stage.clock.pass_s(true)
    stage.ask("crowd", tokens(150, seed=3))
    stage.tool_ends(start)
    again = stage.ask("a", context)
    assert again.usage.reprefilled_tokens == 0


def test_returning_agent_takes_the_space_of_who_is_away_before_its_request_comes() -> None:
    stage = world(device_blocks=14)
    teach(stage, "pytest", 30.0)
    context = stage.ask("a", tokens(60, seed=1)).tokens
    start = stage.tool_starts("a", "pytest")
    stage.run()
    stage.ask("crowd", tokens(200, seed=3))
    assert device_blocks(stage, "a") == [0]
    stage.clock.pass_s(30)
    stage.tool_ends(start)
    stage.run()
    assert device_blocks(stage, "a") == [4]
    assert stage.ask("a", context).usage.cached_host_tokens == 0


def test_plain_chat_is_not_copied_early() -> None:
    stage = world()
    context = tokens(40)
    for _ in range(4):
        context = [*stage.ask("chat", context, max_tokens=20).tokens, 1, 2]
        stage.core.turn_ended("chat", {})
    before = stage.mover.moved[Direction.OUT]
    stage.ask("chat", context, max_tokens=40)
    assert stage.mover.moved[Direction.OUT] == before


def test_events_name_the_span_that_caused_them() -> None:
    stage = world()
    teach(stage, "pytest", 30.0)
    stage.ask("a", tokens(70))
    start = stage.tool_starts("a", "pytest")
    stage.run()
    event = last(stage, EventKind.PARK)
    assert (event.trace_id, event.span_id) == (start.trace_id, start.span_id)


def test_victims_are_ranked_by_time_left_then_idleness_then_size() -> None:
    ranked = victims(
        [
            Candidate("soon", 0.5, 0.9, 3),
            Candidate("late, busy", 40.0, 0.1, 3),
            Candidate("late, idle, large", 50.0, 0.9, 9),
            Candidate("late, idle, small", 33.0, 0.9, 3),
            Candidate("never", 9000.0, 0.0, 99),
        ]
    )
    names = ["never", "late, idle, small", "late, idle, large", "late, busy", "soon"]
    assert [candidate.agent for candidate in ranked] == names


def test_every_moment_is_decided_with_a_reason() -> None:
    stage = world()
    stage.ask("a", tokens(70))
    from kvtrace.engine.policy import decide

    for moment in Moment:
        view = stage.core._parking._view("a", "grep", stage.clock.now)
        assert all(action.why and action.agent == "a" for action in decide(PolicyMode.AUTO, moment, view))
