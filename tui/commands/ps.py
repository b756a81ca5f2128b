"""``kvtrace ps``: the agents of a server, once."""

from __future__ import annotations

from pathlib import Path

import click

from .top import SORTS, print_json, print_once


@click.command("ps")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
@click.option("--url", metavar="URL", help="The server to ask.  [default: KVTRACE_ENGINE, else 127.0.0.1:8177]")
@click.option("--demo", is_flag=True, help="Agents of a simulated engine.")
@click.option("--json", "as_json", is_flag=True, help="Print one sample as JSON.")
@click.option("--sort", type=click.Choice(SORTS), default="agent", show_default=True, help="Column to sort by.")
@click.option("--reverse", is_flag=True, help="Sort the other way round.")
@click.option("--filter", "words", default="", metavar="WORDS", help="Only agents whose name, state or tool has them.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII alone.")
def command(
    paths: tuple[Path, ...],
    url: str | None,
    demo: bool,
    as_json: bool,
    sort: str,
    reverse: bool,
    words: str,
    ascii_only: bool,
) -> None:
    """List agents with their state, KV and b, once: the table of `kvtrace top`."""
    from ..feed.choose import Wanted
    from ..top.view import Sort, View

    if sum((url is not None, bool(paths), demo)) > 1:
        raise click.UsageError("PATH, --url and --demo are different things to ask; choose one.")
    wanted = Wanted(url, paths, demo=demo)
    if as_json:
        print_json(wanted, None)
    else:
        print_once(wanted, View(Sort(sort), reverse, words, ascii_only=ascii_only), whole=False)
