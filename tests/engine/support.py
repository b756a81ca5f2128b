"""A device and a host made of Python lists, with a runner and a mover that keep their contracts strictly.

The KV of a position is a hash of the KV before it and of its token, read through the block table; the next token is
a hash of all KV that the request can see. So a block that is wrong, stale, poisoned or lost changes the output, and
:func:`expected_output` says what the output is without any cache at all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from kvtrace.engine.config import EngineConfig, PolicyMode
from kvtrace.engine.geometry import KVGeometry
from kvtrace.engine.loop import EngineCore
from kvtrace.engine.records import EngineEvent, EventKind
from kvtrace.engine.sequence import Sampling, Sequence
from kvtrace.engine.state import EngineInfo
from kvtrace.tracer.signals import ToolEnded, ToolStarted

from .lists import BLOCK as BLOCK
from .lists import VOCABULARY, Device, ListMover, ListRunner, Memory, mix, next_token

GEOMETRY = KVGeometry(layers=2, kv_heads=1, head_dim=4, element_bytes=4)
INFO = EngineInfo(model="lists", device="python", weights_bytes=0)


def expected_output(prompt: Seq[int], sampling: Sampling) -> list[int]:
    """What a request must answer, computed from nothing."""
    kv: list[int] = []
    output: list[int] = []
    for token in prompt:
        kv.append(mix(kv[-1] if kv else 0, token))
    while len(output) < sampling.max_tokens:
        token = next_token(kv)
        if token in sampling.stop_ids and not sampling.ignore_eos:
            break
        output.append(token)
        kv.append(mix(kv[-1], token))
    return output


class ManualClock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def unix_ns(self) -> int:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


@dataclass
class World:
    """An engine over lists, and everything that a test wants to turn or see. Every step checks integrity."""

    policy: PolicyMode = PolicyMode.SWAP
    device_blocks: int = 16
    host_blocks: int = 64
    slots: int = 4
    step_tokens: int = 32
    seed: int = 0
    most_delay: int = 4
    failures: float = 0.0
    ttl_s: float = 3600.0
    queue_requests: int = 1024
    pipelined: bool = False
    step_copies: int = 10**6
    fences: float = 0.0
    max_agents: int | None = None
    stop_ids: tuple[int, ...] = ()
    mixed_step_tokens: int | None = None
    clock: ManualClock = field(default_factory=ManualClock)
    events: list[EngineEvent] = field(default_factory=list)
    spans: int = 0

    def __post_init__(self) -> None:
        config = EngineConfig(
            device_blocks=self.device_blocks,
            host_blocks=self.host_blocks,
            slots=self.slots,
            step_tokens=self.step_tokens,
            mixed_step_tokens=self.mixed_step_tokens,
            context_tokens=4096,
            queue_requests=self.queue_requests,
            policy=self.policy,
            signal_ttl_s=self.ttl_s,
            pipelined=self.pipelined,
            step_copy_bytes=self.step_copies * GEOMETRY.block_bytes,
            max_agents=self.max_agents,
        )
        self.memory = Memory(self.device_blocks, self.host_blocks)
        self.device = Device(self.seed, late=self.pipelined)
        self.runner = ListRunner(self.memory, self.device)
        self.mover = ListMover(self.memory, self.device, self.seed, self.most_delay, self.failures, self.fences)
        self.core = EngineCore(config, GEOMETRY, self.runner, self.mover, self.clock, INFO, self.events.append)

    def submit(self, agent: str, tokens: Seq[int], max_tokens: int = 4) -> Sequence:
        return self.core.submit(agent, tokens, Sampling(max_tokens=max_tokens, stop_ids=self.stop_ids))

    def step(self, count: int = 1) -> list[Sequence]:
        finished: list[Sequence] = []
        for _ in range(count):
            self.clock.pass_s(0.01)
            finished += self.core.step().finished
            self.core.check()
        return finished

    def run(self, most_steps: int = 5000) -> list[Sequence]:
        """Step until nothing is left to do."""
        finished: list[Sequence] = []
        for _ in range(most_steps):
            if not self.core.has_work():
                return finished
            finished += self.step()
        raise AssertionError(f"not done after {most_steps} steps")

    def run_until(self, request: Sequence, most_steps: int = 500) -> None:
        """Step until ``request`` is over."""
        for _ in range(most_steps):
            if request.finish_reason is not None:
                return
            self.step()
        raise AssertionError(f"not done after {most_steps} steps")

    def ask(self, agent: str, tokens: Seq[int], max_tokens: int = 4) -> Sequence:
        """Submit, run everything until nothing is left to do, and check the answer."""
        sequence = self.submit(agent, tokens, max_tokens)
        self.run()
        check_answer(sequence)
        return sequence

    def tool_starts(self, agent: str, tool: str = "grep", call_id: str | None = None) -> ToolStarted:
        self.spans += 1
        self.clock.pass_s(0.001)
        signal = ToolStarted("t" * 32, f"{self.spans:016x}", self.clock.now, tool, agent, call_id=call_id)
        self.core.signal(signal)
        self.core.check()
        return signal

    def tool_ends(self, start: ToolStarted) -> ToolEnded:
        self.clock.pass_s(0.001)
        signal = ToolEnded(
            start.trace_id, start.span_id, self.clock.now, start.tool, start.agent, call_id=start.call_id
        )
        self.core.signal(signal)
        self.core.check()
        return signal

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.events]


def check_answer(sequence: Sequence) -> None:
    assert sequence.finish_reason in ("length", "stop"), f"{sequence.finish_reason}: {sequence.error}"
    prompt = sequence.tokens[: sequence.prompt_tokens]
    assert sequence.output_tokens == expected_output(prompt, sequence.sampling)


def tokens(count: int, seed: int = 0) -> list[int]:
    """A reproducible prompt."""
    source = random.Random(seed)
    return [source.randrange(VOCABULARY) for _ in range(count)]


def park_and_evict(world: World, agent: str, length: int = 70) -> list[int]:
    """Let ``agent`` answer once, wait for a tool, and lose its device blocks to another; its context is returned."""
    context = world.ask(agent, tokens(length, seed=ord(agent[0]))).tokens
    world.tool_starts(agent)
    world.run()
    world.ask("crowd", tokens(world.device_blocks * BLOCK - 8, seed=98))
    return context
