"""``kvtrace report``: how much of the time agents were blocked on tools, and whether parking their caches pays."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..exits import CommandError, ExitCode
from ..files import write_bytes, write_text

if TYPE_CHECKING:
    from kvtrace.analysis import ReportOptions, Study

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("report")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
@click.option("--all", "every_run", is_flag=True, help="Every recorded run, not only the newest.")
@click.option(
    "--vs",
    "versus",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Compare with this run, in text or with --json. Can be given more than once.",
)
@click.option("--no-cache", is_flag=True, help="Read everything anew, and remember nothing.")
@click.option("--json", "as_json", is_flag=True, help="JSON with a schema version instead of text.")
@click.option(
    "--csv", "table", type=click.Choice(["agents", "tools", "windows"]), help="One table as CSV instead of text."
)
@click.option("--html", "html_file", type=FILE, metavar="FILE", help="Also write a page that needs no network.")
@click.option("--perfetto", "perfetto_file", type=FILE, metavar="FILE", help="Also write a trace for ui.perfetto.dev.")
@click.option(
    "--forecast",
    "forecast_file",
    type=FILE,
    metavar="FILE",
    help="Also write how long each tool's calls take, for the engine's policy.",
)
@click.option(
    "--round-trip-ms",
    type=click.FloatRange(min=0),
    default=41.0,
    show_default=True,
    help="Copying one agent's cache out and back.",
)
@click.option(
    "--recompute-s",
    type=click.FloatRange(min=0),
    default=7.2,
    show_default=True,
    help="Rebuilding one agent's cache from its tokens.",
)
@click.option(
    "--slots", type=click.IntRange(min=1), default=8, show_default=True, help="Agents the card decodes at once."
)
def command(
    paths: tuple[Path, ...],
    every_run: bool,
    versus: tuple[Path, ...],
    no_cache: bool,
    as_json: bool,
    table: str | None,
    html_file: Path | None,
    perfetto_file: Path | None,
    forecast_file: Path | None,
    round_trip_ms: float,
    recompute_s: float,
    slots: int,
) -> None:
    """Report b, the share of wall clock agents are blocked on tools.

    PATH is a span file, a folder or a pattern: kvtrace's own files or any OTLP JSON with GenAI spans; or the table of
    an OpenTelemetry Collector as clickhouse://user:password@host:port/database. Without one, the newest run recorded
    in KVTRACE_DIR.
    """
    from kvtrace.analysis import ReportOptions

    outputs = _Outputs(as_json, table, html_file, perfetto_file, forecast_file)
    _check(paths, every_run, versus, outputs)
    try:
        options = ReportOptions(round_trip_ms=round_trip_ms, recompute_s=recompute_s, slots=slots)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with ExitStack() as stack:
        study = _open(stack, paths, every_run, options, not no_cache, outputs.draws)
        if versus:
            _compare(study, _open(stack, versus, False, options, not no_cache), as_json)
        else:
            outputs.write(study)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """What to print and which files to write beside it."""

    as_json: bool
    table: str | None
    html_file: Path | None
    perfetto_file: Path | None
    forecast_file: Path | None

    @property
    def draws(self) -> bool:
        """Whether spans are needed, and not figures alone."""
        return bool(self.html_file or self.perfetto_file or self.table == "windows")

    def write(self, study: Study) -> None:
        """Write the files first, so that what is printed comes last."""
        from kvtrace.analysis import render_forecast, render_html, write_perfetto

        if self.forecast_file:
            write_text(self.forecast_file, render_forecast(study.report))
        if self.html_file:
            write_text(self.html_file, render_html(study))
        if self.perfetto_file:
            write_bytes(self.perfetto_file, lambda file: write_perfetto(study, file))
        self._print(study)

    def _print(self, study: Study) -> None:
        from kvtrace.analysis import render_json, render_terminal, write_csv

        from ..console import PipedConsole

        if self.table:
            write_csv(study, self.table, sys.stdout)
        elif self.as_json:
            click.echo(render_json(study.report))
        else:
            render_terminal(study.report, PipedConsole())


def _check(paths: tuple[Path, ...], every_run: bool, versus: tuple[Path, ...], outputs: _Outputs) -> None:
    if paths and every_run:
        raise click.UsageError("--all means every recorded run; leave it out where you name a PATH.")
    if outputs.as_json and outputs.table:
        raise click.UsageError("--json and --csv are two forms of the same report; choose one.")
    if versus and (outputs.table or outputs.html_file or outputs.perfetto_file or outputs.forecast_file):
        raise click.UsageError(
            "--vs compares two runs as text or with --json; make other files from one run at a time."
        )


def _open(
    stack: ExitStack,
    paths: tuple[Path, ...],
    every_run: bool,
    options: ReportOptions,
    cache: bool,
    rows: bool = False,
) -> Study:
    from kvtrace.analysis import (
        AnalysisError,
        NoDataError,
        ReadOptions,
        SourceNotFoundError,
        UnreachableError,
        open_study,
    )

    from ..reading_bar import ReadingBar

    try:
        with ReadingBar() as bar:
            reading = ReadOptions(cache=cache, progress=bar, rows=rows)
            return stack.enter_context(open_study(paths, options=options, every_run=every_run, reading=reading))
    except SourceNotFoundError as error:
        raise click.UsageError(str(error)) from error
    except NoDataError as error:
        raise CommandError(str(error), ExitCode.NO_DATA) from error
    except UnreachableError as error:
        raise CommandError(str(error), ExitCode.UNREACHABLE) from error
    except AnalysisError as error:
        raise CommandError(str(error)) from error


def _compare(study: Study, other: Study, as_json: bool) -> None:
    from kvtrace.analysis import compare, render_comparison, render_json

    from ..console import PipedConsole

    comparison = compare(study.report, other.report)
    if as_json:
        click.echo(render_json(comparison))
    else:
        render_comparison(comparison, PipedConsole())
