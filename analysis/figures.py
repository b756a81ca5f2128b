"""From measured nanoseconds to the figures of a report: pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from random import Random

from .bootstrap import ratio_interval
from .capacity import capacity
from .decision import Evidence, decide
from .options import BYTES_PER_GB, BYTES_PER_TOKEN, NS_PER_S, US_PER_S, ReportOptions
from .records import AgentIdleness, AgentTime, ToolTime, WindowBin, WindowTime
from .report import AgentReport, Assumptions, PooledReport, ToolReport, WindowBinReport, WindowReport
from .timeline import Measured


def agent_report(
    time: AgentTime, idleness: AgentIdleness | None = None, bytes_per_token: int = BYTES_PER_TOKEN
) -> AgentReport:
    """Figures of one agent; ``bytes_per_token`` of its KV cache over all layers."""
    b = share(time.blocked_ns, time.active_ns)
    return AgentReport(
        agent=time.agent,
        name=time.name,
        parent=time.parent,
        running=time.running,
        wall_s=time.wall_ns / NS_PER_S,
        generating_s=time.generating_ns / NS_PER_S,
        tool_union_s=time.tool_union_ns / NS_PER_S,
        blocked_s=time.blocked_ns / NS_PER_S,
        human_s=time.human_ns / NS_PER_S,
        queued_s=time.queued_ns / NS_PER_S,
        overhead_s=time.overhead_ns / NS_PER_S,
        model_elsewhere_s=time.model_elsewhere_ns / NS_PER_S,
        tool_calls=time.tool_calls,
        open_calls=time.open_calls,
        model_calls=time.model_calls,
        windows=time.windows,
        generation_per_step_s=seconds_each(time.generating_state_ns, time.steps),
        b=b,
        b_low=_at_least(time, b),
        b_high=b,
        b_wall=share(time.blocked_ns, time.wall_ns),
        b_busy=share(time.blocked_ns, time.blocked_ns + time.generating_state_ns),
        b_idle=share(time.blocked_ns + time.human_ns, time.wall_ns),
        b_evictable=share(time.evictable_ns, time.active_ns),
        b_capped_60s=share(time.capped_ns, time.active_ns - time.blocked_ns + time.capped_ns),
        idleness_last=idleness.last if idleness else None,
        idleness_median=idleness.median if idleness else None,
        context_tokens=share(time.context_tokens, time.sized_windows),
        idle_gb_s=time.idle_token_us / US_PER_S * bytes_per_token / BYTES_PER_GB if time.sized_windows else None,
        idle_known=share(time.sized_ns, time.blocked_ns),
    )


def agent_reports(measured: Measured, options: ReportOptions) -> tuple[AgentReport, ...]:
    """Figures of each agent, in the order measured."""
    idleness = {each.agent: each for each in measured.idleness}
    return tuple(agent_report(time, idleness.get(time.agent), options.bytes_per_token) for time in measured.agents)


def _at_least(time: AgentTime, b: float | None) -> float | None:
    """The low end of b; 0 where nothing would be left of the timeline if the open calls ended at their start."""
    return 0.0 if b is not None and not time.low_active_ns else share(time.low_blocked_ns, time.low_active_ns)


def pooled_report(measured: Measured, options: ReportOptions) -> PooledReport:
    """Figures of all agents together."""
    agents = measured.agents
    total = _sum(agents)
    whole = agent_report(total, bytes_per_token=options.bytes_per_token)
    multiples = capacity(whole.b, options.slots, share(total.windows * options.round_trip_ns, total.active_ns))
    interval = ratio_interval(
        [agent.blocked_ns for agent in agents],
        [agent.active_ns for agent in agents],
        Random(options.seed),  # noqa: S311 - statistics, not secrets
        options.replicates,
    )
    windows = window_report(measured.windows, measured.histogram, total.blocked_ns)
    return PooledReport(
        agents=len(agents),
        running_agents=sum(agent.running for agent in agents),
        wall_s=whole.wall_s,
        generating_s=whole.generating_s,
        tool_union_s=whole.tool_union_s,
        generating_state_s=total.generating_state_ns / NS_PER_S,
        blocked_s=whole.blocked_s,
        human_s=whole.human_s,
        queued_s=whole.queued_s,
        overhead_s=whole.overhead_s,
        model_elsewhere_s=whole.model_elsewhere_s,
        tool_calls=whole.tool_calls,
        open_calls=whole.open_calls,
        model_calls=whole.model_calls,
        generation_per_step_s=whole.generation_per_step_s,
        b=whole.b,
        b_low=whole.b_low,
        b_high=whole.b_high,
        b_interval_low=interval[0] if interval else None,
        b_interval_high=interval[1] if interval else None,
        b_wall=whole.b_wall,
        b_busy=whole.b_busy,
        b_idle=whole.b_idle,
        b_evictable=whole.b_evictable,
        b_capped_60s=whole.b_capped_60s,
        context_tokens=whole.context_tokens,
        idle_gb_s=whole.idle_gb_s,
        idle_known=whole.idle_known,
        windows=windows,
        capacity=multiples,
        decision=decide(_evidence(whole, windows, options), multiples),
        assumptions=_assumptions(options),
        anomalies=measured.anomalies,
    )


def tool_reports(tools: Sequence[ToolTime], options: ReportOptions) -> tuple[ToolReport, ...]:
    """Figures of each tool, in the order given."""
    total_ns = sum(tool.total_ns for tool in tools)
    return tuple(_tool_report(tool, total_ns, options) for tool in tools)


def _tool_report(tool: ToolTime, total_ns: int, options: ReportOptions) -> ToolReport:
    p10, p25, p50, p75, p90, p99 = _seconds(tool.quantiles_ns, 6)
    return ToolReport(
        tool=tool.tool,
        calls=tool.calls,
        open_calls=tool.open_calls,
        total_s=tool.total_ns / NS_PER_S,
        mean_s=seconds_each(tool.ended_ns, tool.calls - tool.open_calls),
        p10_s=p10,
        p25_s=p25,
        p50_s=p50,
        p75_s=p75,
        p90_s=p90,
        p99_s=p99,
        share=share(tool.total_ns, total_ns),
        shorter_than_round_trip=share(tool.short_calls, tool.calls - tool.open_calls),
        longer_calls=tool.long_calls,
        freed_s=tool.freed_ns / NS_PER_S,
        swap_s=tool.long_calls * options.round_trip_s,
        recompute_s=tool.long_calls * options.recompute_s,
    )


def window_report(windows: WindowTime, histogram: Sequence[WindowBin], blocked_ns: int) -> WindowReport:
    """Figures of the blocked windows."""
    p10, p25, p50, p75, p90, p99 = _seconds(windows.quantiles_ns, 6)
    return WindowReport(
        count=windows.windows,
        p10_s=p10,
        p25_s=p25,
        p50_s=p50,
        p75_s=p75,
        p90_s=p90,
        p99_s=p99,
        shorter_than_round_trip=share(windows.short_windows, windows.windows),
        blocked_shorter_than_round_trip=share(windows.short_ns, blocked_ns),
        histogram=tuple(_window_bin(each) for each in histogram),
    )


def _window_bin(each: WindowBin) -> WindowBinReport:
    return WindowBinReport(
        from_s=10 ** (each.bin / 4) / NS_PER_S,
        to_s=10 ** ((each.bin + 1) / 4) / NS_PER_S,
        windows=each.windows,
        blocked_s=each.blocked_ns / NS_PER_S,
    )


def share(part: int, whole: int) -> float | None:
    """``part / whole``, or ``None`` where the whole is nothing."""
    return part / whole if whole else None


def seconds_each(total_ns: int, count: int) -> float | None:
    """Mean length in seconds, or ``None`` of nothing."""
    return total_ns / count / NS_PER_S if count else None


def _seconds(quantiles_ns: list[float] | None, count: int) -> list[float | None]:
    if quantiles_ns is None:
        return [None] * count
    return [value / NS_PER_S for value in quantiles_ns]


def _sum(agents: Sequence[AgentTime]) -> AgentTime:
    """All agents as one: counts and nanoseconds added up."""
    counted = [field.name for field in fields(AgentTime) if field.name not in ("agent", "name", "parent", "running")]
    totals = {name: sum(getattr(agent, name) for agent in agents) for name in counted}
    return AgentTime(agent="", name=None, parent=None, running=any(agent.running for agent in agents), **totals)


def _assumptions(options: ReportOptions) -> Assumptions:
    return Assumptions(
        round_trip_ms=options.round_trip_ms,
        recompute_s=options.recompute_s,
        bytes_per_token=options.bytes_per_token,
        slots=options.slots,
    )


def _evidence(whole: AgentReport, windows: WindowReport, options: ReportOptions) -> Evidence:
    return Evidence(
        b=whole.b,
        b_low=whole.b_low,
        b_evictable=whole.b_evictable,
        short_windows=windows.shorter_than_round_trip,
        model_calls=whole.model_calls,
        tool_calls=whole.tool_calls,
        slots=options.slots,
        round_trip_ms=options.round_trip_ms,
    )
