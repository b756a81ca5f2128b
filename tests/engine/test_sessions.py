from __future__ import annotations

import pytest

from kvtrace.engine import sessions as module
from kvtrace.engine.policy import Moment
from kvtrace.engine.records import AgentState
from kvtrace.engine.sessions import CallKey, Session, Sessions, Transition
from kvtrace.tracer.signals import ToolEnded, ToolStarted

TTL = 1000


def start(
    span: str, at: int, agent: str | None = "a", conversation: str | None = None, call_id: str | None = None
) -> ToolStarted:
    return ToolStarted("trace", span, at, "grep", agent, conversation, call_id)


def end(
    span: str, at: int, agent: str | None = "a", conversation: str | None = None, call_id: str | None = None
) -> ToolEnded:
    return ToolEnded("trace", span, at, "grep", agent, conversation, call_id)


def sessions(limit: int = 10) -> Sessions:
    made = Sessions(TTL, limit)
    made.request("a", 100)
    return made


def test_first_start_blocks_and_last_end_returns() -> None:
    known = sessions()
    assert known.apply(start("1", 110), 110) == Transition("a", Moment.TOOL_STARTED, "grep")
    assert known.apply(start("2", 111), 111) is None
    assert known.apply(end("1", 112), 112) is None
    assert known.apply(end("2", 113), 113) == Transition("a", Moment.RETURNED, "grep")


def test_duplicates_change_nothing() -> None:
    known = sessions()
    known.apply(start("1", 110), 110)
    assert known.apply(start("1", 110), 111) is None
    assert known.apply(end("1", 112), 112) is not None
    assert known.apply(end("1", 112), 113) is None


def test_start_after_its_end_is_ignored() -> None:
    known = sessions()
    assert known.apply(end("1", 112), 112) is None
    assert known.apply(start("1", 110), 113) is None
    assert not known.agents["a"].blocked


def test_start_older_than_the_newest_request_is_ignored() -> None:
    known = sessions()
    assert known.apply(start("1", 99), 110) is None
    assert not known.agents["a"].blocked


def test_request_unblocks_and_late_end_is_harmless() -> None:
    known = sessions()
    known.apply(start("1", 110), 110)
    assert known.request("a", 120) == Transition("a", Moment.RETURNED, "grep", by_request=True)
    assert known.apply(end("1", 115), 125) is None
    assert known.apply(start("1", 110), 126) is None


def test_unknown_agents_are_counted() -> None:
    known = sessions()
    assert known.apply(start("1", 110, agent="nobody"), 110) is None
    assert known.apply(end("1", 110, agent=None), 110) is None
    assert known.unmatched == 2


def test_agent_is_found_by_id_conversation_or_call() -> None:
    known = sessions()
    known.request("b", 100)
    known.remember_call_ids("b", ["call-9"])
    assert known.apply(start("1", 110, agent=None, conversation="a"), 110) == Transition(
        "a", Moment.TOOL_STARTED, "grep"
    )
    by_call = known.apply(start("2", 110, agent=None, call_id="call-9"), 110)
    assert by_call == Transition("b", Moment.TOOL_STARTED, "grep")
    assert known.apply(end("2", 111, agent="b", conversation="a"), 111) == Transition("b", Moment.RETURNED, "grep")


def test_announced_calls_give_way_to_their_spans() -> None:
    known = sessions()
    assert known.turn_ended("a", {"x": None, "y": None}, 110) == Transition("a", Moment.TOOL_STARTED, None)
    assert known.apply(start("1", 111, call_id="x"), 111) is None
    assert known.apply(end("1", 112, call_id="x"), 112) is None
    assert known.agents["a"].blocked
    assert known.apply(end("2", 113, call_id="y"), 113) == Transition("a", Moment.RETURNED, "grep")


def test_span_without_call_id_stands_for_all_announced() -> None:
    known = sessions()
    known.turn_ended("a", {"x": None, "y": None}, 110)
    known.apply(start("1", 111), 111)
    assert known.apply(end("1", 112), 112) == Transition("a", Moment.RETURNED, "grep")


