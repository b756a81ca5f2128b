"""Paths in, report out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .clickhouse.reading import read_table
from .clickhouse.target import is_clickhouse
from .discover import find_files
from .errors import NoDataError, SourceNotFoundError
from .evidence import Host, ThisHost
from .figures import agent_reports, pooled_report, tool_reports
from .intake import ReadOptions, take_in
from .loading import LoadedFile
from .options import ReportOptions
from .records import SourceCount
from .report import SCHEMA_VERSION, Report, SourceReport
from .store import Store
from .study import Study
from .timeline import Measured


def build_report(
    paths: Sequence[Path],
    *,
    options: ReportOptions | None = None,
    every_run: bool = False,
    host: Host | None = None,
    data_folder: Path | None = None,
    reading: ReadOptions | None = None,
) -> Report:
    """Measure the agents in the files, folders and patterns named by ``paths``; the figures of :func:`open_study`."""
    with open_study(
        paths, options=options, every_run=every_run, host=host, data_folder=data_folder, reading=reading
    ) as study:
        return study.report


@contextmanager
def open_study(
    paths: Sequence[Path],
    *,
    options: ReportOptions | None = None,
    every_run: bool = False,
    host: Host | None = None,
    data_folder: Path | None = None,
    reading: ReadOptions | None = None,
) -> Iterator[Study]:
    """Measure the agents in the files, folders and patterns named by ``paths``, and keep the database open meanwhile.

    Without paths, the newest run below ``data_folder`` (default: ``KVTRACE_DIR``), or with ``every_run`` all of them.
    ``host`` says what time it is and which processes still run. Raises :class:`SourceNotFoundError` for a path that
    names nothing and :class:`NoDataError` where no figure can come out. ``reading`` says how files are read.

    A path ``clickhouse://…`` names a table of the OpenTelemetry Collector's. Its spans stay where they are: the report
    is whole, but the study's own database is empty unless ``reading`` asks for ``rows``. Raises the other :class:`AnalysisError` where it cannot be read.
    """
    chosen = options or ReportOptions()
    with ExitStack() as stack:
        if any(is_clickhouse(str(path)) for path in paths):
            yield _table_study(stack, paths, chosen, reading or ReadOptions())
            return
        files = find_files(paths, every_run, data_folder)
        taken = take_in(stack, files, host or ThisHost(), chosen.round_trip_ns, reading or ReadOptions())
        yield Study(_report(taken.measured, taken.loaded, chosen), taken.store.connection)


def _table_study(stack: ExitStack, paths: Sequence[Path], chosen: ReportOptions, reading: ReadOptions) -> Study:
    if len(paths) > 1:
        raise SourceNotFoundError("a table in ClickHouse is reported by itself; leave the other sources out")
    store = stack.enter_context(Store())
    measured, loaded = read_table(str(paths[0]), chosen.round_trip_ns, store if reading.rows else None)
    return Study(_report(measured, [loaded], chosen), store.connection)


def _report(measured: Measured, loaded: Sequence[LoadedFile], chosen: ReportOptions) -> Report:
    sources = _source_reports(loaded, measured.sources)
    if not measured.agents:
        raise NoDataError(_why_no_data(measured, sources))
    return Report(
        schema_version=SCHEMA_VERSION,
        pooled=pooled_report(measured, chosen),
        agents=agent_reports(measured, chosen),
        tools=tool_reports(measured.tools, chosen),
        sources=sources,
    )


def _source_reports(loaded: Sequence[LoadedFile], counts: Sequence[SourceCount]) -> tuple[SourceReport, ...]:
    by_source = {count.source: count for count in counts}
    return tuple(_source_report(file, by_source.get(file.notes.source)) for file in loaded)


def _source_report(file: LoadedFile, count: SourceCount | None) -> SourceReport:
    return SourceReport(
        path=str(file.notes.path),
        kind=file.kind,
        spans=count.spans if count else 0,
        skipped=file.notes.skipped,
        skipped_lines=tuple(file.notes.skips),
        cannot_show=_cannot_show(file, count) if count else (),
    )


def _cannot_show(file: LoadedFile, count: SourceCount) -> tuple[str, ...]:
    """What nobody can know from a file, so that its absence is not read as zero."""
    limits = list(file.notes.cannot_show)
    if count.model_calls and not count.queue_reports:
        limits.append("queue not visible (its waits count as generation)")
    shows_turns = file.notes.shows_turns or any(process.touched for process in file.notes.processes)
    if not count.human_waits and not shows_turns:
        what = "approvals not visible (they count as tool time)"
        limits.append(what if count.turns else "approvals and turns not visible (they count as tool time or overhead)")
    if count.model_calls:
        limits.append("retries not visible (they count as generation)")
    return tuple(dict.fromkeys(limits))


def _why_no_data(measured: Measured, sources: Sequence[SourceReport]) -> str:
    where = sources[0].path if len(sources) == 1 else f"{len(sources)} files"
    if measured.anomalies.untimed:
        untimed = f"none of the {measured.anomalies.untimed} calls in {where} has a usable start time"
        return f"No figure: {untimed}{_first_reason(sources)}."
    spans = sum(source.spans for source in sources)
    if spans:
        return f"No figure: there are spans in {where} ({spans}), but no tool call and no model call among them."
    return f"No figure: no spans could be read from {where}{_first_reason(sources)}."


def _first_reason(sources: Sequence[SourceReport]) -> str:
    skips = [skip for source in sources for skip in source.skipped_lines]
    return f" ({f'line {skips[0].line}: ' if skips[0].line else ''}{skips[0].why})" if skips else ""
