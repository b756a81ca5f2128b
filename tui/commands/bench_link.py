"""``kvtrace bench link``: raw copies between host and device."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from ..bench_device import bench_device, phases
from ..sizes import Size

if TYPE_CHECKING:
    from kvtrace.engine.bench.link import LinkResult

SCHEMA_VERSION: Final = 1


@click.command("link")
@click.option("--device", help="cpu, cuda or cuda:N.  [default: cuda where there is one]")
@click.option(
    "--bytes",
    "size",
    type=Size(),
    help="Bytes each way, such as 1GiB.  [default: 6,900 tokens of Qwen3-8B; less on a CPU]",
)
@click.option(
    "--repeats", type=click.IntRange(min=1), default=15, show_default=True, help="Each figure is their median."
)
@click.option("--json", "as_json", is_flag=True, help="JSON with a schema version instead of a table.")
def command(device: str | None, size: int | None, repeats: int, as_json: bool) -> None:
    """Measure raw copies, each way and both ways at once, and scattered blocks of 32 KiB to 8 MiB.

    The sweep shows why a block of all layers is kept as one piece: small copies cannot fill the link, unless the driver
    takes many by one call, which is shown beside where it does.
    """
    with bench_device(device) as place:
        from kvtrace.engine.bench.link import measure_link
        from kvtrace.engine.bench.machine import machine

        with phases() as on_phase:
            result = measure_link(place, repeats, size, on_phase=on_phase)
        facts = machine(place)
    if as_json:
        document = {"schema_version": SCHEMA_VERSION, "machine": facts, "repeats": repeats, "link": asdict(result)}
        click.echo(json.dumps(document, indent=2))
    else:
        _show(result, f"{facts['device']} ({facts['platform']})")


def _show(result: LinkResult, device: str) -> None:
    from rich.table import Table

    from ..console import PipedConsole
    from ..format import bytes_text

    console = PipedConsole(highlight=False)
    memory = "pinned" if result.pinned else "pageable"
    console.print(f"{device}: {bytes_text(result.copied_bytes)} each way, {memory} host memory, medians")
    table = Table(box=None, pad_edge=False)
    batched = any(row.out_batched_share is not None for row in result.sweep)
    names = ["copies of", "out GB/s", "in GB/s", "out ÷ whole", "in ÷ whole"]
    for name in names + ["by one call: out ÷ whole", "in ÷ whole"] * batched:
        table.add_column(name, justify="left" if name == "copies of" else "right")
    table.add_row("the whole", f"{result.out_bytes_per_s / 1e9:.1f}", f"{result.in_bytes_per_s / 1e9:.1f}", "1", "1")
    for row in reversed(result.sweep):
        table.add_row(
            f"{row.block_bytes // 1024:,} KiB",
            f"{row.out_bytes_per_s / 1e9:.1f}",
            f"{row.in_bytes_per_s / 1e9:.1f}",
            f"{row.out_share:.2f}",
            f"{row.in_share:.2f}",
            *(f"{share:.2f}" for share in (row.out_batched_share, row.in_batched_share) if share is not None),
        )
    console.print(table)
    console.print(f"both ways at once: {result.both_bytes_per_s / 1e9:.1f} GB/s, {result.both_ratio:.2f} × one way")
