from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine.batch import Chunk
from kvtrace.engine.sampling import sample
from kvtrace.engine.sequence import Sampling


def _chunk(sampling: Sampling, seed: int = 0, generated: int = 0) -> Chunk:
    return Chunk(0, (1,), 0, (0,), 0, True, sampling, seed, generated)


def _logits(seed: int, rows: int = 1, vocabulary: int = 50) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def _draws(logits: torch.Tensor, sampling: Sampling, count: int) -> list[int]:
    return [sample(logits, [_chunk(sampling, seed=3, generated=index)])[0] for index in range(count)]


def test_temperature_zero_takes_the_likeliest() -> None:
    logits = _logits(1, rows=4)
    assert sample(logits, [_chunk(Sampling())] * 4) == logits.argmax(-1).tolist()


def test_no_chunk_gives_no_token() -> None:
    assert sample(torch.empty(0, 50), []) == []


@pytest.mark.parametrize("narrow", [Sampling(temperature=2.0, top_k=1), Sampling(temperature=2.0, top_p=1e-9)])
def test_narrowest_filters_leave_the_likeliest(narrow: Sampling) -> None:
    logits = _logits(2)
    assert set(_draws(logits, narrow, 50)) == {int(logits.argmax())}


@pytest.mark.parametrize("temperature", [1e-40, 1e-46, 5e-324])
def test_temperatures_beyond_float32_take_the_likeliest(temperature: float) -> None:
    logits = _logits(2, rows=2)
    assert sample(logits, [_chunk(Sampling(temperature=temperature)), _chunk(Sampling())]) == logits.argmax(-1).tolist()


def test_logits_that_are_no_numbers_leave_other_rows_alone() -> None:
    logits = torch.cat([torch.full((1, 50), float("nan")), _logits(2)])
    _, right = sample(logits, [_chunk(Sampling(temperature=1.0)), _chunk(Sampling())])
    assert right == int(logits[1].argmax())


def test_frequencies_follow_the_softmax() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    draws = _draws(logits, Sampling(temperature=1.5), 4000)
    for token, share in enumerate((logits[0] / 1.5).softmax(-1).tolist()):
        assert draws.count(token) / 4000 == pytest.approx(share, abs=0.03)


@given(seed=st.integers(0, 500), generated=st.integers(0, 500), top_k=st.integers(0, 60), top_p=st.floats(0.01, 1.0))
@settings(max_examples=200, deadline=None)
def test_draws_stay_inside_both_filters(seed: int, generated: int, top_k: int, top_p: float) -> None:
    logits = _logits(seed)
    (token,) = sample(logits, [_chunk(Sampling(temperature=1.3, top_k=top_k, top_p=top_p), seed, generated)])
    scores = sorted((logits[0] / 1.3).tolist(), reverse=True)[: top_k or None]
    shares = torch.tensor(scores).softmax(-1)
    rank = scores.index((logits[0] / 1.3)[token].item())
    assert float(shares[:rank].sum()) < top_p + 1e-5


@given(seed=st.integers(0, 500), uniform=st.integers(0, 500))
@settings(max_examples=100, deadline=None)
def test_tokens_of_probability_zero_are_never_drawn(seed: int, uniform: int) -> None:
    logits = _logits(seed)
    logits[0, ::2] = float("-inf")
    (token,) = sample(logits, [_chunk(Sampling(temperature=5.0), seed, uniform)])
    assert token % 2 == 1


@given(seed=st.integers(0, 200), generated=st.integers(0, 200), position=st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_a_draw_does_not_depend_on_the_batch(seed: int, generated: int, position: int) -> None:
    logits = _logits(seed, rows=5)
    mine = _chunk(Sampling(temperature=1.0, top_p=0.9), seed, generated)
    others = [_chunk(Sampling(temperature=0.7 * (index % 2)), 99, index) for index in range(5)]
    batch = [*others[:position], mine, *others[position + 1 :]]
    assert sample(logits, batch)[position] == sample(logits[position : position + 1], [mine])[0]


def test_seed_and_count_choose_the_stream() -> None:
    logits = torch.zeros(1, 50)
    hot = Sampling(temperature=1.0)
    by_seed = {sample(logits, [_chunk(hot, seed=seed)])[0] for seed in range(30)}
    by_count = {sample(logits, [_chunk(hot, generated=count)])[0] for count in range(30)}
    assert len(by_seed) > 10
    assert len(by_count) > 10
    assert sample(logits, [_chunk(hot, 4, 2)]) == sample(logits, [_chunk(hot, 4, 2)])


def test_a_top_k_beyond_64_bits_filters_nothing() -> None:
    logits, wide = _logits(4), Sampling(temperature=2.0, top_k=10**30)
    assert _draws(logits, wide, 20) == _draws(logits, Sampling(temperature=2.0), 20)
