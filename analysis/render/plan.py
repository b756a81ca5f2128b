"""A plan in a terminal: the table of swap against recompute, agents that fit, tools, replays, what was assumed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Final

from rich.console import Console, RenderableType
from rich.text import Text

from ..planner.plan import Plan
from .table import name_table
from .words import multiple, percent, ratio, seconds

_MAX_WIDTH: Final = 100
_MAX_TOOLS: Final = 12
_BOUND: Final = {
    "vram": "VRAM binds (fewer fit than slots)",
    "host": "host memory binds",
    "slots": "slots bind",
}


def render_plan_json(plan: Plan) -> str:
    """Indented JSON without a trailing newline; unknown figures are null."""
    return json.dumps(plan.as_json(), indent=2, ensure_ascii=False, allow_nan=False)


def render_plan(plan: Plan, console: Console) -> None:
    """Print a plan; fits 80 columns."""
    width = min(console.width, _MAX_WIDTH)
    for block in (
        _title(plan),
        Text(),
        *_costs(plan, width),
        Text(),
        *_fit(plan),
        *_tools(plan, width),
        *_replays(plan, width),
        Text(),
        *_assumed(plan, width),
    ):
        console.print(block, width=width, highlight=False, markup=False)


def gigabytes(size_bytes: float) -> str:
    """Bytes as GB with two or three figures.

    >>> [gigabytes(size) for size in (294_912_000, 8.09e9, 48e9)]
    ['0.29 GB', '8.1 GB', '48 GB']
    """
    size = size_bytes / 1e9
    return f"{size:.2f} GB" if size < 1 else f"{size:,.1f} GB" if size < 20 else f"{size:,.0f} GB"


def _title(plan: Plan) -> Text:
    rig, model = plan.rig, plan.model
    state = f" + {model.state_bytes / 2**20:.0f} MiB a sequence" if model.state_bytes else ""
    facts = (
        f"{model.name}: {model.token_bytes:,} B a token{state}",
        f"link {rig.link_bytes_per_s / 1e9:g} GB/s",
        f"prefill {rig.prefill_tok_s:,.0f} tok/s",
    )
    return Text(" · ".join(facts).replace(" ", "\u00a0").replace("\u00a0·\u00a0", " · "), style="dim")


def _costs(plan: Plan, width: int) -> Iterator[RenderableType]:
    rows = [
        (
            f"{row.tokens:,}",
            gigabytes(row.cache_bytes),
            f"{row.round_trip_ms:.1f} ms",
            f"{row.recompute_s:.1f} s" if row.recompute_s >= 0.95 else f"{row.recompute_s * 1e3:.0f} ms",
            f"{row.times_cheaper:.0f}×",
            seconds(row.return_swapped_s),
            seconds(row.return_recomputed_s),
            f"{row.return_times_cheaper:.1f}×",
        )
        for row in plan.costs
    ]
    yield Text("the cache out and back or rebuilt; then the agent's whole return, new tokens too")
    yield name_table(("tokens", "cache", "swap", "recompute", "ratio", "return", "recomp.", "ratio"), rows, width)


def _fit(plan: Plan) -> Iterator[RenderableType]:
    held = plan.fit
    if not held.resident_agents:
        weights = f" beside {gigabytes(plan.model.weights_bytes)} of weights" if plan.model.weights_bytes else ""
        yield Text(
            f"not one cache of {held.context_tokens:,} tokens ({gigabytes(held.agent_bytes)}) fits into "
            f"{gigabytes(plan.rig.vram_bytes)} of VRAM{weights}: quantised weights (--weights-gb), a smaller model, or "
            "another card would do",
            style="bold yellow",
        )
        return
    wanted = "any number of" if held.wanted_agents is None else f"{held.wanted_agents:,}"
    busy = min(plan.rig.slots, held.resident_agents)
    needs = "" if held.host_needed_bytes is None else f": {gigabytes(held.host_needed_bytes)} of host memory"
    rows = (
        (
            "without tier",
            f"{held.resident_agents:,} agents of {held.context_tokens:,} tokens in {gigabytes(held.pool_bytes)}",
        ),
        ("with tier", f"{held.tier_agents:,} agents in {gigabytes(plan.rig.host_bytes)} of host memory"),
        ("slots", f"{busy} of {plan.rig.slots} busy want {wanted} agents at b = {ratio(plan.b)}{needs}"),
        (
            "served",
            f"{held.served_agents:,} agents, {multiple(held.throughput_multiple)} with queueing; {_BOUND[held.bound_by]}",
        ),
        ("break-even", f"a wait of {plan.break_even_ms:.1f} ms"),
    )
    for label, words in rows:
        yield Text(f"{label:<14}{words}")


def _tools(plan: Plan, width: int) -> Iterator[RenderableType]:
    if not plan.tools:
        return
    rows = [
        (
            tool.tool,
            f"{tool.calls:,}",
            seconds(tool.p50_s),
            percent(tool.shorter_than_round_trip),
            seconds(tool.freed_s),
            seconds(tool.swap_s),
            seconds(tool.recompute_s),
        )
        for tool in plan.tools[:_MAX_TOOLS]
    ]
    yield Text()
    header = ("tool", "calls", "p50", "shorter", "frees", "swapping", "recomputing")
    yield name_table(header, rows, width)


def _replays(plan: Plan, width: int) -> Iterator[RenderableType]:
    if not plan.replays:
        return
    rows = [
        (
            result.policy,
            f"{result.agents_served:.1f}",
            seconds(result.makespan_s),
            seconds(result.lost_s),
            seconds(result.moving_s),
            gigabytes(result.bytes_out + result.bytes_in),
            f"{result.recomputed_tokens:,}",
            percent(result.freed_gb_s / result.idle_gb_s if result.idle_gb_s else None),
        )
        for result in plan.replays
    ]
    yield Text()
    yield Text(f"the recorded work with {plan.replays[0].agents:,} agents in progress, under each policy")
    header = ("policy", "served", "takes", "lost", "on KV", "moved", "recomp.", "freed")
    yield name_table(header, rows, width)


def _assumed(plan: Plan, width: int) -> Iterator[RenderableType]:
    sentences: Sequence[str] = plan.assumptions
    for sentence in sentences:
        yield Text(fill(f"assumed: {sentence}", width, subsequent_indent="  "), style="dim")
