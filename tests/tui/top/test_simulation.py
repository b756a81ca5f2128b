"""The simulated engine: the same for the same seed, sound in its figures, and in every state at some time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from kvtrace.engine.records import AgentState
from kvtrace.tui.feed.simulation import SimulatedEngine

from .conftest import NS, START_NS

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "state.schema.json").read_text(encoding="utf-8"))


def test_life_is_the_same_however_often_it_is_looked_at() -> None:
    often, once = SimulatedEngine(14, 3, START_NS), SimulatedEngine(14, 3, START_NS)
    for at_s in range(1, 121):
        often.advance(START_NS + at_s * NS)
        often.snapshot()
    once.advance(START_NS + 120 * NS)
    assert often.snapshot().agents == once.snapshot().agents
    other = SimulatedEngine(14, 4, START_NS)
    other.advance(START_NS + 120 * NS)
    assert other.snapshot().agents != once.snapshot().agents


@pytest.mark.parametrize("agents", [1, 14, 60])
def test_figures_add_up_at_every_instant(agents: int) -> None:
    engine = SimulatedEngine(agents, 0, START_NS)
    seen = set()
    for tick in range(1, 2400):
        engine.advance(START_NS + tick * NS // 4)
        shown = engine.snapshot()
        vram, host = shown.tiers.vram, shown.tiers.host
        assert vram.kv_active_bytes + vram.kv_reclaimable_bytes + vram.kv_free_bytes == vram.kv_pool_bytes
        assert host.used_bytes + host.free_bytes == host.total_bytes
        for agent in shown.agents:
            seen.add(agent.state)
            assert agent.since_s >= 0
            assert agent.b is None or 0 <= agent.b <= 1
            assert agent.vram_bytes >= 0
    if agents == 14:
        assert seen == set(AgentState) - {AgentState.IDLE}


def test_snapshots_follow_the_schema() -> None:
    engine = SimulatedEngine(14, 0, START_NS)
    engine.advance(START_NS + 100 * NS)
    Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(engine.snapshot().as_json())))
