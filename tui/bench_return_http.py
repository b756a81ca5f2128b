"""``kvtrace bench return --url``: the same returns over HTTP, from a running server."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from .bench_device import phases
from .exits import CommandError, ExitCode

if TYPE_CHECKING:
    from kvtrace.engine.bench.agents.returns import HttpReturn, ReturnShape
    from kvtrace.engine.bench.agents.server import ServerFacts

SCHEMA_VERSION: Final = 1


def over_http(url: str, key: str | None, sizes: Mapping[str, int], *, as_json: bool) -> None:
    """Measure and print; ``sizes``: fields of the shape that were asked for, the server's device chooses the others.

    Raises:
        click.UsageError: ``url`` is none.
        CommandError: no ``kvtrace serve`` answers there, or an agent's KV did not go where the measurement needs it.
    """
    from kvtrace.engine.errors import EngineError
    from kvtrace.tracer.engine_address import read_key

    base, key = _base(url), key or read_key(os.environ)
    try:
        with phases() as on_phase:
            facts, model, shape, results = asyncio.run(_measure(base, key, sizes, on_phase))
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is missing: pip install 'kvtrace[bench]'") from error
    except EngineError as error:
        raise CommandError(str(error)) from error
    if as_json:
        click.echo(json.dumps(_document(facts, model, shape, results), indent=2))
    else:
        _show(results, f"{model} under {facts.policy} on {facts.device_name or facts.device}")


async def _measure(
    url: str, key: str | None, sizes: Mapping[str, int], on_phase: Callable[[str], None]
) -> tuple[ServerFacts, str, ReturnShape, list[HttpReturn]]:
    from kvtrace.engine.bench.agents.returns import CPU_SHAPE, GPU_SHAPE, measure_returns
    from kvtrace.engine.bench.agents.server import find_context, find_model, identify, wait_for_host_tier

    model, limit = await find_model(url, key), await find_context(url, key)
    facts = await identify(url, key)
    if model is None or limit is None or not facts.takes_spans:
        raise CommandError(
            f"no `kvtrace serve` answers at {url}, or it is not ready yet: start one, or give another --url; one that "
            "wants a key gets it by KVTRACE_ENGINE_KEY_FILE",
            ExitCode.UNREACHABLE,
        )
    on_phase("waiting until the server's host tier is whole")
    await wait_for_host_tier(url, key)
    facts = await identify(url, key)
    shape = replace(CPU_SHAPE if str(facts.device).startswith("cpu") else GPU_SHAPE, **sizes)
    hint = partial(click.echo, err=True)
    return (
        facts,
        model,
        shape,
        await measure_returns(url, model, limit, shape, key=key, on_phase=on_phase, on_hint=hint),
    )


def _base(url: str) -> str:
    from .feed.http import ServerAddress

    try:
        address = ServerAddress.parse(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return f"{'https' if address.secure else 'http'}://{address.text}{address.base}"


def _document(facts: ServerFacts, model: str, shape: ReturnShape, results: Sequence[HttpReturn]) -> dict[str, Any]:
    from kvtrace.engine.bench.agents.server import client_machine

    return {
        "schema_version": SCHEMA_VERSION,
        "over": "http",
        "machine": {"device": facts.device_name, **client_machine()},
        "server": asdict(facts),
        "model": model,
        "policy": facts.policy,
        "setup": asdict(shape),
        "returns": [asdict(result) for result in results],
    }


def _show(results: Sequence[HttpReturn], what: str) -> None:
    from rich.table import Table

    from .console import PipedConsole
    from .format import bytes_text

    console = PipedConsole(highlight=False)
    console.print(f"{what}: first token of an agent that comes back over HTTP, medians of {results[0].repeats}")
    table = Table(box=None, pad_edge=False)
    names = ("its KV was", "first token ms", "p95", "worst", "÷ resident", "restored", "waited ms", "computed tokens")
    for name in names:
        table.add_column(name, justify="left" if name == "its KV was" else "right")
    for row in results:
        table.add_row(
            row.case,
            f"{row.first_token_ms:.2f}",
            f"{row.p95_first_token_ms:.2f}",
            f"{row.worst_first_token_ms:.2f}",
            f"{row.times_resident:.3f}",
            bytes_text(row.restored_bytes) if row.restored_bytes else "-",
            f"{row.waited_ms:.2f}",
            f"{row.computed_tokens:,}",
        )
    console.print(table)
