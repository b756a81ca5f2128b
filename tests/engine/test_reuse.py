"""What a request finds of its agent's past: by salt, by prefix, beside its siblings; and what usage says of it."""

from __future__ import annotations

import pytest

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.prefix import ROOT, block_key, common_prefix, extend_keys, root_key
from kvtrace.engine.records import EventKind
from kvtrace.engine.sequence import Sampling, Sequence, SequenceStatus

from .support import BLOCK, World, check_answer, park_and_evict, tokens


def ask_salted(world: World, agent: str, prompt: list[int], salt: str | None) -> tuple[int, int]:
    request = world.core.submit(agent, prompt, Sampling(max_tokens=4), salt)
    world.run()
    check_answer(request)
    return request.usage.cached_device_tokens, request.usage.prefilled_tokens


def test_different_salts_share_nothing_and_equal_ones_everything() -> None:
    world = World(device_blocks=60)
    prompt = tokens(70)
    assert ask_salted(world, "a", prompt, "red") == (0, 70)
    assert ask_salted(world, "b", prompt, "blue") == (0, 70)
    assert ask_salted(world, "c", prompt, None) == (0, 70)
    assert ask_salted(world, "d", prompt, "red")[0] == 64


def test_agent_that_changes_its_salt_finds_nothing_not_even_its_tail() -> None:
    world = World(device_blocks=60)
    prompt = tokens(10)
    assert ask_salted(world, "a", prompt, None) == (0, 10)
    assert ask_salted(world, "a", prompt, "red") == (0, 10)
    assert ask_salted(world, "a", prompt, "red") == (9, 1)


def test_salted_roots_are_keys_of_their_own() -> None:
    roots = {root_key(None), root_key(""), root_key("a"), root_key("b")}
    assert len(roots) == 4
    assert root_key(None) == ROOT
    assert len({block_key(root, [1] * 16) for root in roots}) == 4


@pytest.mark.parametrize("at", [None, 0, 1, 31, 32, 33, 500, 998, 999])
def test_common_prefix_of_long_contexts(at: int | None) -> None:
    left = tokens(1000)
    right = list(left)
    if at is not None:
        right[at] += 1
    assert common_prefix(left, right) == (1000 if at is None else at)
    assert common_prefix(left[:700], right) == min(700, 1000 if at is None else at)


def test_history_that_was_changed_reuses_what_comes_before_and_says_what_was_lost() -> None:
    world = World(device_blocks=60)
    context = world.ask("a", tokens(100)).tokens
    changed = [*context[:50], (context[50] + 1) % 50, *context[51:], 3]
    again = world.ask("a", changed)
    assert again.usage.diverged_tokens == len(context) - 1 - 50
    assert again.usage.cached_device_tokens == 48
    assert world.ask("b", tokens(20, seed=5)).usage.diverged_tokens == 0


def test_queued_and_restoring_add_up_to_the_intervals() -> None:
    world = World(device_blocks=16, slots=1, most_delay=6)
    context = park_and_evict(world, "a")
    busy = world.submit("other", tokens(190, seed=4), max_tokens=12)  # leaves no room to restore ahead of the slot
    world.step(2)
    again = world.submit("a", context)
    world.run()
    check_answer(busy)
    usage = again.usage
    waited = sum(end - start for start, end in usage.wait_intervals_unix_ns) / 1e9
    assert usage.queued_s > 0
    assert usage.restoring_s > 0
    assert usage.queued_s + usage.restoring_s == pytest.approx(waited)


def test_preempted_request_keeps_its_tail_whatever_its_siblings_do() -> None:
    world = World(device_blocks=9, slots=3, step_tokens=64)
    old = world.submit("old", tokens(40, seed=1), max_tokens=90)
    young = world.submit("twin", tokens(40, seed=2), max_tokens=60)
    while EventKind.PREEMPT not in world.kinds():
        world.step()
    assert young.status is SequenceStatus.WAITING
    sibling = world.submit("twin", tokens(7, seed=3), max_tokens=2)
    world.run()
    for request in (old, young, sibling):
        check_answer(request)
    assert young.usage.reprefilled_tokens == 0


