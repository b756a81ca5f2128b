"""The lean reader and the tolerant reader make the same records and the same complaints, whatever a line holds."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.analysis import pieces
from kvtrace.analysis.normal import Notes
from kvtrace.analysis.pieces import Piece, read_piece
from kvtrace.analysis.rows import RowWriter, as_row, own_of, shared_of
from kvtrace.analysis.sources import otlp_json, span_patterns
from kvtrace.analysis.sources.genai import PASSED_ON_NUMBERS, PASSED_ON_TEXTS, WANTED
from kvtrace.analysis.sources.otlp_lean import LeanReader
from kvtrace.analysis.testing import at_ns, otlp_span
from kvtrace.tracer import attributes as names

TEXTS = ("grep", "call-1", "", "a\tb", "line\nend", "%s", "\u2028", "ünï", "\ud800", "0", "\x7f", "tool")
NUMBERS = (0, 1, 7, -3, 2**31, 2**63, 2**80, 10**9, 10**9 + 1, "12", "1_0", " 5 ", "x", 1.5, True, None)
VALUES: tuple[Any, ...] = (
    *({"stringValue": text} for text in TEXTS),
    *({"intValue": number} for number in NUMBERS),
    {"doubleValue": 0.25},
    {"boolValue": True},
    {"arrayValue": {"values": [{"intValue": str(at_ns(1))}, {"intValue": at_ns(2)}]}},
    {"arrayValue": {"values": [{"intValue": "1"}]}},
    {"kvlistValue": {"values": []}},
    {"stringValue": "two", "intValue": 1},
    {"string_value": "other spelling"},
    {"stringValue": None},
    {"stringValue": 5},
    {},
    "plain",
    None,
)
KEYS = (*sorted(WANTED), "other.key", "other.key")
IDS = ("0" * 16, "F" * 16, "abc", "", "W47/95gDgQM=", 5, None, "1" * 16, "2" * 16, "a" * 17)
INSTANTS = (*NUMBERS, at_ns(1), str(at_ns(2)), "017", "9" * 19)
FIELDS = {
    "traceId": (*IDS, "1" * 32, "2" * 32, "W47/95gDgQPSabYzgT/GDA=="),
    "spanId": IDS,
    "parentSpanId": IDS,
    "name": (*TEXTS, "execute_tool grep", "invoke_agent ada", "chat m", None, 3),
    "startTimeUnixNano": INSTANTS,
    "endTimeUnixNano": INSTANTS,
    "status": ({"code": 2}, {"code": "STATUS_CODE_ERROR"}, {"code": [2]}, {}, None, "ERROR"),
    "attributes": ([], None, {"gen_ai.operation.name": "chat"}, "x", [5], [{"key": 1}], [{"key": "tool.name"}]),
    "parent_span_id": IDS,
    "start_time_unix_nano": INSTANTS,
    "end_time_unix_nano": INSTANTS,
    "trace_id": IDS,
}
RESOURCES: tuple[Any, ...] = (
    {"attributes": []},
    {"attributes": [{"key": "process.pid", "value": {"intValue": "7"}}]},
    {"attributes": [{"key": names.RUN_ID, "value": {"stringValue": "r"}}, {"key": "n", "value": {"doubleValue": 1e9}}]},
    None,
    5,
)


def odd_span(random: Random) -> dict[str, Any]:
    """A span of which some fields and attributes are as nobody should write them."""
    operation = random.choice(("chat", "execute_tool", "invoke_agent", "kvtrace.human_wait", "embeddings", None))
    span = otlp_span(operation, 1, random.choice((2, 3, None)), span=random.randrange(1, 99), parent=1, agent="a")
    for _ in range(random.choice((0, 0, 1, 4))):
        span["attributes"].append({"key": random.choice(KEYS), "value": random.choice(VALUES)})
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        field = random.choice(list(FIELDS))
        span[field] = random.choice(FIELDS[field])
    return span


def odd_line(random: Random) -> bytes:
    spans = [odd_span(random) for _ in range(random.choice((1, 1, 3)))]
    document: Any = {"resourceSpans": [{"resource": random.choice(RESOURCES), "scopeSpans": [{"spans": spans}]}]}
    if random.random() < 0.1:
        document = random.choice(([document], {"batches": document["resourceSpans"]}, {"resourceSpans": None}, {}, 7))
    line = json.dumps(document, ensure_ascii=random.random() < 0.7).encode("utf-8", "surrogatepass")
    if random.random() < 0.1:
        at = random.randrange(len(line))
        line = line[:at] + random.choice((b"", b"\xff", b"}", b'"', b"\\q", b"\x01")) + line[at + 1 :]
    return line.replace(b"\n", b"") + random.choice((b"\n", b"\n", b"\r\n", b"\n\n"))


def by_pieces(path: Path, folder: Path) -> tuple[list[list[str]], list[tuple[int, str]], int]:
    """Rows with what they share, complaints, and their number, as the import makes them."""
    with RowWriter(folder) as rows:
        parts = read_piece(Piece(str(path), 0, path.stat().st_size), rows)
    shared = dict(line.split("\t", 1) for line in rows.shared_path.read_text(encoding="utf-8").split("\n")[:-1])
    found = []
    for row in rows.rows_path.read_text(encoding="utf-8").split("\n")[:-1]:
        _, process, *own, number = row.split("\t")
        found.append([process, "\t".join(own), shared[number]])
    skips = [(skip.line, skip.why) for part in parts for skip in part.skips]
    return found, skips, sum(part.skipped for part in parts)


def by_definition(path: Path) -> tuple[list[list[str]], list[tuple[int, str]], int]:
    notes = Notes(path, 0)
    records = list(otlp_json.read(path, notes))
    rows = [[str(each.process), as_row(own_of(each)), as_row(shared_of(each))] for each in records]
    return rows, [(skip.line, skip.why) for skip in notes.skips], notes.skipped


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_lean_reading_equals_tolerant_reading(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    random = Random(seed)
    folder = tmp_path_factory.mktemp("lean")
    path = folder / "spans.jsonl"
    path.write_bytes(b'{"resourceSpans": []}\n' * 2 + b"".join(odd_line(random) for _ in range(12)))
    assert by_pieces(path, folder) == by_definition(path)


def plain_span(random: Random) -> dict[str, Any]:
    """A span as programs write them."""
    operation = random.choice(("chat", "execute_tool", "invoke_agent", None))
    keys = random.sample((*KEYS, *sorted(PASSED_ON_TEXTS), *sorted(PASSED_ON_NUMBERS)), random.randrange(4))
    said = {key: random.choice(("x", "grep", 7, 12)) for key in keys}
    return otlp_span(operation, 1, random.choice((2, 3, None)), span=1, parent=1, agent="a", attributes=said)


def varied(random: Random, span: dict[str, Any]) -> dict[str, Any]:
    """The same span but for what spans of one form differ in, and now and then for something else."""
    span = json.loads(json.dumps(span))
    odd = random.random() < 0.2
    span["spanId"] = random.choice(("1" * 16, "0" * 16, "AB" * 8)) if odd else f"{random.randrange(1, 99):016x}"
    for key in [key for key in ("startTimeUnixNano", "endTimeUnixNano") if key in span]:
        span[key] = random.choice(INSTANTS if odd else (at_ns(5), str(at_ns(6))))
    for attribute in span["attributes"] if isinstance(span.get("attributes"), list) else ():
        if not isinstance(attribute, dict) or "value" not in attribute:
            continue
        value = attribute["value"]
        if odd and random.random() < 0.3:
            attribute["value"] = random.choice(VALUES)
        elif isinstance(value, dict) and "stringValue" in value and attribute["key"] != names.GEN_AI_OPERATION_NAME:
            value["stringValue"] = random.choice((value["stringValue"], "call", *TEXTS[: 12 if odd else 2]))
        elif isinstance(value, dict) and "intValue" in value:
            value["intValue"] = random.choice((value["intValue"], 5, "12"))
    return span


def line_of(random: Random, spans: list[dict[str, Any]], resource: Any) -> bytes:
    document = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}
    compact = (",", ":") if random.random() < 0.9 else None
    ascii_only = random.random() < 0.9
    return json.dumps(document, separators=compact, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") + b"\n"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_reading_by_patterns_equals_tolerant_reading(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    random = Random(seed)
    folder = tmp_path_factory.mktemp("patterns")
    path = folder / "spans.jsonl"
    forms = [plain_span(random), plain_span(random), odd_span(random)]
    lines = [b'{"resourceSpans": []}\n' * 2]
    for _ in range(40):
        spans = [varied(random, random.choice(forms)) for _ in range(random.choice((1, 1, 1, 2, 3)))]
        lines.append(line_of(random, spans, random.choice(RESOURCES[:2])))
    path.write_bytes(b"".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(span_patterns, "_WORTH_LEARNING", 1)
        patch.setattr(pieces, "_READ_BYTES", random.choice((1, 700, 5000)))
        assert by_pieces(path, folder) == by_definition(path)


def test_spans_of_a_form_are_decoded_only_until_it_is_learned(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    more = {names.GEN_AI_TOOL_CALL_ID: "c", "http.url": "x", names.GEN_AI_TOOL_NAME: "grep"}
    with path.open("w") as file:
        for number in range(1, 400):
            called = {**more, names.GEN_AI_TOOL_CALL_ID: f"call-{number}", "http.url": f"/{number}"}
            span = otlp_span("execute_tool", number, number + 1, span=number, parent=9, agent="a", attributes=called)
            other = otlp_span("chat", number, None, span=number + 1000, agent=f"a{number}")
            file.write(
                json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span, other]}]}]}, separators=(",", ":"))
                + "\n"
            )
    decoded: list[bytes] = []
    read = LeanReader.read

    def reading(lean: LeanReader, line: bytes) -> bool:
        decoded.append(line)
        return read(lean, line)

    with pytest.MonkeyPatch.context() as patch, RowWriter(tmp_path) as rows:
        patch.setattr(LeanReader, "read", reading)
        read_piece(Piece(str(path), 0, path.stat().st_size), rows)
    assert len(decoded) == 64
    assert by_pieces(path, tmp_path) == by_definition(path)


def test_plain_lines_never_need_the_tolerant_reader(tmp_path: Path) -> None:
    spans = [
        otlp_span("execute_tool", 1, 2, span=1, parent=9, agent="a", attributes={names.GEN_AI_TOOL_CALL_ID: "c"}),
        otlp_span("chat", 1, None, span=2, agent="a", attributes={names.GEN_AI_USAGE_INPUT_TOKENS: 7}),
    ]
    with RowWriter(tmp_path) as rows:
        lean = LeanReader(_Nobody(Notes(tmp_path, 0)), rows)
        for span in spans:
            assert lean.read(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode())
    assert rows.written == 2


class _Nobody(otlp_json.Reader):
    def record_or_skip(self, span: dict[str, Any], process: int) -> None:
        raise AssertionError(span)
