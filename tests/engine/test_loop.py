from __future__ import annotations

import pytest

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.errors import QueueFull, RequestRefused
from kvtrace.engine.records import EventKind
from kvtrace.engine.sequence import Sampling

from .support import World, check_answer, expected_output, tokens


def test_answers_equal_the_uncached_reference() -> None:
    world = World()
    sequence = world.submit("a", tokens(50), max_tokens=40)
    world.run()
    assert sequence.output_tokens == expected_output(tokens(50), sequence.sampling)
    assert sequence.finish_reason == "length"
    assert sequence.usage.prefilled_tokens == 50


def test_prefill_and_decode_share_steps() -> None:
    world = World(step_tokens=20)
    first = world.submit("a", tokens(16), max_tokens=30)
    world.step(2)
    second = world.submit("b", tokens(60, seed=1))
    world.step()
    assert [(chunk.sequence_id, len(chunk.tokens)) for chunk in world.runner.chunks] == [(first.id, 1), (second.id, 19)]
    world.run()
    check_answer(first)
    check_answer(second)


@pytest.mark.parametrize("pipelined", [False, True])
def test_steps_of_a_prompt_are_shorter_while_most_slots_decode(pipelined: bool) -> None:
    world = World(slots=2, device_blocks=40, step_tokens=64, mixed_step_tokens=10, pipelined=pipelined)
    world.submit("a", tokens(64), max_tokens=7)
    world.step(2)
    second = world.submit("b", tokens(200, seed=1))
    pieces = []
    while second.pending > 1:
        world.step()
        pieces.append(tuple(len(chunk.tokens) for chunk in world.runner.chunks))
    beside = pieces.index((64,))
    assert pieces[:beside] == [(1, 19)] * beside, "half of the slots: twice ten"
    assert beside == (4 if pipelined else 5)
    world.run()
    check_answer(second)


def test_stop_token_ends_output_without_being_part() -> None:
    world = World()
    full = expected_output(tokens(20), Sampling(max_tokens=12))
    sampling = Sampling(max_tokens=12, stop_ids=(full[6],))
    sequence = world.core.submit("a", tokens(20), sampling)
    world.run()
    assert sequence.output_tokens == full[: full.index(full[6])]
    assert sequence.finish_reason == "stop"


def test_ignored_stop_token_runs_to_length() -> None:
    world = World()
    full = expected_output(tokens(20), Sampling(max_tokens=12))
    sequence = world.core.submit("a", tokens(20), Sampling(max_tokens=12, stop_ids=(full[6],), ignore_eos=True))
    world.run()
    assert (sequence.output_tokens, sequence.finish_reason) == (full, "length")


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "numbers"),
    [(250, 8, ("257", "256")), (4090, 8, ("4098", "4096")), (0, 8, ("0 prompt",)), (5, 0, ("max_tokens 0",))],
    ids=["larger than the pool", "larger than the context", "empty prompt", "no output"],
)
def test_impossible_request_is_refused_with_numbers(prompt: int, max_tokens: int, numbers: tuple[str, ...]) -> None:
    world = World(device_blocks=16)
    with pytest.raises(RequestRefused) as refusal:
        world.submit("a", tokens(prompt), max_tokens)
    assert all(number in str(refusal.value) for number in numbers)
    assert world.kinds() == [EventKind.REFUSE]
    assert not world.core.has_work()


def test_request_as_large_as_the_pool_completes() -> None:
    world = World(device_blocks=4)
    world.ask("a", tokens(60), max_tokens=5)


@pytest.mark.parametrize(("most", "said"), [(1, "1 request waits already"), (2, "2 requests wait already")])
def test_too_many_waiting_requests_are_refused(most: int, said: str) -> None:
    world = World(queue_requests=most, slots=2)
    for number in range(2 + most):  # at once, with both slots free: who has one does not wait
        world.submit(f"a{number}", tokens(5))
    with pytest.raises(QueueFull, match=f"^{said}.*queue_requests.*--queue"):
        world.submit("c", tokens(5))


@pytest.mark.parametrize("length", [48, 50], ids=["whole blocks", "with a tail"])
def test_full_prefix_hit_writes_nothing_shared(length: int) -> None:
    world = World()
    first = world.core.submit("a", tokens(length), Sampling(max_tokens=1))
    world.run()
    again = world.submit("a", tokens(length))
    world.step()
    (chunk,) = world.runner.chunks
    assert (chunk.start, chunk.write_from) == (length - 1, length)
    world.run()
    check_answer(again)
    assert first.output_tokens == again.output_tokens[:1]
    usage = again.usage
    assert (usage.cached_device_tokens, usage.prefilled_tokens, usage.reprefilled_tokens) == (length - 1, 1, 0)


def test_agents_share_a_system_prompt_once() -> None:
    world = World(device_blocks=12, slots=8, step_tokens=64)
    system = tokens(64)
    requests = [world.submit(f"a{i}", system + tokens(5, seed=i), max_tokens=2) for i in range(6)]
    world.run()
    for request in requests:
        check_answer(request)
    assert sum(request.usage.prefilled_tokens for request in requests) <= 64 + 6 * 6
    assert EventKind.PREEMPT not in world.kinds()


def test_late_prefix_is_taken_over_while_prefilling() -> None:
    """Both start without a hit; the second finds blocks that the first filled meanwhile."""
    world = World(step_tokens=16)
    first, second = (world.submit(agent, tokens(64), max_tokens=2) for agent in ("a", "b"))
    world.run()
    check_answer(first)
    check_answer(second)
    assert second.usage.cached_device_tokens > 0
    assert second.usage.reprefilled_tokens == 0


