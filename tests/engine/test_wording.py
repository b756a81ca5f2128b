"""Counts in messages."""

from __future__ import annotations

import pytest

from kvtrace.engine.wording import counted


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 requests"), (1, "1 request"), (2, "2 requests"), (6900, "6,900 requests")]
)
def test_one_of_a_thing_is_no_plural(number: int, text: str) -> None:
    assert counted(number, "request") == text
