"""``kvtrace bench swap``: an agent's KV out and back through the engine's own tiers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

import click

from ..bench_device import bench_device, phases

if TYPE_CHECKING:
    from kvtrace.engine.bench.swap import SwapResult

SCHEMA_VERSION: Final = 1
GEOMETRIES: Final = ("qwen3-8b", "qwen3.5", "smollm2")
WAYS: Final = ("auto", "batched", "staged", "single")
_COUNT: Final = click.IntRange(min=1)


@click.command("swap")
@click.option("--device", help="cpu, cuda or cuda:N.  [default: cuda where there is one]")
@click.option(
    "--geometry",
    "names",
    type=click.Choice(GEOMETRIES),
    multiple=True,
    help="Whose blocks; may be given again.  [default: all, on a CPU smollm2]",
)
@click.option("--tokens", type=_COUNT, default=6900, show_default=True, help="Tokens of the agent that moves.")
@click.option(
    "--pool-tokens", type=_COUNT, help="Tokens of the device pool.  [default: 55,000; on a CPU twice the agent]"
)
@click.option("--host-tokens", type=_COUNT, help="Tokens of the host tier.  [default: 30,000; on a CPU three agents]")
@click.option("--repeats", type=_COUNT, default=15, show_default=True, help="Each figure is their median.")
@click.option(
    "--way",
    "ways",
    type=click.Choice(WAYS),
    multiple=True,
    help="How blocks cross: many by one call of the driver, gathered on the device first, or each by itself; may be given "
    "again.  [default: auto, the first that the device knows]",
)
@click.option("--json", "as_json", is_flag=True, help="JSON with a schema version instead of a table.")
def command(
    device: str | None,
    names: Sequence[str],
    tokens: int,
    pool_tokens: int | None,
    host_tokens: int | None,
    repeats: int,
    ways: Sequence[str],
    as_json: bool,
) -> None:
    """Move an agent's blocks out, in, and both at once, and hold that against raw copies of as many bytes.

    The blocks lie anywhere in the pool, others at every repeat; one round trip is compared byte by byte before.
    """
    with bench_device(device) as place:
        from kvtrace.engine.bench.machine import machine
        from kvtrace.engine.bench.swap import SwapShape, measure_swap
        from kvtrace.engine.process import own_process
        from kvtrace.engine.swap.choose import Way

        cpu = place.type == "cpu"
        shape = SwapShape(
            tokens,
            pool_tokens or (2 * tokens if cpu else 55_000),
            host_tokens or (3 * tokens if cpu else 30_000),
            repeats,
        )
        with phases() as on_phase, own_process():
            chosen = names or (("smollm2",) if cpu else GEOMETRIES)
            shapes = [replace(shape, way=Way(way)) for way in ways or ("auto",)]
            results = [measure_swap(name, place, one, on_phase) for name in chosen for one in shapes]
        facts = machine(place)
    if as_json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "machine": facts,
            "shape": {**asdict(shape), "way": ",".join(ways or ("auto",))},
            "swaps": [asdict(result) for result in results],
        }
        click.echo(json.dumps(document, indent=2))
    else:
        _show(results, f"{facts['device']} ({facts['platform']})")


def _show(results: Sequence[SwapResult], device: str) -> None:
    from rich.table import Table

    from ..console import PipedConsole
    from ..format import bytes_text, count_text

    console = PipedConsole(highlight=False)
    console.print(f"{device}: an agent's blocks from and to random places of the pool, medians")
    for result in results:
        console.print(
            f"\n{result.geometry}, {result.way}: {count_text(result.blocks)} blocks of {result.block_bytes / 1024:,.0f} KiB, "
            f"{bytes_text(result.moved_bytes)}"
        )
        table = Table(box=None, pad_edge=False)
        for name in ("way", "GB/s", "raw GB/s", "÷ raw", "ms", "submit ms"):
            table.add_column(name, justify="left" if name == "way" else "right")
        for row in result.rows:
            table.add_row(
                row.case,
                f"{row.bytes_per_s / 1e9:.1f}",
                f"{row.raw_bytes_per_s / 1e9:.1f}",
                f"{row.ratio:.3f}",
                f"{row.seconds * 1e3:.2f}",
                f"{row.submit_ms:.2f}",
            )
        console.print(table)
        console.print(f"both ways at once ÷ one way: {result.both_ratio:.2f}; {_memory(result)}")


def _memory(result: SwapResult) -> str:
    parts = []
    if result.host_pinned_bytes:
        parts.append(f"pinned ÷ configured: {result.host_pinned_bytes / result.host_configured_bytes:.3f}")
    if result.device_peak_bytes is not None:
        parts.append(f"device memory ÷ configured: {result.device_peak_bytes / result.device_configured_bytes:.3f}")
    return "; ".join(parts) or "nothing pinned"
