"""Agents with tools on the real engine in virtual time: ``python benchmarks/simulated_agents.py [--part PART]``.

Everything runs but the device, whose steps and copies take modelled time (:mod:`kvtrace.engine.simulation`): the figures
are a model's, good for comparing policies and for saying what a card could reach. Parts:

* ``closed``: the closed loop of ``kvtrace bench agents`` on the H200's measured costs, every policy, beside the ideal queue;
* ``real``: the same with tool times of public coding agents, bytes moved and idle memory handed on, ``auto`` against ``eager``
  as it is here (each block is copied out once in its life) and as the article words it (everything out and back at every call);
* ``steady``: agents replaced as they finish, beside what the blocked share predicts;
* ``small-host``: more agents than both tiers hold, with and without pausing new ones;
* ``silent``: agents of whose tools nobody tells, alone and beside others, with a large and a small host tier;
* ``article``: the rig of the article (962 tokens/s of prefill, eight slots, 48 GB of host memory), with ``kvtrace plan``'s
  prediction beside it.

stdout is a table; ``--json FILE`` writes the figures too.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from kvtrace.analysis.capacity import ideal, machine_repair
from kvtrace.analysis.planner.costs import Rig, cost_row
from kvtrace.analysis.planner.fit import fit
from kvtrace.analysis.planner.ideal import Pace, Workload, exponential_tools, ideal_run
from kvtrace.analysis.planner.models import find_model
from kvtrace.engine.bench.agents.figures import Figures, figures_of
from kvtrace.engine.bench.agents.tool_times import real_tools
from kvtrace.engine.bench.agents.workload import Shape, ToolCall, Tools, closed_loop, closed_loop_agent
from kvtrace.engine.config import EngineConfig, PolicyMode
from kvtrace.engine.simulation.agents import QWEN3_8B, SimulatedRun, simulate, simulate_steadily
from kvtrace.engine.simulation.machine import ARTICLE, H200, Machine

SCHEMA_VERSION: Final = 1
SEEDS: Final = (1, 2, 3)
SLOTS: Final = 8
POOL_TOKENS: Final = 55_000
STEADY_S: Final = 60.0
COLD_SHARE: Final = 0.3  # of a steady run, as in `kvtrace bench agents`
CLOSED: Final = Shape(SLOTS)
ARTICLE_HOST_BYTES: Final = 48 * 10**9
ARTICLE_TURN: Final = Shape(SLOTS, prompt_tokens=4800, returns=9, generated_tokens=200, new_tokens=30)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. ``tools`` is ``exp:MEAN`` or ``real``; ``seconds`` makes it a steady one; of ``silent`` of four agents no signals come."""

    part: str
    agents: int
    seed: int
    policy: PolicyMode
    tools: str = "exp:1.868"
    host_bytes: int = 48 << 30
    seconds: float | None = None
    machine: Machine = H200
    shape: Shape = CLOSED
    step_tokens: int = 1024
    mixed_step_tokens: int | None = 256
    silent: int = 0


