"""The loop keeps two steps on the device: it launches right after it has read, and does all else while both are to come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.forward import Outcome, _Flight
from kvtrace.engine.scheduler import MemoryPlan, MemoryView
from kvtrace.engine.sequence import Sampling, Sequence, SequenceStatus
from kvtrace.engine.swap.contract import Direction

from .support import BLOCK, World, check_answer, tokens
from .test_interleavings import STOPS
from .test_meanwhile import Attended, Crowd
from .test_pipelined import NoMask


@dataclass
class Order:
    """What a world's engine does, as it does it: ``read``, ``admission`` with the steps in flight, ``launch``."""

    world: World
    seen: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        core = self.world.core
        accept, carry_out = core._forward._accept, core._admission._carry_out

        def read(sampled: dict[int, int]) -> Outcome:
            self.seen.append("read")
            return accept(sampled)

        def admission(plan: MemoryPlan, view: MemoryView, order: list[int]) -> bool:
            self.seen.append(f"admission beside {len(core._forward._flights)}")
            return carry_out(plan, view, order)

        core._forward._accept = read  # type: ignore[method-assign]
        core._admission._carry_out = admission  # type: ignore[method-assign]
        core.watch_steps(lambda chunks: self.seen.append("launch"))


def _parked(world: World, names: Seq[str]) -> dict[str, list[int]]:
    """Agents that wait for tools and whose KV is on the host alone: their contexts."""
    contexts = {}
    for index, name in enumerate(names):
        contexts[name] = [*world.ask(name, tokens(2 * BLOCK + 5, seed=index)).tokens, index]
        world.tool_starts(name)
        world.run()
        world.core.cache.evict(name)
        world.run()
    assert all(world.core.cache.residency(name).device_blocks == 0 for name in names)
    return contexts


def _busy(world: World, name: str = "busy") -> Sequence:
    """Somebody who decodes, with two steps in flight."""
    request = world.submit(name, tokens(20, seed=9), 60)
    world.step(3)
    assert request.unread == 2
    return request


def _restoring(requests: Seq[Sequence]) -> int:
    return sum(request.status is SequenceStatus.RESTORING for request in requests)


def test_a_step_is_launched_right_after_one_was_read_and_all_else_is_done_beside_two() -> None:
    world = World(PolicyMode.AUTO, device_blocks=40, pipelined=True)
    contexts = _parked(world, "ab")
    _busy(world)
    order = Order(world)
    requests = [world.submit(name, context) for name, context in contexts.items()]
    requests.append(world.submit("new", tokens(60, seed=3)))
    world.step(12)
    assert order.seen == ["admission beside 2", "read", "launch"] * 12
    for request in requests:
        check_answer(request)


@pytest.mark.parametrize("pipelined", [False, True])
def test_who_comes_to_an_idle_engine_is_computed_at_once(pipelined: bool) -> None:
    world = World(pipelined=pipelined)
    world.device._late = True
    order = Order(world)
    request = world.submit("a", tokens(20))
    world.step()
    if pipelined:
        assert order.seen == ["admission beside 0", "launch"]
    else:
        assert order.seen == ["admission beside 0", "launch", "read"]
        assert len(request.output_tokens) == 1
    world.run()
    check_answer(request)


@pytest.mark.parametrize("pipelined", [False, True])
def test_who_comes_in_the_middle_of_a_step_has_a_part_in_the_next_one_that_is_launched(pipelined: bool) -> None:
    world = World(device_blocks=24, pipelined=pipelined)
    world.device._late = True
    other = world.submit("b", tokens(20, seed=1), 30)
    world.step(4)
    attended, launched = Attended(world), list[set[int]]()
    came: list[Sequence] = []
    statuses: list[SequenceStatus] = []

    def look() -> None:
        statuses.append(came[0].status)
        launched.clear()

    attended.wanted += [lambda: came.append(world.submit("a", tokens(30), 6)), look]
    world.core.watch_steps(lambda chunks: launched.append({chunk.sequence_id for chunk in chunks}))
    while not launched or not statuses:
        world.step()
    assert statuses == [SequenceStatus.RUNNING]
    assert came[0].id in launched[0]
    world.run()
    check_answer(came[0])
    check_answer(other)


def test_who_comes_in_the_middle_of_a_step_preempts_nobody_and_waits_for_a_slot() -> None:
    world = World(slots=1, device_blocks=24, pipelined=True)
    other = _busy(world)
    attended = Attended(world)
    came: list[Sequence] = []
    statuses: list[SequenceStatus] = []
    attended.wanted += [
        lambda: came.append(world.submit("a", tokens(30), 6)),
        lambda: statuses.append(came[0].status),
    ]
    while not statuses:
        world.step()
    assert statuses == [SequenceStatus.WAITING]
    assert other.status is SequenceStatus.RUNNING
    world.run()
    check_answer(came[0])
    check_answer(other)


def test_one_restore_a_step_is_begun_while_the_device_is_busy_and_all_of_them_where_it_is_idle() -> None:
    world = World(PolicyMode.SWAP, device_blocks=60, pipelined=True, slots=6, most_delay=0)
    contexts = _parked(world, "abcd")
    world.mover.held = True  # nobody's restore ends
    busy = _busy(world)
    requests = [world.submit(name, context) for name, context in contexts.items()]
    begun = []
    for _ in requests:
        world.step()
        begun.append(_restoring(requests))
    assert begun == [1, 2, 3, 4]
    for request in (busy, *requests):
        world.core.abort(request.id)
    world.mover.held = False
    world.run()
    for name in contexts:
        world.core.cache.evict(name)
    world.run()
    world.mover.held = True
    requests = [world.submit(name, context) for name, context in contexts.items()]
    world.core._forward.meanwhile = lambda seconds: None  # where only copies are left, it does not wait for them
    world.step()
    assert _restoring(requests) == 4
    world.mover.held, world.core._forward.meanwhile = False, None
    world.run()
    for request in requests:
        check_answer(request)


