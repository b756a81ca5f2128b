from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.tracer import COUNTS, agent, traced_tool
from kvtrace.tracer.content import MOST_BYTES, Parameters, arguments
from kvtrace.tracer.testing import Captured, capture

ARGUMENTS = "gen_ai.tool.call.arguments"
RESULT = "gen_ai.tool.call.result"
SECRET = "secret words"


def give(query: str, limit: int = 3) -> dict[str, Any]:
    return {"found": query, "limit": limit}


def test_content_is_off_in_every_path(captured: Captured, caplog: pytest.LogCaptureFixture) -> None:
    def fail(text: str) -> None:
        raise ValueError(text)

    async def later(text: str) -> str:
        return text

    def steps(text: str) -> Iterator[str]:
        yield text

    class Hostile:
        def __repr__(self) -> str:
            raise AssertionError(SECRET)

    with caplog.at_level(logging.DEBUG), agent("a"):
        traced_tool(give)(SECRET)
        with pytest.raises(ValueError, match=SECRET):
            traced_tool(fail)(SECRET)
        asyncio.run(traced_tool(later)(SECRET))
        list(traced_tool(steps)(SECRET))
        traced_tool(lambda x: x, call_id=lambda x: 1 / 0)(Hostile())  # type: ignore[arg-type, return-value]
    assert SECRET not in str(captured.records) + str(captured.signals) + caplog.text
    assert len(captured.spans) == 6
    assert COUNTS.internal_errors == 1


def test_content_is_recorded_on_request(captured: Captured) -> None:
    traced_tool(capture=True)(give)("cats", limit=1)
    start, end = captured.records
    assert json.loads(start.attributes[ARGUMENTS]) == {"query": "cats", "limit": 1}
    assert json.loads(end.attributes[RESULT]) == {"found": "cats", "limit": 1}
    assert RESULT not in start.attributes


def test_single_arguments_can_be_chosen(captured: Captured) -> None:
    traced_tool(capture=("limit",))(give)(SECRET, 4)
    traced_tool(capture=("return",))(give)("cats", 4)
    first, second = captured.spans
    assert json.loads(first.attributes[ARGUMENTS]) == {"limit": 4}
    assert RESULT not in first.attributes
    assert ARGUMENTS not in second.attributes
    assert json.loads(second.attributes[RESULT])["found"] == "cats"


def test_process_wide_switch_sets_the_default_and_the_veto() -> None:
    for process_wide, asked, expected in [(True, None, True), (True, False, False), (False, True, False)]:
        with capture(capture_content=process_wide) as captured:
            traced_tool(capture=asked)(give)("x")
            assert (ARGUMENTS in captured.spans[0].attributes) is expected


def test_long_content_is_cut_with_size_and_hash(captured: Captured) -> None:
    text = "é" * 100_000
    traced_tool(capture=True)(lambda x: x)(text)
    attributes = captured.spans[0].attributes
    whole = json.dumps(text, ensure_ascii=False).encode()
    assert len(attributes[RESULT].encode()) <= MOST_BYTES
    assert whole.decode().startswith(attributes[RESULT])
    assert attributes[RESULT + ".bytes"] == len(whole)
    assert attributes[RESULT + ".sha256"] == hashlib.sha256(whole).hexdigest()


@given(st.text())
def test_cut_content_is_valid_text(text: str) -> None:
    content = arguments(Parameters(lambda x: x), (text * 3000,), {}, True)
    assert len(str(content[ARGUMENTS]).encode()) <= MOST_BYTES


def test_what_json_does_not_know_goes_by_its_type(captured: Captured) -> None:
    class Handle:
        def __repr__(self) -> str:
            raise RuntimeError

        @traced_tool(capture=True)
        def method(self, x: object, *rest: int, **more: object) -> bytes:
            return b"raw"

    Handle().method(Handle(), 1, 2, key={3})
    attributes = captured.spans[0].attributes
    name = Handle.__qualname__
    assert json.loads(attributes[ARGUMENTS]) == {"x": f"<{name}>", "args": [1, 2], "key": "<set>"}
    assert json.loads(attributes[RESULT]) == "<bytes>"


def test_content_that_cannot_be_encoded_is_counted(captured: Captured) -> None:
    circular: list[Any] = []
    circular.append(circular)
    assert traced_tool(capture=True)(lambda x: x)(circular) is circular
    assert COUNTS.internal_errors == 2
    assert len(captured.spans) == 1
