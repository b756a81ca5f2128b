"""``kvtrace plan``: swap against recompute for a rig and a model, and what a trace would gain from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..exits import CommandError, ExitCode

if TYPE_CHECKING:
    from kvtrace.analysis.planner.models import ModelShape
    from kvtrace.analysis.planner.plan import Plan, PlanRequest

_GIB = 2**30
_POSITIVE = click.FloatRange(min=0, min_open=True)
_COUNT = click.IntRange(min=1)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as given; ``None`` where the card, the model or the trace decides."""

    gpu: str
    vram_gb: float | None
    link_gbps: float | None
    prefill_tok_s: float | None
    host_gb: float
    slots: int
    model: str
    weights_gb: float | None
    bytes_per_token: int | None
    pool_tokens: int | None
    context_tokens: int
    new_tokens: int
    b: float | None
    agents: int | None


@click.command("plan")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[SOURCE]...")
@click.option("--gpu", default="RX 9070 XT", show_default=True, help="A card of the built-in table, or any name.")
@click.option("--vram-gb", type=_POSITIVE, help="Memory of the card, GiB.")
@click.option("--link-gbps", type=_POSITIVE, help="Pinned copies one way, GB/s; `kvtrace bench link` measures it.")
@click.option("--prefill-tok-s", type=_POSITIVE, help="Prompt tokens computed a second.")
@click.option("--host-gb", type=click.FloatRange(min=0), default=48, show_default=True, help="Host memory to use, GiB.")
@click.option("--slots", type=_COUNT, default=8, show_default=True, help="Agents the card decodes at once.")
@click.option("--model", default="Qwen3-4B", show_default=True, help="A known name, a GGUF file, or an HF config.json.")
@click.option("--weights-gb", type=click.FloatRange(min=0), help="What the weights take, GB.")
@click.option("--bytes-per-token", type=_COUNT, help="KV bytes of a token, instead of the model's.")
@click.option(
    "--pool-tokens", type=_COUNT, help="Tokens the card's KV pool holds, instead of what is left of the VRAM."
)
@click.option("--context-tokens", type=_COUNT, default=6900, show_default=True, help="Context of one agent.")
@click.option("--new-tokens", type=click.IntRange(min=0), default=561, show_default=True, help="New ones at a return.")
@click.option("--b", type=click.FloatRange(0, 1), help="Blocked share, instead of the measured one.")
@click.option("--agents", type=_COUNT, help="Agents in progress in a replay.  [default: as many as the slots want]")
@click.option("--json", "as_json", is_flag=True, help="JSON with a schema version instead of text.")
def command(paths: tuple[Path, ...], as_json: bool, **asked: Any) -> None:
    """Weigh swapping an agent's KV cache against recomputing it, for a card and a model.

    With a SOURCE (anything `kvtrace report` reads), also replay that work under each of the engine's policies.
    """
    from kvtrace.analysis import AnalysisError, NoDataError
    from kvtrace.analysis.render.plan import render_plan, render_plan_json

    from ..console import PipedConsole

    try:
        made = _plan(_request(Asked(**asked)), paths)
    except NoDataError as error:
        raise CommandError(str(error), ExitCode.NO_DATA) from error
    except (AnalysisError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        click.echo(render_plan_json(made))
    else:
        render_plan(made, PipedConsole())


def _plan(request: PlanRequest, paths: tuple[Path, ...]) -> Plan:
    from kvtrace.analysis.planner.plan import make_plan, round_trip

    if not paths:
        return make_plan(request)
    from kvtrace.analysis import ReportOptions, open_study
    from kvtrace.analysis.planner.recorded import recorded_work

    from ..policies import engine_policies

    costs = round_trip(request)
    options = ReportOptions(
        round_trip_ms=costs.round_trip_ms,
        recompute_s=costs.recompute_s,
        slots=request.rig.slots,
        bytes_per_token=request.model.token_bytes,
    )
    with open_study(paths, options=options) as study:
        work = recorded_work(study.connection, request.context_tokens)
        return make_plan(request, study.report, work, engine_policies())


def _request(asked: Asked) -> PlanRequest:
    from kvtrace.analysis.planner.cards import CARDS, find_card
    from kvtrace.analysis.planner.costs import Rig
    from kvtrace.analysis.planner.plan import PlanRequest

    card = find_card(asked.gpu)
    names = ", ".join(known.name for known in CARDS)
    vram = asked.vram_gb * _GIB if asked.vram_gb else card and card.vram_bytes
    link = asked.link_gbps * 1e9 if asked.link_gbps else card and card.link_bytes_per_s
    prefill = asked.prefill_tok_s or (card and card.prefill_tok_s)
    if not vram or not link:
        raise click.UsageError(
            f"{asked.gpu} is not known ({names} are): give --vram-gb, --link-gbps and --prefill-tok-s."
        )
    if not prefill:
        raise click.UsageError(
            f"Nobody measured prefill on {asked.gpu} for kvtrace: give --prefill-tok-s; "
            "`kvtrace bench prefill` measures it on a machine that has one."
        )
    rig = Rig(round(vram), link, prefill, round(asked.host_gb * _GIB), asked.slots)
    model, about_model = _model(asked)
    said = card and (not asked.vram_gb or not asked.link_gbps or not asked.prefill_tok_s)
    return PlanRequest(
        rig=rig,
        model=model,
        context_tokens=asked.context_tokens,
        new_tokens=asked.new_tokens,
        b=asked.b,
        pool_tokens=asked.pool_tokens,
        agents=asked.agents,
        assumed=((f"{card.name}: {card.source}",) if card and said else ()) + about_model,
    )


def _model(asked: Asked) -> tuple[ModelShape, tuple[str, ...]]:
    """The model with what was given instead, and where the rest is from."""
    from kvtrace.analysis.planner.models import find_model

    model = find_model(asked.model)
    about: tuple[str, ...] = (f"{model.name}: {model.source}",)
    if asked.bytes_per_token:
        model, about = replace(model, token_bytes=asked.bytes_per_token, state_bytes=0), ()
    if asked.weights_gb is not None:
        model = replace(model, weights_bytes=round(asked.weights_gb * 1e9))
    return model, about