def main() -> None:
    """Run the cells and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=list(PARTS), action="append", help="may be repeated; all but the article's")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    parts = arguments.part or [part for part in PARTS if part != "article"]
    cells = [cell for part in parts for cell in PARTS[part]()]
    rows = []
    with ProcessPoolExecutor(arguments.workers) as pool:
        for row in pool.map(measure, cells):
            rows.append(row)
            print(line(row), flush=True)
    compared = against_eager(rows)
    for one in compared:
        print(comparison(one))
    if arguments.json is not None:
        document = {
            "schema_version": SCHEMA_VERSION,
            "kind": "a model: the real engine, with modelled times of steps and copies",
            "command": "python benchmarks/simulated_agents.py " + " ".join(f"--part {part}" for part in parts),
            "machines": [asdict(machine) for machine in {cell.machine.name: cell.machine for cell in cells}.values()],
            "runs": rows,
            **({"auto_against_eager": compared} if compared else {}),
            **({"plan": plan(rows)} if "article" in parts else {}),
        }
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def closed() -> Iterator[Cell]:
    """Every policy at every number of agents; the one that is chosen with all seeds."""
    for policy in (PolicyMode.AUTO, PolicyMode.SWAP, PolicyMode.EAGER, PolicyMode.RECOMPUTE, PolicyMode.KEEP):
        for agents in (8, 12, 16, 20, 24, 32, 48, 64) if policy is PolicyMode.AUTO else (8, 16, 24, 32, 48, 64):
            for seed in SEEDS if policy is PolicyMode.AUTO else SEEDS[:1]:
                yield Cell("closed", agents, seed, policy)


def real() -> Iterator[Cell]:
    """Tool times of public sessions."""
    for policy in (PolicyMode.AUTO, PolicyMode.EAGER, PolicyMode.KEEP):
        for agents in (8, 12, 16, 24, 32):
            for seed in SEEDS:
                yield Cell("real", agents, seed, policy, tools="real")


def steady() -> Iterator[Cell]:
    """Agents renewed; eight without swap are what the others are held against."""
    for seed in SEEDS:
        yield Cell("steady", SLOTS, seed, PolicyMode.KEEP, seconds=STEADY_S)
        for agents in (24, 32, 48):
            yield Cell("steady", agents, seed, PolicyMode.AUTO, seconds=STEADY_S)


def small_host() -> Iterator[Cell]:
    """A host tier for nine agents; ``swap`` never pauses a new one."""
    for seed in SEEDS:
        for policy in (PolicyMode.AUTO, PolicyMode.SWAP, PolicyMode.RECOMPUTE):
            yield Cell("small-host", 48, seed, policy, host_bytes=8 << 30)


def silent() -> Iterator[Cell]:
    """Nobody, every other agent or nobody else tells of its tools."""
    for host_bytes, agents in ((48 << 30, 16), (48 << 30, 32), (48 << 30, 48), (8 << 30, 48)):
        for number in (0, 2, 4):
            for seed in SEEDS:
                yield Cell("silent", agents, seed, PolicyMode.AUTO, host_bytes=host_bytes, silent=number)


def article() -> Iterator[Cell]:
    """The article's card: a turn of 200 tokens (7 s) and a tool of 4 s, or of 11.5 s: b as in TraceLab's traces."""
    rig = replace(
        Cell("article", SLOTS, 1, PolicyMode.KEEP),
        host_bytes=ARTICLE_HOST_BYTES,
        machine=ARTICLE,
        shape=ARTICLE_TURN,
        seconds=600.0,
        step_tokens=256,  # 0.27 s of prefill there: longer steps would hold up the others for longer
        mixed_step_tokens=None,
    )
    for tools in ("exp:4", "exp:11.5"):
        yield replace(rig, tools=tools)
        for agents in (8, 12, 16, 24):
            yield replace(rig, tools=tools, agents=agents, policy=PolicyMode.AUTO)
        yield replace(rig, tools=tools, agents=16, policy=PolicyMode.RECOMPUTE)


PARTS: Final = {
    "closed": closed,
    "real": real,
    "steady": steady,
    "small-host": small_host,
    "silent": silent,
    "article": article,
}


def measure(cell: Cell) -> dict[str, Any]:
    """Run one cell; its figures, and beside them what a queue with free KV movement or the blocked share gives."""
    tools = _tools(cell.tools, cell.seed)
    shape = replace(cell.shape, agents=cell.agents)
    run = _run(cell, shape, tools)
    window = None if cell.seconds is None else (COLD_SHARE * cell.seconds, cell.seconds)
    figures = figures_of(run.turns, window)
    best = None if cell.seconds is not None else _ideal(shape, tools)
    b = figures.b
    return {
        "part": cell.part,
        "machine": cell.machine.name,
        "agents": cell.agents,
        "seed": cell.seed,
        "policy": str(cell.policy),
        "tools": cell.tools,
        "host_bytes": cell.host_bytes,
        "seconds": cell.seconds,
        "silent_share": cell.silent / 4,
        **_figures(figures),
        "ideal_turns_per_s": best,
        "turns_per_s_of_ideal": None if best is None else figures.turns_per_s / best,
        "ceiling_multiple": None if b is None else ideal(b),
        "predicted_multiple": None if b is None or b >= 1 else machine_repair(b, SLOTS, max(cell.agents, SLOTS))[0],
        "moved": asdict(run.moved),
        "literal_eager_bytes": _literal_eager_bytes(run, shape),
        "device_busy_share": run.busy_share,
    }


def against_eager(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ``auto`` moves and hands over with ``real`` tools, as shares of ``eager``'s; means over the seeds."""
    real_rows = [row for row in rows if row["part"] == "real"]
    compared = []
    for agents in sorted({row["agents"] for row in real_rows}):
        auto, eager = (
            [row for row in real_rows if (row["agents"], row["policy"]) == (agents, policy)]
            for policy in ("auto", "eager")
        )
        moved = sum(map(_moved_bytes, auto))
        handed = sum(row["moved"]["handed_byte_s"] for row in eager)
        compared.append(
            {
                "agents": agents,
                "bytes_of_eager": moved / sum(map(_moved_bytes, eager)),
                "bytes_of_literal_eager": moved / sum(row["literal_eager_bytes"] for row in auto),
                # Where nobody lacks room there is nothing to hand over.
                "handed_of_eager": sum(row["moved"]["handed_byte_s"] for row in auto) / handed
                if handed > 1e9
                else None,
            }
        )
    return compared


