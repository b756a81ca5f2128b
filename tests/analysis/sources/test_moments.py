"""One instant in every spelling that exports use."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.analysis.sources.moments import moment
from kvtrace.analysis.sources.values import BadValueError

AT_NS = 1_756_237_259_145_000_000


@pytest.mark.parametrize(
    "value",
    [
        "2025-08-26T19:40:59.145Z",
        "2025-08-26 19:40:59.145",
        "2025-08-26T19:40:59,145000+00:00",
        "2025-08-26T21:40:59.145+02:00",
        "2025-08-26 19:40:59.145 UTC",
        AT_NS,
        str(AT_NS),
        AT_NS // 1000,
        AT_NS // 10**6,
        str(AT_NS // 10**6),
        1_756_237_259.145,
    ],
)
def test_every_spelling_is_the_same_instant(value: Any) -> None:
    assert moment(value, "x") == pytest.approx(AT_NS, abs=200)


def test_nanoseconds_of_a_text_are_kept() -> None:
    assert moment("2025-08-26T19:40:59.123456789Z", "x") == 1_756_237_259_123_456_789


@pytest.mark.parametrize("value", [None, "", 0, "0", "1970-01-01T00:00:00Z"])
def test_absent_instant_is_none(value: Any) -> None:
    assert moment(value, "x") is None


@pytest.mark.parametrize(
    "value", ["soon", -1, True, [], {}, float("nan"), 2**70, "2025-13-01T00:00:00Z", "9999-01-01T00:00:00Z", "12:00"]
)
def test_anything_else_is_named(value: Any) -> None:
    with pytest.raises(BadValueError, match="start is no instant"):
        moment(value, "start")


@given(st.datetimes(datetime(1980, 1, 1), datetime(2200, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_zones_never_move_an_instant(naive: datetime, minutes: int) -> None:
    at = naive.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    microseconds = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert moment(at.isoformat(), "x") == microseconds * 1000
