"""Steps launched while the device still copies what they read: the same answers, whatever becomes of the copies."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.records import AgentState
from kvtrace.engine.sequence import Sampling, Sequence, SequenceStatus

from .lists import Launch
from .support import BLOCK, World, check_answer, park_and_evict, tokens

LATE = 1000
"""Ticks that a copy takes: longer than any test, unless a launch waits for it."""


def returning(*, pipelined: bool, fences: float = 1.0, most_delay: int = LATE) -> tuple[World, Sequence]:
    """An agent that is back, all of it on the host, with copies that nobody has seen end."""
    world = World(PolicyMode.SWAP, pipelined=pipelined)
    context = park_and_evict(world, "a")
    world.mover.fences = fences
    world.mover._most_delay = most_delay
    world.mover._random.seed(5)
    return world, world.submit("a", [*context, 1, 2, 3], max_tokens=6)


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_step_is_launched_while_its_blocks_are_on_their_way(pipelined: bool) -> None:
    world, request = returning(pipelined=pipelined)
    launched = world.device.launched
    while world.device.launched == launched:
        world.step()
    assert request.status is SequenceStatus.RUNNING
    assert request.id in [chunk.sequence_id for chunk in world.runner.chunks]
    state = {agent.agent: agent.state for agent in world.core.snapshot().agents}
    assert state["a"] is AgentState.GENERATING
    world.run()
    check_answer(request)
    assert world.mover.joined > 0
    assert request.usage.reprefilled_tokens == 0


@pytest.mark.parametrize("failures", [0.0, 1.0])
@pytest.mark.parametrize("pipelined", [False, True])
def test_the_first_of_several_steps_need_not_sample_to_be_early(pipelined: bool, failures: float) -> None:
    world = World(PolicyMode.SWAP, pipelined=pipelined)
    context = park_and_evict(world, "a")
    world.mover.fences, world.mover._most_delay = 1.0, LATE
    request = world.submit("a", [*context, *tokens(2 * world.step_tokens, seed=4)], max_tokens=6)
    world.mover._random.seed(5)
    world.mover.failures = failures
    launched = world.device.launched
    while world.device.launched == launched:
        world.step()
    assert [len(chunk.tokens) for chunk in world.runner.chunks] == [world.step_tokens]
    assert not world.runner.chunks[0].sample
    while world.mover.joined == 0:
        world.step()
    world.mover.failures = 0.0
    world.run()
    check_answer(request)
    assert (request.attempt > 0) == (failures > 0)


@pytest.mark.parametrize("pipelined", [False, True])
def test_its_copies_are_entered_before_its_tokens_are_waited_for(
    pipelined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, request = returning(pipelined=pipelined)
    waits, tokens_of = [], Launch.tokens

    def noted(self: Launch) -> dict[int, int]:
        waits.append(len(request.waits))
        return tokens_of(self)

    monkeypatch.setattr(Launch, "tokens", noted)
    world.run()
    check_answer(request)
    assert world.mover.joined > 0
    assert set(waits) == {0}


def test_no_fence_means_waiting_as_before() -> None:
    world, request = returning(pipelined=True, fences=0.0, most_delay=3)
    world.run()
    check_answer(request)
    assert world.mover.joined == 0


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_copy_that_fails_makes_its_step_void_for_that_request_alone(pipelined: bool) -> None:
    world, request = returning(pipelined=pipelined)
    other = world.submit("b", tokens(20, seed=1), max_tokens=9)
    launched = world.device.launched
    world.mover.failures = 1.0
    while world.mover.joined == 0:
        world.step()
    world.mover.failures = 0.0
    assert world.device.launched > launched
    world.run()
    assert request.attempt == 1
    check_answer(request)
    check_answer(other)


@pytest.mark.parametrize("failures", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("pipelined", [False, True])
def test_two_that_arrive_share_a_step_and_no_fate(pipelined: bool, failures: float) -> None:
    world = World(PolicyMode.SWAP, device_blocks=20, step_tokens=64, pipelined=pipelined)
    contexts = [park_and_evict(world, agent) for agent in "ab"]
    world.ask("crowd", tokens(20 * BLOCK - 8, seed=98))
    world.mover.fences, world.mover._most_delay = 1.0, LATE
    world.mover._random.seed(3)
    requests = [world.submit(agent, [*context, 1, 2, 3], 6) for agent, context in zip("ab", contexts, strict=True)]
    launched = world.device.launched
    world.mover.failures = failures
    while world.device.launched == launched:
        world.step()
    assert [chunk.sequence_id for chunk in world.runner.chunks] == [request.id for request in requests]
    while world.mover.joined == 0:
        world.step()
    world.mover.failures = 0.0
    world.run()
    again = [request.attempt > 0 for request in requests]
    assert sorted(again) == {0.0: [False, False], 0.2: [False, True], 1.0: [True, True]}[failures]
    for request in requests:
        check_answer(request)


@pytest.mark.parametrize("failures", [0.0, 1.0])
def test_no_wait_is_counted_twice_where_copies_fail_after_the_launch(failures: float) -> None:
    world, request = returning(pipelined=True)
    world.mover.failures = failures
    while world.mover.joined == 0:
        world.step()
    world.mover.failures = 0.0
    world.run()
    assert (request.attempt > 0) is (failures > 0)
    usage = request.usage
    waits = usage.wait_intervals_unix_ns
    assert all(ended <= began for (_, ended), (began, _) in pairwise(waits))
    assert sum(ended - began for began, ended in waits) == round((usage.queued_s + usage.restoring_s) * 1e9)


@pytest.mark.parametrize("steps", range(1, 5))
@pytest.mark.parametrize("failures", [0.0, 1.0])
def test_abort_after_an_early_launch_keeps_the_cache_whole(steps: int, failures: float) -> None:
    world, request = returning(pipelined=True)
    world.mover.failures = failures
    world.step(steps)
    world.core.abort(request.id)
    world.core.check()
    world.mover.failures = 0.0
    again = world.submit("a", request.tokens[: request.prompt_tokens], max_tokens=6)
    world.run()
    check_answer(again)


@pytest.mark.parametrize("late", [False, True])
def test_a_step_that_cannot_be_computed_ends_its_early_request(late: bool) -> None:
    world, request = returning(pipelined=True)
    setattr(world.runner, "fail_late" if late else "fail", RuntimeError("device on fire"))
    context = request.tokens[: request.prompt_tokens]
    world.mover._most_delay = 3
    world.run()
    assert (request.finish_reason, request.error) == ("error", "RuntimeError: device on fire")
    check_answer(world.ask("a", context))


class Watching:
    """A chooser that would remember what it is shown."""

    edits = False
    alternatives = None


def test_who_looks_at_each_token_waits_for_its_copies() -> None:
    world, request = returning(pipelined=True, most_delay=3)
    request.sampling = replace(request.sampling, chooser=Watching())  # type: ignore[arg-type]
    world.run()
    assert world.mover.joined == 0
    assert request.sampling != Sampling()
    check_answer(request)
