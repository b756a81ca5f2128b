"""A device and a host made of Python lists, with a runner and a mover that keep their contracts strictly.

The KV of a position is a hash of the KV before it and of its token, read through the block table; the next token is
a hash of all KV that the request can see. So a block that is wrong, stale, poisoned or lost changes the output, and
:func:`expected_output` says what the output is without any cache at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from hashlib import blake2b

from kvtrace.engine.batch import UNREAD, Chunk
from kvtrace.engine.config import EngineConfig, PolicyMode
from kvtrace.engine.geometry import KVGeometry
from kvtrace.engine.loop import EngineCore
from kvtrace.engine.records import EngineEvent, EventKind
from kvtrace.engine.sequence import Sampling, Sequence
from kvtrace.engine.state import EngineInfo
from kvtrace.engine.swap.contract import Copy, CopyDone, Direction
from kvtrace.tracer.signals import ToolEnded, ToolStarted

BLOCK = 16
POISON = -1
VOCABULARY = 50
TICK_NS = 100_000_000
GEOMETRY = KVGeometry(layers=2, kv_heads=1, head_dim=4, element_bytes=4)
INFO = EngineInfo(model="lists", device="python", weights_bytes=0)


def mix(*values: int) -> int:
    return int.from_bytes(blake2b(repr(values).encode(), digest_size=6).digest())


def next_token(kv: Seq[int]) -> int:
    return mix(*kv) % VOCABULARY


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


class Memory:
    """Rows of KV by device block and host slot."""

    def __init__(self, device_blocks: int, host_slots: int) -> None:
        self.device = [[POISON] * BLOCK for _ in range(device_blocks)]
        self.host = [[POISON] * BLOCK for _ in range(host_slots)]


class Device:
    """Carries out launches in their order, each at some moment before somebody waits for it: at once unless ``late``."""

    def __init__(self, seed: int, late: bool) -> None:
        self.launched = self.executed = 0
        self._late = late
        self._random = random.Random(seed)
        self._queue: list[Callable[[], None]] = []

    def launch(self, work: Callable[[], None]) -> int:
        """Queue ``work``; how many launches there were with it."""
        self._queue.append(work)
        self.launched += 1
        if not self._late:
            self.run_to(self.launched)
        return self.launched

    def run_to(self, ticket: int) -> None:
        while self.executed < ticket:
            self._queue.pop(0)()
            self.executed += 1

    def drift(self) -> None:
        """Time passes: perhaps some of what waits is carried out."""
        self.run_to(self._random.randint(self.executed, self.launched))


class Launch:
    """One step of :class:`ListRunner`."""

    def __init__(self, runner: ListRunner, chunks: Seq[Chunk], before: Launch | None, error: Exception | None) -> None:
        self.chunks, self.error = tuple(chunks), error
        self.results: dict[int, int] = {}
        self.broken: set[int] = set()
        self.read = False
        self._runner, self._before = runner, before
        for chunk in chunks:
            sampled = before is not None and any(c.sequence_id == chunk.sequence_id and c.sample for c in before.chunks)
            assert UNREAD not in chunk.tokens or sampled, f"nobody samples a token for sequence {chunk.sequence_id}"
        self.ticket = runner.device.launch(self.carry_out)

    def carry_out(self) -> None:
        before = self._before
        if self.error is not None:
            self.broken = {chunk.sequence_id for chunk in self.chunks}
        for chunk in self.chunks if self.error is None else ():
            if before is not None and chunk.sequence_id in before.broken:
                self.broken.add(chunk.sequence_id)  # on a real device: garbage from garbage
                continue
            unread = before.results.get(chunk.sequence_id, 0) if before is not None else 0
            tokens = tuple(unread if token == UNREAD else token for token in chunk.tokens)
            self._runner.write(chunk, tokens)
            if chunk.sample:
                self.results[chunk.sequence_id] = self._runner.sample(chunk)
        self._before = None

    def tokens(self) -> dict[int, int]:
        assert not self.read, "a step is read twice"
        self.read = True
        self._runner.device.run_to(self.ticket)
        if self.error is not None:
            raise self.error
        return self.results | dict.fromkeys(self.broken, 0)


class ListRunner:
    """Computes chunks over :class:`Memory`; ``fail`` makes the next launch raise, ``fail_late`` its reading."""

    def __init__(self, memory: Memory, device: Device) -> None:
        self.memory = memory
        self.device = device
        self.fail: Exception | None = None
        self.fail_late: Exception | None = None
        self.chunks: list[Chunk] = []
        self._last: Launch | None = None

    def launch(self, chunks: Seq[Chunk]) -> Launch:
        self.chunks = list(chunks)
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        late, self.fail_late = self.fail_late, None
        self._last = Launch(self, chunks, self._last, late)
        return self._last

    def run(self, chunks: Seq[Chunk]) -> dict[int, int]:
        return self.launch(chunks).tokens()

    def _row(self, chunk: Chunk, position: int) -> int:
        value = self.memory.device[chunk.table[position // BLOCK]][position % BLOCK]
        assert value != POISON, f"sequence {chunk.sequence_id} reads position {position} before it was there"
        return value

    def write(self, chunk: Chunk, tokens: Seq[int]) -> None:
        for position, token in enumerate(tokens, chunk.start):
            before = self._row(chunk, position - 1) if position else 0
            if position >= chunk.write_from:
                self.memory.device[chunk.table[position // BLOCK]][position % BLOCK] = mix(before, token)
            assert self._row(chunk, position) == mix(before, token)

    def sample(self, chunk: Chunk) -> int:
        return next_token([self._row(chunk, position) for position in range(chunk.start + len(chunk.tokens))])


@dataclass
class _Flight:
    copy: Copy
    due: int
    after: int  # the launches that come before it
    source: list[int] | None = None  # what it reads, once it runs


class ListMover:
    """Carries copies out after random delays and in any order that the contract allows.

    While a copy runs, its target is poisoned, and both ends must be as they were when it ends: whoever touches a
    block or slot too early breaks an assertion or an output. A copy fails with probability ``failures``.
    """

    def __init__(
        self, memory: Memory, device: Device, seed: int = 0, most_delay: int = 4, failures: float = 0.0
    ) -> None:
        self.memory = memory
        self.failures = failures
        self.held = False
        self.moved = {Direction.OUT: 0, Direction.IN: 0}
        self._device = device
        self._random = random.Random(seed)
        self._most_delay = most_delay
        self._flights: list[_Flight] = []
        self._tick = 0

    def submit(self, copies: Seq[Copy]) -> None:
        for copy in copies:
            busy_blocks = {flight.copy.device_block for flight in self._flights}
            busy_slots = {flight.copy.host_slot for flight in self._flights}
            assert copy.device_block not in busy_blocks, "two copies at one block"
            assert copy.host_slot not in busy_slots, "two copies at one slot"
            delay = self._random.randint(0, self._most_delay)
            self._flights.append(_Flight(copy, self._tick + delay, self._device.launched))
        self._start()

    def poll(self) -> list[CopyDone]:
        self._tick += 1
        self._device.drift()
        self._start()
        if self.held:
            return []
        over = [flight for flight in self._flights if flight.due < self._tick and flight.source is not None]
        self._flights = [flight for flight in self._flights if flight not in over]
        self._random.shuffle(over)
        return [self._finish(flight) for flight in over]

    def wait(self, timeout_s: float) -> None:
        assert not self.held, "the engine waits for copies that the test holds back"
        if self._flights:
            self._device.run_to(self._device.launched)
            self._start()
            self._tick = max(self._tick, min(flight.due for flight in self._flights))

    def in_flight(self) -> int:
        return len(self._flights)

    def close(self) -> None:
        self.held = False

    def copies(self) -> list[Copy]:
        return [flight.copy for flight in self._flights]

    def _start(self) -> None:
        """Begin the copies whose launches have been carried out."""
        for flight in self._flights:
            if flight.source is None and flight.after <= self._device.executed:
                source, target = self._ends(flight.copy)
                target[:] = [POISON] * BLOCK
                flight.source = list(source)

    def _ends(self, copy: Copy) -> tuple[list[int], list[int]]:
        device, host = self.memory.device[copy.device_block], self.memory.host[copy.host_slot]
        return (device, host) if copy.direction is Direction.OUT else (host, device)

    def _finish(self, flight: _Flight) -> CopyDone:
        source, target = self._ends(flight.copy)
        assert source == flight.source, f"somebody changed the source of {flight.copy}"
        assert target == [POISON] * BLOCK, f"somebody wrote into the target of {flight.copy}"
        if self._random.random() < self.failures:
            return CopyDone(flight.copy, self._tick * TICK_NS, self._tick * TICK_NS, error="the link broke")
        target[:] = source
        self.moved[flight.copy.direction] += 1
        return CopyDone(flight.copy, self._tick * TICK_NS, (self._tick + 1) * TICK_NS)


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
    clock: ManualClock = field(default_factory=ManualClock)
    events: list[EngineEvent] = field(default_factory=list)
    spans: int = 0

    def __post_init__(self) -> None:
        config = EngineConfig(
            device_blocks=self.device_blocks,
            host_blocks=self.host_blocks,
            slots=self.slots,
            step_tokens=self.step_tokens,
            context_tokens=4096,
            queue_requests=self.queue_requests,
            policy=self.policy,
            signal_ttl_s=self.ttl_s,
            pipelined=self.pipelined,
            step_copy_bytes=self.step_copies * GEOMETRY.block_bytes,
        )
        self.memory = Memory(self.device_blocks, self.host_blocks)
        self.device = Device(self.seed, late=self.pipelined)
        self.runner = ListRunner(self.memory, self.device)
        self.mover = ListMover(self.memory, self.device, self.seed, self.most_delay, self.failures)
        self.core = EngineCore(config, GEOMETRY, self.runner, self.mover, self.clock, INFO, self.events.append)

    def submit(self, agent: str, tokens: Seq[int], max_tokens: int = 4) -> Sequence:
        return self.core.submit(agent, tokens, Sampling(max_tokens=max_tokens))

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
