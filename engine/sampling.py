"""From logits to token ids: greedy, or drawn from a stream that belongs to the request alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .batch import Chunk
from .chooser import Chooser, TokenLogprobs
from .sequence import LEAST_TEMPERATURE, Sampling

__all__ = ["LEAST_TEMPERATURE", "sample"]


class Send(Protocol):
    """Takes numbers to a device without waiting for it."""

    def __call__(self, values: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
        """``values`` as a tensor on ``device``."""
        ...


def to_device(values: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """``values`` as a tensor on ``device``; on a GPU queued behind its work instead of waiting for it."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def sample(logits: Tensor, chunks: Sequence[Chunk]) -> list[int]:
    """The next token of each chunk.

    A drawn token depends on its own row, on the seed and on how many tokens were generated before it, never on
    who else is in the batch. Rows that only want the likeliest token cost no more than one argmax over all.

    Args:
        logits: ``[len(chunks), vocabulary]``, the rows after each chunk's last position; not changed.
        chunks: whose sampling settings, seed and count to use.
    """
    choosers = {row: chunk.sampling.chooser for row, chunk in enumerate(chunks) if chunk.sampling.chooser is not None}
    edited = _edited(logits, choosers)
    # One read-back for the whole batch: on a GPU each one waits for the device.
    tokens = [int(token) for token in choose(edited, chunks).tolist()]
    _note_logprobs(logits, tokens, choosers)
    for row, chooser in choosers.items():
        chooser.accept(tokens[row])
    return tokens


def choose(logits: Tensor, chunks: Sequence[Chunk], send: Send = to_device) -> Tensor:
    """The same as int64 ``[len(chunks)]``, without waiting for the device, from logits that nobody edits any more."""
    chosen = logits.argmax(dim=-1)
    drawn = [row for row, chunk in enumerate(chunks) if chunk.sampling.draws]
    if drawn:
        rows = send(drawn, logits.device)
        uniforms = [_uniform(chunks[row].seed, chunks[row].generated) for row in drawn]
        chosen[rows] = _draw(logits[rows], [chunks[row].sampling for row in drawn], uniforms, send)
    return chosen


def _edited(logits: Tensor, choosers: dict[int, Chooser]) -> Tensor:
    """The logits that tokens are chosen by; those of the model themselves where nobody wants them changed."""
    if not any(chooser.edits for chooser in choosers.values()):
        return logits
    edited = logits.to(torch.float32, copy=True)
    for row, chooser in choosers.items():
        if chooser.edits:
            chooser.edit(edited[row])
    return edited


def _draw(logits: Tensor, settings: Sequence[Sampling], uniforms: Sequence[float], send: Send) -> Tensor:
    """For each row the token at its quantile of the filtered distribution, most likely tokens first.

    ``top_k`` comes first, then ``top_p`` over what is left, then ``min_p``.
    """
    temperature, top_p, min_p, uniform = send(
        [[one.temperature, one.top_p, one.min_p, quantile] for one, quantile in zip(settings, uniforms, strict=True)],
        logits.device,
        torch.float64,
    ).T.unsqueeze(-1)
    ordered, tokens = torch.sort(logits.float() / temperature.float(), dim=-1, descending=True, stable=True)
    if any(one.top_k > 0 for one in settings):
        # A number of 64 bits and more would fail the step of everybody in it.
        most = logits.shape[-1]
        kept = send([min(one.top_k or most, most) for one in settings], logits.device).unsqueeze(-1)
        places = torch.arange(logits.shape[-1], device=logits.device)
        ordered = ordered.masked_fill(places >= kept, -torch.inf)
    probabilities = ordered.softmax(dim=-1)
    if any(one.top_p < 1 or one.min_p > 0 for one in settings):
        # A token stays while those before it have not reached top_p; the first therefore always stays.
        before = probabilities.cumsum(dim=-1) - probabilities
        wanted = ((before < top_p) | (top_p >= 1)) & (probabilities >= min_p * probabilities[:, :1])
        wanted[:, 0] = True
        probabilities = probabilities * wanted
    cumulative = probabilities.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Strictly below the total, so that rounding never picks a token of probability zero.
    point = torch.minimum((total * uniform).float(), torch.nextafter(total, torch.zeros_like(total)))
    # Logits that are not numbers find no place; they must not fail the step of everybody else.
    place = torch.searchsorted(cumulative, point, right=True).clamp(max=logits.shape[-1] - 1)
    return tokens.gather(-1, place).squeeze(-1)


def _note_logprobs(logits: Tensor, tokens: list[int], choosers: dict[int, Chooser]) -> None:
    wanted = {row: chooser for row, chooser in choosers.items() if chooser.alternatives is not None}
    if not wanted:
        return
    rows = torch.tensor(list(wanted), device=logits.device)
    logprobs = logits[rows].float().log_softmax(dim=-1)
    most = max(chooser.alternatives or 0 for chooser in wanted.values())
    values, ids = logprobs.topk(most, dim=-1)
    own = logprobs.gather(-1, torch.tensor([[tokens[row]] for row in wanted], device=logits.device))
    found = zip(wanted.items(), own[:, 0].tolist(), ids.tolist(), values.tolist(), strict=True)
    for (row, chooser), logprob, top_ids, top_values in found:
        top = tuple(zip(top_ids, top_values, strict=True))[: chooser.alternatives]
        chooser.logprobs.append(TokenLogprobs(tokens[row], logprob, top))


def _uniform(seed: int, generated: int) -> float:
    """A number in [0, 1) from the request's own stream; the same on every platform."""
    digest = hashlib.blake2b(f"{seed}:{generated}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / (1 << 53)