def test_old_end_leaves_announced_calls_open() -> None:
    known = sessions()
    known.turn_ended("a", {"x": None}, 110)
    assert known.apply(end("0", 90), 111) is None
    assert known.agents["a"].blocked


def test_overdue_calls_expire_once() -> None:
    known = sessions()
    known.apply(start("1", 110), 110)
    known.apply(start("2", 500), 500)
    assert known.expire(110 + TTL + 1) == []
    assert known.expire(500 + TTL + 1) == [Transition("a", Moment.EXPIRED, "grep")]
    assert known.expire(500 + TTL + 2) == []


def test_oldest_idle_agents_are_forgotten() -> None:
    known = sessions(limit=2)
    known.apply(start("1", 110), 110)
    for agent in ("b", "c", "d"):
        known.request(agent, 120)
    assert known.forget_idle() == ["b", "c"]
    assert list(known.agents) == ["a", "d"]


def test_b_is_blocked_share_without_the_person() -> None:
    known = Sessions(10**9)
    known.request("a", 0)
    known.apply(start("1", 100), 100)
    known.apply(end("1", 400), 400)
    known.turn_ended("a", {}, 500)
    assert known.agents["a"].state is AgentState.HUMAN
    assert known.agents["a"].b(1000) == 300 / 500


def test_b_of_an_agent_that_fell_idle_stays_what_it_was() -> None:
    known = Sessions(10**9)
    known.request("a", 0)
    known.apply(start("1", 100), 100)
    known.apply(end("1", 400), 400)
    assert known.agents["a"].state is AgentState.IDLE
    assert known.agents["a"].b(500) == known.agents["a"].b(10**9) == 300 / 400


def test_newborn_agent_has_no_b() -> None:
    known = sessions()
    assert known.agents["a"].b(100) is None


def test_announced_call_blocks_once_and_is_named() -> None:
    known = sessions()
    assert known.turn_ended("a", {"x": "pytest"}, 110) == Transition("a", Moment.TOOL_STARTED, "pytest")
    assert known.apply(start("1", 111, call_id="x"), 111) is None
    assert known.agents["a"].tool == "grep"
    assert list(known.agents["a"].open) != []
    assert known.apply(end("1", 112, call_id="x"), 112) == Transition("a", Moment.RETURNED, "grep")


def test_call_that_ended_before_its_announcement_stays_closed() -> None:
    known = sessions()
    known.apply(start("1", 110, call_id="x"), 110)
    known.apply(end("1", 111, call_id="x"), 111)
    assert known.turn_ended("a", {"x": "grep"}, 112) is None
    assert not known.agents["a"].blocked


def test_end_alone_closes_a_call_announced_later() -> None:
    known = sessions()
    known.apply(end("1", 111, call_id="x"), 111)
    assert known.turn_ended("a", {"x": "grep"}, 112) is None


def test_call_ids_may_repeat_from_turn_to_turn() -> None:
    known = sessions()
    known.apply(end("1", 111, call_id="x"), 111)
    known.request("a", 120)
    assert known.turn_ended("a", {"x": "grep"}, 130) == Transition("a", Moment.TOOL_STARTED, "grep")


def test_end_of_another_agents_call_id_closes_nothing() -> None:
    known = sessions()
    known.request("b", 100)
    known.apply(end("1", 111, agent="b", call_id="x"), 111)
    assert known.turn_ended("a", {"x": "grep"}, 112) == Transition("a", Moment.TOOL_STARTED, "grep")


def test_tool_shown_is_one_that_still_runs() -> None:
    known = sessions()
    known.apply(start("1", 110), 110)
    known.apply(ToolStarted("trace", "2", 111, "pytest", "a"), 111)
    assert known.agents["a"].tool == "pytest"
    known.apply(end("2", 112), 112)
    assert known.agents["a"].tool == "grep"


def test_ended_calls_leave_nothing_to_expire() -> None:
    known = Sessions(10**12)
    known.request("a", 0)
    for number in range(50):
        known.apply(start(f"s{number}", number), number)
        known.apply(end(f"s{number}", number), number)
        known.apply(start(f"r{number}", number), number)
        known.request("a", number)
    assert not known._heard