def test_who_is_put_off_for_a_step_by_anothers_restore_lacks_no_space() -> None:
    world = World(PolicyMode.AUTO, device_blocks=60, pipelined=True)
    contexts = _parked(world, "ab")
    _busy(world)
    requests = [world.submit(name, context) for name, context in contexts.items()]
    world.step()
    assert [request.status for request in requests] != [SequenceStatus.WAITING] * 2
    assert SequenceStatus.WAITING in [request.status for request in requests]
    assert (world.core._outlooks.short_blocks, world.core._parking.crowded) == (0, False)
    world.run()
    for request in requests:
        check_answer(request)


def test_a_copy_in_that_is_decided_on_in_the_middle_of_a_step_waits_for_no_later_one() -> None:
    """A request is aborted while its last step is waited for, and its block is another one's at once."""
    world = World(PolicyMode.SWAP, device_blocks=8, pipelined=True, most_delay=0)
    contexts = _parked(world, "a")
    _busy(world)
    doomed = world.submit("b", tokens(2 * BLOCK - 3, seed=5), 5)
    attended, marks = Attended(world), dict[int, int]()
    waited, came = 0, list[Sequence]()

    def abort() -> None:
        nonlocal waited
        waited, begun = doomed.last_launch, doomed.table[2]
        assert doomed.unread == 1
        assert world.device.executed < waited < world.device.launched, "the step that is waited for, and one behind it"
        world.core.abort(doomed.id)
        came.append(world.submit("a", contexts["a"], 4))
        flights = [one for one in world.mover._flights if one.copy.direction is Direction.IN]
        marks.update({flight.after: flight.copy.device_block for flight in flights})
        assert marks[waited] == begun

    while doomed.usage.output_tokens + doomed.unread < 5 or doomed.unread > 1:
        world.step()
    attended.wanted.append(abort)
    world.step()
    assert max(marks) == waited
    world.run()
    check_answer(came[0])


@pytest.mark.parametrize("pipelined", [False, True])
def test_others_are_served_while_the_step_of_one_runs_whose_tokens_depend_on_each_other(pipelined: bool) -> None:
    world = World(device_blocks=24, pipelined=pipelined)
    world.device._late = True
    bound = world.core.submit("b", tokens(24, seed=1), Sampling(max_tokens=12, grammar=NoMask()))
    world.step(3)
    attended = Attended(world)
    running: list[bool] = []
    came: list[Sequence] = []

    def submit() -> None:
        running.append(world.device.executed < world.device.launched)
        came.append(world.submit("a", tokens(30), 3))

    attended.wanted.append(submit)
    world.step(8)
    assert running == [True]
    world.run()
    check_answer(bound)
    check_answer(came[0])


class Counting(Crowd):
    """A crowd that counts what is in flight, whenever the engine waits and after each of its steps."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.read: list[int] = []
        core = world.core
        served, step, read = core._forward.meanwhile, world.step, core._forward._read
        assert served is not None

        def counted_meanwhile(seconds: float) -> None:
            self.count()
            served(seconds)

        def counted_step(count: int = 1) -> list[Sequence]:
            finished = step(count)
            self.count()
            assert world.pipelined or not core._forward.in_flight
            return finished

        def noted_read(flight: _Flight, meanwhile: Callable[[float], object] | None = None) -> Outcome:
            assert flight is core._forward._flights[0]
            self.read.append(flight.number)
            return read(flight, meanwhile)

        core._forward.meanwhile, core._forward._read = counted_meanwhile, noted_read  # type: ignore[method-assign]
        world.step = counted_step  # type: ignore[method-assign]

    def count(self) -> None:
        forward, most = self.world.core._forward, 2 if self.world.pipelined else 1
        assert len(forward._flights) <= most
        sampled = Counter[int]()
        for flight in forward._flights:
            sampled.update(chunk.sequence_id for chunk in forward._valid(flight) if chunk.sample)
        for request in self.world.core._requests:
            assert request.unread == sampled[request.id]
            assert request.usage.output_tokens + request.unread <= request.sampling.max_tokens


@settings(max_examples=30, deadline=None)
@given(
    policy=st.sampled_from(PolicyMode),
    device_blocks=st.integers(9, 26),
    seed=st.integers(0, 10_000),
    failures=st.sampled_from([0.0, 0.0, 0.2]),
    pipelined=st.sampled_from([True, True, False]),
    fences=st.sampled_from([0.0, 0.5, 1.0]),
    step_tokens=st.sampled_from([16, 64]),
)
def test_two_steps_at_most_are_unread_and_each_is_read_once_in_its_turn(
    policy: PolicyMode, device_blocks: int, seed: int, failures: float, pipelined: bool, fences: float, step_tokens: int
) -> None:
    world = World(
        *(policy, device_blocks, 200, 3, step_tokens, seed, 4, failures),
        pipelined=pipelined,
        fences=fences,
        stop_ids=STOPS,
    )
    world.device._late = True
    crowd = Counting(world, seed)
    crowd.live(40)
    assert crowd.read == sorted(set(crowd.read))
    assert not world.core._forward.in_flight
