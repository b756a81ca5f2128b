"""Whole runs of the real engine in virtual time: what a policy is for, as figures that no machine's load can change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import count

import pytest

from kvtrace.engine.bench.agents.figures import Figures, figures_of
from kvtrace.engine.bench.agents.workload import Shape, ToolCall, closed_loop, closed_loop_agent
from kvtrace.engine.config import EngineConfig, PolicyMode
from kvtrace.engine.simulation.agents import QWEN3_8B, SimulatedRun, Simulation, simulate, simulate_steadily
from kvtrace.engine.simulation.machine import ARTICLE, H200
from kvtrace.tracer.signals import Signal

SHAPE = Shape(6, prompt_tokens=1000, returns=3, generated_tokens=16, new_tokens=50)
BLOCKS_EACH = QWEN3_8B.blocks_for(SHAPE.most_tokens)
CONFIG = EngineConfig(
    device_blocks=2 * BLOCKS_EACH + 8,
    host_blocks=8 * BLOCKS_EACH,
    slots=2,
    step_tokens=1024,
    context_tokens=4096,
    pipelined=True,
)


def step_ms(decoding: int) -> float:
    return H200.decode_ms + H200.decode_each_ms * decoding


def tool(agent: int, turn: int) -> ToolCall:
    return ToolCall("tool", 0.2 + 0.1 * ((3 * agent + turn) % 5))


@cache
def run(policy: str = "auto", host_blocks: int = 8 * BLOCKS_EACH, agents: int = 6, card: str = "h200") -> SimulatedRun:
    config = replace(CONFIG, policy=PolicyMode(policy), host_blocks=host_blocks)
    machine = H200 if card == "h200" else ARTICLE
    return simulate(closed_loop(replace(SHAPE, agents=agents), tool, seed=1), config, machine)


def figures(policy: str = "auto", host_blocks: int = 8 * BLOCKS_EACH, agents: int = 6, card: str = "h200") -> Figures:
    return figures_of(run(policy, host_blocks, agents, card).turns)


@pytest.mark.parametrize("policy", list(PolicyMode))
def test_every_turn_is_answered_whole_and_time_adds_up(policy: str) -> None:
    found = figures(policy)
    assert (found.turns, found.failed, found.generated_tokens) == (24, 0, 24 * 16)
    assert found.makespan_s > sum(tool(0, turn).seconds for turn in range(3))
    for turn in run(policy).turns:
        assert turn.first_token_s is not None
        assert turn.ended_s is not None
        assert turn.sent_s < turn.first_token_s < turn.ended_s
        # Sixteen tokens after the first one, none faster than a decode step of one request.
        assert turn.ended_s - turn.first_token_s >= 15 * (H200.decode_ms + H200.decode_each_ms) / 1e3 * 0.999


@pytest.mark.parametrize("policy", ["auto", "swap", "eager"])
def test_with_room_in_the_host_nothing_is_prefilled_twice(policy: str) -> None:
    assert figures(policy).reprefilled_tokens == 0
    assert run(policy).moved.in_bytes > 0


def test_swapping_is_faster_than_computing_again_and_the_slower_the_card_the_more() -> None:
    gain = {
        card: figures("auto", card=card).turns_per_s / figures("recompute", card=card).turns_per_s
        for card in ("h200", "article")
    }
    assert 1.0 < gain["h200"] < gain["article"]


def test_device_has_work_while_the_engines_thread_sees_to_returns() -> None:
    """A return takes the thread longer than a step takes the device, and less than the two that wait there."""
    shape = Shape(8)
    context = QWEN3_8B.blocks_for(shape.most_tokens)
    config = EngineConfig(
        device_blocks=8 * context,
        host_blocks=48 * context,
        slots=8,
        step_tokens=1024,
        mixed_step_tokens=256,
        context_tokens=8192,
        pipelined=True,
    )
    assert 1.5 * step_ms(8) < H200.copy_host_us * context / 1e3 < 2 * step_ms(8)
    crowd = simulate_steadily(lambda index: closed_loop_agent(shape, tool, 1, "0", index), 32, 12.0, config, H200)
    assert crowd.moved.in_bytes > 50 * context * QWEN3_8B.block_bytes
    assert crowd.busy_share > 0.985


@pytest.mark.parametrize("agents", [1, 2, 3, 6])
def test_swap_tier_never_costs_turns(agents: int) -> None:
    assert figures("auto", agents=agents).turns_per_s >= 0.99 * figures("keep", agents=agents).turns_per_s


def test_new_agents_pause_where_both_tiers_cannot_hold_all_and_returns_are_quicker_for_it() -> None:
    small = BLOCKS_EACH + BLOCKS_EACH // 2
    paused, thrashing = (figures(policy, host_blocks=small, card="article") for policy in ("auto", "swap"))
    assert paused.turns_per_s > thrashing.turns_per_s
    assert paused.return_ttft_s.p50 is not None
    assert thrashing.return_ttft_s.p50 is not None
    assert paused.return_ttft_s.p50 < thrashing.return_ttft_s.p50
    assert paused.turns == thrashing.turns == 24


def test_finished_agents_are_replaced_until_the_time_is_up() -> None:
    steady = simulate_steadily(lambda index: closed_loop_agent(SHAPE, tool, 1, "0", index), 3, 12.0, CONFIG, H200)
    names = {turn.agent for turn in steady.turns}
    assert len(names) > 3
    assert all(turn.ended_s is not None and turn.ended_s <= 12.1 for turn in steady.turns)


def test_next_agents_kv_comes_back_before_its_slot_is_free() -> None:
    host = 16 * BLOCKS_EACH
    simulation = Simulation(replace(CONFIG, device_blocks=3 * BLOCKS_EACH, host_blocks=host), H200)
    for plan in closed_loop(replace(SHAPE, agents=12), tool, seed=1):
        simulation.join(plan)
    simulation.run()
    assert any(event.why == "its slot will be free soon" for event in simulation.core.events.recent)
    assert max(turn.restoring_s or 0.0 for turn in simulation.turns) < 0.05
    simulation.core.check()


@pytest.mark.parametrize("spans_end", [True, False])
@pytest.mark.parametrize("policy", ["auto", "swap"])
def test_agents_that_were_cut_off_cost_the_living_nothing(policy: str, spans_end: bool) -> None:
    """Three clients one after the other; the first two go away in the middle, and leave more than the host holds."""
    config = replace(CONFIG, policy=PolicyMode(policy), host_blocks=10 * BLOCKS_EACH)
    simulation = Simulation(config, H200)
    for run_number, (agents, seconds) in enumerate(((9, 14.0), (4, 14.0), (6, 14.0))):
        indices = count()

        def place(run_name: str = str(run_number), indices: Iterator[int] = indices) -> None:
            simulation.join(closed_loop_agent(SHAPE, tool, 1, run_name, next(indices)), place)

        for _ in range(agents):
            place()
        simulation.run(simulation.clock.now_s + seconds)
        simulation.cut_off(spans_end=spans_end)
    last = [turn for turn in simulation.turns if turn.agent.startswith("2-")]
    assert len(last) > 100
    assert sum(turn.reprefilled_tokens or 0 for turn in last) == 0
    simulation.core.check()


def mixed(signalled: int, host_blocks: int, policy: str = "auto", card: str = "h200") -> tuple[Figures, Figures | None]:
    """Twelve agents; of the first ``signalled`` in each four the engine hears: figures of these and of the others."""
    config = replace(CONFIG, policy=PolicyMode(policy), host_blocks=host_blocks)
    simulation = Simulation(config, H200 if card == "h200" else ARTICLE)
    plans = closed_loop(replace(SHAPE, agents=12), tool, seed=1)
    heard = {plan.name for index, plan in enumerate(plans) if index % 4 < signalled}
    for plan in plans:
        simulation.join(plan, signals=plan.name in heard)
    simulation.run()
    simulation.core.check()
    turns = simulation.turns
    assert sum(turn.error is None for turn in turns) == 48
    others = [turn for turn in turns if turn.agent not in heard]
    own = figures_of([turn for turn in turns if turn.agent in heard])
    return own, figures_of(others) if others else None


def test_agents_with_and_without_signals_share_a_card_and_nothing_is_computed_twice() -> None:
    heard, silent = mixed(2, host_blocks=16 * BLOCKS_EACH)
    assert silent is not None
    assert heard.reprefilled_tokens == silent.reprefilled_tokens == 0
    assert heard.turns == silent.turns == 24
    both = heard.return_ttft_s.p50, silent.return_ttft_s.p50
    assert None not in both
    assert 0.5 < both[0] / both[1] < 2.0  # type: ignore[operator]


def test_agents_without_signals_keep_more_in_a_small_host_than_the_order_of_use_would() -> None:
    (_, known), (_, plain) = (mixed(0, 4 * BLOCKS_EACH, policy) for policy in ("auto", "swap"))
    assert known is not None
    assert plain is not None
    assert known.reprefilled_tokens < 0.9 * plain.reprefilled_tokens  # type: ignore[operator]
    assert known.turns_per_s > plain.turns_per_s


def test_engine_hears_of_tools_while_a_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(CONFIG, ARTICLE)
    late_ns: list[int] = []
    hear = simulation.core.signal

    def heard(signal: Signal) -> None:
        late_ns.append(simulation.clock.unix_ns() - signal.time_unix_ns)
        hear(signal)

    monkeypatch.setattr(simulation.core, "signal", heard)
    for plan in closed_loop(SHAPE, tool, seed=1):
        simulation.join(plan)
    simulation.run()
    assert len(late_ns) == 2 * 6 * 3
    # A thousand positions of a prompt take a second there.
    assert max(late_ns) < 0.05e9


def test_same_seed_gives_the_same_run() -> None:
    plans = closed_loop(replace(SHAPE, agents=3), tool, seed=1)
    assert simulate(plans, CONFIG, H200).turns == simulate(plans, CONFIG, H200).turns
