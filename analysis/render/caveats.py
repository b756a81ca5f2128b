"""What a reader must know before believing the figures: one short sentence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..report import Report, SourceReport
from .words import counted, percent, plain, ratio, seconds


def caveats(report: Report) -> list[str]:
    """Sentences in order of weight; empty where there is nothing to say."""
    return [*_open_calls(report), *_limits(report), *_oddities(report), *_unread(report)]


def _open_calls(report: Report) -> Iterator[str]:
    pooled = report.pooled
    if pooled.open_calls:
        yield (
            f"{counted(pooled.open_calls, 'tool call')} never ended: b is between {ratio(pooled.b_low)} (ended at once) "
            f"and {ratio(pooled.b_high)} (lasted to the last sign of life)"
        )
    if pooled.running_agents:
        verb = "runs" if pooled.running_agents == 1 else "run"
        yield f"{counted(pooled.running_agents, 'agent')} still {verb}: measured up to now"
    if pooled.model_elsewhere_s:
        yield f"{seconds(pooled.model_elsewhere_s)} of the waiting was sub-agents generating"


def _limits(report: Report) -> Iterator[str]:
    read = [source for source in report.sources if source.spans]
    limits = Counter(limit for source in read for limit in source.cannot_show)
    for limit, files in limits.items():
        yield limit if files == len(read) else f"{limit} in {files} of {len(read)} files"


def _oddities(report: Report) -> Iterator[str]:
    odd = report.pooled.anomalies
    sentences = (
        (odd.duplicates, "record", "of spans seen before, counted once"),
        (odd.untimed, "call", "without a start time left out"),
        (odd.backward, "call", "that ended before starting counted as of no length"),
        (odd.zero_length, "call", "of no length"),
        (odd.repeated_calls, "span", "of calls that two instrumentations saw, counted once"),
        (odd.agent_unknown, "call", "whose tracer knew no agent, taken as the agent of its run or trace"),
        (odd.parent_missing, "span", "whose parent is not in the data"),
        (odd.parent_circular, "span", "that descend from themselves, taken alone"),
        (odd.idle_agents, "agent", "without any call left out"),
        (odd.containers, "agent", "that only held other agents together left out"),
    )
    for number, noun, what in sentences:
        if number:
            yield f"{counted(number, noun)} {what}"


def _unread(report: Report) -> Iterator[str]:
    for source in report.sources:
        if source.skipped:
            yield _unread_in(source)


def _unread_in(source: SourceReport) -> str:
    first = source.skipped_lines[0]
    name = plain(source.path.rsplit("/", 1)[-1], 40)
    if not first.line:
        return f"{name}: {first.why}"
    return f"{name}: {counted(source.skipped, 'unreadable piece')}, first in line {first.line}: {plain(first.why, 60)}"


def short_waits(report: Report) -> str:
    """How many waits, and how much of the waiting, one round trip would outlast."""
    windows = report.pooled.windows
    return (
        f"{percent(windows.shorter_than_round_trip)} of waits, {percent(windows.blocked_shorter_than_round_trip)} of "
        f"blocked time, are shorter than the round trip"
    )
