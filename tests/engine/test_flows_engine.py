"""Agents that come back with longer contexts, over the real model, storage and mover, under every policy."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kvtrace.engine import Engine, EngineConfig, LoadedModel, PolicyMode, Sampling
from kvtrace.engine.loop import EngineCore
from kvtrace.engine.model import continue_chat, encode_chat
from kvtrace.engine.records import Snapshot
from kvtrace.engine.runner import TorchRunner
from kvtrace.engine.state import EngineInfo
from kvtrace.engine.storage import Storage
from kvtrace.engine.swap.thread import ThreadMover
from kvtrace.tracer.signals import Signal, ToolEnded, ToolStarted

WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Shape:
    """How long things are: agents, turns, tokens of prompts, answers and results, tool times in steps."""

    agents: int = 6
    turns: int = 4
    prompt: int = 45
    answer: int = 9
    result: int = 14
    longest_tool: int = 12

    @property
    def context(self) -> int:
        return self.prompt + self.turns * (self.answer + self.result)


TINY = Shape()
CONFIG = EngineConfig(device_blocks=16, host_blocks=80, slots=2, step_tokens=24, context_tokens=256)
LARGE = replace(CONFIG, device_blocks=200)


class StepClock:
    """Stands still within a step."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def unix_ns(self) -> int:
        return self.now_ns