def test_aborted_while_preempted_leaves_its_context_to_its_agent() -> None:
    world = World(device_blocks=8, step_tokens=64)
    world.submit("old", tokens(40, seed=1), max_tokens=70)
    young = world.submit("young", tokens(40, seed=2), max_tokens=70)
    while EventKind.PREEMPT not in world.kinds():
        world.step()
    had = world.core.snapshot().agents
    assert next(record for record in had if record.agent == "young").context_tokens >= 40
    world.core.abort(young.id)
    world.core.check()
    world.run()
    again = world.submit("young", young.tokens, max_tokens=2)
    world.run()
    check_answer(again)
    assert again.usage.reprefilled_tokens == 0


def _crowded_branch(world: World, prompt: list[int]) -> tuple[Sequence, Sequence]:
    """Somebody who decodes for long, and a request of agent a with ``prompt`` that was preempted for it."""
    long = world.submit("b", tokens(40, seed=8), 110)
    branch = world.submit("a", prompt, 110)
    while EventKind.PREEMPT not in world.kinds():
        world.step()
    return long, branch


def test_keys_are_those_of_the_request_itself_though_its_agent_holds_another_branch_than_it_computed_last() -> None:
    world = World(PolicyMode.SWAP, device_blocks=12, step_tokens=64)
    first, held, computed = (tokens(BLOCK, seed=seed) for seed in range(3))
    world.ask("a", [*first, *held, 7])
    long, branch = _crowded_branch(world, [*first, *computed, 8])
    other = world.submit("a", [*first, *computed, 9], 5)
    keys: list[bytes] = []
    extend_keys(keys, other.tokens, BLOCK)
    assert other.keys == keys
    world.run()
    for request in (long, branch, other):
        check_answer(request)


def test_keys_are_those_of_the_request_itself_after_a_preempted_branch_was_aborted() -> None:
    world = World(PolicyMode.SWAP, device_blocks=12, step_tokens=64)
    first, held, computed = (tokens(BLOCK, seed=seed) for seed in range(3))
    long, branch = _crowded_branch(world, [*first, *held, 8])
    world.core.abort(long.id)
    world.run_until(world.submit("a", [*first, *computed, 7], 2))
    world.core.abort(branch.id)
    other = world.submit("a", [*first, *computed, 9], 5)
    world.run()
    check_answer(other)


def test_seconds_by_state_add_up_to_a_life() -> None:
    world = World()
    born = world.clock.now
    world.ask("a", tokens(70))
    start = world.tool_starts("a")
    world.clock.pass_s(3)
    world.tool_ends(start)
    world.ask("a", tokens(70))
    world.core.turn_ended("a", {})
    world.clock.pass_s(5)
    (record,) = world.core.snapshot().agents
    assert sum(record.state_seconds.values()) == pytest.approx((world.clock.now - born) / 1e9)
    assert record.state_seconds["blocked_resident"] == pytest.approx(3.001)
    assert record.state_seconds["human"] == pytest.approx(5)


def test_idleness_looks_back_on_five_cycles_and_counts_the_call_under_way() -> None:
    world = World()
    for wait_s in (100, 0, 0, 0, 0, 0):
        world.ask("a", tokens(20))
        start = world.tool_starts("a")
        world.clock.pass_s(wait_s)
        world.tool_ends(start)
        world.clock.pass_s(1)
    world.ask("a", tokens(20))
    session = world.core.sessions.agents["a"]
    calm = session.idleness(world.clock.now)
    assert calm is not None
    assert calm < 0.01
    world.tool_starts("a")
    world.clock.pass_s(60)
    waiting = session.idleness(world.clock.now)
    assert waiting is not None
    assert waiting > 0.9
