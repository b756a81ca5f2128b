"""Two runs side by side: the numbers, and the text at 80 columns."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvtrace.analysis import Report, build_report, compare, render_comparison, render_json
from kvtrace.analysis.sample import sample_spans
from kvtrace.analysis.testing import FixedHost, otlp_span, write_otlp
from kvtrace.tracer import attributes as names


def run(tmp_path: Path, name: str, tool: str, blocked_s: float, agents: int = 2) -> Report:
    spans = []
    for number in range(agents):
        who: dict[str, Any] = {"trace": number + 1, "agent": f"a{number}"}
        tool_name = {names.GEN_AI_TOOL_NAME: tool}
        spans += [
            otlp_span("chat", 0, 5, span=1, **who),
            otlp_span("execute_tool", 5, 5 + blocked_s, span=2, attributes=tool_name, **who),
        ]
    return build_report([write_otlp(tmp_path / name, spans)], host=FixedHost())


def shown(first: Report, second: Report, width: int = 80) -> str:
    out = io.StringIO()
    render_comparison(compare(first, second), Console(file=out, width=width))
    return out.getvalue()


def test_each_figure_has_both_values_and_their_difference(tmp_path: Path) -> None:
    comparison = compare(run(tmp_path, "a.jsonl", "pytest", 5), run(tmp_path, "b.jsonl", "ruff", 15, agents=3))
    figures = {each.figure: (each.first, each.second, each.difference) for each in comparison.figures}
    assert figures["b"] == (0.5, 0.75, 0.25)
    assert figures["blocked_s"] == (10, 45, 35)
    assert figures["agents"] == (2, 3, 1)
    assert figures["idle_gb_s"] == (None, None, None)


def test_tool_that_only_one_run_called_is_compared_with_nothing(tmp_path: Path) -> None:
    comparison = compare(run(tmp_path, "a.jsonl", "pytest", 5), run(tmp_path, "b.jsonl", "ruff", 15))
    assert [(tool.tool, tool.first_calls, tool.second_calls, tool.total_difference_s) for tool in comparison.tools] == [
        ("ruff", 0, 2, 30),
        ("pytest", 2, 0, -10),
    ]
    assert comparison.tools[0].first_p50_s is None


@pytest.mark.parametrize(
    ("blocked_s", "agents", "says"),
    [
        (15, 2, "b rises from 0.50 (0.50 .. 0.50) in A to 0.75 (0.75 .. 0.75) in B; the 95 % intervals do not meet"),
        (5, 2, "b stays from 0.50"),
        (1, 1, "with a single agent nobody can say how sure that is"),
    ],
)
def test_sentence_says_whether_chance_may_explain_it(tmp_path: Path, blocked_s: float, agents: int, says: str) -> None:
    text = shown(run(tmp_path, "a.jsonl", "x", 5), run(tmp_path, "b.jsonl", "x", blocked_s, agents))
    assert says in " ".join(text.split())


def test_text_names_the_runs_and_fits_80_columns(tmp_path: Path) -> None:
    first = build_report([write_otlp(tmp_path / f"{'long' * 30}.jsonl", sample_spans(8, 30, 1))], host=FixedHost())
    text = shown(first, run(tmp_path, "b.jsonl", "tool" * 30, 1e6))
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[0].startswith("A  ")
    assert text.splitlines()[1].startswith("B  ")
    assert "b.jsonl" in text


def test_json_holds_both_reports_whole(tmp_path: Path) -> None:
    first, second = run(tmp_path, "a.jsonl", "x", 5), run(tmp_path, "b.jsonl", "x", 9)
    document = json.loads(render_json(compare(first, second)))
    assert list(document) == ["schema_version", "intervals_overlap", "figures", "tools", "first", "second"]
    assert document["schema_version"] == 1
    assert document["first"] == json.loads(render_json(first))
    assert document["second"] == json.loads(render_json(second))