class CheckedStorage(Storage):
    """Begins poisoned, and checks on each way back that a block's bytes are those that went out."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.pool.fill_(float("nan"))
        self.gone_out: dict[int, str] = {}
        self.came_back = 0

    def copy_out(self, block: int, slot: int, count: int = 1) -> None:
        super().copy_out(block, slot, count)
        for index in range(count):
            self.gone_out[slot + index] = self._digest(block + index)

    def copy_in(self, slot: int, block: int, count: int = 1) -> None:
        super().copy_in(slot, block, count)
        for index in range(count):
            assert self._digest(block + index) == self.gone_out[slot + index]
            self.came_back += 1

    def _digest(self, block: int) -> str:
        return hashlib.sha256(self.pool[block].numpy().tobytes()).hexdigest()


@dataclass(slots=True)
class StepAgent:
    """One agent of a step-driven run: its tokens so far and, while it waits, the step at which its tool ends."""

    name: str
    tokens: list[int]
    source: random.Random
    turn: int = 0
    back_at: int | None = None
    answers: list[list[int]] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """What a run brought."""

    answers: dict[str, list[list[int]]]
    state: Snapshot
    storage: CheckedStorage | None = None


def _signal(kind: type[ToolStarted] | type[ToolEnded], agent: StepAgent, now_ns: int) -> Signal:
    return kind("a" * 32, f"{int(agent.name[1:]):08x}{agent.turn:08x}", now_ns, "grep", agent.name)


@contextmanager
def _core(model: LoadedModel, config: EngineConfig, clock: StepClock) -> Iterator[tuple[EngineCore, CheckedStorage]]:
    storage = CheckedStorage(model.geometry, config.device_blocks, config.host_blocks)
    mover = ThreadMover(storage)
    info = EngineInfo(model.model_id, "cpu", model.weights_bytes)
    try:
        yield EngineCore(config, model.geometry, TorchRunner(model.model, storage), mover, clock, info), storage
    finally:
        mover.close()


def _run_by_steps(model: LoadedModel, config: EngineConfig, shape: Shape = TINY, signals: bool = True) -> Outcome:
    """Drive the core step by step; tools take a seeded number of steps, and every step ends in an integrity check."""
    clock = StepClock()
    agents = {}
    for number in range(shape.agents):
        source = random.Random(number)
        prompt = [7] * 20 + [source.randrange(3, 250) for _ in range(shape.prompt - 20)]
        agents[f"a{number}"] = StepAgent(f"a{number}", prompt, source)
    sampling = Sampling(max_tokens=shape.answer, ignore_eos=True)
    with _core(model, config, clock) as (core, storage):
        for agent in agents.values():
            core.submit(agent.name, agent.tokens, sampling)
        step = 0
        while any(agent.turn < shape.turns for agent in agents.values()):
            step += 1
            assert step < 5000, "no progress"
            clock.now_ns += 1_000_000
            for agent in agents.values():
                if agent.back_at == step:
                    agent.back_at = None
                    if signals:
                        core.signal(_signal(ToolEnded, agent, clock.now_ns))
                    core.submit(agent.name, agent.tokens, sampling)
            for sequence in core.step().finished:
                assert sequence.error is None
                agent = agents[sequence.agent]
                agent.answers.append(list(sequence.output_tokens))
                result = [agent.source.randrange(3, 250) for _ in range(shape.result)]
                agent.tokens = [*sequence.tokens, *result]
                if signals:
                    core.signal(_signal(ToolStarted, agent, clock.now_ns))
                agent.turn += 1
                if agent.turn < shape.turns:
                    agent.back_at = step + agent.source.randint(1, shape.longest_tool)
            core.check()
        return Outcome({agent.name: agent.answers for agent in agents.values()}, core.snapshot(), storage)


@pytest.fixture(scope="module")
def expected(tiny_model: Callable[[str], LoadedModel]) -> dict[str, list[list[int]]]:
    """The answers of a run in which nothing ever left the device."""
    outcome = _run_by_steps(tiny_model("llama"), replace(LARGE, policy=PolicyMode.KEEP))
    assert outcome.state.totals.reprefilled_tokens == 0
    assert outcome.state.link.out_total_bytes == 0
    return outcome.answers


@pytest.mark.parametrize("policy", [PolicyMode.SWAP, PolicyMode.EAGER])
@pytest.mark.parametrize("signals", [True, False])
def test_swapped_agents_say_the_same_and_prefill_nothing_twice(
    tiny_model: Callable[[str], LoadedModel], expected: dict[str, list[list[int]]], policy: PolicyMode, signals: bool
) -> None:
    outcome = _run_by_steps(tiny_model("llama"), replace(CONFIG, policy=policy), signals=signals)
    assert outcome.answers == expected
    if policy is PolicyMode.SWAP or signals:
        assert outcome.state.totals.reprefilled_tokens == 0
        assert outcome.state.totals.dropped_blocks == 0
        assert outcome.storage is not None
        assert outcome.storage.came_back > 0


@pytest.mark.parametrize("policy", [PolicyMode.KEEP, PolicyMode.RECOMPUTE])
def test_without_host_tier_the_small_pool_recomputes(
    tiny_model: Callable[[str], LoadedModel], expected: dict[str, list[list[int]]], policy: PolicyMode
) -> None:
    outcome = _run_by_steps(tiny_model("llama"), replace(CONFIG, policy=policy))
    assert outcome.answers == expected
    assert outcome.state.totals.reprefilled_tokens > 0
    assert outcome.state.link.in_total_bytes == 0


@pytest.mark.parametrize("host_blocks", [0, 1, 9])
def test_a_small_host_tier_recomputes_and_says_so(
    tiny_model: Callable[[str], LoadedModel], expected: dict[str, list[list[int]]], host_blocks: int
) -> None:
    outcome = _run_by_steps(tiny_model("llama"), replace(CONFIG, host_blocks=host_blocks))
    assert outcome.answers == expected
    assert outcome.state.totals.reprefilled_tokens > 0
    assert outcome.state.totals.dropped_blocks > 0


@pytest.mark.parametrize("kind", ["qwen3", "mistral"])
def test_other_families_swap_as_exactly(tiny_model: Callable[[str], LoadedModel], kind: str) -> None:
    shape = replace(TINY, agents=5, turns=3)
    kept = _run_by_steps(tiny_model(kind), replace(LARGE, policy=PolicyMode.KEEP), shape)
    swapped = _run_by_steps(tiny_model(kind), replace(CONFIG, device_blocks=16), shape)
    assert swapped.answers == kept.answers
    assert swapped.state.totals.reprefilled_tokens == 0
    assert swapped.state.link.in_total_bytes > 0


@pytest.mark.parametrize("block_tokens", [32, 64])
def test_larger_blocks_swap_as_exactly(
    tiny_model: Callable[[str], LoadedModel], expected: dict[str, list[list[int]]], block_tokens: int
) -> None:
    model = tiny_model("llama")
    larger = replace(model, geometry=replace(model.geometry, block_tokens=block_tokens))
    config = replace(CONFIG, device_blocks=256 // block_tokens, host_blocks=1920 // block_tokens)
    outcome = _run_by_steps(larger, config)
    assert outcome.answers == expected
    assert outcome.state.totals.reprefilled_tokens == 0
    assert outcome.storage is not None
    assert outcome.storage.came_back > 0


def test_all_results_at_the_same_instant_end_well(tiny_model: Callable[[str], LoadedModel]) -> None:
    shape = replace(TINY, agents=12, longest_tool=1)
    kept = _run_by_steps(tiny_model("llama"), replace(LARGE, device_blocks=400, policy=PolicyMode.KEEP), shape)
    swapped = _run_by_steps(tiny_model("llama"), replace(CONFIG, host_blocks=200), shape)
    assert swapped.answers == kept.answers
    assert swapped.state.totals.reprefilled_tokens == 0


def test_smollm2_agents_say_the_same_when_swapped(smollm2: LoadedModel) -> None:
    shape = Shape(agents=4, turns=2, prompt=60, answer=5, result=10, longest_tool=4)
    config = EngineConfig(device_blocks=7, host_blocks=40, slots=1, step_tokens=64, context_tokens=128)
    kept = _run_by_steps(smollm2, replace(config, device_blocks=40, policy=PolicyMode.KEEP), shape)
    swapped = _run_by_steps(smollm2, config, shape)
    assert swapped.answers == kept.answers
    assert swapped.state.totals.reprefilled_tokens == 0
    assert swapped.state.link.in_total_bytes > 0


def _converse(engine: Engine, model: LoadedModel, number: int, answers: dict[int, list[tuple[int, ...]]]) -> None:
    """A chat of four turns with a tool between two of them, in a thread of its own."""
    source = random.Random(number)
    name, sampling = f"agent-{number}", Sampling(max_tokens=10, ignore_eos=True)
    tokens = encode_chat(model.tokenizer, [{"role": "user", "content": f"Task {number}: list the files."}])
    said = []
    for turn in range(4):
        done = engine.submit(name, tokens, sampling).result(WAIT_S)
        said.append(done.tokens)
        engine.signal(ToolStarted("b" * 32, f"{number:08x}{turn:08x}", time.time_ns(), "ls", name))
        time.sleep(source.random() * 0.02)
        engine.signal(ToolEnded("b" * 32, f"{number:08x}{turn:08x}", time.time_ns(), "ls", name))
        message = {"role": "tool", "content": f"file-{number}-{turn}"}
        tokens = continue_chat(model.tokenizer, [*tokens, *done.tokens], message)
    answers[number] = said


def _run_by_threads(model: LoadedModel, config: EngineConfig) -> tuple[dict[int, list[tuple[int, ...]]], Snapshot]:
    answers: dict[int, list[tuple[int, ...]]] = {}
    with Engine.start(model, config) as engine:
        threads = [threading.Thread(target=_converse, args=(engine, model, number, answers)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        return answers, engine.state()


def test_threads_of_agents_say_the_same_when_swapped(tiny_model: Callable[[str], LoadedModel]) -> None:
    model = tiny_model("llama")
    config = replace(CONFIG, device_blocks=40, host_blocks=200, slots=3, context_tokens=512)
    kept, _ = _run_by_threads(model, replace(config, device_blocks=300, policy=PolicyMode.KEEP))
    swapped, state = _run_by_threads(model, config)
    assert len(kept) == 8
    assert swapped == kept
    assert state.totals.reprefilled_tokens == 0
    assert state.link.in_total_bytes > 0
