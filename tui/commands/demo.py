"""``kvtrace demo``: agents on a real model, their KV parked and brought back by their own spans, then the report."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..exits import CommandError, ExitCode
from ..format import counted

if TYPE_CHECKING:
    from rich.console import Console

    from kvtrace.analysis import Report
    from kvtrace.engine.config import PolicyMode
    from kvtrace.engine.model import LoadedModel
    from kvtrace.engine.records import EngineEvent
    from kvtrace.tracer.settings import Settings

    from ..demo.scene import SceneFacts
    from ..demo.script import AgentScript

POLICIES = ("swap", "auto", "eager", "recompute", "keep")


@click.command(name="demo")
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default="swap",
    show_default=True,
    help="What happens to a waiting agent's KV.",
)
@click.option("--agents", type=click.IntRange(1, 64), default=8, show_default=True, help="How many agents.")
@click.option("--turns", type=click.IntRange(1, 32), default=4, show_default=True, help="Tool calls of each agent.")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the scripts: same seed, same tool calls.")
@click.option(
    "--compare/--no-compare", default=True, show_default=True, help="Play the same scripts under recompute as well."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(policy: str, agents: int, turns: int, seed: int, compare: bool, as_json: bool) -> None:
    """Run agents on a real model and watch their KV cache leave and return.

    Starts the engine in this process with a KV pool for about three agents, lets every agent generate and call real
    tools, and ends with the report of b. Needs no GPU. A seeded script, not the model, picks the tools.
    """
    from kvtrace import tracer

    from ..console import PipedConsole
    from ..demo.script import write_scripts

    run = tracer.configure(service_name="kvtrace-demo")
    _check_spans(run)
    talk = PipedConsole(stderr=True, highlight=False)
    scripts = write_scripts(agents, turns, seed)
    model = _load(talk)
    runs, report = _play_all(talk, model, scripts, policy, seed, compare, run)
    if as_json:
        click.echo(json.dumps(_facts(model, runs, report, agents, turns, seed), indent=2))
    else:
        _show(runs, report)


def _load(talk: Console) -> LoadedModel:
    from kvtrace.engine.errors import EngineError

    started = time.monotonic()
    with talk.status("loading the model") as status:
        try:
            from kvtrace.engine import load_model

            model = load_model("smollm2", on_phase=status.update)
        except EngineError as problem:
            raise CommandError(str(problem)) from problem
    talk.print(f"{model.model_id} on {model.device} in {time.monotonic() - started:.1f} s")
    return model


def _check_spans(run: Settings) -> None:
    """Refuse before the agents work for minutes what would leave nothing to report after them."""
    if run.disabled:
        raise CommandError(
            "KVTRACE_DISABLED is set, so no tool call would be recorded or move any KV; unset it for the demo",
            ExitCode.NO_DATA,
        )
    there = next(folder for folder in (run.run_directory, *run.run_directory.parents) if os.access(folder, os.F_OK))
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise CommandError(f"no spans can be written into {there}; point KVTRACE_DIR at a folder of yours")


def _play_all(
    talk: Console,
    model: LoadedModel,
    scripts: tuple[AgentScript, ...],
    policy: str,
    seed: int,
    compare: bool,
    run: Settings,
) -> tuple[list[SceneFacts], Report]:
    """Play under the policy asked for, report its spans, then play under recompute for comparison."""
    from kvtrace import tracer
    from kvtrace.analysis import AnalysisError, build_report
    from kvtrace.engine.config import PolicyMode

    runs = [_play(talk, model, scripts, PolicyMode(policy), seed)]
    try:
        report = build_report([run.run_directory])
    except AnalysisError as problem:
        raise CommandError(f"the agents are done, but their spans give no report: {problem}") from problem
    if compare and policy != PolicyMode.RECOMPUTE:
        # The second run's spans must not be taken for the newest run by a later `kvtrace report`.
        with tempfile.TemporaryDirectory(prefix="kvtrace-demo-") as folder:
            tracer.configure(directory=Path(folder), service_name="kvtrace-demo")
            runs.append(_play(talk, model, scripts, PolicyMode.RECOMPUTE, seed))
    return runs, report


def _play(
    talk: Console, model: LoadedModel, scripts: tuple[AgentScript, ...], policy: PolicyMode, seed: int
) -> SceneFacts:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from kvtrace.engine.errors import EngineError

    from ..demo.scene import engine_config, play
    from ..demo.view import EventLines

    config = engine_config(model, scripts, policy, seed)
    block = model.geometry.block_bytes
    talk.print(
        f"\n[bold]{policy.value}[/bold]: {counted(len(scripts), 'agent')}, KV pool {config.device_blocks * block / 1e6:.0f} MB "
        f"(about 3 agents), host tier {config.host_blocks * block / 1e6:.0f} MB"
    )
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("turns"),
        TimeElapsedColumn(),
    )
    turns = sum(len(script.steps) + 1 for script in scripts)
    started = time.monotonic()
    moves = EventLines(lambda: time.monotonic() - started)

    def show(event: EngineEvent) -> None:
        for line in moves.lines(event):
            progress.console.print(line)

    with Progress(*columns, console=talk, transient=True) as progress:
        task = progress.add_task(policy.value, total=turns)
        try:
            return play(
                model,
                config,
                scripts,
                on_event=show,
                on_turn=lambda _name, _answer: progress.advance(task),
            )
        except EngineError as problem:
            raise CommandError(f"the engine gave up: {problem}", ExitCode.FAILED) from problem


def _facts(
    model: LoadedModel, runs: list[SceneFacts], report: Report, agents: int, turns: int, seed: int
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "model": model.model_id,
        "device": str(model.device),
        "agents": agents,
        "turns": turns,
        "seed": seed,
        "runs": [{**asdict(run), "reprefill_s": run.reprefill_s} for run in runs],
        "report": report.as_json(),
    }


def _show(runs: list[SceneFacts], report: Report) -> None:
    from kvtrace.analysis import render_terminal

    from ..console import PipedConsole
    from ..demo.view import comparison, verdict

    out = PipedConsole(highlight=False)
    out.print()
    render_terminal(report, out)
    out.print()
    out.print(comparison(runs))
    if len(runs) > 1:
        out.print(verdict(runs[0], runs[1]))
    out.print(f"\nThe spans stay: `{_program()} report` shows the same figures again.", markup=False)


def _program() -> str:
    """What to type for this program: `make demo` leaves its folder off the path."""
    return "kvtrace" if shutil.which("kvtrace") else sys.argv[0]
