"""Steps launched before the one before was read: the same answers, one position too many where a stop was not foreseen."""

from __future__ import annotations

import pytest

from kvtrace.engine.batch import UNREAD
from kvtrace.engine.records import EventKind
from kvtrace.engine.sequence import Sampling

from .support import BLOCK, World, check_answer, expected_output, tokens


class NoMask:
    """A grammar that allows everything; it makes the next token depend on the one before having been read."""

    error: str | None = None

    def mask(self, row: object) -> None:
        del row

    def accept(self, token: int) -> None:
        del token


def test_one_step_waits_on_the_device_while_another_one_runs() -> None:
    world = World(pipelined=True)
    sequence = world.submit("a", tokens(20), max_tokens=5)
    world.step()
    assert (sequence.output_tokens, world.device.launched) == ([], 1)
    for read in (1, 2):
        world.step()
        assert (len(sequence.output_tokens), sequence.unread, world.device.launched) == (read, 2, read + 2)
        (chunk,) = world.runner.chunks
        assert (chunk.tokens, chunk.start, chunk.generated) == ((UNREAD,), 20 + read, 1 + read)
    world.run()
    check_answer(sequence)


def test_no_step_is_launched_past_max_tokens() -> None:
    world = World(pipelined=True)
    sequence = world.submit("a", tokens(20), max_tokens=5)
    world.run()
    check_answer(sequence)
    assert world.device.launched == 5
    assert world.core.snapshot().totals.steps == 5


@pytest.mark.parametrize("at", [3, 12], ids=["inside a block", "where a block begins"])
def test_stop_nobody_foresaw_leaves_nothing_of_the_position_too_many(at: int) -> None:
    prompt = tokens(20)
    full = expected_output(prompt, Sampling(max_tokens=40))
    at = next(index for index in range(at, 40) if full[index] not in full[:index])
    world = World(pipelined=True)
    sequence = world.core.submit("a", prompt, Sampling(max_tokens=60, stop_ids=(full[at],)))
    world.run()
    check_answer(sequence)
    assert (sequence.finish_reason, len(sequence.output_tokens)) == ("stop", at)
    assert world.device.launched == at + 2
    # All but the stop token have KV; the last of them was computed with it.
    assert world.core.cache.context_tokens("a") == len(sequence.tokens)
    assert world.ask("a", [*sequence.tokens, 7, 8]).usage.prefilled_tokens == 2


@pytest.mark.parametrize("steps", range(1, 8))
def test_abort_with_a_step_in_flight_keeps_what_was_read(steps: int) -> None:
    world = World(pipelined=True, step_tokens=BLOCK)
    doomed, other = world.submit("a", tokens(40)), world.submit("b", tokens(30, seed=1), max_tokens=9)
    world.step(steps)
    world.core.abort(doomed.id)
    world.core.check()
    again = world.submit("a", tokens(40))
    world.run()
    check_answer(again)
    check_answer(other)
    assert again.usage.reprefilled_tokens == 0


def test_preemption_reads_first_and_prefills_nothing_twice() -> None:
    world = World(device_blocks=8, step_tokens=64, pipelined=True)
    requests = [world.submit(name, tokens(40, seed=at), max_tokens=70) for at, name in enumerate(("old", "young"))]
    world.run()
    for request in requests:
        check_answer(request)
        assert request.usage.reprefilled_tokens == 0
    assert EventKind.PREEMPT in world.kinds()


def test_token_that_depends_on_the_last_one_is_not_launched_ahead() -> None:
    world = World(pipelined=True)
    plain = world.submit("a", tokens(20), max_tokens=6)
    bound = world.core.submit("b", tokens(24, seed=1), Sampling(max_tokens=6, grammar=NoMask()))
    while world.core.has_work():
        world.step()
        for chunk in world.runner.chunks:
            assert chunk.sequence_id != bound.id or UNREAD not in chunk.tokens
    check_answer(plain)
    check_answer(bound)


def test_failure_seen_only_when_read_ends_its_step_alone() -> None:
    world = World(pipelined=True, slots=2)
    doomed = world.submit("a", tokens(20), max_tokens=9)
    world.step(2)
    world.runner.fail_late = RuntimeError("device on fire")
    world.step()
    fine = world.submit("b", tokens(20, seed=1))
    world.run()
    assert (doomed.finish_reason, doomed.error) == ("error", "RuntimeError: device on fire")
    check_answer(fine)


def test_prompt_in_chunks_takes_over_what_another_committed() -> None:
    world = World(pipelined=True, step_tokens=BLOCK)
    requests = [world.submit(name, tokens(70), max_tokens=3) for name in "abc"]
    world.run()
    for request in requests:
        check_answer(request)
    assert sum(request.usage.reprefilled_tokens for request in requests) == 0
