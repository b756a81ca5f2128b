"""What a step tells, and who is told: every token and every end once, whatever else comes in."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine import Engine, LoadedModel
from kvtrace.engine.config import PolicyMode
from kvtrace.engine.loop import StepResult

from .support import World
from .test_attended import CONFIG, PROMPT, WAIT_S, _free
from .test_interleavings import STOPS
from .test_meanwhile import Crowd


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
    step, hurry = world.core.step, random.Random(seed)
    brought: dict[int, list[int]] = {}
    ended: list[int] = []

    def later() -> StepResult:
        if hurry.random() < 0.5:
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


def test_a_request_is_answered_though_more_comes_in_than_can_be_done(tiny_model: Callable[[str], LoadedModel]) -> None:
    config = replace(CONFIG, pipelined=False)  # there is never a step under way, so nothing that waits for it
    with Engine.start(tiny_model("llama"), config) as engine:

        def again() -> None:
            engine._inbox.append(again)

        engine._inbox.append(again)
        assert len(engine.submit("a", PROMPT, _free(5)).result(WAIT_S).tokens) == 5
