"""The forecast file is a contract with the engine's policy: a schema, and one document it must keep describing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator

from kvtrace.analysis import build_report
from kvtrace.analysis.forecast import render_forecast
from kvtrace.analysis.testing import FixedHost, otlp_span, write_otlp

HERE: Final = Path(__file__).parent
SCHEMA: Final = json.loads((HERE.parents[1] / "docs" / "forecast.schema.json").read_text(encoding="utf-8"))
VALIDATOR: Final = Draft202012Validator(SCHEMA)


def written(tmp_path: Path, *, ended: bool = True) -> Any:
    spans = [otlp_span("chat", 0, 1, span=1, agent="a")]
    for number, length_s in enumerate((0.01, 1.0, 2.0, 3.0)):
        start_s = 10.0 * (number + 1)
        end_s = start_s + length_s if ended else None
        spans.append(otlp_span("execute_tool", start_s, end_s, span=2 + number, agent="a", name="execute_tool grep"))
    spans.append(otlp_span("execute_tool", 60, None, span=9, agent="a", name="execute_tool hang"))
    return json.loads(
        render_forecast(build_report([write_otlp(tmp_path / "a.jsonl", spans)], host=FixedHost(now_s=70)))
    )


def test_forecast_is_the_golden_document(tmp_path: Path) -> None:
    document = written(tmp_path)
    VALIDATOR.validate(document)
    golden = json.loads((HERE / "forecast.json").read_text(encoding="utf-8"))
    assert document.keys() == golden.keys()
    assert document["tools"] == [pytest.approx(tool) for tool in golden["tools"]]
    assert document["any_tool"] == pytest.approx(golden["any_tool"])


def test_golden_document_follows_the_schema() -> None:
    VALIDATOR.validate(json.loads((HERE / "forecast.json").read_text(encoding="utf-8")))


def test_tools_without_an_ended_call_have_no_forecast(tmp_path: Path) -> None:
    document = written(tmp_path, ended=False)
    VALIDATOR.validate(document)
    assert document["tools"] == []


def test_schema_refuses_what_misses_a_quantile(tmp_path: Path) -> None:
    document = written(tmp_path)
    del document["tools"][0]["p90_s"]
    assert not VALIDATOR.is_valid(document)