def comparison(one: dict[str, Any]) -> str:
    """A row of :func:`against_eager` as people read it."""
    return (
        f"real  N {one['agents']:>2}  auto moves {one['bytes_of_eager']:.2f} of eager's bytes, "
        f"{one['bytes_of_literal_eager']:.2f} of everything at every call, and hands over {_number(one['handed_of_eager'])} of the idle "
        "byte-seconds"
    )


def plan(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ``kvtrace plan`` says of the article's rig for the blocked shares of eight agents that nothing holds up."""
    rig = Rig(16 << 30, ARTICLE.link_bytes_per_s, 962.0, ARTICLE_HOST_BYTES, SLOTS)
    model = find_model("qwen3-8b")
    predicted = []
    for row in rows:
        if row["part"] == "article" and row["policy"] == "auto" and row["agents"] == SLOTS:
            found = fit(model, rig, POOL_TOKENS * model.token_bytes, POOL_TOKENS // SLOTS, row["b"])
            predicted.append({"tools": row["tools"], "b": row["b"], **asdict(found)})
    return [*predicted, asdict(cost_row(model, rig, 6_900, ARTICLE_TURN.new_tokens))]


def line(row: dict[str, Any]) -> str:
    """A row as people read it."""
    of_ideal = row["turns_per_s_of_ideal"]
    return (
        f"{row['part']:<10} {row['tools']:<9} {row['policy']:<9} N {row['agents']:>2} seed {row['seed']}  "
        f"{'' if not row['silent_share'] else format(row['silent_share'], '.0%') + ' silent  '}"
        f"{row['turns_per_s']:6.3f} turns/s  of ideal {'-' if of_ideal is None else f'{of_ideal:.3f}'}  "
        f"decoding {_number(row['decoding_mean'])}  b {_number(row['b'])}  return TTFT p50 "
        f"{_ms(row['return_ttft_p50_s'])} p95 {_ms(row['return_ttft_p95_s'])}  first p50 {_ms(row['first_ttft_p50_s'])}  "
        f"per token p50 {_ms(row['tpot_p50_s'])}  again {row['reprefilled_tokens']}  "
        f"moved {_moved_bytes(row) / 1e9:.0f} GB"
    )


def _run(cell: Cell, shape: Shape, tools: Tools) -> SimulatedRun:
    config = EngineConfig(
        device_blocks=POOL_TOKENS // QWEN3_8B.block_tokens,
        host_blocks=cell.host_bytes // QWEN3_8B.block_bytes,
        slots=SLOTS,
        step_tokens=cell.step_tokens,
        mixed_step_tokens=cell.mixed_step_tokens,
        context_tokens=16384,
        policy=cell.policy,
        pipelined=True,
    )
    if cell.seconds is None:
        plans = closed_loop(shape, tools, cell.seed)
        silent_names = {plan.name for number, plan in enumerate(plans) if number % 4 >= 4 - cell.silent}
        return simulate(plans, config, cell.machine, silent_names)
    return simulate_steadily(
        lambda index: closed_loop_agent(shape, tools, cell.seed, "0", index),
        cell.agents,
        cell.seconds,
        config,
        cell.machine,
    )


def _moved_bytes(row: dict[str, Any]) -> int:
    return int(row["moved"]["out_bytes"] + row["moved"]["in_bytes"])


def _literal_eager_bytes(run: SimulatedRun, shape: Shape) -> int:
    """Bytes that cross if the whole context leaves at each tool's start and comes back at its end."""
    contexts = (turn.prompt_tokens + turn.output_tokens - 1 for turn in run.turns if turn.turn < shape.returns)
    return 2 * sum(QWEN3_8B.blocks_for(tokens) * QWEN3_8B.block_bytes for tokens in contexts)


def _ideal(shape: Shape, tools: Tools) -> float:
    work = Workload(shape.agents, shape.prompt_tokens, shape.returns, shape.generated_tokens, shape.new_tokens)
    return ideal_run(work, Pace(slots=SLOTS), lambda agent, turn: tools(agent, turn).seconds).turns_per_s


def _tools(described: str, seed: int) -> Tools:
    if described == "real":
        return real_tools(seed)
    drawn = exponential_tools(seed, float(described.partition(":")[2]))
    return lambda agent, turn: ToolCall("tool", drawn(agent, turn))


def _figures(figures: Figures) -> dict[str, Any]:
    return {
        "turns": figures.turns,
        "makespan_s": figures.makespan_s,
        "turns_per_s": figures.turns_per_s,
        "decoding_mean": figures.decoding_mean,
        "b": figures.b,
        "return_ttft_p50_s": figures.return_ttft_s.p50,
        "return_ttft_p95_s": figures.return_ttft_s.p95,
        "first_ttft_p50_s": figures.first_ttft_s.p50,
        "tpot_p50_s": figures.tpot_s.p50,
        "tpot_p99_s": figures.tpot_s.p99,
        "reprefilled_tokens": figures.reprefilled_tokens,
    }


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.0f} ms"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
