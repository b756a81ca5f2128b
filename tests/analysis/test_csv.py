"""Tables as CSV, read back with Python's reader."""

from __future__ import annotations

import csv
import io
from dataclasses import fields
from pathlib import Path

import pytest

from kvtrace.analysis import open_study, write_csv
from kvtrace.analysis.render.csv import CSV_TABLES
from kvtrace.analysis.report import AgentReport, ToolReport
from kvtrace.analysis.testing import FixedHost, at_ns, otlp_span, write_otlp
from kvtrace.tracer import attributes as names


def table(tmp_path: Path, which: str, tool: str = 'a "quoted", name') -> list[dict[str, str]]:
    spans = [
        otlp_span("chat", 0, 4, span=1, agent="a"),
        otlp_span("execute_tool", 4, 9, span=2, agent="a", attributes={names.GEN_AI_TOOL_NAME: tool}),
        otlp_span("execute_tool", 6, 7, span=3, agent="a", attributes={names.GEN_AI_TOOL_NAME: "grep"}),
        otlp_span("chat", 9, 10, span=4, agent="a"),
    ]
    out = io.StringIO(newline="")
    with open_study([write_otlp(tmp_path / "a.jsonl", spans)], host=FixedHost()) as study:
        write_csv(study, which, out)
    return list(csv.DictReader(io.StringIO(out.getvalue(), newline="")))


def test_agents_have_the_keys_of_the_json_report(tmp_path: Path) -> None:
    (row,) = table(tmp_path, "agents")
    assert list(row) == [field.name for field in fields(AgentReport)]
    assert (row["agent"], row["name"], row["running"], row["b"], row["blocked_s"]) == ("a", "", "false", "0.5", "5.0")


def test_tools_are_rows_with_their_names_whole(tmp_path: Path) -> None:
    rows = table(tmp_path, "tools")
    assert list(rows[0]) == [field.name for field in fields(ToolReport)]
    assert [(row["tool"], row["calls"], row["total_s"]) for row in rows] == [
        ('a "quoted", name', "1", "5.0"),
        ("grep", "1", "1.0"),
    ]


def test_windows_say_when_how_long_and_on_what(tmp_path: Path) -> None:
    (row,) = table(tmp_path, "windows", "pytest")
    assert row == {"agent": "a", "start_unix_ns": str(at_ns(4)), "length_s": "5.0", "tools": "pytest+grep"}


@pytest.mark.parametrize("formula", ["=1+1", "+1", "-1", "@x"])
def test_name_that_looks_like_a_formula_is_disarmed(tmp_path: Path, formula: str) -> None:
    assert table(tmp_path, "tools", formula)[0]["tool"] == f"'{formula}"


def test_tables_are_the_documented_ones() -> None:
    assert CSV_TABLES == ("agents", "tools", "windows")
