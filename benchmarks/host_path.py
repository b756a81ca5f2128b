"""What the engine's own thread has to do for a step and for a return: ``python benchmarks/host_path.py [--json FILE]``.

The real core (cache, policy, sessions, scheduler, forward) with Qwen3-8B's sizes, 48 agents in its tables and eight slots,
over a runner and a mover that only take time, and that in a clock of their own: nothing sleeps. So what is measured is the
processor time of the core's calls alone, in the order and number in which a GPU would cause them.

* a step that only decodes, a step with a prompt's tokens in it, and the dearest steps: what delays the next launch;
* a return, call by call, and in all: everything beyond what as many pure decode steps would have cost.
"""

from __future__ import annotations

import argparse
import cProfile
import heapq
import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from machine import describe
from timed_device import Clock, TimedMover, TimedRunner, Watch

from kvtrace.engine.bench.agents.workload import AgentPlan, Shape, ToolCall, closed_loop
from kvtrace.engine.config import EngineConfig, PolicyMode
from kvtrace.engine.geometry import GPU_BLOCK_TOKENS
from kvtrace.engine.loop import EngineCore, StepResult
from kvtrace.engine.process import own_process
from kvtrace.engine.sequence import Sampling
from kvtrace.engine.simulation.agents import QWEN3_8B
from kvtrace.engine.state import EngineInfo
from kvtrace.engine.swap.contract import Direction
from kvtrace.tracer.signals import ToolEnded, ToolStarted

SCHEMA_VERSION = 1
POOL_TOKENS, HOST_BYTES, SLOTS = 55_000, 48 << 30, 8
SIGNAL_S = 0.002  # from the tool's end to the request
PUBLISH_NS = 100_000_000
PARTS = ("collect", "hand out", "read", "chunks", "launch", "submit copies")


@dataclass
class Figures:
    """What was measured, all in ns of processor time; ``returns`` in the window."""

    steps: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    calls: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    parts: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    returns: int = 0
    reprefilled_tokens: int = 0


@dataclass(frozen=True)
class Setup:
    """What runs. Without ``signals`` no tool tells of its start or end."""

    agents: int
    policy: PolicyMode
    signals: bool
    step_tokens: int
    seed: int
    block_tokens: int


