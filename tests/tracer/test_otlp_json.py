from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvtrace.tracer.otlp_json import RECORD_END, encode_attributes, encode_text, encode_value, record_start
from kvtrace.tracer.testing import Record, read_records

SCALARS = st.one_of(st.text(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))


def decoded(value: dict[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "arrayValue":
        return [decoded(item) for item in content["values"]]
    return int(content) if kind == "intValue" else float(content) if kind == "doubleValue" else content


@given(st.one_of(SCALARS, st.lists(st.integers()), st.lists(st.text())))
def test_every_value_comes_back(value: Any) -> None:
    assert decoded(json.loads(encode_value(value))) == value


def test_integers_are_strings_and_booleans_are_not() -> None:
    assert json.loads(encode_value(2**62)) == {"intValue": str(2**62)}
    assert json.loads(encode_value(True)) == {"boolValue": True}


def test_not_a_number_is_written_as_text() -> None:
    assert json.loads(encode_value(math.nan)) == {"doubleValue": "NaN"}
    assert json.loads(encode_value(-math.inf)) == {"doubleValue": "-Infinity"}


@given(st.text(alphabet=st.characters(), max_size=20))
def test_text_is_one_ascii_line(text: str) -> None:
    encoded = encode_text(text + "\n\ud800")
    assert encoded.isascii()
    assert "\n" not in encoded
    json.loads(encoded).encode("utf-8")


def test_record_reads_back_whole(tmp_path: Any) -> None:
    start = record_start({"service.name": "s", "process.pid": 7}, "scope", "1")
    span = (
        '{"traceId":"a","spanId":"b","name":"n","kind":1,"startTimeUnixNano":"5",'
        f'"attributes":[{encode_attributes({"k": (1, 2)})}]}}'
    )
    (tmp_path / "x.jsonl").write_text(start + span + RECORD_END + '{"torn":\n')
    assert read_records(tmp_path) == [
        Record("a", "b", None, "n", 1, 5, None, {"k": [1, 2]}, 0, {"service.name": "s", "process.pid": 7})
    ]
