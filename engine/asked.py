"""What a caller may ask of an engine: token ids and sampling settings that are in range. Torch-free."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Final

from .errors import RequestRefused
from .sequence import Sampling

MOST_LOGPROBS: Final = 20  # alternatives a token; OpenAI's own limit
_SEED_BITS: Final = 128  # a seed is written out as digits, and Python writes no more than some thousands of them


def checked_tokens(prompt: Sequence[int], vocabulary: int) -> list[int]:
    """The prompt as a list of integers.

    Raises:
        RequestRefused: a token is no integer, or outside the vocabulary.
    """
    tokens = list(prompt)
    # One bad id would fail the step of everybody who shares it. Whole passes in C: prompts are long.
    if not {int} >= set(map(type, tokens)):
        tokens = [_integer(token) for token in tokens]
    if tokens and (min(tokens) < 0 or max(tokens) >= vocabulary):
        bad = next(token for token in tokens if not 0 <= token < vocabulary)
        raise RequestRefused(f"token id {bad} is outside the model's vocabulary of {vocabulary}")
    return tokens


def check_sampling(sampling: Sampling, vocabulary: int) -> None:
    """Refuse settings that make no sense.

    Raises:
        RequestRefused: one of them is out of range; the message says which and what it may be.
    """
    penalty = "between -2 and 2"
    for name, value, right, rule in (
        ("temperature", sampling.temperature, sampling.temperature >= 0, "at least 0"),
        ("top_p", sampling.top_p, 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("top_k", sampling.top_k, sampling.top_k >= 0, "at least 0"),
        ("min_p", sampling.min_p, 0 <= sampling.min_p <= 1, "between 0 and 1"),
        ("presence_penalty", sampling.presence_penalty, -2 <= sampling.presence_penalty <= 2, penalty),
        ("frequency_penalty", sampling.frequency_penalty, -2 <= sampling.frequency_penalty <= 2, penalty),
        ("repetition_penalty", sampling.repetition_penalty, sampling.repetition_penalty > 0, "above 0"),
        ("logprobs", sampling.logprobs or 0, 0 <= (sampling.logprobs or 0) <= MOST_LOGPROBS, f"0 to {MOST_LOGPROBS}"),
    ):
        if not right or not math.isfinite(value):
            raise RequestRefused(f"{name} is {value}; it must be {rule}")
    if sampling.seed is not None and sampling.seed.bit_length() > _SEED_BITS:
        raise RequestRefused(f"seed has {sampling.seed.bit_length()} bits; give one of at most {_SEED_BITS}")
    for token, bias in sampling.logit_bias:
        if not 0 <= token < vocabulary:
            raise RequestRefused(f"logit_bias names token id {token}, outside the model's vocabulary of {vocabulary}")
        if not -100 <= bias <= 100:
            raise RequestRefused(f"logit_bias of token id {token} is {bias}; it must be between -100 and 100")
    if sampling.ignore_eos and sampling.grammar is not None:
        raise RequestRefused("ignore_eos would make the output go on after its grammar's end; leave one of them out")


def _integer(token: Any) -> int:
    try:
        return operator.index(token)
    except TypeError:
        raise RequestRefused(f"token id {token!r} is no integer") from None
