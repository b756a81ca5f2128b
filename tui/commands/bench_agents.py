"""``kvtrace bench agents``: many agents against one server, measured beside what the card could do at best."""

from __future__ import annotations

import asyncio
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..exits import CommandError
from ..format import counted

if TYPE_CHECKING:
    from ..bench_agents_measure import Asked
    from ..bench_cells import Json, Middle

SPREADS: Final = (
    ("turns_per_s",),
    ("turns_per_s_of_ideal",),
    ("returns_per_s_busy",),
    ("decoding_mean",),
    ("return_ttft_s", "p50"),
    ("return_ttft_s", "p95"),
    ("return_ttft_s", "p99"),
    ("return_queued_s", "p50"),
    ("return_restoring_s", "p50"),
    ("return_starting_s", "p50"),
    ("client_cpu_share",),
)
_DIGITS: Final = 10
_COUNT: Final = click.IntRange(min=1)
_FILE: Final = click.Path(path_type=Path, dir_okay=False)


class Numbers(click.ParamType[tuple[int, ...]]):
    """``8,16,32``: whole numbers of at least ``least``."""

    name = "N[,N]..."

    def __init__(self, least: int) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) < _DIGITS for part in parts):
            self.fail(f"{value!r} is no list of numbers like 8,16,32", param, ctx)
        numbers = tuple(dict.fromkeys(int(part) for part in parts))  # the same twice would be measured twice
        if min(numbers) < self._least:
            self.fail(f"{value!r}: give numbers of at least {self._least}", param, ctx)
        return numbers


class Seconds(click.FloatRange):
    """A number of seconds that ends: ``nan`` passes every comparison of a plain range, ``inf`` many."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds


@click.command("agents")
@click.option("--url", help="The server.  [default: KVTRACE_ENGINE, else http://127.0.0.1:8177]")
@click.option("--model", help="Model id.  [default: the server's first]")
@click.option("--agents", type=Numbers(1), default="8,16", show_default=True, help="Agents at once, one run each.")
@click.option("--prompt", type=_COUNT, default=6000, show_default=True, help="Tokens of each agent's own prompt.")
@click.option("--returns", type=click.IntRange(min=0), default=4, show_default=True, help="Returns from a tool.")
@click.option("--generate", type=_COUNT, default=64, show_default=True, help="Tokens generated a turn.")
@click.option("--new", type=_COUNT, default=100, show_default=True, help="New tokens at a return.")
@click.option(
    "--tool", default="exp:1.868", show_default=True, help="Tool times: exp:MEAN, fixed:SECONDS, real or real:LONGEST."
)
@click.option(
    "--trace", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Replay a session file instead."
)
@click.option("--steady", "steady_s", type=Seconds(min=1), help="Replace finished agents for so many seconds.")
@click.option("--seeds", "--seed", type=Numbers(0), default="1", show_default=True, help="Of tool times, one run each.")
@click.option("--slots", type=_COUNT, default=8, show_default=True, help="Slots of the ideal card to compare with.")
@click.option(
    "--vocabulary", type=click.IntRange(min=2), default=30_000, show_default=True, help="Prompts use ids below this."
)
@click.option("--api-key", "key", help="Bearer key of the server.  [default: KVTRACE_ENGINE_KEY or its _FILE]")
@click.option("--label", help="Name of the engine in results.  [default: kvtrace, vllm or other, as the server says]")
@click.option(
    "--machine", help="Name of the server's card in results, as 'NVIDIA H200'.  [default: what kvtrace serve tells]"
)
@click.option(
    "--resident-ttft",
    "resident_ttft_s",
    type=Seconds(min=0, min_open=True),
    help="Seconds to the first token where nobody has to leave.  [default: that of the runs with no more agents than slots]",
)
@click.option(
    "--append", "results", type=_FILE, help="Add each run to this JSON file; its runs are compared with as well."
)
@click.option(
    "--plot", type=_FILE, help="Write turns/s and TTFT against N; needs matplotlib, `pip install 'kvtrace[plot]'`."
)
@click.option("--json", "as_json", is_flag=True, help="JSON with a schema version instead of a table.")
def command(
    url: str | None,
    key: str | None,
    resident_ttft_s: float | None,
    results: Path | None,
    plot: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Let agents with tools work against a running server, ours or any OpenAI-compatible one.

    Each agent has a prompt of its own, generates, waits for its tool, and returns with all it had and new tokens.
    Where the server takes spans, every tool's start and end is sent to it. Turns a second are held against a queue
    in which KV moves for free (prefill 40,000 tokens/s, decode steps of 5.2 ms + 0.26 ms an agent).

    With several seeds the table shows medians, with the least and greatest. docs/proof.md defines every figure.
    """
    from kvtrace.tracer.engine_address import read_key

    from ..bench_agents_measure import Asked, check_sessions, tools_of
    from ..bench_agents_view import check_plot, draw, show
    from ..bench_cells import groups_of, merged

    options = Asked(url=_base(url), key=key or read_key(os.environ), **asked)
    tools_of(options.tool, options.seeds[0])  # refused before a server is asked
    if options.trace is not None and options.steady_s is not None:
        raise click.UsageError("--steady replaces finished agents; a session file says itself who comes: leave out one")
    check_sessions(options)
    before = _before(results)
    if plot is not None:
        check_plot(plot)
    runs, stopped = _measured(options, results, before)
    groups, known = groups_of(runs), groups_of(merged(before, runs))
    if as_json:
        click.echo(json.dumps(_document(options, runs, resident_ttft_s, before), indent=2))
    elif any(run["turns"] for run in runs):
        show(groups, known, resident_ttft_s)
    if plot is not None and runs:
        draw(groups, plot)
    _end(runs, stopped)