class Stage:
    """The core, its agents and what happens to them, in order of time.

    Figures are taken from when all agents have had their first turn on, or, with a ``shape`` of one turn, from the start.
    """

    def __init__(self, setup: Setup, shape: Shape | None = None) -> None:
        self.clock, self.watch, self.figures = Clock(), Watch(), Figures()
        shaped = replace(QWEN3_8B, block_tokens=setup.block_tokens)
        pools = POOL_TOKENS // shaped.block_tokens, HOST_BYTES // shaped.block_bytes
        self.runner, self.mover = (
            TimedRunner(self.clock, self.watch),
            TimedMover(self.clock, self.watch, shaped.block_bytes),
        )
        shape = shape or Shape(setup.agents)
        config = EngineConfig(*pools, SLOTS, setup.step_tokens, policy=setup.policy, pipelined=True)
        info = EngineInfo(model="random:qwen3-8b", device="none", weights_bytes=0)
        self.core = EngineCore(config, shaped, self.runner, self.mover, self.clock, info)
        self._plans = closed_loop(shape, _tools(setup.seed), setup.seed)
        self._signals = setup.signals
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._turns: dict[str, int] = {}
        self._contexts: dict[str, list[int]] = {}
        self._warm = not shape.returns
        self._told_ns = 0
        for name, owner, attribute in (
            ("collect", self.core, "_collect"),
            ("hand out", self.core._admission, "hand_out"),
            ("read", self.core._forward, "read"),
            ("chunks", self.core._forward, "chunks"),
            ("launch", self.core._forward, "launch"),
            ("submit copies", self.core, "_submit_copies"),
        ):
            setattr(owner, attribute, self.watch.wrap(name, getattr(owner, attribute)))

    def run(self) -> Figures:
        """All turns of all agents."""
        for plan in self._plans:
            self._contexts[plan.name] = plan.new_ids(0)
            self._turns[plan.name] = 0
            self._later(0.0, lambda plan=plan: self._request(plan))  # type: ignore[misc]
        by_name = {plan.name: plan for plan in self._plans}
        while self._events or self.core.has_work():
            while self._events and self._events[0][0] <= self.clock.now_ns:
                heapq.heappop(self._events)[2]()
            result = self._step()
            if result.finished or self.clock.now_ns >= self._told_ns + PUBLISH_NS:
                # As often as the engine tells others how it is.
                self._told_ns = self.clock.now_ns
                self._call("snapshot", lambda: self.core.snapshot(whole=False))
            for sequence in result.finished:
                self._ended(by_name[sequence.agent], list(sequence.tokens))
            if not result.progressed and self._events and not self.core.has_work():
                self.clock.now_ns = max(self.clock.now_ns, self._events[0][0])
        self.figures.reprefilled_tokens = self.core.snapshot().totals.reprefilled_tokens
        return self.figures

    def _step(self) -> StepResult:
        self.runner.chunks = ()
        self.watch.parts.clear()
        before = set(self.core._requests.running)
        result: StepResult
        result, ns = self.watch.time(self.core.step)
        if self._warm:
            lengths = [len(chunk.tokens) for chunk in self.runner.chunks]
            came = any(one.copy.direction is Direction.IN for one in self.mover.polled)
            quiet = before == set(self.core._requests.running) and not came and not result.finished
            kind = "decode" if quiet and lengths == [1] * SLOTS else "other"
            for name in ("all", "mixed" if max(lengths, default=0) > 1 else kind):
                self.figures.steps[name].append(ns)
            for name in PARTS:
                self.figures.parts[name].append(self.watch.parts[name])
        return result

    def _call(self, name: str, call: Callable[[], Any]) -> Any:
        result, ns = self.watch.time(call)
        if self._warm:
            self.figures.calls[name].append(ns)
        return result

    def _request(self, plan: AgentPlan) -> None:
        turn = self._turns[plan.name]
        sampling = Sampling(max_tokens=plan.turns[turn].generated_tokens, ignore_eos=True)
        tokens = self._contexts[plan.name]
        self._call("submit", lambda: self.core.submit(plan.name, tokens, sampling))
        if self._warm:
            self.figures.returns += 1

    def _ended(self, plan: AgentPlan, tokens: list[int]) -> None:
        turn = self._turns[plan.name]
        self._turns[plan.name] = turn + 1
        if not self._warm and min(self._turns.values()) > 0:
            self._warm = True
        call = plan.turns[turn].call
        if call is None:
            return
        self._contexts[plan.name] = [*tokens, *plan.new_ids(turn + 1)]
        if self._signals:
            self._later(SIGNAL_S, lambda: self._tool(plan, call, turn))
        else:
            self._later(2 * SIGNAL_S + call.seconds, lambda: self._request(plan))

    def _tool(self, plan: AgentPlan, call: ToolCall, turn: int) -> None:
        span = (plan.name.encode().hex().zfill(32), f"{turn:016x}")
        start = ToolStarted(*span, self.clock.now_ns, call.tool, plan.name)
        self._call("tool start", lambda: self.core.signal(start))
        end = ToolEnded(*span, self.clock.now_ns + int(call.seconds * 1e9), call.tool, plan.name)
        self._later(call.seconds, lambda: self._call("tool end", lambda: self.core.signal(end)))
        self._later(call.seconds + SIGNAL_S, lambda: self._request(plan))

    def _later(self, seconds: float, action: Callable[[], Any]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.clock.now_ns + int(seconds * 1e9), self._number, action))


