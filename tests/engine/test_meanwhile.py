"""What others want of the engine while it waits for a step: done at once, with the same answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine.batch import Chunk
from kvtrace.engine.config import PolicyMode
from kvtrace.engine.sequence import Sequence, SequenceStatus
from kvtrace.engine.swap.contract import Direction, Fence

from .lists import Launch
from .support import World, check_answer, park_and_evict, tokens
from .test_interleavings import AGENTS, STOPS, SYSTEM, Agent, check_end


class Attended:
    """Does what is waiting, one thing at a time, whenever a world's step waits for its device."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.wanted: list[Callable[[], object]] = []
        self.done = 0
        self.told: dict[int, list[int]] = {}
        world.core.attend(self.meanwhile, self.hear)

    def meanwhile(self, seconds: float) -> None:
        assert 0 < seconds <= 0.05
        if self.wanted:
            self.wanted.pop(0)()
            self.done += 1
            self.world.core.check()
        elif self.world.device.executed < self.world.device.launched:
            self.world.device.run_to(self.world.device.executed + 1)
        else:
            self.world.mover.wait(seconds)

    def hear(self, new: Mapping[int, int]) -> None:
        for number, token in new.items():
            self.told.setdefault(number, []).append(token)


class Crowd:
    """Agents that submit, vanish, wait for tools and come back, all of it in the middle of steps."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.attended = Attended(world)
        self.agents = {name: Agent(name, SYSTEM + tokens(index, index)) for index, name in enumerate(AGENTS)}
        self.requests: list[Sequence] = []

    def live(self, steps: int) -> None:
        for _ in range(steps):
            wanted = self.attended.wanted
            wanted += [self.any_action() for _ in range(self.random.randint(0, 3) if len(wanted) < 9 else 0)]
            if not self.world.core.has_work():
                self.submit(self.random.choice(list(self.agents.values())))  # else nothing ever runs
            self.world.step()
            for agent in self.agents.values():
                agent.collect()
        assert self.attended.done
        self.attended.wanted.clear()
        self.world.run()
        for request in self.requests:
            check_end(request)
            assert self.attended.told.get(request.id, []) == request.output_tokens

    def any_action(self) -> Callable[[], object]:
        agent = self.random.choice(list(self.agents.values()))
        often, seldom = (self.submit, self.submit, self.submit, self.tool, self.tool), (self.abort, self.end_turn)
        return partial(self.random.choice((*often, *seldom, self.break_step)), agent)

    def submit(self, agent: Agent) -> None:
        agent.collect()
        if agent.request is None:
            agent.context += tokens(self.random.randint(0, 30), len(agent.context))
            if len(agent.context) + 20 > self.world.device_blocks * 16:
                agent.context = SYSTEM[:32]
            agent.request = self.world.submit(agent.name, agent.context, self.random.randint(1, 20))
            self.requests.append(agent.request)

    def abort(self, agent: Agent) -> None:
        if agent.request is not None and self.random.random() < 0.3:
            self.world.core.abort(agent.request.id)

    def tool(self, agent: Agent) -> None:
        if agent.tools:
            self.world.tool_ends(agent.tools.pop())
        else:
            agent.tools.append(self.world.tool_starts(agent.name))

    def break_step(self, agent: Agent) -> None:
        if self.random.random() < 0.2:
            late = self.random.random() < 0.5
            setattr(self.world.runner, "fail_late" if late else "fail", RuntimeError("device on fire"))

    def end_turn(self, agent: Agent) -> None:
        self.world.core.turn_ended(agent.name, {f"{agent.name}-call": None})


@settings(max_examples=40, deadline=None)
@given(
    policy=st.sampled_from(PolicyMode),
    device_blocks=st.integers(9, 26),
    host_blocks=st.sampled_from([0, 5, 200]),
    seed=st.integers(0, 10_000),
    failures=st.sampled_from([0.0, 0.0, 0.2]),
    pipelined=st.booleans(),
    fences=st.sampled_from([0.0, 0.5, 1.0]),
    step_tokens=st.sampled_from([16, 64]),
)
def test_whatever_happens_in_the_middle_of_steps_the_answers_are_the_same(
    policy: PolicyMode,
    device_blocks: int,
    host_blocks: int,
    seed: int,
    failures: float,
    pipelined: bool,
    fences: float,
    step_tokens: int,
) -> None:
    world = World(
        *(policy, device_blocks, host_blocks, 3, step_tokens, seed, 4, failures),
        pipelined=pipelined,
        fences=fences,
        stop_ids=STOPS,
    )
    world.device._late = True
    Crowd(world, seed).live(60)


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_tool_that_starts_while_a_step_runs_has_its_blocks_copied_out_before_that_ends(pipelined: bool) -> None:
    world = World(PolicyMode.EAGER, pipelined=pipelined)
    world.device._late = True
    context = world.ask("a", tokens(40)).tokens
    other = world.submit("b", tokens(20, seed=1), max_tokens=60)
    world.step(2)
    attended = Attended(world)
    seen = []

    def start() -> None:
        executed = world.device.executed
        world.tool_starts("a")
        seen.append((executed < world.device.launched, world.mover.queued(Direction.OUT)))

    attended.wanted.append(start)
    while not seen:
        world.step()
    ((running, leaving),) = seen
    assert running
    assert leaving == -(-len(context) // 16)
    world.run()
    check_answer(other)
    assert attended.told[other.id] == other.output_tokens[-len(attended.told[other.id]) :]


def test_a_request_that_comes_while_a_step_runs_has_its_blocks_on_their_way_before_that_ends() -> None:
    world = World(PolicyMode.AUTO, device_blocks=24, pipelined=True)
    context = park_and_evict(world, "a")
    other = world.submit("b", tokens(20, seed=1), max_tokens=12)
    world.step(2)
    attended = Attended(world)
    came = []

    def submit() -> None:
        came.append(world.submit("a", [*context, 1, 2, 3], max_tokens=6))
        assert world.device.executed < world.device.launched
        assert world.mover.queued(Direction.IN) > 0

    attended.wanted.append(submit)
    while not came:
        world.step()
    (request,) = came
    assert request.status is SequenceStatus.RESTORING  # it found a slot
    world.run()
    check_answer(request)
    check_answer(other)


@pytest.mark.parametrize("steps", range(1, 5))
def test_who_is_aborted_while_two_steps_of_it_run_is_told_nothing_more(steps: int) -> None:
    world = World(pipelined=True)
    doomed, other = world.submit("a", tokens(20), max_tokens=30), world.submit("b", tokens(30, seed=1), max_tokens=9)
    world.step(steps)
    attended = Attended(world)
    heard = []

    def abort() -> None:
        heard.append(len(attended.told.get(doomed.id, ())))
        world.core.abort(doomed.id)

    attended.wanted.append(abort)
    world.run()
    assert heard == [len(attended.told.get(doomed.id, ()))]
    assert doomed.finish_reason == "abort"
    check_answer(other)
    check_answer(world.ask("a", tokens(20)))
    assert attended.done == 1


def test_nobody_comes_between_a_launch_that_failed_and_the_end_of_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(device_blocks=24, pipelined=True, fences=1.0)
    context = park_and_evict(world, "a")
    other = world.submit("b", tokens(20, seed=1), max_tokens=30)
    world.step(3)
    attended = Attended(world)
    launch = world.runner.launch

    def break_early_steps(chunks: Seq[Chunk], arrivals: Seq[Fence] = ()) -> Launch:
        if arrivals:
            attended.wanted.append(lambda: None)  # in the middle of whatever is waited for next, all must be in order
            raise RuntimeError("device on fire")
        return launch(chunks, arrivals)

    monkeypatch.setattr(world.runner, "launch", break_early_steps)
    doomed = world.submit("a", [*context, 1, 2, 3], max_tokens=6)
    world.run_until(doomed)
    assert doomed.error == "RuntimeError: device on fire"
    world.run()
    assert other.finish_reason in ("length", "error")  # if it shared that step
    monkeypatch.undo()
    check_answer(world.ask("a", [*context, 1, 2, 3]))


def test_stop_tokens_are_told_to_nobody() -> None:
    world = World(pipelined=True, stop_ids=tuple(range(12)))
    attended = Attended(world)
    requests = [world.submit(f"a{number}", tokens(20, seed=number), max_tokens=30) for number in range(4)]
    world.run()
    assert "stop" in [request.finish_reason for request in requests]
    for request in requests:
        check_answer(request)
        assert attended.told.get(request.id, []) == request.output_tokens
