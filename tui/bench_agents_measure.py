"""Runs the cells of ``kvtrace bench agents`` one after the other and makes a JSON record of each."""

from __future__ import annotations

import math
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .bench_cells import Cell, Json
from .exits import CommandError, ExitCode
from .format import counted

if TYPE_CHECKING:
    from kvtrace.engine.bench.agents.client import TurnRecord
    from kvtrace.engine.bench.agents.figures import Figures
    from kvtrace.engine.bench.agents.server import ServerFacts
    from kvtrace.engine.bench.agents.watcher import Moved
    from kvtrace.engine.bench.agents.workload import AgentPlan, Shape, Tools

_ENDLESS: Final = 1 << 30
_COLD_SHARE: Final = 0.3  # of a steady run; until then prompts that all came at once still queue


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as given."""

    url: str
    model: str | None
    agents: tuple[int, ...]
    prompt: int
    returns: int
    generate: int
    new: int
    tool: str
    trace: Path | None
    steady_s: float | None
    seeds: tuple[int, ...]
    slots: int
    vocabulary: int
    label: str | None
    machine: str | None
    key: str | None


@dataclass(frozen=True, slots=True)
class Ideal:
    """What a queue in which KV moves for free reaches."""

    turns_per_s: float
    return_ttft_p50_s: float | None


async def measure(asked: Asked, on_wait: Callable[[], None], on_run: Callable[[Json], None]) -> list[Json]:
    """Run every number of agents with every seed, and return their records.

    Args:
        asked: the options.
        on_wait: called before the server's host tier is waited for.
        on_run: called with each record as soon as it is there.

    Raises:
        CommandError: no server answers, or it went away in the middle; the run it went away in does not count.
    """
    from kvtrace.engine.bench.agents.server import answers, find_model, identify, wait_for_host_tier
    from kvtrace.tracer import configure

    model = asked.model or await find_model(asked.url, asked.key)
    if model is None:
        raise CommandError(
            f"no server lists its models at {asked.url}/v1/models: start one with `kvtrace serve`, or give --url; one "
            "that is loading its model lists none yet, and one that wants a key gets it by KVTRACE_ENGINE_KEY_FILE",
            ExitCode.UNREACHABLE,
        )
    facts = await identify(asked.url, asked.key)
    if facts.takes_spans and not (facts.device or "").startswith("cpu"):  # there it is whole from the start
        on_wait()
        await wait_for_host_tier(asked.url, asked.key)
        facts = await identify(asked.url, asked.key)
    records: list[Json] = []
    with tempfile.TemporaryDirectory(prefix="kvtrace-bench-") as folder:
        configure(directory=folder, engine=asked.url if facts.takes_spans else "")
        for agents in asked.agents:
            for seed in asked.seeds:
                record = await _run(asked, model, facts, agents, seed)
                if record["failed"] and not await answers(asked.url, asked.key):
                    run = f"the run with {counted(agents, 'agent')} and seed {seed}"
                    raise CommandError(
                        f"the server at {asked.url} went away; {run} does not count", ExitCode.UNREACHABLE
                    )
                records.append(record)
                on_run(record)
        configure(directory=folder, engine="")
    return records


async def _run(asked: Asked, model: str, facts: ServerFacts, agents: int, seed: int) -> Json:
    from kvtrace.engine.bench.agents.drive import agent_id, run_agents, run_steadily
    from kvtrace.engine.bench.agents.figures import figures_of
    from kvtrace.engine.bench.agents.watcher import Watcher

    from .bench_agents_view import TurnBar

    tools = tools_of(asked.tool, seed)
    name = secrets.token_hex(3)  # prompts and ids of their own, whatever the server has seen before
    title = f"{counted(agents, 'agent')}, seed {seed}"
    window = None
    if asked.steady_s is None:
        plans = _plans(asked, agents, seed, tools, name)
    async with Watcher(asked.url, agent_id(name), asked.key) as watcher:
        began_s, processor_s = time.monotonic(), time.process_time()
        if asked.steady_s is not None:
            renew = _renewing(asked, agents, seed, tools, name)
            with TurnBar(title, None) as bar:
                turns = await run_steadily(
                    renew, agents, asked.steady_s, asked.url, model, key=asked.key, on_turn=bar.turn
                )
            window = _steady_window(turns, asked.steady_s)
        else:
            with TurnBar(title, sum(len(plan.turns) for plan in plans)) as bar:
                turns = await run_agents(plans, asked.url, model, key=asked.key, on_turn=bar.turn)
        client_share = (time.process_time() - processor_s) / (time.monotonic() - began_s)
    return _record(
        cell_of(asked, facts, agents, seed),
        figures_of(turns, window),
        watcher.moved,
        _ideal(asked, agents, tools),
        {
            "client_cpu_share": client_share,
            "measured_unix_s": int(time.time()),
            "server": {**asdict(facts), "model": model},
            "machine": _machine(asked, facts),
        },
    )


def cell_of(asked: Asked, facts: ServerFacts, agents: int, seed: int) -> Cell:
    """What this run is asked."""
    tool = asked.trace.name if asked.trace is not None else asked.tool
    return Cell(
        engine=asked.label or facts.engine,
        policy=facts.policy,
        agents=agents,
        seed=seed,
        tool=tool,
        steady_s=asked.steady_s,
        prompt=asked.prompt,
        returns=asked.returns,
        generate=asked.generate,
        new=asked.new,
        slots=asked.slots,
    )


def _record(
    cell: Cell, figures: Figures, moved: Moved | None, ideal: Ideal | None, about: dict[str, Any]
) -> dict[str, Any]:
    rate = None if ideal is None else ideal.turns_per_s
    whole = rate is not None and rate > 0 and not figures.failed  # agents that gave up would have made more turns
    return {
        "cell": asdict(cell),
        **asdict(figures),
        "moved": None if moved is None else {**asdict(moved), "freed_share": moved.freed_share},
        "ideal_turns_per_s": rate,
        "turns_per_s_of_ideal": figures.turns_per_s / rate if rate and whole else None,
        "ideal_return_ttft_p50_s": None if ideal is None else ideal.return_ttft_p50_s,
        **about,
    }


def _machine(asked: Asked, facts: ServerFacts) -> dict[str, Any]:
    from kvtrace.engine.bench.agents.server import client_machine

    return {"device": asked.machine or facts.device_name, **client_machine()}


def check_sessions(asked: Asked) -> None:
    """See that the session file, if there is one, has enough of them.

    Raises:
        click.UsageError: it has not, or holds something else.
    """
    if asked.trace is not None:
        found = len(_plans(asked, max(asked.agents), asked.seeds[0], tools_of(asked.tool, asked.seeds[0]), ""))
        if found < max(asked.agents):
            raise click.UsageError(f"{asked.trace} holds {counted(found, 'session')}: give --agents {found} or fewer")


def _plans(asked: Asked, agents: int, seed: int, tools: Tools, run: str) -> tuple[AgentPlan, ...]:
    from kvtrace.engine.bench.agents.workload import closed_loop, read_sessions
    from kvtrace.engine.errors import ConfigError

    try:
        if asked.trace is None:
            plans = closed_loop(_shape(asked, agents), tools, seed, run)
        else:
            plans = read_sessions(asked.trace, seed, run)[:agents]
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    return tuple(replace(plan, vocabulary=asked.vocabulary) for plan in plans)


def _renewing(asked: Asked, agents: int, seed: int, tools: Tools, run: str) -> Callable[[int], AgentPlan]:
    from kvtrace.engine.bench.agents.workload import closed_loop_agent

    shape = _shape(asked, agents)

    def renew(index: int) -> AgentPlan:
        return replace(closed_loop_agent(shape, tools, seed, run, index), vocabulary=asked.vocabulary)

    return renew


def _shape(asked: Asked, agents: int) -> Shape:
    from kvtrace.engine.bench.agents.workload import Shape

    return Shape(agents, asked.prompt, asked.returns, asked.generate, asked.new)


def _steady_window(turns: Sequence[TurnRecord], seconds: float) -> tuple[float, float]:
    start = min((turn.sent_s for turn in turns), default=0.0)
    return start + _COLD_SHARE * seconds, start + seconds


def tools_of(described: str, seed: int) -> Tools:
    """The tool times that ``--tool`` describes.

    Raises:
        click.UsageError: it describes none.
    """
    from kvtrace.analysis.planner.ideal import exponential_tools
    from kvtrace.engine.bench.agents.tool_times import LONGEST_S, real_tools
    from kvtrace.engine.bench.agents.workload import ToolCall

    kind, colon, number = described.partition(":")
    try:
        seconds = float(number) if colon else -1.0
    except ValueError:
        seconds = -1.0
    if not math.isfinite(seconds):  # an agent whose tool never ends
        seconds = -1.0
    if kind == "real" and (seconds > 0 or not colon):
        return real_tools(seed, seconds if colon else LONGEST_S)
    if kind == "exp" and seconds > 0:
        drawn = exponential_tools(seed, seconds)
        return lambda agent, turn: ToolCall("tool", drawn(agent, turn))
    if kind == "fixed" and seconds >= 0:
        return lambda agent, turn: ToolCall("tool", seconds)
    raise click.UsageError(f"--tool {described}: give exp:MEAN, fixed:SECONDS, real or real:LONGEST")


def _ideal(asked: Asked, agents: int, tools: Tools) -> Ideal | None:
    """The same agents where KV moves for free, in a steady run in the same part of it; not for a session file."""
    from kvtrace.analysis.planner.ideal import Pace, Workload, ideal_run

    if asked.trace is not None:
        return None
    lives = 1 if asked.steady_s is None else _ENDLESS
    work = Workload(agents, asked.prompt, asked.returns, asked.generate, asked.new, lives)
    until_s = math.inf if asked.steady_s is None else asked.steady_s
    run = ideal_run(work, Pace(slots=asked.slots), lambda agent, turn: tools(agent, turn).seconds, until_s)
    if asked.steady_s is None:
        return Ideal(run.turns_per_s, run.return_ttft_p50_s)
    start_s = _COLD_SHARE * asked.steady_s
    part = run.between(start_s, asked.steady_s)
    return Ideal(len(part.turns) / (asked.steady_s - start_s), part.return_ttft_p50_s)
