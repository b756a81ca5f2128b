"""From logits to token ids: greedy, or drawn from a stream that belongs to the request alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from .batch import Chunk
from .sequence import Sampling

LEAST_TEMPERATURE: Final = 1e-5
"""Below this a draw is the most likely token in any case, and dividing by it would leave float32's range."""


def sample(logits: Tensor, chunks: Sequence[Chunk]) -> list[int]:
    """The next token of each chunk.

    A drawn token depends on its own row, on the seed and on how many tokens were generated before it, never on
    who else is in the batch.

    Args:
        logits: ``[len(chunks), vocabulary]``, the rows after each chunk's last position.
        chunks: whose sampling settings, seed and count to use.
    """
    chosen = logits.argmax(dim=-1)
    for row, chunk in enumerate(chunks):
        if chunk.sampling.temperature >= LEAST_TEMPERATURE:
            chosen[row] = _draw(logits[row], chunk.sampling, _uniform(chunk.seed, chunk.generated))
    # One read-back for the whole batch: on a GPU each one waits for the device.
    return [int(token) for token in chosen.tolist()]


def _draw(logits: Tensor, sampling: Sampling, uniform: float) -> Tensor:
    """The token at quantile ``uniform`` of the filtered distribution, most likely tokens first."""
    ordered, tokens = torch.sort(logits.float() / sampling.temperature, descending=True, stable=True)
    if sampling.top_k > 0:
        ordered, tokens = ordered[: sampling.top_k], tokens[: sampling.top_k]
    probabilities = ordered.softmax(dim=-1)
    if sampling.top_p < 1:
        # A token stays while those before it have not reached top_p; the first therefore always stays.
        before = probabilities.cumsum(dim=-1) - probabilities
        kept = before < sampling.top_p
        kept[0] = True
        probabilities = probabilities * kept
    cumulative = probabilities.cumsum(dim=-1)
    # Strictly below the total, so that rounding never picks a token of probability zero.
    point = torch.clamp(cumulative[-1] * uniform, max=torch.nextafter(cumulative[-1], cumulative.new_zeros(())))
    # Logits that are not numbers find no place; they must not fail the step of everybody else.
    place = torch.searchsorted(cumulative, point, right=True).clamp(max=len(tokens) - 1)
    return tokens[place]


def _uniform(seed: int, generated: int) -> float:
    """A number in [0, 1) from the request's own stream; the same on every platform."""
    digest = hashlib.blake2b(f"{seed}:{generated}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / (1 << 53)