def _tools(seed: int) -> Callable[[int, int], ToolCall]:
    def call(agent: int, turn: int) -> ToolCall:
        drawn = Random(f"{seed}/tool/{agent}/{turn}").expovariate(1.0)
        return ToolCall("bench", min(drawn, 5.0) * 1.868)

    return call


def summary(values: list[int]) -> dict[str, float]:
    """Microseconds: the median, the mean, the 99th percentile, the worst, and how many there were."""
    ordered = sorted(values) or [0]
    return {
        "p50_us": ordered[len(ordered) // 2] / 1e3,
        "mean_us": sum(ordered) / len(ordered) / 1e3,
        "p99_us": ordered[int(0.99 * (len(ordered) - 1))] / 1e3,
        "worst_us": ordered[-1] / 1e3,
        "times": len(values),
    }


def run_again(stages: list[Stage]) -> Figures:
    """Run equal stages.

    Each of them makes the same calls in the same order, so of every single call the cheapest counts: what it costs where
    nobody else uses the processor.
    """
    figures, *others = [stage.run() for stage in stages]
    for group in ("steps", "calls", "parts"):
        for name, values in getattr(figures, group).items():
            again = [getattr(other, group)[name] for other in others]
            values[:] = [min(samples) for samples in zip(values, *again, strict=True)]
    return figures


def measure(setup: Setup, repeat: int) -> dict[str, Any]:
    """The figures as a document."""
    alone = [Stage(setup, Shape(SLOTS, returns=0, generated_tokens=400)) for _ in range(repeat)]
    stages = [Stage(setup) for _ in range(repeat)]
    own_process()
    quiet = summary(run_again(alone).steps["decode"])
    figures = run_again(stages)
    # Snapshots come by the clock.
    calls = [ns for name, samples in figures.calls.items() if name != "snapshot" for ns in samples]
    spent = sum(figures.steps["all"]) + sum(calls)
    returns = max(figures.returns, 1)
    return {
        "returns": figures.returns,
        "return_us": spent / 1e3 / returns - quiet["mean_us"] * len(figures.steps["all"]) / returns,
        "steps": {"8 alone": quiet, **{name: summary(values) for name, values in figures.steps.items()}},
        "parts": {name: summary(values) for name, values in figures.parts.items()},
        "calls": {name: summary(values) for name, values in figures.calls.items()},
        "reprefilled_tokens": figures.reprefilled_tokens,
    }


def show(result: dict[str, Any]) -> None:
    """Print a table."""
    print(f"{'µs of processor time':<28}{'p50':>9}{'mean':>9}{'p99':>9}{'worst':>9}{'times':>8}")
    for group in ("steps", "parts", "calls"):
        for name, row in result[group].items():
            figures = "".join(f"{row[key]:>9.0f}" for key in ("p50_us", "mean_us", "p99_us", "worst_us"))
            print(f"{group[:-1]} {name:<{27 - len(group)}} {figures}{row['times']:>8}")
    print(f"a return in all, beyond steps of 8 alone: {result['return_us']:.0f} µs ({result['returns']} returns)")


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=48)
    parser.add_argument("--policy", default="auto", help="auto, swap, eager, recompute or keep")
    parser.add_argument("--no-signals", action="store_true", help="no tool tells of its start or end")
    parser.add_argument("--step-tokens", type=int, default=2048)
    parser.add_argument("--block-tokens", type=int, default=GPU_BLOCK_TOKENS, help="of a KV block")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--profile", type=Path, help="profile the run instead, and write the profile here")
    options = parser.parse_args()
    policy, signals = PolicyMode(options.policy), not options.no_signals
    setup = Setup(options.agents, policy, signals, options.step_tokens, options.seed, options.block_tokens)
    if options.profile:
        with cProfile.Profile(time.thread_time) as profile:
            Stage(setup).run()
        profile.dump_stats(options.profile)
        return
    show(result := measure(setup, options.repeat))
    if options.json:
        document = {"schema_version": SCHEMA_VERSION, "machine": describe(), "setup": asdict(setup), **result}
        options.json.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
