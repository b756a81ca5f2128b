"""ClickHouse, in the form of chDB, finds in the Collector's table what DuckDB finds in files of the same spans."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import duckdb
import pytest
from click.testing import CliRunner

from kvtrace.analysis import (
    NoDataError,
    ReadOptions,
    SourceNotFoundError,
    build_report,
    open_study,
    render_html,
    write_csv,
    write_perfetto,
)
from kvtrace.analysis.chart import read_chart
from kvtrace.analysis.clickhouse import copying
from kvtrace.analysis.clickhouse.dialect import translate
from kvtrace.analysis.clickhouse.measure import measure_table, work_out
from kvtrace.analysis.clickhouse.server import Server
from kvtrace.analysis.clickhouse.target import Target, parse_target
from kvtrace.analysis.clickhouse.vocabulary import records_query
from kvtrace.analysis.errors import DatabaseError, MissingExtraError, UnreachableError
from kvtrace.analysis.normal import Notes, SpanRecord
from kvtrace.analysis.sources import otlp_json
from kvtrace.analysis.store import Store
from kvtrace.analysis.testing import FixedHost, at_ns
from kvtrace.analysis.timeline import Measured, measure
from kvtrace.tracer import attributes as names
from kvtrace.tui.commands.report import command

from .otel_traces import DATABASE, PASSWORD, Chdb, Span, as_line, as_span, serving
from .test_timeline_property import family, long_family

pytest.importorskip("chdb")

ROUND_TRIP_NS = 4
WINDOW_CAP_NS = 6


@pytest.fixture(scope="module")
def chdb() -> Iterator[Chdb]:
    chdb = Chdb()
    yield chdb
    chdb.close()


@pytest.fixture(scope="module")
def url(chdb: Chdb) -> Iterator[str]:
    with serving(chdb) as port:
        yield f"clickhouse://default:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/{DATABASE}"


def read(spans: Sequence[Span]) -> list[SpanRecord]:
    """Records as the importer of the Collector's files has them."""
    reader = otlp_json.Reader(Notes(Path("spans.jsonl"), 0))
    return [record for span in spans for record in reader.spans(json.loads(as_line(span)))]


def by_duckdb(records: Sequence[SpanRecord]) -> Measured:
    with Store() as store:
        store.load(records)
        return measure(store.connection, ROUND_TRIP_NS, WINDOW_CAP_NS)


def by_clickhouse(target: Target) -> Measured:
    with Server(target) as server:
        return measure_table(server, target.quoted, ROUND_TRIP_NS, WINDOW_CAP_NS)


