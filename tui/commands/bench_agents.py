"""``kvtrace bench agents``: many agents against one server, measured beside what the card could do at best."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..exits import CommandError, ExitCode

if TYPE_CHECKING:
    from kvtrace.engine.bench.agents.client import TurnRecord
    from kvtrace.engine.bench.agents.figures import Figures
    from kvtrace.engine.bench.agents.watcher import Moved
    from kvtrace.engine.bench.agents.workload import AgentPlan, Shape, Tools

SCHEMA_VERSION: Final = 1
_COLD_SHARE: Final = 0.3  # of a steady run; until then prompts that all came at once still queue
_COUNT = click.IntRange(min=1)


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
    seed: int
    slots: int
    vocabulary: int
    key: str | None


@dataclass(frozen=True, slots=True)
class Run:
    """One run and what a queue with free KV movement would have reached, turns a second."""

    figures: Figures
    moved: Moved | None
    ideal_turns_per_s: float | None

    @property
    def of_ideal(self) -> float | None:
        """Measured over ideal turns a second."""
        return self.figures.turns_per_s / self.ideal_turns_per_s if self.ideal_turns_per_s else None


class Counts(click.ParamType[tuple[int, ...]]):
    """``8,16,32``."""

    name = "N[,N]..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Whole numbers of at least 1."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdigit() and int(part) for part in parts):
            self.fail(f"{value!r} is no list of numbers like 8,16,32", param, ctx)
        return tuple(int(part) for part in parts)


@click.command("agents")
@click.option("--url", help="The server.  [default: KVTRACE_ENGINE, else http://127.0.0.1:8177]")
@click.option("--model", help="Model id.  [default: the server's first]")
@click.option("--agents", type=Counts(), default="8,16", show_default=True, help="Agents at once, one run each.")
@click.option("--prompt", type=_COUNT, default=6000, show_default=True, help="Tokens of each agent's own prompt.")
@click.option("--returns", type=click.IntRange(min=0), default=4, show_default=True, help="Returns from a tool.")
@click.option("--generate", type=_COUNT, default=64, show_default=True, help="Tokens generated a turn.")
@click.option("--new", type=_COUNT, default=100, show_default=True, help="New tokens at a return.")
@click.option("--tool", default="exp:1.868", show_default=True, help="Tool times: exp:MEAN, fixed:SECONDS, or real.")
@click.option(
    "--trace", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Replay a session file instead."
)
@click.option("--steady", "steady_s", type=click.FloatRange(min=1), help="Replace finished agents for so many seconds.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of prompts and tool times.")
@click.option("--slots", type=_COUNT, default=8, show_default=True, help="Slots of the ideal card to compare with.")
@click.option(
    "--vocabulary", type=click.IntRange(min=2), default=30_000, show_default=True, help="Prompts use ids below this."
)
@click.option("--api-key", "key", help="Bearer key of the server.  [default: KVTRACE_ENGINE_KEY or its _FILE]")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Write turns/s and TTFT against N.")
@click.option("--json", "as_json", is_flag=True, help="JSON with a schema version instead of a table.")
def command(url: str | None, key: str | None, plot: Path | None, as_json: bool, **asked: Any) -> None:
    """Let agents with tools work against a running server, ours or any OpenAI-compatible one.

    Each agent has a prompt of its own, generates, waits for its tool, and returns with all it had and new tokens.
    Where the server takes spans, every tool's start and end is sent to it. Turns a second are held against a queue
    in which KV moves for free (prefill 40,000 tokens/s, decode steps of 5.2 ms + 0.26 ms an agent).
    """
    from kvtrace.tracer.engine_address import read_key

    from ..bench_agents_view import draw, show

    options = Asked(url=_base(url), key=key or read_key(os.environ), **asked)
    _tools(options.tool, options.seed)  # refused before a server is asked
    try:
        runs = asyncio.run(_measure(options))
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is missing: pip install 'kvtrace[bench]'") from error
    if as_json:
        click.echo(json.dumps(_document(options, runs), indent=2))
    else:
        show(runs)
    if plot is not None:
        draw(runs, plot)
    if all(run.figures.turns == 0 for run in runs):
        raise CommandError("no turn was answered; the first failures: " + "; ".join(runs[0].figures.errors))


async def _measure(asked: Asked) -> list[Run]:
    from kvtrace.engine.bench.agents.server import find_model, takes_spans
    from kvtrace.tracer import configure

    model = asked.model or await find_model(asked.url, asked.key)
    if model is None:
        raise CommandError(
            f"no server lists its models at {asked.url}/v1/models: start one with `kvtrace serve`, or give --url; one "
            "that wants a key gets it by KVTRACE_ENGINE_KEY_FILE",
            ExitCode.UNREACHABLE,
        )
    spans = await takes_spans(asked.url, asked.key)
    with tempfile.TemporaryDirectory(prefix="kvtrace-bench-") as folder:
        configure(directory=folder, engine=asked.url if spans else "")
        runs = [await _run(asked, model, agents, number) for number, agents in enumerate(asked.agents)]
        configure(directory=folder, engine="")
    return runs


async def _run(asked: Asked, model: str, agents: int, number: int) -> Run:
    from kvtrace.engine.bench.agents.drive import run_agents, run_steadily
    from kvtrace.engine.bench.agents.figures import figures_of
    from kvtrace.engine.bench.agents.watcher import Watcher

    from ..bench_agents_view import TurnBar

    shape = _shape(asked, agents)
    tools = _tools(asked.tool, asked.seed)
    async with Watcher(asked.url, asked.key) as watcher:
        if asked.steady_s is not None:
            renew = _renewing(asked, shape, tools, str(number))
            with TurnBar(f"{agents} agents", None) as bar:
                turns = await run_steadily(
                    renew, agents, asked.steady_s, asked.url, model, key=asked.key, on_turn=bar.turn
                )
            window = _steady_window(turns, asked.steady_s)
        else:
            plans = _plans(asked, shape, tools, str(number))
            with TurnBar(f"{len(plans)} agents", sum(len(plan.turns) for plan in plans)) as bar:
                turns = await run_agents(plans, asked.url, model, key=asked.key, on_turn=bar.turn)
            window = None
    return Run(figures_of(turns, window), watcher.moved, None if asked.trace else _ideal(asked, agents, tools))


def _base(url: str | None) -> str:
    """The server's address without the ``/v1`` that OpenAI's clients want, as every command here takes it."""
    from ..feed.http import ServerAddress, default_address

    try:
        address = default_address() if url is None else ServerAddress.parse(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return f"{'https' if address.secure else 'http'}://{address.text}{address.base}"


def _shape(asked: Asked, agents: int) -> Shape:
    from kvtrace.engine.bench.agents.workload import Shape

    return Shape(agents, asked.prompt, asked.returns, asked.generate, asked.new)


def _plans(asked: Asked, shape: Shape, tools: Tools, run: str) -> tuple[AgentPlan, ...]:
    from kvtrace.engine.bench.agents.workload import closed_loop, read_sessions
    from kvtrace.engine.errors import ConfigError

    try:
        if asked.trace is None:
            plans = closed_loop(shape, tools, asked.seed, run)
        else:
            plans = read_sessions(asked.trace, asked.seed, run)[: shape.agents]
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    return tuple(replace(plan, vocabulary=asked.vocabulary) for plan in plans)


def _renewing(asked: Asked, shape: Shape, tools: Tools, run: str) -> Callable[[int], AgentPlan]:
    from kvtrace.engine.bench.agents.workload import closed_loop_agent

    def renew(index: int) -> AgentPlan:
        return replace(closed_loop_agent(shape, tools, asked.seed, run, index), vocabulary=asked.vocabulary)

    return renew


def _steady_window(turns: Sequence[TurnRecord], seconds: float) -> tuple[float, float]:
    start = min((turn.sent_s for turn in turns), default=0.0)
    return start + _COLD_SHARE * seconds, start + seconds


def _tools(described: str, seed: int) -> Tools:
    from kvtrace.analysis.planner.ideal import exponential_tools
    from kvtrace.engine.bench.agents.tool_times import real_tools
    from kvtrace.engine.bench.agents.workload import ToolCall

    kind, _, number = described.partition(":")
    if described == "real":
        return real_tools(seed)
    try:
        seconds = float(number)
    except ValueError:
        seconds = -1.0
    if kind == "exp" and seconds > 0:
        drawn = exponential_tools(seed, seconds)
        return lambda agent, turn: ToolCall("tool", drawn(agent, turn))
    if kind == "fixed" and seconds >= 0:
        return lambda agent, turn: ToolCall("tool", seconds)
    raise click.UsageError(f"--tool {described}: give exp:MEAN or fixed:SECONDS, or real")


def _ideal(asked: Asked, agents: int, tools: Tools) -> float | None:
    """Turns a second of a queue with free KV movement; of agents that all begin at once, so not of a steady run."""
    from kvtrace.analysis.planner.ideal import Pace, Workload, ideal_run

    if asked.steady_s is not None:
        return None
    work = Workload(agents, asked.prompt, asked.returns, asked.generate, asked.new)
    pace = Pace(slots=asked.slots)
    return ideal_run(work, pace, lambda agent, turn: tools(agent, turn).seconds).turns_per_s


def _document(asked: Asked, runs: Sequence[Run]) -> dict[str, Any]:
    options = {name: value for name, value in asdict(asked).items() if name != "key"}
    return {
        "schema_version": SCHEMA_VERSION,
        "asked": {**options, "trace": asked.trace.name if asked.trace else None},
        "runs": [
            {
                **asdict(run.figures),
                "moved": None if run.moved is None else {**asdict(run.moved), "freed_share": run.moved.freed_share},
                "ideal_turns_per_s": run.ideal_turns_per_s,
                "turns_per_s_of_ideal": run.of_ideal,
                "ideal_multiple": None if run.figures.b is None else 1 / (1 - run.figures.b),
                "measured_multiple": run.figures.turns_per_s / runs[0].figures.turns_per_s
                if runs[0].figures.turns_per_s
                else None,
            }
            for run in runs
        ],
    }
