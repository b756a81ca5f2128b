"""What parking costs everybody else, and whether it changes a word: one engine, driven step by step.

Three questions. How much later do the tokens of eight other agents come while one agent a second parks and returns, held
against the same returns with its KV resident? How much of an agent's context does the host have when its tool starts, and
how soon after can all of it be reclaimed? And do agents whose KV leaves the device at every tool call say the same as
agents whose KV never does, in the same batches?
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Final

import torch
from torch import Tensor

from kvtrace.tracer.clock import SYSTEM_CLOCK
from kvtrace.tracer.signals import ToolEnded, ToolStarted

from ..batch import Chunk
from ..build import CoreParts, build_core
from ..config import EngineConfig, PolicyMode
from ..errors import EngineError
from ..model import LoadedModel
from ..process import own_process
from ..rawlink import synchronize
from ..records import EngineEvent, EventKind
from ..sequence import Sampling, Sequence
from ..wording import counted

Plan = tuple[tuple[int, int, int, bool], ...]
"""A step: of each chunk the request, its first position, its length, and whether it sampled."""

WAYS: Final = ("resident", "demand", "prefetched")
_STREAM: Final = 1 << 20  # more output than any stream of a measurement gets to
_PREFETCH_S: Final = 0.1
_HOST_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ParkingSetup:
    """Sizes.

    ``others`` decode all the time; one agent of ``context_tokens`` returns every ``period_s`` with ``new_tokens`` more
    and generates ``output_tokens``, for ``seconds`` each way. ``parks``: in the comparison of tokens, by ``agents``.
    """

    pool_tokens: int
    host_tokens: int
    others: int
    other_tokens: int
    context_tokens: int
    new_tokens: int
    output_tokens: int
    period_s: float
    seconds: float
    agents: int
    parks: int
    step_tokens: int
    limit_tokens: int
    pipelined: bool | None = None


GPU_SETUP: Final = ParkingSetup(55_000, 45_000, 8, 1000, 6900, 100, 16, 1.0, 8.0, 8, 1000, 2048, 12_288)
CPU_SETUP: Final = ParkingSetup(1600, 1600, 2, 40, 150, 16, 4, 0.4, 1.2, 4, 24, 256, 1600)


@dataclass(frozen=True, slots=True)
class GapResult:
    """Milliseconds between two tokens of one of the others, while the agent returned ``way``."""

    way: str
    returns: int
    tokens: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    worst_ms: float
    p99_times_resident: float


@dataclass(frozen=True, slots=True)
class ExactResult:
    """Tokens of the agents that parked ``parks`` times, held against those of agents that never did.

    ``differing_bytes``: of the KV after a round trip, held against before. ``differing_steps``: how many of ``steps`` had
    other chunks in the other run; only where none has can tokens be held against each other in 16 bit.
    ``differing_again``: tokens that differ between two runs that never parked, which is what the kernels do by themselves.
    ``mirrored``: share of an agent's blocks that the host had when its tool started. ``reclaimable_ms``: from the tool's
    start to the end of the last copy out.
    """

    parks: int
    tokens: int
    differing_tokens: int
    differing_again: int
    steps: int
    differing_steps: int
    differing_bytes: int
    restored_bytes: int
    mirrored_mean: float
    mirrored_worst: float
    reclaimable_p50_ms: float
    reclaimable_p99_ms: float


def measure_parking(
    model: LoadedModel, setup: ParkingSetup, on_phase: Callable[[str], None] = lambda phase: None
) -> tuple[list[GapResult], ExactResult]:
    """Answers to all three questions.

    Args:
        model: what runs.
        setup: sizes.
        on_phase: told in a few words what is being done.
    """
    blocks_for = model.geometry.blocks_for
    config = EngineConfig(
        device_blocks=blocks_for(setup.pool_tokens),
        host_blocks=blocks_for(setup.host_tokens),
        slots=max(setup.others + 1, setup.agents),
        step_tokens=setup.step_tokens,
        context_tokens=min(model.context_tokens, setup.limit_tokens),
        policy=PolicyMode.SWAP,
        pipelined=setup.pipelined,
    )
    events: list[EngineEvent] = []
    on_phase("starting the engine")
    parts = build_core(model, config, listener=events.append)
    try:
        with own_process():
            _await_host(parts, config.host_blocks)
            bench = _Stage(parts, model, setup, events)
            gaps = {}
            for way in ("resident", *WAYS):  # the first one warms up
                on_phase(f"others beside a return, {way}")
                gaps[way] = bench.gaps(way)
            on_phase(f"{counted(setup.parks, 'park')}, and none")
            return [_gap_result(way, *gaps[way], gaps["resident"][1]) for way in WAYS], bench.exactness()
    finally:
        parts.mover.close()


def _await_host(parts: CoreParts, blocks: int) -> None:
    """Wait until the whole host tier can be used: a GPU's is pinned in the background."""
    deadline = time.monotonic() + _HOST_S
    while len(parts.core.cache.placement.host.slots) < blocks:
        if time.monotonic() > deadline:
            raise EngineError(f"the host tier of {counted(blocks, 'block')} was not there after {_HOST_S} s")
        parts.core.step()
        time.sleep(0.01)


