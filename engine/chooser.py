"""What choosing the tokens of one request has to remember: counts for penalties, biases, log probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .sequence import Sampling


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probability of a token and of the likeliest ones, by the model alone: before penalties and temperature."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Chooser:
    """Edits a request's logits before a token is chosen, and takes note of the token afterwards.

    In this order: repetition penalty, presence and frequency penalty, bias, grammar. Used by the thread that steps;
    others may read :attr:`logprobs` up to the tokens that they know of.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self.logprobs: list[TokenLogprobs] = []
        self.alternatives = sampling.logprobs
        self._sampling = sampling
        self._prompt = prompt if sampling.repetition_penalty != 1.0 else ()
        self._output: list[int] = []
        self._counts: Tensor | None = None
        self._seen: Tensor | None = None
        self._bias: tuple[Tensor, Tensor] | None = None

    @property
    def edits(self) -> bool:
        """Whether :meth:`edit` changes anything."""
        return self._sampling.needs_history or bool(self._sampling.logit_bias)

    def edit(self, row: Tensor) -> None:
        """Change the logits of the next token in place.

        Args:
            row: float32 ``[vocabulary]``.
        """
        if self._sampling.penalises:
            self._penalise(row)
        if self._sampling.logit_bias:
            if self._bias is None:
                ids, values = zip(*self._sampling.logit_bias, strict=True)
                self._bias = torch.tensor(ids, device=row.device), torch.tensor(values, device=row.device)
            row.index_add_(0, *self._bias)
        if self._sampling.grammar is not None:
            self._sampling.grammar.mask(row)

    def accept(self, token: int) -> None:
        """Take note of the chosen token."""
        self._output.append(token)
        if self._counts is not None:
            self._counts[token] += 1
        if self._seen is not None:
            self._seen[token] = True
        if self._sampling.grammar is not None:
            self._sampling.grammar.accept(token)

    def _penalise(self, row: Tensor) -> None:
        if self._counts is None or self._seen is None:
            output = torch.tensor(self._output, dtype=torch.long, device=row.device)
            self._counts = torch.bincount(output, minlength=len(row)).to(row.dtype)
            self._seen = self._counts > 0
            self._seen[torch.tensor(self._prompt, dtype=torch.long, device=row.device)] = True
        sampling = self._sampling
        if sampling.repetition_penalty != 1.0:
            factor = sampling.repetition_penalty
            row.copy_(torch.where(self._seen, torch.where(row > 0, row / factor, row * factor), row))
        row -= sampling.frequency_penalty * self._counts + sampling.presence_penalty * (self._counts > 0)


def with_chooser(sampling: Sampling, prompt: Sequence[int]) -> Sampling:
    """``sampling`` with a chooser of its own, where it needs one."""
    if sampling.needs_history or sampling.logit_bias or sampling.logprobs is not None:
        return replace(sampling, chooser=Chooser(sampling, prompt))
    return sampling