def test_calls_beyond_the_limit_close_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OPEN", 3)
    known = sessions()
    known.request("b", 100)
    known.apply(start("0", 110, agent="b"), 110)
    for number in range(1, 5):
        known.apply(start(str(number), 110), 110)
    assert known.expire(111) == [Transition("b", Moment.EXPIRED, "grep")]
    assert list(known.agents["a"].open) == [("trace", str(number)) for number in (2, 3, 4)]


def test_answer_is_a_transition_and_its_pause_is_learned() -> None:
    known = sessions()
    assert known.turn_ended("a", {}, 200) == Transition("a", Moment.ANSWERED, None)
    assert known.forecasts.pause() is None
    known.request("a", 200 + 3 * 10**9)
    left = known.forecasts.pause()
    assert left is not None
    assert left.p50_s == pytest.approx(3, rel=0.2)


def test_silence_is_learned_of_agents_that_nobody_tells_anything_of_and_of_no_others() -> None:
    second = 10**9
    known = Sessions(3600 * second)
    for name in ("told", "person", "working", "quiet"):
        known.request(name, 1)
    known.apply(start("1", 2, agent="told"), 2)
    known.apply(end("1", 3, agent="told"), 3)
    known.turn_ended("person", {}, 2)
    known.agents["working"].activity = AgentState.GENERATING
    known.agents["working"].refresh(2)
    for name in ("told", "person", "working"):
        known.request(name, 9 * second)
    assert known.forecasts.silence() is None
    assert known.forecasts.longest_silence_s() is None
    known.request("quiet", 7 * second)
    assert known.forecasts.longest_silence_s() == pytest.approx(7, rel=0.2)
    left = known.forecasts.silence(2.0)
    assert left is not None
    assert left.p50_s == pytest.approx(5, rel=0.2)


def test_calls_are_learned_by_their_spans_and_waits_as_a_whole() -> None:
    second = 10**9
    known = Sessions(3600 * second)
    known.request("a", 1)
    known.apply(start("1", 1 * second), 1 * second)
    known.apply(start("2", 2 * second), 2 * second)
    known.apply(end("1", 5 * second), 5 * second)
    known.apply(end("2", 11 * second), 11 * second)
    grep, any_wait = known.forecasts.call("grep"), known.forecasts.call("never seen")
    assert grep is not None
    assert any_wait is not None
    # Four seconds and nine; the wait for both lasted ten.
    assert 5.5 < grep.mean_s < 7.5 < grep.p90_s < 11
    assert any_wait.p50_s == pytest.approx(10, rel=0.2)


def test_call_that_only_a_request_ended_is_learned_too_and_an_expired_one_is_not() -> None:
    second = 10**9
    known = Sessions(100 * second)
    known.request("a", 1)
    known.turn_ended("a", {"call-1": "pytest"}, 1 * second)
    known.request("a", 6 * second)
    assert known.forecasts.call("pytest") is not None
    known.turn_ended("a", {"call-2": "hangs"}, 7 * second)
    assert known.expire(200 * second) == [Transition("a", Moment.EXPIRED, "hangs")]
    left = known.forecasts.call("hangs")
    assert left == known.forecasts.call("never seen")


def test_spans_that_never_end_do_not_make_further_ones_dearer(monkeypatch: pytest.MonkeyPatch) -> None:
    known = sessions()
    known.turn_ended("a", {"x": "grep", "y": "grep"}, 105)
    forgotten: list[CallKey] = []
    forget = Sessions._forget

    def noting(self: Sessions, session: Session, key: CallKey) -> None:
        forgotten.append(key)
        forget(self, session, key)

    monkeypatch.setattr(Sessions, "_forget", noting)
    for number in range(1000):
        known.apply(start(str(number), 110 + number), 110 + number)
    assert len(forgotten) == 2  # the announced calls: no other is looked at
    assert not known.agents["a"].announced
    assert len(known.agents["a"].open) == 1000
