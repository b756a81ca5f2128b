"""``kvtrace bench prefill``: how fast a prompt that nobody has seen is computed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from ..bench_device import bench_device, phases

if TYPE_CHECKING:
    from kvtrace.engine.bench.prefill import PrefillResult

SCHEMA_VERSION: Final = 1
_COUNT: Final = click.IntRange(min=1)


@click.command("prefill")
@click.option("--device", help="cpu, cuda or cuda:N.  [default: cuda where there is one]")
@click.option(
    "--model", help="Name, folder, GGUF file or random:qwen3-8b.  [default: random:qwen3-8b; on a CPU smollm2]"
)
@click.option("--tokens", type=_COUNT, multiple=True, help="Length of the prompt; may be given again.")
@click.option(
    "--step-tokens",
    type=_COUNT,
    multiple=True,
    help="Most tokens of one step; may be given again.  [default: 8192; on a CPU 512]",
)
@click.option("--repeats", type=_COUNT, default=3, show_default=True, help="Each figure is their median.")
@click.option("--json", "as_json", is_flag=True, help="JSON with a schema version instead of a table.")
def command(
    device: str | None,
    model: str | None,
    tokens: Sequence[int],
    step_tokens: Sequence[int],
    repeats: int,
    as_json: bool,
) -> None:
    """Time prompts through the engine's own runner, from the first launch until the first token is read."""
    with bench_device(device) as place, phases() as on_phase:
        from kvtrace.engine.bench.machine import machine
        from kvtrace.engine.bench.prefill import CPU_TOKENS, GPU_TOKENS, measure_prefill
        from kvtrace.engine.model import load_model

        cpu = place.type == "cpu"
        loaded = load_model(model or ("smollm2" if cpu else "random:qwen3-8b"), device=place, on_phase=on_phase)
        results = measure_prefill(
            loaded,
            tokens or (CPU_TOKENS if cpu else GPU_TOKENS),
            step_tokens or ((512,) if cpu else (8192,)),
            repeats,
            on_phase,
        )
        facts = machine(place)
    if as_json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "machine": facts,
            "model": loaded.model_id,
            "prompts": [asdict(result) for result in results],
        }
        click.echo(json.dumps(document, indent=2))
    else:
        _show(results, f"{loaded.model_id} on {facts['device']} ({facts['platform']})")


def _show(results: Sequence[PrefillResult], what: str) -> None:
    from rich.table import Table

    from ..console import PipedConsole

    console = PipedConsole(highlight=False)
    console.print(f"{what}: a new prompt, until its first token is there; medians")
    table = Table(box=None, pad_edge=False)
    for name in ("tokens", "tokens/step", "ms", "tokens/s"):
        table.add_column(name, justify="right")
    for row in results:
        table.add_row(f"{row.tokens:,}", f"{row.step_tokens:,}", f"{row.ms:,.1f}", f"{row.tokens_per_s:,.0f}")
    console.print(table)
