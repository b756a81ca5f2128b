"""Cases that users of other engines reported as broken, under every policy: no wrong word, nothing lost, nothing stuck."""

from __future__ import annotations

import pytest

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.records import AgentState

from .support import BLOCK, World, check_answer, tokens

POLICIES = pytest.mark.parametrize("policy", list(PolicyMode))


@POLICIES
def test_agent_larger_than_half_the_pool_takes_turns_with_another_one(policy: PolicyMode) -> None:
    stage = World(policy, device_blocks=16, host_blocks=64)
    contexts = {agent: stage.ask(agent, tokens(170, seed=seed)).tokens for seed, agent in enumerate("ab")}
    for _ in range(3):
        for agent, other in (("a", "b"), ("b", "a")):
            start = stage.tool_starts(agent)
            stage.run()
            meanwhile = stage.submit(other, [*contexts[other], 7])
            stage.step(2)
            stage.tool_ends(start)
            again = stage.submit(agent, [*contexts[agent], 7, 8])
            stage.run()
            for request in (meanwhile, again):
                check_answer(request)
                contexts[request.agent] = request.tokens
                assert not policy.uses_host or request.usage.reprefilled_tokens == 0


@POLICIES
def test_without_any_signal_returns_find_their_kv_in_the_host(policy: PolicyMode) -> None:
    stage = World(policy, device_blocks=14, host_blocks=64)
    contexts = {f"a{i}": stage.ask(f"a{i}", tokens(60, seed=i)).tokens for i in range(6)}
    for agent, context in contexts.items():
        again = stage.ask(agent, [*context, 5])
        # Who never signals is no agent at work, but its blocks leave by way of the host all the same.
        assert not policy.uses_host or again.usage.reprefilled_tokens == 0
    assert stage.core.snapshot().totals.matched_signals == 0


@POLICIES
def test_tool_that_calls_its_own_agents_model_ends_the_wait_and_its_end_is_harmless(policy: PolicyMode) -> None:
    stage = World(policy, device_blocks=14, host_blocks=64)
    context = stage.ask("a", tokens(60, seed=1)).tokens
    start = stage.tool_starts("a", "summarise")
    stage.run()
    inside = stage.submit("a", tokens(40, seed=2))
    stage.step()
    assert stage.core.sessions.agents["a"].state is not AgentState.BLOCKED_RESIDENT
    stage.run()
    check_answer(inside)
    stage.tool_ends(start)
    again = stage.ask("a", [*context, 9])
    assert not policy.uses_host or again.usage.reprefilled_tokens == 0


@POLICIES
def test_sub_agents_share_their_parents_prefix_while_it_waits_for_them(policy: PolicyMode) -> None:
    stage = World(policy, device_blocks=20, host_blocks=64)
    shared = tokens(4 * BLOCK, seed=1)
    parent = stage.ask("parent", [*shared, *tokens(20, seed=2)]).tokens
    start = stage.tool_starts("parent", "delegate")
    stage.run()
    children = [stage.submit(f"child{i}", [*shared, *tokens(20, seed=10 + i)]) for i in range(3)]
    stage.run()
    for child in children:
        check_answer(child)
        found = child.usage.cached_device_tokens + child.usage.cached_host_tokens
        assert found >= len(shared)
        assert child.usage.prefilled_tokens <= 20
    stage.tool_ends(start)
    again = stage.ask("parent", [*parent, 3])
    assert again.usage.cached_device_tokens + again.usage.cached_host_tokens >= len(shared)
