"""``kvtrace bench return``: how long an agent that comes back from a tool waits for its first token, by where its KV is.

Through the whole engine in this process, threads included. Every sample is a context of its own:
resident; parked, its blocks handed to another agent, and brought back by its request (*demand*) or by the tool's end
before the request comes (*prefetched*); computed again from nothing. That the blocks had really left, or were really
back, is checked before the request is sent: a return that found its KV on the device would flatter the link.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch

from kvtrace.tracer.clock import SYSTEM_CLOCK
from kvtrace.tracer.signals import ToolEnded, ToolStarted

from ..api import Engine
from ..config import EngineConfig, PolicyMode
from ..errors import EngineError
from ..geometry import KVGeometry
from ..model import LoadedModel
from ..process import own_process
from ..rawlink import RawLink
from ..records import AgentRecord, EngineEvent, EventKind
from ..sequence import Sampling, Usage
from ..swap.contract import Direction
from .link import repeat

CASES: Final = ("resident", "demand", "prefetched", "recomputed")
_WAIT_S: Final = 60.0
_POLL_S: Final = 0.0005
_SPARE_BLOCKS: Final = 4
_LINK_BYTES: Final = 256 << 20
_LINK_BYTES_CPU: Final = 32 << 20
_LINK_REPEATS: Final = 7


@dataclass(frozen=True, slots=True)
class ReturnSetup:
    """What comes back: a context of ``context_tokens`` and ``new_tokens`` more; each case ``repeats`` times.

    ``slots`` and ``limit_tokens`` (0: just enough) are the engine's limits.
    """

    context_tokens: int
    new_tokens: int
    repeats: int
    output_tokens: int = 4
    step_tokens: int = 2048
    slots: int = 2
    limit_tokens: int = 0


GPU_SETUP: Final = ReturnSetup(6900, 100, 9, slots=9, limit_tokens=12_288)
"""The limits are those of :data:`.parking.GPU_SETUP`: what was compiled for one bench serves the other."""

CPU_SETUP: Final = ReturnSetup(300, 20, 3, step_tokens=256)


@dataclass(frozen=True, slots=True)
class ReturnResult:
    """One case, medians. ``restored_bytes`` crossed the link between request (or tool end) and first token.

    ``restore_ms``: first copy's start to last copy's end; ``link_ms``: what the link alone takes for as many bytes.
    ``exposed``: how much later than a resident agent's the first token came, as a multiple of ``link_ms``. ``launched_ms``:
    what of the time to the first token had passed when its step was launched; ``waited_ms``: how much longer than a resident
    agent's that step then took, because it waited on the device for KV still to come.
    """

    case: str
    repeats: int
    first_token_ms: float
    worst_first_token_ms: float
    times_resident: float
    restored_bytes: int
    restore_ms: float | None
    link_ms: float | None
    exposed: float | None
    prefilled_tokens: int
    launched_ms: float
    waited_ms: float | None


def engine_config(geometry: KVGeometry, setup: ReturnSetup, policy: PolicyMode = PolicyMode.SWAP) -> EngineConfig:
    """An engine whose pool holds one such agent and little more, so that another one drives it out."""
    tokens = setup.context_tokens + setup.new_tokens + setup.output_tokens + 1
    blocks = geometry.blocks_for(tokens) + _SPARE_BLOCKS
    return EngineConfig(
        device_blocks=blocks,
        host_blocks=6 * blocks,
        slots=setup.slots,
        step_tokens=setup.step_tokens,
        context_tokens=max(setup.limit_tokens, blocks * geometry.block_tokens),
        policy=policy,
    )


def measure_returns(
    model: LoadedModel,
    setup: ReturnSetup,
    policy: PolicyMode = PolicyMode.SWAP,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> tuple[float, list[ReturnResult]]:
    """The link's rate in bytes a second, host to device, and every case.

    Args:
        model: what runs.
        setup: sizes.
        policy: under which agents wait; it must have a host tier.
        on_phase: told in a few words what is being done.

    Raises:
        EngineError: an agent's KV did not go where the case needs it.
    """
    on_phase("measuring the link")
    link = link_bytes_per_s(model.device)
    config = engine_config(model.geometry, setup, policy)
    config = replace(config, context_tokens=min(config.context_tokens, model.context_tokens), link_bytes_per_s=link)
    on_phase("starting the engine")
    with Engine.start(model, config) as engine, own_process():
        bench = _Bench(engine, model, setup, config)
        bench.await_host()
        on_phase("warming up")
        for case in CASES:
            bench.sample(case)
        samples: dict[str, list[_Sample]] = {case: [] for case in CASES}
        # Interleaved, so that a machine that becomes slower or faster meanwhile does so for all cases alike.
        for repeat in range(setup.repeats):
            for case in CASES:
                on_phase(f"{case}, {repeat + 1} of {setup.repeats}")
                samples[case].append(bench.sample(case))
    return link, [_result(case, samples[case], samples["resident"], link) for case in CASES]


def link_bytes_per_s(device: torch.device) -> float:
    """Bytes a second from (pinned) host memory to ``device``, in one copy."""
    size = _LINK_BYTES if device.type == "cuda" else _LINK_BYTES_CPU
    link = RawLink(device, size)
    return size / repeat(_LINK_REPEATS, lambda: link.copy(Direction.IN))


@dataclass(frozen=True, slots=True)
class _Sample:
    first_s: float
    usage: Usage
    restored_bytes: int
    restore_ms: float | None

    @property
    def launched_s(self) -> float:
        return self.usage.queued_s + self.usage.restoring_s


class _Bench:
    """Agents of one engine, each sent away and brought back once."""

    def __init__(self, engine: Engine, model: LoadedModel, setup: ReturnSetup, config: EngineConfig) -> None:
        self._engine, self._setup, self._config = engine, setup, config
        self._geometry = model.geometry
        self._random = random.Random(0)  # noqa: S311 - token ids, no secret
        self._vocabulary = int(model.model.get_input_embeddings().num_embeddings)
        self._agents = 0
        self._events: list[EngineEvent] = []
        self._heard = threading.Lock()
        engine.on_event(self._hear)

    def await_host(self) -> None:
        """Wait until the whole host tier can be used: a GPU's is pinned in the background."""
        wanted = self._config.host_blocks * self._geometry.block_bytes
        deadline = time.monotonic() + _WAIT_S
        while self._engine.state().tiers.host.total_bytes < wanted:
            if time.monotonic() > deadline:
                raise EngineError(f"the host tier of {wanted:,} bytes was not there after {_WAIT_S} s")
            time.sleep(0.01)

    def sample(self, case: str) -> _Sample:
        """One return. The agents of a case follow each other under one name, so that the host keeps the last one's KV."""
        self._agents += 1
        agent = f"agent-{case}"
        answer = self._answer(agent, self._tokens(self._setup.context_tokens), 1)
        context = [*answer, *self._tokens(self._setup.new_tokens)]
        if case in ("demand", "prefetched"):
            self._send_away(agent)
        if case == "prefetched":
            self._bring_back(agent)
        self._settle()
        restored = self._take(agent)
        return self._return(agent, context, case, restored if case == "prefetched" else [])

    def _return(self, agent: str, context: list[int], case: str, restored: list[EngineEvent]) -> _Sample:
        salt = "nothing is shared" if case == "recomputed" else None
        sampling = Sampling(max_tokens=self._setup.output_tokens, ignore_eos=True)
        started = time.perf_counter()
        stream = self._engine.submit(agent, context, sampling, salt=salt)
        next(iter(stream))
        first_s = time.perf_counter() - started
        usage = stream.result(_WAIT_S).usage
        self._settle()
        restores = restored or self._take(agent)
        self._blocks(agent, 2)
        restored_bytes = sum(event.bytes for event in restores)
        # Not by the tokens found on the device: the first blocks may be back before the request is admitted.
        least = self._setup.context_tokens // self._geometry.block_tokens * self._geometry.block_bytes
        if case == "demand" and restored_bytes < least:
            raise EngineError(f"{agent} should have come from the host, but {restored_bytes:,} bytes of {least:,} did")
        if case in ("resident", "prefetched") and (usage.cached_host_tokens or usage.reprefilled_tokens):
            raise EngineError(f"{agent} should have been resident, but was not: {usage}")
        return _Sample(
            first_s,
            usage,
            restored_bytes,
            max((event.duration_ms for event in restores if event.duration_ms is not None), default=None),
        )

    def _send_away(self, agent: str) -> None:
        """Let a tool start, and another agent need the whole pool."""
        self._blocks(agent, 1)
        crowd = "crowd"
        pool = self._config.device_blocks * self._geometry.block_tokens
        self._answer(crowd, self._tokens(min(pool, self._config.context_tokens - 1) - 1), 1)
        self._blocks(crowd, 3)
        self._await(agent, lambda record: record.vram_bytes == 0, "leave the device")

    def _blocks(self, agent: str, call: int) -> None:
        """Let a tool of ``agent`` start, so that others may have its blocks."""
        self._engine.signal(ToolStarted(f"{self._agents:032x}", f"{call:016x}", _now(), "bench", agent))
        self._settle()

    def _bring_back(self, agent: str) -> None:
        self._take(agent)
        self._engine.signal(ToolEnded(f"{self._agents:032x}", f"{1:016x}", _now(), "bench", agent))
        self._await(agent, lambda record: record.vram_bytes >= record.host_bytes > 0, "come back to the device")
        self._settle()

    def _answer(self, agent: str, prompt: list[int], max_tokens: int) -> list[int]:
        completion = self._engine.submit(agent, prompt, Sampling(max_tokens=max_tokens, ignore_eos=True)).result(
            _WAIT_S
        )
        return [*prompt, *completion.tokens]

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(self._vocabulary) for _ in range(count)]

    def _settle(self) -> None:
        """Wait until no copy runs and nothing moves any more."""
        self._engine.drain(_WAIT_S, copies=True)

    def _await(self, agent: str, holds: Callable[[AgentRecord], bool], what: str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while True:
            record = next((one for one in self._engine.state().agents if one.agent == agent), None)
            if record is not None and holds(record):
                return
            if time.monotonic() > deadline:
                raise EngineError(f"the KV of {agent} did not {what} within {_WAIT_S} s: {record}")
            time.sleep(_POLL_S)

    def _hear(self, event: EngineEvent) -> None:
        with self._heard:
            self._events.append(event)

    def _take(self, agent: str) -> list[EngineEvent]:
        """The agent's restores heard of since the last call."""
        with self._heard:
            found = [event for event in self._events if event.agent == agent and event.kind is EventKind.RESTORE]
            self._events.clear()
        return found


def _result(case: str, samples: list[_Sample], resident: list[_Sample], link: float) -> ReturnResult:
    first_s, resident_s = (statistics.median(sample.first_s for sample in some) for some in (samples, resident))
    step_s, resident_step_s = (
        statistics.median(sample.first_s - sample.launched_s for sample in some) for some in (samples, resident)
    )
    moved = int(statistics.median(sample.restored_bytes for sample in samples))
    restores = [sample.restore_ms for sample in samples if sample.restore_ms is not None]
    link_s = moved / link if moved else None
    return ReturnResult(
        case=case,
        repeats=len(samples),
        first_token_ms=first_s * 1e3,
        worst_first_token_ms=max(sample.first_s for sample in samples) * 1e3,
        times_resident=first_s / resident_s,
        restored_bytes=moved,
        restore_ms=statistics.median(restores) if restores else None,
        link_ms=None if link_s is None else link_s * 1e3,
        exposed=(first_s - resident_s) / link_s if link_s and case == "demand" else None,
        prefilled_tokens=int(statistics.median(sample.usage.prefilled_tokens for sample in samples)),
        launched_ms=statistics.median(sample.launched_s for sample in samples) * 1e3,
        waited_ms=(step_s - resident_step_s) * 1e3 if case == "demand" else None,
    )


def _now() -> int:
    return SYSTEM_CLOCK.unix_ns()
