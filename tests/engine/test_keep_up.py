"""A step that is over is read, and the next one launched, before anything that takes its time is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine import Engine, LoadedModel
from kvtrace.engine.config import PolicyMode
from kvtrace.engine.loop import StepResult
from kvtrace.engine.sequence import Sequence

from .support import BLOCK, World, check_answer, tokens
from .test_attended import CONFIG, PROMPT, WAIT_S, _free
from .test_interleavings import STOPS
from .test_meanwhile import Attended, Crowd
from .test_two_in_flight import Order, _busy, _parked


def _over(world: World, steps: int = 2) -> None:
    """So many of the two steps in flight are over, and no others until somebody waits for them."""
    world.device.drift = lambda: None  # type: ignore[method-assign]
    world.device.run_to(world.device.launched - 2 + steps)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_step_that_is_over_is_read_and_the_next_one_launched_at_once_unless_a_slot_is_free_for_who_waits(
    slots: int,
) -> None:
    world = World(PolicyMode.AUTO, device_blocks=40, pipelined=True, slots=slots)
    contexts = _parked(world, "a")
    busy = _busy(world)
    Attended(world)
    request = world.submit("a", contexts["a"])
    _over(world, 1)
    order = Order(world)
    world.step()
    at_once, with_it = ["read", "launch", "admission beside 2"], ["admission beside 2", "read", "launch"]
    assert order.seen[:3] == (at_once if slots == 1 else with_it)
    world.run()
    for one in (busy, request):
        check_answer(one)


def test_what_was_read_early_is_told_before_another_step_is_waited_for() -> None:
    world = World(pipelined=True)
    busy = world.submit("a", tokens(20), 4)
    world.step(3)
    attended = Attended(world)
    while busy.finish_reason is None:
        _over(world)
        executed = world.device.executed
        world.step()
        assert world.device.executed == executed
    check_answer(busy)
    assert attended.told[busy.id] == busy.output_tokens[-len(attended.told[busy.id]) :]


def test_tokens_of_one_request_from_two_steps_read_in_one_go_are_all_in_its_result() -> None:
    world = World(pipelined=True)
    busy = _busy(world)
    Attended(world)
    world.device._late = False  # every step is over as soon as it is launched
    _over(world)
    told = world.core.step().tokens
    assert [number for number, _ in told] == [busy.id] * len(told)
    assert [token for _, token in told] == busy.tokens[-len(told) :]
    assert len(told) == 2
    world.run()
    check_answer(busy)


def test_steps_of_who_does_not_attend_are_the_same_however_fast_the_device_is() -> None:
    seen = []
    for fast in (False, True):
        world = World(PolicyMode.AUTO, device_blocks=40, pipelined=True)
        contexts = _parked(world, "ab")
        requests: list[Sequence] = [_busy(world)]
        order = Order(world)
        requests += [world.submit(name, context) for name, context in contexts.items()]
        for _ in range(6):
            if fast:
                _over(world)
            world.mover.wait(1.0)
            world.step()
        seen.append(order.seen)
        world.run()
        for request in requests:
            check_answer(request)
    assert seen[0] == seen[1]


def test_a_step_that_is_over_is_left_where_somebody_who_runs_needs_a_block_that_is_not_free() -> None:
    world = World(PolicyMode.SWAP, device_blocks=8, pipelined=True)
    world.ask("past", tokens(7 * BLOCK - 3))  # what nobody needs has the rest of the pool
    busy = world.submit("a", tokens(BLOCK - 6), 40)
    world.step(2)
    Attended(world)
    _over(world, 0)
    while world.core._forward.has_room(busy):
        world.step()
    assert not world.core.cache.placement.device.free
    _over(world)
    order = Order(world)
    world.step()
    assert order.seen[0] == "admission beside 2"
    assert len(busy.table) > 1
    world.run()
    check_answer(busy)


@settings(max_examples=25, deadline=None)
@given(
    policy=st.sampled_from(PolicyMode),
    device_blocks=st.integers(9, 26),
    seed=st.integers(0, 10_000),
    failures=st.sampled_from([0.0, 0.0, 0.2]),
    fences=st.sampled_from([0.0, 0.5, 1.0]),
    step_tokens=st.sampled_from([16, 64]),
)
def test_steps_bring_each_token_and_each_end_once_and_in_order_whenever_the_device_is_done(
    policy: PolicyMode, device_blocks: int, seed: int, failures: float, fences: float, step_tokens: int
) -> None:
    world = World(
        *(policy, device_blocks, 200, 3, step_tokens, seed, 4, failures), pipelined=True, fences=fences, stop_ids=STOPS
    )
    step = world.core.step
    brought: dict[int, list[int]] = {}
    ended: list[int] = []

    def later() -> StepResult:
        world.device.drift()
        result = step()
        for number, token in result.tokens:
            brought.setdefault(number, []).append(token)
        ended.extend(one.id for one in result.finished)
        return result

    world.core.step = later  # type: ignore[method-assign]
    crowd = Crowd(world, seed)
    crowd.live(40)
    assert {one.id: one.output_tokens for one in crowd.requests if one.output_tokens} == brought
    assert sorted(ended) == [one.id for one in crowd.requests if one.finish_reason != "abort"]


def test_one_of_several_things_that_came_at_once_is_done_and_then_the_device_has_its_next_step(
    tiny_model: Callable[[str], LoadedModel],
) -> None:
    seen: list[str] = []

    def slow() -> None:
        seen.append("command")
        time.sleep(0.002)

    with Engine.start(tiny_model("llama"), CONFIG) as engine:
        engine._core.watch_steps(lambda chunks: seen.append("launch"))
        stream = engine.submit("a", PROMPT, _free(40))
        next(iter(stream))
        with engine._changed:
            engine._inbox.extend([slow] * 4)
        assert len(stream.result(WAIT_S).tokens) == 40
    at = [index for index, what in enumerate(seen) if what == "command"]
    assert len(at) == 4
    assert all("launch" in seen[first:second] for first, second in pairwise(at))


def test_a_request_is_answered_though_more_comes_in_than_can_be_done(tiny_model: Callable[[str], LoadedModel]) -> None:
    config = replace(CONFIG, pipelined=False)  # there is never a step under way, so nothing that waits for it
    with Engine.start(tiny_model("llama"), config) as engine:

        def again() -> None:
            engine._inbox.append(again)

        engine._inbox.append(again)
        assert len(engine.submit("a", PROMPT, _free(5)).result(WAIT_S).tokens) == 5
