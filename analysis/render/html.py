"""The report as one HTML file that needs nothing else: no network, no script to be read."""

from __future__ import annotations

import base64
import hashlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kvtrace.tracer.clock import SYSTEM_CLOCK, Clock

from ..chart import read_chart
from ..options import NS_PER_S
from ..report import PooledReport, Report, SourceReport
from ..study import Study
from .caveats import caveats, short_waits
from .gantt import SHAPES, draw_gantt
from .lanes import choose_lanes
from .page import agent_table, cards, published_table, state_shares, tool_table
from .strip import draw_strip
from .words import counted, ratio, seconds

MAX_LANES: Final = 40
_MAX_SOURCES: Final = 200
_GLYPHS: Final = {"pays": "✓", "marginal": "≈", "no": "✗", "unknown": "?"}


def render_html(study: Study, clock: Clock = SYSTEM_CLOCK) -> str:
    """The whole page as text, to be written as UTF-8. ``clock`` says when it was made."""
    report = study.report
    places = choose_lanes(report.agents, MAX_LANES)
    chart = read_chart(study.connection, [place.agent.agent for place in places])
    script, states = _file("report.js"), state_shares(report.pooled)
    template = _environment().get_template("report.html.j2")
    return template.render(
        css=Markup(_file("report.css")),  # noqa: S704 - our own file
        js=Markup(script),  # noqa: S704 - our own file
        script_hash=_hash(script),
        b=ratio(report.pooled.b),
        facts=_facts(report),
        glyph=_GLYPHS[report.pooled.decision.verdict],
        pooled=report.pooled,
        cards=cards(report.pooled),
        states=states,
        states_summary=", ".join(f"{state.word} {state.share}" for state in states),
        strip=draw_strip(report.pooled),
        strip_says=_strip_says(report.pooled),
        short_waits=f"{short_waits(report)}.",
        gantt=draw_gantt(chart, places, report.agents, report.pooled.assumptions.bytes_per_token),
        shapes=list(SHAPES.values()),
        tables=[table for table in (agent_table(report), tool_table(report), published_table(report)) if table.rows],
        caveats=caveats(report),
        sources=[_source(source) for source in report.sources[:_MAX_SOURCES]],
        sources_rest=_rest(len(report.sources)),
        provenance=_provenance(study, clock),
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("kvtrace.analysis.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["compact"] = _compact
    return environment


def _compact(value: float) -> str:
    """A coordinate without a needless ``.0``: there are thousands of them."""
    return f"{value:.1f}".removesuffix(".0")


@cache
def _file(name: str) -> str:
    return files("kvtrace.analysis.render").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """Names the one script that the page's own policy lets run."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _facts(report: Report) -> str:
    pooled = report.pooled
    return (
        f"{seconds(pooled.wall_s)} of agent time, {counted(pooled.agents, 'agent')}, "
        f"{counted(pooled.tool_calls, 'tool call')}, {counted(pooled.model_calls, 'model call')}"
    )


def _strip_says(pooled: PooledReport) -> str:
    windows = pooled.windows
    return (
        f"Histogram of {counted(windows.count, 'wait')} on a logarithmic scale of length: half are shorter than "
        f"{seconds(windows.p50_s)}, a tenth longer than {seconds(windows.p90_s)}. Swapping a cache out and back takes "
        f"{seconds(pooled.assumptions.round_trip_ms / 1e3)}, recomputing it {seconds(pooled.assumptions.recompute_s)}."
    )


@dataclass(frozen=True, slots=True)
class _Source:
    path: str
    summary: str
    limits: Sequence[str]


def _source(source: SourceReport) -> _Source:
    facts = [source.kind or "not read", counted(source.spans, "span")]
    if source.skipped:
        first = source.skipped_lines[0]
        facts.append(
            f"{counted(source.skipped, 'piece')} skipped ({f'line {first.line}: ' if first.line else ''}{first.why})"
        )
    return _Source(source.path, " · ".join(facts), source.cannot_show)


def _rest(sources: int) -> str:
    return f"and {sources - _MAX_SOURCES:,} more (all of them with --json)" if sources > _MAX_SOURCES else ""


def _provenance(study: Study, clock: Clock) -> list[tuple[str, str]]:
    assumed = study.report.pooled.assumptions
    instants = study.connection.execute("select min(start_ns), max(stop_ns) from spans").fetchone()
    assert instants is not None, "a report has spans"
    assumptions = (
        f"swap out and back {assumed.round_trip_ms:g} ms, recompute {assumed.recompute_s:g} s, "
        f"{assumed.bytes_per_token:,} B of KV a token, {counted(assumed.slots, 'slot')} a card"
    )
    return [
        ("spans", f"{_utc(instants[0])} to {_utc(instants[1])}"),
        ("assumed, not measured", assumptions),
        ("interval", "95 %, bootstrap over agents, time-weighted"),
        ("made", f"{_utc(clock.unix_ns())} by kvtrace {version('kvtrace')}"),
        ("with", f"Python {platform.python_version()}, DuckDB {version('duckdb')}"),
    ]


def _utc(unix_ns: int) -> str:
    return f"{datetime.fromtimestamp(unix_ns // NS_PER_S, UTC):%Y-%m-%d %H:%M:%S} UTC"