def test_youngest_is_preempted_and_resumes() -> None:
    world = World(device_blocks=8, step_tokens=64)
    old = world.submit("old", tokens(40, seed=1), max_tokens=70)
    young = world.submit("young", tokens(40, seed=2), max_tokens=70)
    world.run()
    for request in (old, young):
        check_answer(request)
        assert request.usage.reprefilled_tokens == 0
    preempted = {event.agent for event in world.events if event.kind is EventKind.PREEMPT}
    assert preempted == {"young"}


def test_runner_failure_ends_only_its_step() -> None:
    world = World(slots=1)
    doomed, fine = world.submit("a", tokens(20)), world.submit("b", tokens(20, seed=1))
    world.step()
    world.runner.fail = RuntimeError("device on fire")
    assert world.step() == [doomed]
    assert (doomed.finish_reason, doomed.error) == ("error", "RuntimeError: device on fire")
    world.run()
    check_answer(fine)


def test_waits_are_reported_as_intervals() -> None:
    world = World(slots=1)
    first, second = world.submit("a", tokens(20)), world.submit("b", tokens(20, seed=1))
    before = world.clock.now
    world.run()
    assert [interval[0] for interval in first.usage.wait_intervals_unix_ns] == [before]
    ((start, end),) = second.usage.wait_intervals_unix_ns
    assert start == before
    assert end > first.usage.wait_intervals_unix_ns[0][1]


def test_same_calls_give_the_same_run() -> None:
    def run() -> list[object]:
        world = World(device_blocks=10, host_blocks=20, seed=3)
        for index in range(6):
            world.submit(f"a{index}", tokens(60, seed=index), max_tokens=20)
        world.run()
        return [world.events, world.core.snapshot()]

    assert run() == run()


def test_newcomer_is_admitted_before_agents_that_had_their_turns() -> None:
    world = World(slots=1, device_blocks=40)
    contexts = {agent: world.ask(agent, tokens(20, seed=i)).tokens for i, agent in enumerate(("x", "y"))}
    busy = world.submit("x", contexts["x"])
    world.step()
    waiting = [world.submit("y", contexts["y"]), world.submit("new", tokens(20, seed=7))]
    assert world.run() == [busy, waiting[1], waiting[0]]


def test_forgotten_agent_gives_its_tail_back() -> None:
    world = World()
    world.core.sessions._limit = 2
    for index in range(4):
        world.ask(f"a{index}", tokens(20, seed=index))
    world.core.check()
    assert [record.agent for record in world.core.snapshot().agents] == ["a2", "a3"]
    assert world.core.cache.residency("a0").blocks == 0


def test_duplicate_block_stands_in_for_a_dropped_one() -> None:
    """Two requests fill the same block in the same step; only one copy is indexed, and that one is dropped first."""
    world = World(PolicyMode.KEEP, device_blocks=14, step_tokens=128)
    first = world.submit("first", tokens(32), max_tokens=2)
    second = world.submit("second", tokens(32), max_tokens=60)
    while first.finish_reason is None:
        world.step()
    crowd = world.submit("crowd", tokens(16 * 8, seed=4), max_tokens=2)
    world.run()
    check_answer(second)
    check_answer(crowd)
    assert second.usage.reprefilled_tokens == 0
    assert EventKind.DROP in world.kinds()
    assert world.ask("third", tokens(32)).usage.reprefilled_tokens == 0


def test_losing_another_agents_prompt_counts_as_prefilled_again() -> None:
    world = World(PolicyMode.KEEP)
    world.ask("a", tokens(48))
    world.ask("crowd", tokens(250, seed=1))
    assert world.ask("b", tokens(48)).usage.reprefilled_tokens == 48


def test_lost_tail_counts_as_prefilled_again() -> None:
    world = World(PolicyMode.KEEP)
    context = world.ask("a", tokens(50)).tokens
    world.ask("crowd", tokens(250, seed=1))
    assert world.ask("a", context).usage.reprefilled_tokens == len(context) - 1


@pytest.mark.parametrize("calls_tool", [False, True])
def test_start_of_a_context_lives_longest(calls_tool: bool) -> None:
    world = World(PolicyMode.RECOMPUTE, device_blocks=16)
    context = world.ask("a", tokens(64)).tokens
    if calls_tool:
        world.tool_ends(world.tool_starts("a"))
    world.ask("crowd", tokens(196, seed=1))
    assert world.ask("a", context).usage.cached_device_tokens == 48


@pytest.mark.parametrize("step_tokens", [16, 23, 40, 300])
def test_shared_prefix_is_computed_once_by_agents_that_start_together(step_tokens: int) -> None:
    world = World(step_tokens=step_tokens)
    shared = tokens(70)
    sequences = [world.submit(name, shared + tokens(25, seed=at), max_tokens=4) for at, name in enumerate("abcd")]
    world.run()
    for sequence in sequences:
        check_answer(sequence)
    assert sum(sequence.usage.reprefilled_tokens for sequence in sequences) == 0
    # Four full blocks of the prefix are shared; the rows that share a block with an agent's own tokens are not.
    assert sum(sequence.usage.prefilled_tokens for sequence in sequences) == 4 * 95 - 3 * 64


def test_identical_prompts_at_once_do_not_hold_each_other_up() -> None:
    world = World(step_tokens=20)
    sequences = [world.submit(name, tokens(64), max_tokens=6) for name in "abcd"]
    world.run()
    for sequence in sequences:
        check_answer(sequence)
