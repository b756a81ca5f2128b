"""A plan as data: swap against recompute for one rig and one model, and what recorded work would make of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from ..published import PUBLISHED
from ..report import Report, ToolReport
from .costs import CostRow, Rig, cost_row, cost_table
from .fit import RESERVE, Fit, fit, pool_bytes
from .models import ModelShape
from .policy import FreeMoves, Policy
from .replay import ReplayResult, ReplayRig, replay
from .work import AgentWork

SCHEMA_VERSION: Final = 1
BLOCK_TOKENS: Final = 16
ASSUMED_B: Final = PUBLISHED[0].b_low
_UNLIMITED_BLOCKS: Final = 10**12


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a plan is for.

    ``context_tokens`` is one agent's context, ``new_tokens`` what it brings when it returns. ``b`` and ``pool_tokens``
    replace what would be measured or computed; ``agents`` is how many a replay keeps in progress (default: as many as
    the slots want). ``assumed`` are sentences about the rig and the model, said with the plan.
    """

    rig: Rig
    model: ModelShape
    context_tokens: int = 6_900
    new_tokens: int = 561
    b: float | None = None
    pool_tokens: int | None = None
    agents: int | None = None
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.b is not None and not 0 <= self.b <= 1:
            raise ValueError(f"b is a share of 0 to 1, got {self.b}")


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Calls of one tool against the rig's round trip; see :class:`..report.ToolReport`."""

    tool: str
    calls: int
    p50_s: float | None
    shorter_than_round_trip: float | None
    longer_calls: int
    freed_s: float
    swap_s: float
    recompute_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything ``kvtrace plan`` says.

    ``break_even_ms`` is the shortest wait that is worth a round trip at ``fit.context_tokens``. ``tools`` and ``replays``
    need a recorded source and are empty without one.
    """

    schema_version: int
    model: ModelShape
    rig: Rig
    costs: tuple[CostRow, ...]
    new_tokens: int
    break_even_ms: float
    b: float
    fit: Fit
    tools: tuple[BreakEven, ...]
    replays: tuple[ReplayResult, ...]
    assumptions: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``; keys are only ever added within a schema version."""
        return asdict(self)


def round_trip(request: PlanRequest) -> CostRow:
    """Costs at the request's own context length."""
    return cost_row(request.model, request.rig, request.context_tokens, request.new_tokens)


def make_plan(
    request: PlanRequest,
    report: Report | None = None,
    work: Sequence[AgentWork] = (),
    policies: Sequence[Policy] = (),
) -> Plan:
    """The plan for ``request``; ``report`` and ``work`` are of a recorded source, ``policies`` the ones to replay.

    The report has to assume the round trip of :func:`round_trip`.
    """
    model, rig = request.model, request.rig
    b = _blocked_share(request, report)
    pool = _pool(request)
    held = fit(model, rig, pool, request.context_tokens, b)
    replays = _replays(request, held, work, policies) if held.resident_agents else ()
    return Plan(
        schema_version=SCHEMA_VERSION,
        model=model,
        rig=rig,
        costs=cost_table(model, rig, request.new_tokens),
        new_tokens=request.new_tokens,
        break_even_ms=round_trip(request).round_trip_ms,
        b=b,
        fit=held,
        tools=tuple(_break_even(tool) for tool in report.tools) if report else (),
        replays=replays,
        assumptions=tuple(_assumptions(request, report, replays, len(work))),
    )


def _blocked_share(request: PlanRequest, report: Report | None) -> float:
    if request.b is not None:
        return request.b
    measured = report.pooled.b if report else None
    return ASSUMED_B if measured is None else measured


def _pool(request: PlanRequest) -> int:
    if request.pool_tokens is not None:
        return request.pool_tokens * request.model.token_bytes
    return pool_bytes(request.rig, request.model.weights_bytes or 0)


def _break_even(tool: ToolReport) -> BreakEven:
    return BreakEven(
        tool=tool.tool,
        calls=tool.calls,
        p50_s=tool.p50_s,
        shorter_than_round_trip=tool.shorter_than_round_trip,
        longer_calls=tool.longer_calls,
        freed_s=tool.freed_s,
        swap_s=tool.swap_s,
        recompute_s=tool.recompute_s,
    )


def _replays(
    request: PlanRequest, held: Fit, work: Sequence[AgentWork], policies: Sequence[Policy]
) -> tuple[ReplayResult, ...]:
    if not work or not policies:
        return ()
    rig = _replay_rig(request, held)
    free = replace(rig, copy_s=0.0, host_blocks=_UNLIMITED_BLOCKS)
    work = repeated(work, 2 * rig.agents)
    return (*(replay(work, rig, policy) for policy in policies), replay(work, free, FreeMoves()))


def repeated(work: Sequence[AgentWork], least: int) -> tuple[AgentWork, ...]:
    """The work as often as it takes to be that of at least ``least`` agents, each of its own name."""
    times = -(-least // len(work))
    return tuple(AgentWork(f"{each.agent}#{copy}", each.turns) for copy in range(times) for each in work)


def _replay_rig(request: PlanRequest, held: Fit) -> ReplayRig:
    model, rig = request.model, request.rig
    block_bytes = BLOCK_TOKENS * model.token_bytes
    return ReplayRig(
        device_blocks=held.pool_bytes // block_bytes,
        host_blocks=rig.host_bytes // block_bytes,
        slots=rig.slots,
        agents=request.agents or max(held.resident_agents, held.wanted_agents or held.tier_agents),
        block_tokens=BLOCK_TOKENS,
        block_bytes=block_bytes,
        state_blocks=-(-model.state_bytes // block_bytes),
        copy_s=rig.copy_s(block_bytes),
        compute_s=rig.prefill_s(BLOCK_TOKENS),
    )


def _assumptions(
    request: PlanRequest, report: Report | None, replays: Sequence[ReplayResult], agents: int
) -> Iterator[str]:
    yield from request.assumed
    yield f"an agent's context has {request.context_tokens:,} tokens, and {request.new_tokens:,} new ones when it returns"
    if request.b is None and (report is None or report.pooled.b is None):
        yield f"b = {ASSUMED_B:.2f}, published by others ({PUBLISHED[0].source}: {PUBLISHED[0].caveat}); name a SOURCE or --b"
    if request.pool_tokens is not None:
        yield f"the pool holds {request.pool_tokens:,} tokens"
    elif request.model.weights_bytes is None:
        yield "the weights take no room, since nobody told how large they are; give --weights-gb"
    else:
        yield f"{RESERVE:.0%} of the VRAM stay free of weights and caches".replace("%", " %")
    if replays:
        yield "replayed agents generate as long as recorded, whatever the batch; people's and queues' time is left out"
        if agents < 2 * replays[0].agents:
            yield f"the work of the {agents:,} recorded agents is repeated until the rig is busy"
        unknown = sorted({action for result in replays for action in result.unknown_actions})
        if unknown:
            yield f"actions the replay does not know are left out: {', '.join(unknown)}"
