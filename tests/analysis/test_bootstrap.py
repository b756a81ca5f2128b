"""The interval is deterministic, holds the estimate, and knows when it knows nothing."""

from __future__ import annotations

from random import Random

import pytest

from kvtrace.analysis.bootstrap import ratio_interval


def test_seed_decides_the_interval() -> None:
    parts, wholes = [1, 5, 9, 3], [10, 10, 10, 10]
    first = ratio_interval(parts, wholes, Random(3), 500)
    assert first == ratio_interval(parts, wholes, Random(3), 500)
    assert first != ratio_interval(parts, wholes, Random(4), 500)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random, hits = Random(1), 0
    for _ in range(200):
        parts = [random.randrange(101) for _ in range(40)]
        interval = ratio_interval(parts, [100] * 40, random, 200)
        assert interval is not None
        hits += interval[0] <= 0.5 <= interval[1]
    assert 175 <= hits <= 199


def test_equal_agents_leave_no_doubt() -> None:
    assert ratio_interval([3] * 9, [10] * 9, Random(0), 100) == pytest.approx((0.3, 0.3))


@pytest.mark.parametrize(("parts", "wholes"), [([], []), ([1], [2]), ([0, 0], [0, 0])])
def test_too_little_gives_no_interval(parts: list[int], wholes: list[int]) -> None:
    assert ratio_interval(parts, wholes, Random(0), 100) is None
