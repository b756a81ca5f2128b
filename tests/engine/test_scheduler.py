from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.scheduler import (
    MOST_TURNS,
    MemoryPlan,
    MemoryView,
    Running,
    Share,
    Waiting,
    paused_newcomers,
    plan_memory,
    plan_shares,
    step_limit,
    waiting_order,
)


def view(running: list[Running], waiting: list[Waiting], available: int, coming: int = 0, slots: int = 4) -> MemoryView:
    return MemoryView(tuple(running), tuple(waiting), available, coming, slots)


def test_oldest_takes_blocks_from_the_youngest() -> None:
    running = [Running(2, grows=False, yields=3), Running(1, grows=True, yields=5), Running(3, grows=True, yields=1)]
    assert plan_memory(view(running, [], available=0)) == MemoryPlan(preempt=(3,), grow=(1,))


def test_youngest_that_grows_gives_way_itself() -> None:
    running = [Running(1, grows=False, yields=3), Running(2, grows=True, yields=3)]
    assert plan_memory(view(running, [], available=0)) == MemoryPlan(preempt=(2,))


def test_blocks_on_their_way_prevent_preemption() -> None:
    running = [Running(1, grows=True, yields=3), Running(2, grows=False, yields=3)]
    assert plan_memory(view(running, [], available=0, coming=1)) == MemoryPlan(grow=(1,))


def test_nobody_is_admitted_behind_one_that_must_wait() -> None:
    waiting = [Waiting(1, demand=3), Waiting(2, demand=9), Waiting(3, demand=1)]
    assert plan_memory(view([], waiting, available=8)).admit == (1,)


def test_running_requests_keep_room_to_grow() -> None:
    running = [Running(1, grows=False, yields=3)]
    assert plan_memory(view(running, [Waiting(2, demand=4)], available=4)).admit == ()
    assert plan_memory(view(running, [Waiting(2, demand=4)], available=5)).admit == (2,)


def test_request_that_fits_alone_is_admitted() -> None:
    assert plan_memory(view([], [Waiting(7, demand=4)], available=4)).admit == (7,)


def test_slots_limit_admission() -> None:
    waiting = [Waiting(number, demand=1) for number in range(9)]
    assert plan_memory(view([], waiting, available=99, slots=3)).admit == (0, 1, 2)


def test_whoever_was_served_least_is_first_but_for_those_who_came_long_before() -> None:
    assert waiting_order([(1, 4, 0), (2, 0, 3), (3, 2, 1)], turn_ns=1) == [2, 3, 1]
    assert waiting_order([(1, 4, 0), (2, 0, 5), (3, 2, 1)], turn_ns=1) == [3, 1, 2]


def test_turns_count_only_so_far() -> None:
    assert waiting_order([(1, 1000, 0), (2, 0, MOST_TURNS + 1)], turn_ns=1) == [1, 2]


def test_handicap_of_nothing_is_first_come_and_below_it_returning_agents_are_first() -> None:
    assert waiting_order([(1, 0, 0), (2, 3, 1)], turn_ns=0) == [1, 2]
    assert waiting_order([(1, 0, 0), (2, 3, 1)], turn_ns=-10) == [2, 1]


def test_new_agents_pause_while_others_are_more_than_memory_holds() -> None:
    assert paused_newcomers([(7, "c", 5), (8, "d", 3)], {"a": 4, "b": 4}, None, room=12) == {7}
    assert paused_newcomers([(7, "c", 5), (8, "d", 3)], {"a": 4, "b": 4}, None, room=None) == set()


def test_new_agents_pause_while_too_many_are_under_way() -> None:
    assert paused_newcomers([(7, "c", 1), (8, "c", 1), (9, "d", 1)], {"a": 4}, 2, room=None) == {9}


def test_lone_agent_never_pauses_however_large() -> None:
    assert paused_newcomers([(7, "c", 50), (8, "d", 1)], {}, None, room=10) == {8}


def test_decodes_run_before_prefills() -> None:
    assert plan_shares([(1, 100), (2, 1), (3, 1), (4, 50)], 12) == (Share(2, 1), Share(3, 1), Share(1, 2), Share(4, 8))


def test_short_prefill_does_not_wait_behind_a_long_one_that_goes_on_all_the_same() -> None:
    assert plan_shares([(1, 6000), (2, 100)], 512) == (Share(1, 412), Share(2, 100))
    assert plan_shares([(1, 6000), (2, 3000), (3, 400)], 512) == (Share(1, 128), Share(3, 384))
    assert plan_shares([(1, 6000), (2, 7000)], 512) == (Share(1, 512),)


def test_the_more_slots_decode_the_shorter_is_a_step_with_prompts() -> None:
    limits = [step_limit(decoding, 8, step_tokens=1024, mixed_tokens=256) for decoding in range(8)]
    assert limits == [1024, 1024, 1024, 1024, 512, 512, 512, 256]
    assert [step_limit(decoding, 8, 1024, None) for decoding in (0, 4, 7)] == [1024, 1024, 1024]
    assert [step_limit(decoding, 8, 300, 256) for decoding in (0, 4, 7)] == [300, 300, 256]


@given(st.integers(1, 64), st.integers(0, 64), st.integers(0, 200), st.integers(0, 200), st.data())
def test_oldest_prompt_goes_on_whoever_decodes(
    slots: int, above: int, more: int, tokens: int, data: st.DataObject
) -> None:
    mixed = slots + above
    step_tokens = slots + more
    prefills = data.draw(st.integers(1, slots))
    decoding = data.draw(st.integers(0, slots - prefills))
    limit = step_limit(decoding, slots, step_tokens, mixed)
    assert slots <= limit <= step_tokens
    pending = [*((number, 2 + tokens) for number in range(prefills)), *((prefills + n, 1) for n in range(decoding))]
    shares = plan_shares(pending, limit)
    assert {0, *range(prefills, prefills + decoding)} <= {share.id for share in shares}
    assert sum(share.tokens for share in shares) == min(limit, sum(left for _, left in pending))


@given(
    running=st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=6),
    waiting=st.lists(st.integers(0, 9), max_size=6),
    available=st.integers(0, 20),
    coming=st.integers(0, 5),
    slots=st.integers(6, 8),
)
def test_plan_never_promises_more_than_there_is(
    running: list[tuple[bool, int]], waiting: list[int], available: int, coming: int, slots: int
) -> None:
    holders = [Running(number, grows, yields) for number, (grows, yields) in enumerate(running)]
    plan = plan_memory(
        view(holders, [Waiting(10 + n, demand) for n, demand in enumerate(waiting)], available, coming, slots)
    )
    gained = sum(holder.yields for holder in holders if holder.id in plan.preempt)
    spent = len(plan.grow) + sum(waiting[number - 10] for number in plan.admit)
    assert spent <= available + coming + gained
    assert len(holders) - len(plan.preempt) + len(plan.admit) <= slots
    assert not set(plan.preempt) & set(plan.grow)
    assert 0 not in plan.preempt or len(plan.preempt) == len(holders)
    assert not (plan.preempt and plan.admit)


@given(st.dictionaries(st.integers(0, 50), st.integers(1, 40), max_size=8), st.integers(8, 64))
def test_shares_use_the_step_and_no_more(pending: dict[int, int], step_tokens: int) -> None:
    shares = plan_shares(pending.items(), step_tokens)
    assert sum(share.tokens for share in shares) == min(step_tokens, sum(pending.values()))
    assert all(0 < share.tokens <= pending[share.id] for share in shares)
    assert {number for number, count in pending.items() if count == 1} <= {share.id for share in shares}
