"""Paths in, report out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .discover import find_files
from .errors import NoDataError
from .evidence import Host, ThisHost
from .figures import agent_report, pooled_report, tool_reports
from .loading import LoadedFile, load_files
from .options import ReportOptions
from .records import SourceCount
from .report import SCHEMA_VERSION, Report, SourceReport
from .store import Store
from .timeline import Measured, measure


def build_report(
    paths: Sequence[Path],
    *,
    options: ReportOptions | None = None,
    every_run: bool = False,
    host: Host | None = None,
    data_folder: Path | None = None,
) -> Report:
    """Measure the agents in the files, folders and patterns named by ``paths``.

    Without paths, the newest run below ``data_folder`` (default: ``KVTRACE_DIR``), or with ``every_run`` all of them.
    ``host`` says what time it is and which processes still run. Raises :class:`SourceNotFoundError` for a path that
    names nothing and :class:`NoDataError` where no figure can come out.
    """
    chosen = options or ReportOptions()
    files = find_files(paths, every_run, data_folder)
    with Store() as store:
        loaded = load_files(store, files, host or ThisHost())
        measured = measure(store.connection, chosen.round_trip_ns)
    sources = _source_reports(loaded, measured.sources)
    if not measured.agents:
        raise NoDataError(_why_no_data(measured, sources))
    return Report(
        schema_version=SCHEMA_VERSION,
        pooled=pooled_report(measured, chosen),
        agents=tuple(agent_report(agent) for agent in measured.agents),
        tools=tool_reports(measured.tools),
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
    if not count.human_waits and not any(process.touched for process in file.notes.processes):
        limits.append("approvals and turns not visible (they count as tool time or overhead)")
    if count.model_calls:
        limits.append("retries not visible (they count as generation)")
    return tuple(limits)


def _why_no_data(measured: Measured, sources: Sequence[SourceReport]) -> str:
    where = sources[0].path if len(sources) == 1 else f"{len(sources)} files"
    if measured.anomalies.untimed:
        return f"No figure: none of the {measured.anomalies.untimed} calls in {where} has a usable start time."
    spans = sum(source.spans for source in sources)
    if spans:
        return f"No figure: there are spans in {where} ({spans}), but no tool call and no model call among them."
    skips = [skip for source in sources for skip in source.skipped_lines]
    why = f" ({f'line {skips[0].line}: ' if skips[0].line else ''}{skips[0].why})" if skips else ""
    return f"No figure: no spans could be read from {where}{why}."
