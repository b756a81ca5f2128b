from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.batch import Chunk
from kvtrace.engine.graphs import prefill_sizes
from kvtrace.engine.sequence import Sampling
from kvtrace.engine.simulation.machine import ARTICLE, H200, Machine


def step_ms(machine: Machine, *lengths: int, start: int = 0) -> float:
    chunks = [Chunk(n, (0,) * length, start, (), 0, True, Sampling(), 0, 0) for n, length in enumerate(lengths)]
    return machine.step_s(chunks) * 1e3


@pytest.mark.parametrize(
    ("prompt", "start", "decoding", "measured_ms"),
    [
        (0, 0, 8, 6.38),
        (0, 0, 7, 6.18),
        (0, 0, 4, 5.44),
        (0, 0, 1, 4.73),
        (101, 6600, 7, 8.34),
        (249, 2700, 7, 10.29),
        (249, 3000, 7, 10.61),  # the same one over and over
        (378, 4900, 6, 14.49),
        (505, 3000, 6, 16.56),  # the same one over and over
        (507, 3300, 5, 16.36),
        (1016, 3000, 2, 28.7),
        (1024, 2400, 0, 26.73),
        (1021, 2500, 3, 27.46),
    ],
)
def test_model_of_the_h200_is_within_three_percent_of_what_was_measured(
    prompt: int, start: int, decoding: int, measured_ms: float
) -> None:
    lengths = (prompt, *(1,) * decoding) if prompt else (1,) * decoding
    assert step_ms(H200, *lengths, start=start) == pytest.approx(measured_ms, rel=0.03)


def test_sizes_of_the_h200_are_those_that_steps_are_padded_to() -> None:
    assert tuple(rows for rows, _ in H200.prompts) == prefill_sizes(2048)


def test_next_larger_size_is_what_counts_where_steps_are_padded() -> None:
    assert step_ms(H200, 257) == pytest.approx(step_ms(H200, 384), rel=0.01)
    assert step_ms(H200, 257) > 1.2 * step_ms(H200, 256)
    assert step_ms(ARTICLE, 257) == pytest.approx(step_ms(ARTICLE, 256), rel=0.01)


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