@dataclass
class _Worker:
    """An agent of the comparison, which works in turns and steps, not in time."""

    name: str
    tokens: list[int]
    source: random.Random
    back_at: int | None = None
    turns: int = 0
    span: ToolStarted | None = None
    answers: list[int] = field(default_factory=list)


class _Stage:
    """One engine and those who use it."""

    def __init__(self, parts: CoreParts, model: LoadedModel, setup: ParkingSetup, events: list[EngineEvent]) -> None:
        self._core, self._setup, self._events = parts.core, setup, events
        self._block_bytes = model.geometry.block_bytes
        self._vocabulary = int(model.model.get_input_embeddings().num_embeddings)
        self._random = random.Random(0)  # noqa: S311 - token ids, no secret
        self._spans = 0
        self._pool = parts.storage.pool
        self._saved: dict[str, list[Tensor]] = {}
        self._differing_bytes = 0

    def gaps(self, way: str) -> tuple[int, list[float]]:
        """How often the agent returned, and all gaps between two tokens of one of the others, in seconds."""
        setup, core = self._setup, self._core
        streams = [self._submit(f"other-{at}", self._draw(setup.other_tokens), _STREAM) for at in range(setup.others)]
        context = self._answer("returner", self._draw(setup.context_tokens), 1)
        heard: dict[int, list[float]] = {stream.id: [] for stream in streams}
        ends = time.perf_counter() + setup.seconds
        returns = 0
        while (now := time.perf_counter()) < ends:
            returns += 1
            context = self._one_return(context, way, heard, now + setup.period_s)
        for stream in streams:
            core.abort(stream.id)
        while core.has_work():
            core.step()
        self._clear(["returner", *(f"other-{at}" for at in range(setup.others))])
        return returns, [after - before for times in heard.values() for before, after in pairwise(times)]

    def _one_return(self, context: list[int], way: str, heard: dict[int, list[float]], due: float) -> list[int]:
        """Wait for a tool until ``due``, come back, generate."""
        core, setup = self._core, self._setup
        start = self._starts("returner")
        evicted, ended = way == "resident", way != "prefetched"
        while (now := time.perf_counter()) < due:
            if not evicted and core.cache.residency("returner").host_blocks == core.cache.residency("returner").blocks:
                core.cache.evict("returner")
                evicted = True
            if not ended and now > due - _PREFETCH_S:
                self._ends(start)
                ended = True
            self._step(heard)
        if way == "demand" and core.cache.residency("returner").device_blocks:
            raise EngineError("the returning agent's KV had not left the device")
        request = self._submit("returner", [*context, *self._draw(setup.new_tokens)], setup.output_tokens)
        while request.finish_reason is None:
            self._step(heard)
        return list(request.tokens)

    def _step(self, heard: dict[int, list[float]]) -> None:
        tokens = self._core.step().tokens
        now = time.perf_counter()
        for number, _ in tokens:
            if number in heard:
                heard[number].append(now)

    def exactness(self) -> ExactResult:
        """The same agents twice, in the same batches: once their KV leaves at every call, once it never does."""
        mirrored: list[float] = []
        waits_ms: list[float] = []
        before = self._core.snapshot().link.in_total_bytes
        parked, plan = self._work("parks", mirrored, waits_ms)
        moved = self._core.snapshot().link.in_total_bytes - before
        kept, kept_plan = self._work("stays", None, None)
        again, _ = self._work("stays again", None, None)
        return ExactResult(
            parks=len(mirrored),
            tokens=sum(map(len, kept)),
            differing_tokens=_differing(parked, kept),
            differing_again=_differing(kept, again),
            steps=len(kept_plan),
            differing_steps=sum(one != other for one, other in zip_longest(plan, kept_plan)),
            differing_bytes=self._differing_bytes,
            restored_bytes=moved,
            mirrored_mean=statistics.fmean(mirrored),
            mirrored_worst=min(mirrored),
            reclaimable_p50_ms=_quantile(waits_ms, 0.5),
            reclaimable_p99_ms=_quantile(waits_ms, 0.99),
        )

    def _work(
        self, salt: str, mirrored: list[float] | None, waits_ms: list[float] | None
    ) -> tuple[list[list[int]], list[Plan]]:
        """The answers of every agent, and the steps. ``salt`` keeps a run from finding what another one computed."""
        core, setup = self._core, self._setup
        agents = []
        for at in range(setup.agents):
            source = random.Random(at)  # noqa: S311 - token ids, no secret
            prompt = [source.randrange(self._vocabulary) for _ in range(100)]
            agents.append(_Worker(f"{salt}-{at}", prompt, source))
        by_name = {agent.name: agent for agent in agents}
        turns = -(-setup.parks // setup.agents)
        plans: list[Plan] = []
        first = self._submit(agents[0].name, agents[0].tokens, 4, salt).id
        core.watch_steps(lambda chunks: plans.append(_plan(chunks, first)))
        for agent in agents[1:]:
            self._submit(agent.name, agent.tokens, 4, salt)
        step = 0
        while any(agent.turns <= turns for agent in agents):
            step += 1
            for agent in agents:
                if agent.back_at == step:
                    self._comes_back(agent, salt, evicted=mirrored is not None)
            for sequence in core.step().finished:
                agent = by_name[sequence.agent]
                agent.answers += sequence.output_tokens
                agent.tokens = [*sequence.tokens, *(agent.source.randrange(self._vocabulary) for _ in range(12))]
                agent.turns += 1
                if agent.turns <= turns:
                    agent.back_at = step + agent.source.randint(1, 5)
                    self._goes_away(agent, mirrored, waits_ms)
        while core.has_work():
            core.step()
        core.watch_steps(lambda chunks: None)
        self._clear(agent.name for agent in agents)
        return [agent.answers for agent in agents], plans

    def _goes_away(self, agent: _Worker, mirrored: list[float] | None, waits_ms: list[float] | None) -> None:
        core = self._core
        residency = core.cache.residency(agent.name)
        there = residency.host_blocks - len(core.cache.copies_out(agent.name))
        self._events.clear()
        started = time.perf_counter()
        agent.span = self._starts(agent.name)
        # In both runs: a request that came before the copy of its partial block has ended would wait for that, and for
        # how long is not the same twice.
        core.settle()
        if mirrored is None or waits_ms is None:
            return
        mirrored.append(there / residency.blocks)
        if not any(event.kind is EventKind.PARK and event.agent == agent.name for event in self._events):
            raise EngineError(f"{agent.name} was not parked")
        waits_ms.append((time.perf_counter() - started) * 1e3)
        self._saved[agent.name] = self._kv(agent.name)
        core.cache.evict(agent.name)
        if core.cache.residency(agent.name).device_blocks:
            raise EngineError(f"the KV of {agent.name} is still on the device")

    def _comes_back(self, agent: _Worker, salt: str, *, evicted: bool) -> None:
        assert agent.span is not None
        self._ends(agent.span)
        # All of it is back before the next step: that has the batch it would have had, had nothing ever left.
        self._core.settle()
        if evicted:
            before, after = self._saved.pop(agent.name), self._kv(agent.name)
            if len(before) != len(after):
                raise EngineError(f"{len(after)} of the {len(before)} blocks of {agent.name} came back")
            self._differing_bytes += sum(_differing_bytes(one, other) for one, other in zip(before, after, strict=True))
        self._submit(agent.name, agent.tokens, 4, salt)

    def _clear(self, agents: Iterable[str]) -> None:
        """Have the device's blocks free again: a prefetch takes none of an agent whose turn is merely over."""
        names = list(agents)
        for name in names:
            self._core.cache.evict(name)
        self._core.settle()
        for name in names:
            self._core.cache.forget(name)

    def _kv(self, agent: str) -> list[Tensor]:
        """A copy of the agent's KV on the device, block by block, without the rows that a partial block does not use."""
        copied = [
            self._pool[piece.device, ..., : len(piece.tokens) or None, :].clone()
            for piece in self._core.cache.pieces(agent)
            if piece.device is not None
        ]
        synchronize(self._pool.device)  # behind the step in flight, which the engine's next copies do not wait for
        return copied

    def _starts(self, agent: str) -> ToolStarted:
        self._spans += 1
        signal = ToolStarted(f"{1:032x}", f"{self._spans:016x}", SYSTEM_CLOCK.unix_ns(), "bench", agent)
        self._core.signal(signal)
        return signal

    def _ends(self, start: ToolStarted) -> None:
        now = SYSTEM_CLOCK.unix_ns()
        self._core.signal(ToolEnded(start.trace_id, start.span_id, now, start.tool, start.agent))

    def _submit(self, agent: str, tokens: list[int], output_tokens: int, salt: str | None = None) -> Sequence:
        most = self._core.most_output_tokens(len(tokens))
        sampling = Sampling(max_tokens=min(output_tokens, most), ignore_eos=True)
        return self._core.submit(agent, tokens, sampling, salt)

    def _answer(self, agent: str, prompt: list[int], output_tokens: int) -> list[int]:
        request = self._submit(agent, prompt, output_tokens)
        while request.finish_reason is None:
            self._core.step()
        return list(request.tokens)

    def _draw(self, count: int) -> list[int]:
        return [self._random.randrange(self._vocabulary) for _ in range(count)]


def _plan(chunks: Seq[Chunk], first: int) -> Plan:
    """What a step computed, whoever asked: which request counted from the ``first``, from where, how much."""
    return tuple((chunk.sequence_id - first, chunk.start, len(chunk.tokens), chunk.sample) for chunk in chunks)


def _differing(ones: list[list[int]], others: list[list[int]]) -> int:
    pairs = (pair for one, other in zip(ones, others, strict=True) for pair in zip(one, other, strict=True))
    return sum(one != other for one, other in pairs)


def _differing_bytes(one: Tensor, other: Tensor) -> int:
    return int((one.contiguous().view(torch.uint8) != other.contiguous().view(torch.uint8)).sum())


def _gap_result(way: str, returns: int, gaps: list[float], resident: list[float]) -> GapResult:
    ms = sorted(gap * 1e3 for gap in gaps)
    return GapResult(
        way=way,
        returns=returns,
        tokens=len(ms),
        p50_ms=_quantile(ms, 0.5),
        p95_ms=_quantile(ms, 0.95),
        p99_ms=_quantile(ms, 0.99),
        worst_ms=ms[-1],
        p99_times_resident=_quantile(ms, 0.99) / (_quantile(resident, 0.99) * 1e3),
    )


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
