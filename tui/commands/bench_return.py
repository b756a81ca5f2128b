"""``kvtrace bench return``: the first token of an agent that comes back from a tool, by where its KV is.

In this process, or with ``--url`` over HTTP (:mod:`..bench_return_http`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

import click

from ..bench_device import bench_device, phases
from ..bench_return_http import over_http

if TYPE_CHECKING:
    from kvtrace.engine.bench.returns import ReturnResult

SCHEMA_VERSION: Final = 1
_COUNT: Final = click.IntRange(min=1)


@click.command("return")
@click.option("--url", help="A running `kvtrace serve` to measure over HTTP instead, on which nobody else is at work.")
@click.option("--api-key", "key", help="Its bearer key.  [default: KVTRACE_ENGINE_KEY or its _FILE]")
@click.option(
    "--vocabulary", type=click.IntRange(min=2), help="Over HTTP: prompts use ids below this.  [default: 30,000]"
)
@click.option("--device", help="cpu, cuda or cuda:N.  [default: cuda where there is one]")
@click.option(
    "--model", "source", help="What `kvtrace serve` takes, or random:qwen3-8b.  [default: that on a GPU, else smollm2]"
)
@click.option("--tokens", type=_COUNT, help="Tokens of its context.  [default: 6,900; on a CPU 300]")
@click.option("--new-tokens", type=_COUNT, help="Tokens of the tool's result.  [default: 100; on a CPU 20]")
@click.option("--repeats", type=_COUNT, help="Each figure is their median.  [default: 9, over HTTP 20; on a CPU 3]")
@click.option("--policy", type=click.Choice(("swap", "auto")), help="Over HTTP it is the server's.  [default: swap]")
@click.option("--json", "as_json", is_flag=True, help="JSON with a schema version instead of a table.")
def command(
    url: str | None,
    key: str | None,
    vocabulary: int | None,
    device: str | None,
    source: str | None,
    tokens: int | None,
    new_tokens: int | None,
    repeats: int | None,
    policy: str | None,
    as_json: bool,
) -> None:
    """Send an agent away and bring it back: resident, from the host, prefetched, computed again.

    Through the whole engine in this process. `exposed` is what the way back cost beyond a resident agent's first
    token, as a multiple of what the link alone takes for as many bytes. With --url as a client of a running server:
    its pool is filled with other agents' prompts to send one away, so one with a small --kv-vram is measured sooner.
    """
    if url is not None:
        if device or source or policy:
            raise click.UsageError("--url measures a server as it runs: leave out --device, --model and --policy")
        asked = {"context_tokens": tokens, "new_tokens": new_tokens, "repeats": repeats, "vocabulary": vocabulary}
        over_http(url, key, {name: size for name, size in asked.items() if size is not None}, as_json=as_json)
        return
    policy = policy or "swap"
    with bench_device(device) as place:
        from kvtrace.engine.bench.machine import machine
        from kvtrace.engine.bench.returns import CPU_SETUP, GPU_SETUP, measure_returns
        from kvtrace.engine.config import PolicyMode
        from kvtrace.engine.model import load_model

        default = CPU_SETUP if place.type == "cpu" else GPU_SETUP
        setup = replace(
            default,
            context_tokens=tokens or default.context_tokens,
            new_tokens=new_tokens or default.new_tokens,
            repeats=repeats or default.repeats,
        )
        with phases() as on_phase:
            name = source or ("smollm2" if place.type == "cpu" else "random:qwen3-8b")
            model = load_model(name, device=place, on_phase=on_phase)
            link, results = measure_returns(model, setup, PolicyMode(policy), on_phase)
        facts = machine(place)
    if as_json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "machine": facts,
            "model": model.model_id,
            "policy": policy,
            "setup": asdict(setup),
            "link_bytes_per_s": link,
            "returns": [asdict(result) for result in results],
        }
        click.echo(json.dumps(document, indent=2))
    else:
        _show(results, f"{model.model_id} on {facts['device']} ({facts['platform']})", link)


def _show(results: Sequence[ReturnResult], what: str, link: float) -> None:
    from rich.table import Table

    from ..console import PipedConsole
    from ..format import bytes_text

    console = PipedConsole(highlight=False)
    console.print(f"{what}: first token of an agent that comes back, medians; the link alone: {link / 1e9:.1f} GB/s")
    table = Table(box=None, pad_edge=False)
    for name in ("its KV was", "first token ms", "worst", "÷ resident", "restored", "restore ms", "link ms", "exposed"):
        table.add_column(name, justify="left" if name == "its KV was" else "right")
    for row in results:
        table.add_row(
            row.case,
            f"{row.first_token_ms:.2f}",
            f"{row.worst_first_token_ms:.2f}",
            f"{row.times_resident:.3f}",
            bytes_text(row.restored_bytes) if row.restored_bytes else "-",
            *("-" if figure is None else f"{figure:.2f}" for figure in (row.restore_ms, row.link_ms, row.exposed)),
        )
    console.print(table)
