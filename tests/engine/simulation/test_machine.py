from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.batch import Chunk
from kvtrace.engine.sequence import Sampling
from kvtrace.engine.simulation.machine import ARTICLE, H200, Machine


def step_ms(machine: Machine, *lengths: int) -> float:
    chunks = [Chunk(n, (0,) * length, 0, (), 0, True, Sampling(), 0, 0) for n, length in enumerate(lengths)]
    return machine.step_s(chunks) * 1e3


@pytest.mark.parametrize(
    ("lengths", "measured_ms"),
    [
        ((1,) * 8, 6.38),
        ((1,), 4.93),
        ((101,), 7.65),
        ((2048,), 50.4),
        ((101, *(1,) * 7), 9.94),
        ((2041, *(1,) * 7), 56.5),
    ],
)
def test_model_of_the_h200_is_within_five_percent_of_what_was_measured(
    lengths: tuple[int, ...], measured_ms: float
) -> None:
    assert step_ms(H200, *lengths) == pytest.approx(measured_ms, rel=0.05)


def test_article_rates_are_the_published_ones() -> None:
    assert 1e3 / step_ms(ARTICLE, 1) == pytest.approx(39.6, rel=0.01)
    assert 8e3 / step_ms(ARTICLE, *(1,) * 8) == pytest.approx(5.6 * 39.6, rel=0.01)
    assert 2048e3 / step_ms(ARTICLE, 2048) == pytest.approx(962, rel=0.01)


@given(st.integers(0, 8), st.integers(2, 8000))
def test_more_work_never_takes_less_time(decoding: int, prompt: int) -> None:
    for machine in (H200, ARTICLE):
        alone = step_ms(machine, *(1,) * decoding)
        mixed = step_ms(machine, prompt, *(1,) * decoding)
        assert alone <= mixed <= step_ms(machine, prompt + 1, *(1,) * decoding)
