from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from jsonschema import Draft202012Validator

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.records import AgentRecord, AgentState

from .support import GEOMETRY, World, tokens

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "state.schema.json").read_text())


def test_real_snapshots_validate_at_every_step() -> None:
    world = World(device_blocks=10, host_blocks=40)
    validator = Draft202012Validator(SCHEMA)
    for agent in range(4):
        world.submit(f"a{agent}", tokens(60, seed=agent), max_tokens=20)
    for step in range(60):
        world.step()
        if step == 30:
            world.tool_starts("a0")
        validator.validate(json.loads(json.dumps(world.core.snapshot().as_json())))


def test_pool_bytes_add_up_at_every_step() -> None:
    world = World(device_blocks=10, host_blocks=40)
    for agent in range(4):
        world.submit(f"a{agent}", tokens(60, seed=agent), max_tokens=20)
    while world.core.has_work():
        world.step()
        tiers = world.core.snapshot().tiers
        vram = tiers.vram
        parts = vram.kv_active_bytes + vram.kv_reclaimable_bytes + vram.kv_free_bytes
        assert parts == vram.kv_pool_bytes == 10 * GEOMETRY.block_bytes
        assert tiers.host.used_bytes + tiers.host.free_bytes == tiers.host.total_bytes


def test_totals_agree_with_each_requests_usage() -> None:
    world = World(device_blocks=40)
    first = world.ask("a", tokens(50), max_tokens=6)
    second = world.ask("a", first.tokens + tokens(9, seed=1), max_tokens=6)
    for request in (first, second):
        usage = request.usage
        cached = usage.cached_device_tokens + usage.cached_host_tokens
        assert cached + usage.prefilled_tokens == usage.prompt_tokens
    totals = world.core.snapshot().totals
    assert totals.generated_tokens == 12
    assert totals.prefilled_tokens == first.usage.prefilled_tokens + second.usage.prefilled_tokens
    assert totals.cached_device_tokens == second.usage.cached_device_tokens == 55


def test_kept_tokens_say_how_much_of_a_context_is_left() -> None:
    world = World(PolicyMode.KEEP, device_blocks=12)
    request = world.submit("a", tokens(50), max_tokens=9)
    world.step(4)
    assert record(world, "a").kept_tokens == record(world, "a").context_tokens == len(request.tokens) - 1
    world.run()
    assert record(world, "a").kept_tokens == record(world, "a").context_tokens == 58
    world.ask("b", tokens(150, seed=1))
    assert 0 < record(world, "a").kept_tokens < record(world, "a").context_tokens == 58
    assert record(world, "a").vram_bytes == 2 * GEOMETRY.block_bytes


def test_a_hasty_snapshot_is_right_but_for_the_time_that_idle_agents_have_waited() -> None:
    world = World(PolicyMode.EAGER, device_blocks=20)
    for agent in range(40):
        world.ask(f"a{agent}", tokens(20, seed=agent), max_tokens=2)
    world.core.snapshot(whole=False)
    world.tool_starts("a3")
    world.submit("a5", tokens(50, seed=99), max_tokens=40)
    for _ in range(10):
        world.step()
        hasty, whole = world.core.snapshot(whole=False).agents, world.core.snapshot().agents
        assert [untimed(one) for one in hasty] == [untimed(one) for one in whole]


def test_the_time_in_hasty_snapshots_catches_up_in_turn() -> None:
    world = World(device_blocks=20)
    for agent in range(40):
        world.ask(f"a{agent}", tokens(20, seed=agent), max_tokens=2)
    before = world.core.snapshot().agents
    world.clock.pass_s(60)
    late = [world.core.snapshot(whole=False).agents for _ in range(3)]
    counts = [sum(one.since_s >= 60 for one in agents) for agents in late]
    assert 0 < counts[0] < counts[1] < counts[2] == len(before)


def test_with_many_agents_a_hasty_snapshot_is_right_for_those_at_work_and_soon_for_the_others() -> None:
    world = World(PolicyMode.SWAP, device_blocks=20, host_blocks=60)
    for number in range(150):
        world.ask(f"a{number}", tokens(20, seed=number), max_tokens=2)
        if number % 10 == 0:
            world.core.snapshot(whole=False)
    world.core.snapshot()
    world.tool_starts("a7")
    world.ask("a9", tokens(300, seed=99), max_tokens=2)
    hasty, whole = world.core.snapshot(whole=False).agents, world.core.snapshot().agents
    assert [one.agent for one in hasty] == [one.agent for one in whole]
    assert [untimed(one) for one in hasty if one.agent in ("a7", "a9")] == [
        untimed(one) for one in whole if one.agent in ("a7", "a9")
    ]
    world.ask("a9", tokens(300, seed=98), max_tokens=2)
    for _ in range(9):
        hasty = world.core.snapshot(whole=False).agents
    assert [untimed(one) for one in hasty] == [untimed(one) for one in world.core.snapshot().agents]


def test_an_agent_is_in_a_hasty_snapshot_though_the_clock_went_back_before_its_request() -> None:
    world = World(device_blocks=20)
    agents = [f"a{number}" for number in range(70)]
    for agent in agents:
        world.ask(agent, tokens(20), max_tokens=2)
    world.core.snapshot(whole=False)
    world.clock.pass_s(-60)
    world.ask("b", tokens(20, seed=1), max_tokens=2)
    world.ask("a5", tokens(30, seed=2), max_tokens=2)
    agents.remove("a5")
    assert [one.agent for one in world.core.snapshot(whole=False).agents] == [*agents, "b", "a5"]


def test_a_turns_end_and_a_short_call_of_an_agent_at_rest_are_in_the_next_hasty_snapshot_however_many_rest() -> None:
    world = World(PolicyMode.SWAP, device_blocks=20)
    for number in range(150):
        world.ask(f"a{number}", tokens(20, seed=number), max_tokens=2)
    for _ in range(20):
        world.core.snapshot(whole=False)
    world.core.turn_ended("a7", {})
    world.tool_ends(world.tool_starts("a50"))
    hasty, whole = ({one.agent: one for one in world.core.snapshot(whole=whole).agents} for whole in (False, True))
    assert hasty["a7"].state is AgentState.HUMAN
    assert hasty["a50"].state_seconds.keys() == whole["a50"].state_seconds.keys() >= {"blocked_resident"}


def untimed(record: AgentRecord) -> AgentRecord:
    return replace(record, since_s=0.0, b=None, state_seconds={}, tokens_per_s=None)


def record(world: World, agent: str) -> AgentRecord:
    return next(found for found in world.core.snapshot().agents if found.agent == agent)
