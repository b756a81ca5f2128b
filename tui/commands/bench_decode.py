"""``kvtrace bench decode``: how long a decoding step takes against what the memory allows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from ..bench_device import bench_device, phases

if TYPE_CHECKING:
    from kvtrace.engine.bench.decode import DecodeResult

SCHEMA_VERSION: Final = 1
_COUNT: Final = click.IntRange(min=1)


class Case(click.ParamType[tuple[int, int]]):
    """``8x1000``: sequences and tokens each."""

    name = "BATCHxTOKENS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Two whole numbers of at least 1."""
        if isinstance(value, tuple):
            return value
        parts = str(value).lower().split("x")
        if len(parts) != 2 or not all(part.isdigit() and int(part) for part in parts):
            self.fail(f"{value!r} is no batch and context like 8x1000", param, ctx)
        return int(parts[0]), int(parts[1])


@click.command("decode")
@click.option("--device", help="cpu, cuda or cuda:N.  [default: cuda where there is one]")
@click.option(
    "--model", help="Name, folder, GGUF file or random:qwen3-8b.  [default: random:qwen3-8b; on a CPU smollm2]"
)
@click.option("--case", "cases", type=Case(), multiple=True, help="Batch and context; may be given again.")
@click.option("--steps", type=_COUNT, help="Steps of each case; the figure is their median.  [default: 64; on a CPU 8]")
@click.option("--json", "as_json", is_flag=True, help="JSON with a schema version instead of a table.")
def command(
    device: str | None, model: str | None, cases: Sequence[tuple[int, int]], steps: int | None, as_json: bool
) -> None:
    """Time decoding steps through the engine's own runner, the host's work included.

    Beside each stands the floor: its weights and KV, read once at the rate at which the device copies its own memory.
    Every step is launched before the tokens of the one before are read, as the engine does on a GPU.
    """
    with bench_device(device) as place, phases() as on_phase:
        from kvtrace.engine.bench.decode import CPU_CASES, GPU_CASES, DecodeCase, measure_decode
        from kvtrace.engine.bench.machine import machine
        from kvtrace.engine.model import load_model

        cpu = place.type == "cpu"
        loaded = load_model(model or ("smollm2" if cpu else "random:qwen3-8b"), device=place, on_phase=on_phase)
        chosen = [DecodeCase(*case) for case in cases] or (CPU_CASES if cpu else GPU_CASES)
        rate, results = measure_decode(loaded, chosen, steps or (8 if cpu else 64), on_phase)
        facts = machine(place)
    if as_json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "machine": facts,
            "model": loaded.model_id,
            "weights_bytes": loaded.weights_bytes,
            "kv_token_bytes": loaded.geometry.token_bytes,
            "copy_bytes_per_s": rate,
            "cases": [asdict(result) for result in results],
        }
        click.echo(json.dumps(document, indent=2))
    else:
        _show(results, f"{loaded.model_id} on {facts['device']} ({facts['platform']})", rate)


def _show(results: Sequence[DecodeResult], what: str, rate: float) -> None:
    from rich.table import Table

    from ..console import PipedConsole

    console = PipedConsole(highlight=False)
    console.print(f"{what}: a decoding step, medians; memory copied at {rate / 1e9:,.0f} GB/s, read and written")
    table = Table(box=None, pad_edge=False)
    for name in ("batch", "context", "ms/step", "p95", "floor ms", "÷ floor", "tokens/s", "host ms"):
        table.add_column(name, justify="right")
    for row in results:
        table.add_row(
            str(row.batch),
            f"{row.context_tokens:,}",
            f"{row.ms_per_step:.2f}",
            f"{row.p95_ms_per_step:.2f}",
            f"{row.floor_ms:.2f}",
            f"{row.times_floor:.2f}",
            f"{row.tokens_per_s:,.0f}",
            f"{row.launch_ms:.2f}",
        )
    console.print(table)