def about(value: Any) -> Any:
    """A record for comparison: exact but for the last bits of what databases interpolate."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-14)
    if isinstance(value, list):
        return [about(each) for each in value]
    return value


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    for field in fields(expected):
        assert getattr(found, field.name) == about(getattr(expected, field.name)), (field.name, expected)


@pytest.mark.parametrize("seed", range(3))
def test_figures_of_random_families_are_identical(chdb: Chdb, url: str, seed: int) -> None:
    random = Random(seed)
    families = [family(random, number) for number in range(200)]
    families += [long_family(random, number) for number in range(200, 230)]
    spans = [as_span(record) for records in families for record in records]
    random.shuffle(spans)
    chdb.fill(spans)
    found = by_clickhouse(parse_target(url))
    expected = by_duckdb(read(spans))
    assert len(expected.agents) > 400
    assert len(expected.tools) > 3
    for part in ("agents", "idleness", "tools", "histogram", "sources"):
        assert len(getattr(found, part)) == len(getattr(expected, part))
        for one, other in zip(getattr(found, part), getattr(expected, part), strict=True):
            assert_same(one, other)
    assert_same(found.windows, expected.windows)
    assert_same(found.anomalies, expected.anomalies)


def told(name: str, number: int, attributes: dict[str, Any], **more: Any) -> Span:
    start_ns = at_ns(number)
    return Span(name, f"{7:032x}", f"{number:016x}", "", start_ns, start_ns + 500_000_001, attributes, **more)


SPOKEN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("execute_tool read", {names.GEN_AI_OPERATION_NAME: "execute_tool", "gen_ai.tool.call_id": "c1"}),
    ("run", {names.GEN_AI_OPERATION_NAME: "execute_tool", names.GEN_AI_TOOL_NAME: "a\tb", names.AGENT_ID: "unknown"}),
    ("x", {names.GEN_AI_OPERATION_NAME: "execute_tool", names.SUSPENDED_INTERVALS: [5, 6, 7]}),
    ("x", {names.GEN_AI_OPERATION_NAME: "execute_tool", names.SUSPENDED_INTERVALS: [5, 6, at_ns(3), at_ns(4)]}),
    ("embeddings m", {names.GEN_AI_OPERATION_NAME: "embeddings", names.GEN_AI_TOOL_NAME: "not one"}),
    ("chat m", {names.GEN_AI_OPERATION_NAME: "chat", names.GEN_AI_USAGE_INPUT_TOKENS: 12, "session.id": "s"}),
    ("chat m", {names.GEN_AI_OPERATION_NAME: "chat", names.GEN_AI_USAGE_INPUT_TOKENS: -1, "llm.token_count.prompt": 9}),
    ("chat m", {names.GEN_AI_OPERATION_NAME: "chat", names.GEN_AI_TIME_TO_FIRST_CHUNK: 0.25, names.ERROR_TYPE: "E"}),
    ("invoke_agent planner", {names.GEN_AI_OPERATION_NAME: "invoke_agent", names.PARENT_AGENT_ID: "boss"}),
    ("flow", {names.GEN_AI_OPERATION_NAME: "invoke_workflow", "gen_ai.workflow.name": "w", names.GEN_AI_AGENT_ID: "1"}),
    ("wait", {names.GEN_AI_OPERATION_NAME: names.OPERATION_HUMAN_WAIT}),
    ("LLM", {"openinference.span.kind": "LLM", "llm.token_count.completion": 3}),
    ("search", {"openinference.span.kind": "TOOL", "tool.name": "search", "tool_call.id": "c2"}),
    ("chain", {"openinference.span.kind": "CHAIN"}),
    ("shell.tool", {"traceloop.span.kind": "tool", "traceloop.entity.name": "shell"}),
    ("g", {"langfuse.observation.type": "generation"}),
    ("openai.chat", {"llm.request.type": "chat"}),
    ("openai.embeddings", {"llm.request.type": "embedding"}),
    ("old", {"gen_ai.system": "openai", "gen_ai.request.model": "m", "gen_ai.usage.completion_tokens": 5}),
    (
        "old agent",
        {"gen_ai.system": "x", "gen_ai.request.model": "m", "gen_ai.usage.completion_tokens": 5, "agent.name": "n"},
    ),
    ("ai.toolCall", {"ai.toolCall.name": "grep", "ai.toolCall.id": "c3"}),
    ("Tool.Approval", {}),
    ("wait for permission request", {names.AGENT_ID: "a"}),
    ("approvals", {}),
    ("claude_code.interaction", {"session.id": "s1"}),
    (
        "claude_code.llm_request",
        {"session.id": "s1", "ttft_ms": 125, "input_tokens": 2, "cache_read_tokens": 40, "output_tokens": 6},
    ),
    ("claude_code.tool", {"session.id": "s1", "agent_id": "sub", "tool_name": "Bash", "tool_use_id": "t1"}),
    ("claude_code.tool.blocked_on_user", {"session.id": "s1"}),
    ("claude_code.tool.execution", {"session.id": "s1", names.AGENT_ID: "other"}),
    ("", {}),
)


def test_table_reads_as_files_of_the_collector_do(chdb: Chdb, url: str) -> None:
    spans = [told(name, number, attributes) for number, (name, attributes) in enumerate(SPOKEN, 1)]
    spans.append(told("failed", 90, {names.GEN_AI_OPERATION_NAME: "chat"}, failed=True))
    pending = {"logfire.span_type": "pending_span", "logfire.pending_parent_id": f"{5:016x}"}
    spans.append(Span("chat m", f"{7:032x}", f"{91:016x}", f"{92:016x}", at_ns(9), at_ns(9), pending))
    chdb.fill(spans)
    target = parse_target(url)
    with Server(target) as server:
        rows = server.ask(records_query(target.quoted))
    expected = {record.span_id: record for record in read(spans)}
    assert len(expected) == len(rows) == len(SPOKEN) + 2
    for row in rows:
        record = expected[row["span_id"]]
        for column, value in record._asdict().items():
            if column.endswith("_unix_ns"):
                assert row[column] == json.loads(value or "[]"), (record.name, column)
            elif column != "process":
                assert row[column] == value, (record, column)


QUESTIONS = (
    "select x, lead(x) over (order by x) as y, lag(x, 2) over (order by x) as z from {numbers} order by x",
    "select x, max(x) over (order by x rows between unbounded preceding and 1 preceding) as y from {numbers} order by x",
    "select sum(x) filter (where x > 99) as a, count(*) filter (where x > 1) as b, max(x) as c from {numbers}",
    "select median(x) as m, median(x * 1.5) as n from {numbers}",
    "select x // 2 as half, greatest(x, null) as g, least(null, x) as l from {numbers} order by x",
    "select min(x) as x, count(*) as rows from {numbers} where x > 1",
    "select t.* replace (x + 100 as x), x as was from {numbers} as t where x = 1",
    "select a.x, b.x as other from {numbers} as a left join {numbers} as b on b.x = a.x + 1 order by a.x",
    "select x from {numbers} as t semi join (select 4 as x) as u using (x) order by x",
    "select x from {numbers} as t anti join (select 4 as x) as u using (x) order by x",
    "select around[len(around)] as last, around[1] as first from (select [x, 7] as around from {numbers}) order by 2",
    "select count(around) as n, bool_or(around is null)::int as some from (select [x] as around from {numbers})",
    "select unnest(range(1, 5, 2)) as i order by i",
    "select x from (select x, case when x > 1 then path end as path from (select x, [x] as path from {numbers})) order by path",
    # In a circle, which recursion that kept duplicates would never leave.
    "with recursive w as (select 1 as a union select case when a = 1 then 2 else 1 end from w) select a from w order by a",
)
# Of a type that knows no null, as columns of ClickHouse are unless they say otherwise.
NUMBERS = "(select 1 as x union all select 4 union all select 9)"


@pytest.mark.parametrize("question", QUESTIONS)
def test_question_means_the_same_in_both(url: str, question: str) -> None:
    text = question.replace("{numbers}", NUMBERS)
    answer = duckdb.execute(text)
    columns = [column[0] for column in answer.description]
    translated = translate(text)
    with Server(parse_target(url)) as server:
        work_out(server, translated.fixpoints)
        found = [[row[column] for column in columns] for row in server.ask(translated.query)]
    assert found == [list(row) for row in answer.fetchall()]


def conversation() -> list[Span]:
    """An agent that generates for 1 s and waits for its tool for 3 s, ten times."""
    spans = []
    for turn in range(10):
        for number, (operation, begin, end) in enumerate((("chat", 0, 1), ("execute_tool", 1, 4))):
            attributes = {names.GEN_AI_OPERATION_NAME: operation, names.AGENT_ID: "a", names.GEN_AI_TOOL_NAME: "read"}
            ids = f"{9:032x}", f"{1 + 2 * turn + number:016x}", ""
            spans.append(Span(operation, *ids, at_ns(4 * turn + begin), at_ns(4 * turn + end), attributes))
    return spans


def test_report_on_table_is_the_report_on_file(chdb: Chdb, url: str, tmp_path: Path) -> None:
    spans = conversation()
    chdb.fill(spans)
    file = tmp_path / "spans.jsonl"
    file.write_text("".join(f"{as_line(span)}\n" for span in spans), encoding="utf-8")
    found, expected = build_report([Path(url)]), build_report([file], host=FixedHost())
    assert found.pooled == expected.pooled
    assert found.agents == expected.agents
    assert found.tools == expected.tools
    assert found.agents[0].b == 0.75
    assert found.sources[0].spans == 20


def test_command_reports_table_without_its_password(chdb: Chdb, url: str) -> None:
    chdb.fill(conversation())
    result = CliRunner().invoke(command, [url, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["agents"][0]["b"] == 0.75
    assert "cret" not in result.output


def test_pictures_of_table_are_those_of_file(chdb: Chdb, url: str, tmp_path: Path) -> None:
    random = Random(4)
    spans = [as_span(record) for number in range(40) for record in family(random, number)]
    chdb.fill(spans)
    file = tmp_path / "spans.jsonl"
    file.write_text("".join(f"{as_line(span)}\n" for span in spans), encoding="utf-8")
    drawn = []
    for path in (Path(url), file):
        with open_study([path], host=FixedHost(), reading=ReadOptions(cache=False, rows=True)) as study:
            windows = io.StringIO()
            write_csv(study, "windows", windows)
            chart = read_chart(study.connection, [agent.agent for agent in study.report.agents])
            trace = io.BytesIO()
            write_perfetto(study, trace)
            drawn.append((windows.getvalue(), chart, len(trace.getvalue()), render_html(study).count("<rect")))
    assert drawn[0][0].count("\n") > 30
    assert drawn[0] == drawn[1]


def test_too_big_a_table_is_not_drawn(chdb: Chdb, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(copying, "MOST_ROWS", 5)
    chdb.fill(conversation())
    result = CliRunner().invoke(command, [url, "--html", str(tmp_path / "x.html")])
    assert result.exit_code == 1
    assert "leave pictures and windows out" in str(result.exception)


def test_empty_table_has_no_figure(chdb: Chdb, url: str) -> None:
    chdb.fill([told("other", 1, {})])
    with pytest.raises(NoDataError, match="no tool call and no model call"):
        build_report([Path(url)])


def test_failures_name_table_and_reason(url: str, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"observed/nothing is no table there .*nothing"):
        build_report([Path(f"{url}/nothing")])
    with pytest.raises(DatabaseError, match="Authentication failed"):
        build_report([Path(url.replace(quote(PASSWORD, safe=""), "wrong"))])
    with pytest.raises(UnreachableError, match=r"127.0.0.1:1/default/otel_traces cannot be reached"):
        build_report([Path("clickhouse://127.0.0.1:1")])
    with pytest.raises(SourceNotFoundError, match="by itself"):
        build_report([Path(url), tmp_path])


def test_target_is_read_from_url_and_environment() -> None:
    environment = {"CLICKHOUSE_USER": "reader", "CLICKHOUSE_PASSWORD": "p"}
    named = parse_target("clickhouse://me:a%2Fb@db:9/otel/spans?secure=1", environment)
    assert named == Target("db", 9, True, "me", "a/b", "otel", "spans")
    assert "a/b" not in f"{named!r}{named}"
    # As a path, which has lost a slash.
    assert parse_target("clickhouse:/db", environment) == Target(
        "db", 8123, False, "reader", "p", "default", "otel_traces"
    )
    for wrong in ("clickhouse://", "clickhouse://db/a/b/c", "clickhouse://db:port/a"):
        with pytest.raises(SourceNotFoundError, match="write clickhouse://user"):
            parse_target(wrong, environment)


def test_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvtrace.analysis.clickhouse.measure", None)
    monkeypatch.delattr("kvtrace.analysis.clickhouse.measure")
    with pytest.raises(MissingExtraError, match=r"pip install 'kvtrace\[clickhouse\]'"):
        build_report([Path("clickhouse://127.0.0.1:1")])
