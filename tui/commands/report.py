"""``kvtrace report``: how much of the time agents were blocked on tools, and whether parking their caches pays."""

from __future__ import annotations

from pathlib import Path

import click

from ..exits import CommandError, ExitCode


@click.command("report")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
@click.option("--all", "every_run", is_flag=True, help="Every recorded run, not only the newest.")
@click.option("--json", "as_json", is_flag=True, help="JSON with a schema version instead of text.")
@click.option(
    "--round-trip-ms",
    type=click.FloatRange(min=0),
    default=41.0,
    show_default=True,
    help="Copying one agent's cache out and back.",
)
@click.option(
    "--slots", type=click.IntRange(min=1), default=8, show_default=True, help="Agents the card decodes at once."
)
def command(paths: tuple[Path, ...], every_run: bool, as_json: bool, round_trip_ms: float, slots: int) -> None:
    """Report b, the share of wall clock agents are blocked on tools.

    PATH is a span file, a folder or a pattern: kvtrace's own files or any OTLP JSON with GenAI spans. Without one,
    the newest run recorded in KVTRACE_DIR.
    """
    from rich.console import Console

    from kvtrace.analysis import (
        NoDataError,
        ReportOptions,
        SourceNotFoundError,
        build_report,
        render_json,
        render_terminal,
    )

    if paths and every_run:
        raise click.UsageError("--all means every recorded run; leave it out where you name a PATH.")
    try:
        options = ReportOptions(round_trip_ms=round_trip_ms, slots=slots)
        report = build_report(paths, options=options, every_run=every_run)
    except (SourceNotFoundError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    except NoDataError as error:
        raise CommandError(str(error), ExitCode.NO_DATA) from error
    if as_json:
        click.echo(render_json(report))
    else:
        render_terminal(report, Console())
