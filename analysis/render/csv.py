"""The tables of a report as CSV: names of columns first, seconds and shares as plain numbers, nothing where unknown."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, Final, TextIO

from ..options import NS_PER_S
from ..queries import stream
from ..report import AgentReport, ToolReport
from ..study import Study

CSV_TABLES: Final = ("agents", "tools", "windows")


@dataclass(frozen=True, slots=True)
class _Window:
    """One time an agent was blocked (``chart/blocked.sql``)."""

    agent: str
    start_ns: int
    length_ns: int
    tools: list[str]


def write_csv(study: Study, table: str, file: TextIO) -> None:
    """Write one of :data:`CSV_TABLES` after RFC 4180: agents and tools with the keys of the JSON report, or windows.

    A window is one time an agent was blocked: when it began (Unix nanoseconds), for how many seconds, and on which
    tools (joined by ``+``, the longest first).
    """
    header, lines = _table(study, table)
    writer = csv.writer(file)
    writer.writerow(header)
    writer.writerows([_cell(value) for value in line] for line in lines)


def _table(study: Study, table: str) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
    if table == "agents":
        return [field.name for field in fields(AgentReport)], map(astuple, study.report.agents)
    if table == "tools":
        return [field.name for field in fields(ToolReport)], map(astuple, study.report.tools)
    assert table == "windows", table
    return ("agent", "start_unix_ns", "length_s", "tools"), _windows(study)


def _windows(study: Study) -> Iterator[Sequence[Any]]:
    for window in stream(study.connection, "chart/blocked", _Window):
        yield window.agent, window.start_ns, window.length_ns / NS_PER_S, "+".join(window.tools)


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula is disarmed with an apostrophe; booleans as JSON has them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULA and value else value


_FORMULA: Final = tuple("=+-@\t\r")
