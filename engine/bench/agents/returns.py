"""``kvtrace bench return --url``: an agent that comes back to a server over HTTP, alone on it, by where its KV is.

The server is a running ``kvtrace serve``. Every sample is a context of its own, sent with the client of
``kvtrace bench agents``. Prompts of other agents drive an agent's KV out, and the server's own state tells that none of it
is left in VRAM before the return is sent: one that found its KV on the device would flatter the link.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, Final

import aiohttp

from kvtrace.tracer import attributes as names
from kvtrace.tracer.clock import SYSTEM_CLOCK
from kvtrace.tracer.otlp_proto import Sender, encode_request, encode_signal
from kvtrace.tracer.signals import Signal, ToolEnded, ToolStarted

from ...errors import EngineError
from ...geometry import BLOCK_TOKENS
from .client import ANSWER_TIMEOUT_S, CompletionClient, Context, TurnRecord
from .figures import Spread
from .watcher import read_state

RESIDENT: Final = "resident"
DEMAND: Final = "demand"
PREFETCHED: Final = "prefetched"
RECOMPUTED: Final = "recomputed"

_WAIT_S: Final = 60.0
_LOOK_S: Final = 0.01
_STILL: Final = 3  # looks at the state in a row between which nothing was copied
_MOVING: Final = frozenset({"generating", "queued", "parking", "restoring"})
_FIRST_ID: Final = 1000
_LARGE: Final = 8  # contexts in a pool that takes long to fill
_TRACE_ID: Final = f"{1:032x}"
_SPANS: Final = {"Content-Type": "application/x-protobuf"}
_SENDER: Final = Sender.of({names.SERVICE_NAME: "kvtrace-bench"}, "kvtrace.bench", "")


@dataclass(frozen=True, slots=True)
class ReturnShape:
    """What comes back: a context of ``context_tokens`` with ``new_tokens`` more; each case ``repeats`` times.

    Token ids are below ``vocabulary``.
    """

    context_tokens: int
    new_tokens: int
    repeats: int
    generated_tokens: int = 4
    vocabulary: int = 30_000


GPU_SHAPE: Final = ReturnShape(6900, 100, 20)
CPU_SHAPE: Final = ReturnShape(300, 20, 3)


@dataclass(frozen=True, slots=True)
class HttpReturn:
    """One case. First tokens are counted from sending the request to reading it; medians unless the name says otherwise.

    ``restored_bytes`` crossed the link between the request (or the tool's end) and the end of the answer; ``waited_ms``:
    how long the request waited, by the server's own figures, for a slot and for KV. ``computed_tokens`` of the prompt
    came from no cache.
    """

    case: str
    repeats: int
    first_token_ms: float
    p95_first_token_ms: float
    worst_first_token_ms: float
    times_resident: float
    restored_bytes: int
    waited_ms: float
    computed_tokens: int
    first_tokens_ms: tuple[float, ...]


def cases_of(policy: str) -> tuple[str, ...]:
    """What can be measured under ``policy``: without a host tier what has left can only be computed again."""
    if policy in ("keep", "recompute"):
        return RESIDENT, RECOMPUTED
    return RESIDENT, DEMAND, PREFETCHED, RECOMPUTED


async def measure_returns(
    url: str,
    model: str,
    limit_tokens: int,
    shape: ReturnShape,
    *,
    key: str | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
    on_hint: Callable[[str], None] = lambda hint: None,
) -> list[HttpReturn]:
    """Every case of the server's policy. Nobody else may be at work there.

    Args:
        url: base URL of a ``kvtrace serve``, without ``/v1``.
        model: its model's id.
        limit_tokens: the longest context that it takes.
        shape: sizes.
        key: bearer key.
        on_phase: told in a few words what is being done.
        on_hint: told once what would make it much faster.

    Raises:
        EngineError: the context is too long, a request failed, or an agent's KV did not go where the case needs it.
    """
    longest = shape.context_tokens + 1 + shape.new_tokens + shape.generated_tokens
    if longest > limit_tokens:
        raise EngineError(f"a return takes {longest:,} tokens in all, the server's context has {limit_tokens:,}")
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=ANSWER_TIMEOUT_S)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        bench = _Bench(session, url, model, limit_tokens, shape, on_hint)
        cases = cases_of(await bench.begin())
        on_phase("warming up")
        for case in cases:
            await bench.sample(case, evicted=DEMAND not in cases)
        samples: dict[str, list[_Sample]] = {case: [] for case in cases}
        # Interleaved, so that a machine that becomes slower or faster meanwhile does so for all cases alike.
        for repeat in range(shape.repeats):
            for case in cases:
                on_phase(f"{case}, {repeat + 1} of {shape.repeats}")
                samples[case].append(await bench.sample(case, evicted=DEMAND not in cases))
    return [_result(case, samples[case], samples[RESIDENT]) for case in cases]


@dataclass(frozen=True, slots=True)
class _Sample:
    turn: TurnRecord
    restored_bytes: int

    @property
    def first_ms(self) -> float:
        assert self.turn.ttft_s is not None
        return self.turn.ttft_s * 1e3


class _Bench:
    """Agents of one server, each sent away and brought back once."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        limit_tokens: int,
        shape: ReturnShape,
        on_hint: Callable[[str], None],
    ) -> None:
        self._session, self._url, self._limit, self._shape = session, url, limit_tokens, shape
        self._on_hint: Callable[[str], None] | None = on_hint
        self._client = CompletionClient(session, url, model)
        self._random = Random(time.time_ns())  # noqa: S311 - prompts that the server has not seen, no secret
        self._calls = count(time.time_ns())
        self._block_tokens = BLOCK_TOKENS

    async def begin(self) -> str:
        """Ask the server for the size of its blocks, and for its policy, which is returned.

        Raises:
            EngineError: it could bring back nothing, or tells no size.
        """
        state = await self.state()
        size, policy = state.get("block_tokens") or BLOCK_TOKENS, str(state["policy"])
        if type(size) is not int or size < 1:
            raise EngineError(f"{self._url} says that its blocks have {size!r} tokens: is its kvtrace of another age?")
        if DEMAND in cases_of(policy) and not state["tiers"]["host"]["total_bytes"]:
            raise EngineError(
                f"the server has no host tier for parked KV to come back from: give it a --kv-host, or --policy "
                f"recompute instead of {policy}"
            )
        self._block_tokens = size
        return policy

    async def state(self) -> dict[str, Any]:
        """The server's."""
        state = await read_state(self._session, self._url)
        if state is None:
            raise EngineError(f"{self._url} does not tell its state: it went away, or is no `kvtrace serve`")
        return state

    async def sample(self, case: str, *, evicted: bool) -> _Sample:
        """One return. ``evicted``: what is computed again was there and has been driven out; else nobody has seen it."""
        agent, shape, others = f"return-{case}", self._shape, list[str]()
        context, call = Context(), None
        context.extend(self._tokens(shape.context_tokens))
        if case != RECOMPUTED or evicted:
            first = await self._answer(agent, context, 1)
            context.extend(first.output_ids)
            if case != RESIDENT:
                call = await self._send_away(agent, others)
        else:
            context.extend(self._tokens(1))
        context.extend(self._tokens(shape.new_tokens))
        crossed = _crossed(await self._settled())
        if case == PREFETCHED and call is not None:
            await self._bring_back(agent, call)
        turn = await self._answer(agent, context, shape.generated_tokens)
        after = await self._settled()
        sample = _Sample(turn, _crossed(after) - crossed)
        self._check(case, sample, after["agents"], evicted=evicted)
        for name in (agent, *others):
            await self._forget(name)
        return sample

    def _check(self, case: str, sample: _Sample, agents: list[dict[str, Any]], *, evicted: bool) -> None:
        """See that the KV was where the case says, by what the server tells of the request and what crossed its link."""
        turn, shape = sample.turn, self._shape
        whole = shape.context_tokens // self._block_tokens * self._block_tokens
        cached = turn.cached_tokens or 0
        if case == RECOMPUTED:
            right = cached < self._block_tokens and (not evicted or (turn.reprefilled_tokens or 0) >= whole)
        else:
            right = cached >= whole and turn.reprefilled_tokens == 0
        if case == DEMAND:
            # Not by the tokens found on the device: the first blocks may be back before the request is admitted.
            right = right and sample.restored_bytes >= whole * self._token_bytes(agents, f"return-{case}")
        elif case != RECOMPUTED:
            right = right and turn.host_tokens == 0
        if not right:
            raise EngineError(
                f"the KV of return-{case} was not where it should have been ({cached:,} of {whole:,} tokens were found, "
                f"{turn.host_tokens or 0:,} of them on the host, {turn.reprefilled_tokens or 0:,} computed again, "
                f"{sample.restored_bytes:,} bytes came back): is the host tier too small, or does somebody else use the server?"
            )

    async def _send_away(self, agent: str, others: list[str]) -> str:
        """Let a tool start, and ``others`` need the whole pool, who wait for tools of their own then; the call's id."""
        call = await self._tool_starts(agent)
        state = await self._settled()
        pool = int(state["tiers"]["vram"]["kv_pool_bytes"] / self._token_bytes(state["agents"], agent))
        prompt = min(pool, self._limit) - 2
        most = 2 * (pool // prompt) + 2
        if self._on_hint is not None and pool > _LARGE * self._shape.context_tokens:
            self._on_hint(
                f"every such sample fills the server's pool of {pool:,} tokens first: one with a --kv-vram that holds little "
                f"more than {self._shape.context_tokens:,} tokens is measured sooner"
            )
        self._on_hint = None
        while _record(state["agents"], agent)["vram_bytes"]:
            if len(others) == most:
                record = _record(state["agents"], agent)
                raise EngineError(
                    f"the KV of {agent} did not leave the device ({record['vram_bytes']:,} bytes are there, "
                    f"{record['host_bytes']:,} on the host): give the server a --kv-vram that holds little more than one such "
                    "context, and a --kv-host that holds several"
                )
            others.append(f"return-other-{len(others)}")
            context = Context()
            context.extend(self._tokens(prompt))
            await self._answer(others[-1], context, 1)
            # Whose tool has ended is at work again: it does not give way before the agent, which waits for one.
            await self._tool_ends(others[-1], await self._tool_starts(others[-1]))
            state = await self._settled()
        for other in others:
            await self._tool_starts(other)
        await self._settled()
        return call

    async def _forget(self, agent: str) -> None:
        """Have the server give up the agent's context, which else would come back with its next request: it gets a new one."""
        context = Context()
        context.extend(self._tokens(1))
        await self._answer(agent, context, 1)

    async def _bring_back(self, agent: str, call: str) -> None:
        """Let the tool end and wait until all is back."""
        await self._tool_ends(agent, call)
        deadline = time.monotonic() + _WAIT_S
        while True:
            record = _record((await self._settled())["agents"], agent)
            if record["vram_bytes"] >= record["host_bytes"] > 0:
                return
            if time.monotonic() > deadline:
                hint = "the host tier must hold the pool and this agent, so give the server a larger --kv-host"
                raise EngineError(f"the KV of {agent} did not come back within {_WAIT_S:g} s ({hint}): {record}")

    async def _tool_starts(self, agent: str) -> str:
        """Let a tool of ``agent`` start, so that others may have its blocks; the call's id."""
        call = f"{next(self._calls):016x}"
        await self._tell(ToolStarted(_TRACE_ID, call, SYSTEM_CLOCK.unix_ns(), "bench", agent))
        return call

    async def _tool_ends(self, agent: str, call: str) -> None:
        await self._tell(ToolEnded(_TRACE_ID, call, SYSTEM_CLOCK.unix_ns(), "bench", agent))

    async def _tell(self, signal: Signal) -> None:
        body = encode_request([encode_signal(signal, signal.time_unix_ns)], _SENDER)
        try:
            async with self._session.post(f"{self._url}/v1/traces", data=body, headers=_SPANS) as response:
                said = f"HTTP {response.status}" if response.status != 200 else None
        except (aiohttp.ClientError, OSError) as error:
            said = f"{type(error).__name__}: {error}"
        if said is not None:
            raise EngineError(f"{self._url} takes no spans: {said}")

    async def _answer(self, agent: str, context: Context, tokens: int) -> TurnRecord:
        record = TurnRecord(agent, 0, context.tokens, 0.0)
        await self._client.complete(context, tokens, record, {names.HEADER_AGENT: agent})
        if record.error is not None:
            raise EngineError(f"a request of {context.tokens:,} tokens failed: {record.error}")
        return record

    async def _settled(self) -> dict[str, Any]:
        """The state once no copy runs and nothing moves any more."""
        deadline = time.monotonic() + _WAIT_S
        still, before = 0, -1
        while time.monotonic() < deadline:
            state = await self.state()
            link = state["link"]
            copied = link["in_total_bytes"] + link["out_total_bytes"]
            moving = any(agent["state"] in _MOVING for agent in state["agents"])
            still, before = 0 if moving or copied != before else still + 1, copied
            if still >= _STILL - 1:
                return state
            await asyncio.sleep(_LOOK_S)
        raise EngineError(f"the server was still at work after {_WAIT_S:g} s: let nobody else use it meanwhile")

    def _token_bytes(self, agents: list[dict[str, Any]], agent: str) -> float:
        """Bytes of KV a token, by the blocks that an agent has."""
        record, size = _record(agents, agent), self._block_tokens
        blocks = -(-record["kept_tokens"] // size)
        return float(max(record["vram_bytes"], record["host_bytes"]) / max(1, blocks) / size)

    def _tokens(self, number: int) -> list[int]:
        return self._random.choices(
            range(min(_FIRST_ID, self._shape.vocabulary // 2), self._shape.vocabulary), k=number
        )


def _record(agents: list[dict[str, Any]], agent: str) -> Mapping[str, Any]:
    found = next((one for one in agents if one["agent"] == agent), None)
    if found is None:
        raise EngineError(f"the server does not know {agent} any more: let nobody else use it meanwhile")
    return found


def _crossed(state: Mapping[str, Any]) -> int:
    return int(state["link"]["in_total_bytes"])


def _result(case: str, samples: list[_Sample], resident: list[_Sample]) -> HttpReturn:
    firsts = [sample.first_ms for sample in samples]
    median = statistics.median(firsts)
    spread = Spread.of(firsts)
    assert spread.p95 is not None
    return HttpReturn(
        case=case,
        repeats=len(samples),
        first_token_ms=median,
        p95_first_token_ms=spread.p95,
        worst_first_token_ms=max(firsts),
        times_resident=median / statistics.median(sample.first_ms for sample in resident),
        restored_bytes=int(statistics.median(sample.restored_bytes for sample in samples)),
        waited_ms=1e3
        * statistics.median((one.turn.queued_s or 0.0) + (one.turn.restoring_s or 0.0) for one in samples),
        computed_tokens=int(
            statistics.median(one.turn.prompt_tokens - (one.turn.cached_tokens or 0) for one in samples)
        ),
        first_tokens_ms=tuple(round(first, 3) for first in firsts),
    )
