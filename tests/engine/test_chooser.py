"""Penalties, biases, grammars and log probabilities, next to transformers' own processors where it has them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from kvtrace.engine.batch import Chunk
from kvtrace.engine.chooser import Chooser, with_chooser
from kvtrace.engine.sampling import sample
from kvtrace.engine.sequence import Sampling

VOCABULARY = 40
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=20)
PENALTIES = st.floats(-2, 2, width=32)


def _chunk(sampling: Sampling, seed: int = 0, generated: int = 0) -> Chunk:
    return Chunk(0, (1,), 0, (0,), 0, True, sampling, seed, generated)


def _logits(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


class OnlyEven:
    """A grammar in which every token has an even id."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.accepted: list[int] = []

    def mask(self, row: torch.Tensor) -> None:
        row[1::2] = -torch.inf

    def accept(self, token: int) -> None:
        self.accepted.append(token)


@given(prompt=TOKENS, output=TOKENS, penalty=st.floats(0.25, 4, width=32), seed=st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_the_repetition_penalty_is_that_of_transformers(
    prompt: list[int], output: list[int], penalty: float, seed: int
) -> None:
    logits = _logits(seed)
    chooser = Chooser(Sampling(repetition_penalty=penalty), prompt)
    for at, token in enumerate(output):
        if at == 1:
            chooser.edit(logits[0].clone())  # counts are kept up from here on
        chooser.accept(token)
    edited = logits[0].clone()
    chooser.edit(edited)
    ids = torch.tensor([[*prompt, *output]], dtype=torch.long)
    assert torch.allclose(edited, RepetitionPenaltyLogitsProcessor(penalty)(ids, logits.clone())[0])


@given(output=TOKENS, presence=PENALTIES, frequency=PENALTIES, seed=st.integers(0, 99), late=st.integers(0, 20))
@settings(max_examples=100, deadline=None)
def test_presence_and_frequency_penalties_count_the_output(
    output: list[int], presence: float, frequency: float, seed: int, late: int
) -> None:
    logits = _logits(seed)
    sampling = Sampling(presence_penalty=presence, frequency_penalty=frequency)
    chooser = Chooser(sampling, [3, 3, 3])
    for at, token in enumerate(output):
        if at == late:
            chooser.edit(logits[0].clone())
        chooser.accept(token)
    edited = logits[0].clone()
    chooser.edit(edited)
    expected = [
        value - frequency * output.count(token) - presence * (token in output)
        for token, value in enumerate(logits[0].tolist())
    ]
    assert edited.tolist() == pytest.approx(expected, abs=1e-4)


@given(
    seed=st.integers(0, 300),
    top_k=st.integers(0, 45),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 1),
    temperature=st.floats(0.2, 3),
)
@settings(max_examples=150, deadline=None)
def test_draws_stay_inside_the_filters_of_transformers(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    logits = _logits(seed)
    none = torch.zeros(1, 0, dtype=torch.long)
    kept = logits / temperature
    if top_k:
        kept = TopKLogitsWarper(top_k)(none, kept)
    kept = TopPLogitsWarper(min(top_p + 1e-6, 1.0))(none, kept)
    if min_p:
        kept = MinPLogitsWarper(max(min_p - 1e-6, 0.0))(none, kept)
    allowed = set(kept[0].isfinite().nonzero().flatten().tolist())
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    drawn = {sample(logits, [_chunk(sampling, seed, index)])[0] for index in range(10)}
    assert drawn <= allowed


@pytest.mark.parametrize("device", DEVICES)
@given(seed=st.integers(0, 200), position=st.integers(0, 4), generated=st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_other_requests_change_nothing(device: str, seed: int, position: int, generated: int) -> None:
    logits = _logits(seed, rows=5).to(device)
    mine = Sampling(temperature=0.8, min_p=0.05, frequency_penalty=1, logit_bias=((3, 2.0),), logprobs=2)

    def chunk() -> Chunk:
        return _chunk(with_chooser(mine, [1, 2]), seed, generated)

    others = [
        Sampling(),
        Sampling(temperature=1.0, top_k=3),
        with_chooser(Sampling(grammar=OnlyEven()), []),
        with_chooser(Sampling(temperature=2.0, repetition_penalty=2.0), [5]),
    ]
    together = [*map(_chunk, others[:position]), chunk(), *map(_chunk, others[position:])]
    before = logits.clone()
    tokens = sample(logits, together)
    assert torch.equal(logits, before)
    alone = chunk()
    assert sample(logits[position : position + 1], [alone]) == [tokens[position]]
    choosers = [one.sampling.chooser for one in (alone, together[position])]
    assert [one.logprobs for one in choosers if one is not None] == [choosers[0] and choosers[0].logprobs] * 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_grammar_forbids_and_hears_every_token(device: str, temperature: float) -> None:
    grammar = OnlyEven()
    sampling = with_chooser(Sampling(temperature=temperature, grammar=grammar), [])
    tokens = [sample(_logits(seed).to(device), [_chunk(sampling, 0, seed)])[0] for seed in range(20)]
    assert grammar.accepted == tokens
    assert all(token % 2 == 0 for token in tokens)
    assert sampling.needs_history


def test_biases_promote_and_forbid() -> None:
    logits = _logits(1)
    best = int(logits.argmax())
    assert sample(logits, [_chunk(with_chooser(Sampling(logit_bias=((7, 100.0),)), []))]) == [7]
    forbidden = with_chooser(Sampling(temperature=1.0, logit_bias=((best, -100.0),)), [])
    assert best not in {sample(logits, [_chunk(forbidden, 0, index)])[0] for index in range(200)}


def test_log_probabilities_are_those_before_any_change() -> None:
    logits = _logits(4)
    sampling = with_chooser(Sampling(temperature=2.0, logit_bias=((7, 100.0),), logprobs=3), [])
    assert sample(logits, [_chunk(sampling)]) == [7]
    assert sampling.chooser is not None
    (entry,) = sampling.chooser.logprobs
    expected = logits[0].log_softmax(-1)
    assert entry.token == 7
    assert entry.logprob == pytest.approx(float(expected[7]))
    assert [token for token, _ in entry.top] == expected.topk(3).indices.tolist()
    none = with_chooser(replace(sampling, logprobs=0, chooser=None), [])
    sample(logits, [_chunk(none)])
    assert none.chooser is not None
    assert [len(one.top) for one in none.chooser.logprobs] == [0]


def test_plain_requests_remember_nothing() -> None:
    assert with_chooser(Sampling(temperature=1.0, top_p=0.5, min_p=0.1), [1]).chooser is None
    assert Sampling().greedy
    assert not Sampling(temperature=1.0).greedy
    assert not with_chooser(Sampling(logprobs=1), []).greedy