def _end(runs: list[Json], stopped: BaseException | None) -> None:
    """Say what failed, on stderr, and end as the run ended."""
    if stopped is None and not any(run["turns"] for run in runs):
        raise CommandError("no turn was answered; the first failures: " + "; ".join(runs[0]["errors"]))
    for run in runs:
        if run["failed"]:
            whole, cell = counted(run["failed"] + run["turns"], "request"), run["cell"]
            click.echo(
                f"{counted(cell['agents'], 'agent')}, seed {cell['seed']}: {run['failed']} of {whole} failed, and their agents "
                f"gave up: this run is compared with nothing ({'; '.join(run['errors'])})",
                err=True,
            )
    if stopped is not None:
        raise stopped


def _measured(asked: Asked, results: Path | None, before: list[Json]) -> tuple[list[Json], BaseException | None]:
    """Measure, each record added to the file as soon as it is there.

    Where something ends it early, what was measured until then and what ended it.
    """
    from ..bench_agents_measure import measure
    from ..bench_cells import add_runs

    def waiting() -> None:
        click.echo("waiting until the server's host tier is whole", err=True)

    runs: list[Json] = []

    def measured(run: Json) -> None:
        runs.append(run)
        if len(runs) == 1 and results is not None:
            _say_of_the_card(run, before, results)
        if results is not None and run["turns"]:
            try:
                add_runs(results, [run])
            except (OSError, ValueError) as error:
                raise CommandError(f"cannot write {results}: {error}") from error

    try:
        asyncio.run(measure(asked, waiting, measured))
    except (KeyboardInterrupt, CommandError) as stopped:
        if not runs:
            raise
        return runs, stopped
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is missing: pip install 'kvtrace[bench]'") from error
    return runs, None


def _say_of_the_card(run: Json, before: list[Json], results: Path) -> None:
    """Say on stderr what comes of a card whose name is not told, or was not."""
    from ..bench_cells import half_named, nameless

    if nameless(run):
        click.echo(
            f"the server does not tell its card's name: runs of another card would take this one's place in {results}; "
            "give --machine",
            err=True,
        )
    if half_named(run, before):
        click.echo(
            f"only some runs in {results} name their card: the others count as another card's, and the two are not compared",
            err=True,
        )


def _before(results: Path | None) -> list[Json]:
    """What the file of results holds; one that is faulty or cannot be written is refused before anything is measured."""
    from ..bench_cells import check_writable, read_runs

    if results is None:
        return []
    try:
        before = read_runs(results)
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot read {results}: {error}") from error
    try:
        check_writable(results)
    except OSError as error:
        raise CommandError(f"cannot write {results}: {error}") from error
    return before


def _base(url: str | None) -> str:
    """The server's address without the ``/v1`` that OpenAI's clients want, as every command here takes it."""
    from ..feed.http import ServerAddress, default_address

    try:
        address = default_address() if url is None else ServerAddress.parse(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return f"{'https' if address.secure else 'http'}://{address.text}{address.base}"


def _spread(middle: Middle | None) -> dict[str, float] | None:
    return None if middle is None else {"median": middle.median, "low": middle.low, "high": middle.high}


def _document(asked: Asked, runs: list[Json], resident_ttft_s: float | None, before: list[Json]) -> dict[str, Any]:
    from dataclasses import asdict

    from ..bench_cells import SCHEMA_VERSION, derive, groups_of, merged

    options = {name: value for name, value in asdict(asked).items() if name != "key"}
    known = groups_of(merged(before, runs))
    return {
        "schema_version": SCHEMA_VERSION,
        "asked": {**options, "trace": asked.trace.name if asked.trace else None},
        "runs": runs,
        "groups": [
            {
                "agents": group.agents,
                "seeds": group.seeds,
                **{"_".join(path): _spread(group.middle(*path)) for path in SPREADS},
                **asdict(derive(group, known, resident_ttft_s)),
            }
            for group in groups_of(runs)
        ],
    }
