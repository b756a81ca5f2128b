"""One forward step of a transformers model over the block pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from .attention.batch import PagedBatch
from .batch import UNREAD, Chunk
from .sampling import sample
from .storage import Storage
from .swap.contract import Fence


class Done:
    """A step that ran when it was launched; a :class:`~.batch.Pending`."""

    def __init__(self, tokens: dict[int, int]) -> None:
        self._tokens = tokens

    def done(self) -> bool:
        """Always."""
        return True

    def tokens(self) -> dict[int, int]:
        """The sampled token id of each chunk that asked for one, by sequence id."""
        return dict(self._tokens)


class TorchRunner:
    """Computes chunks with ``model``, whose attention is ours, writing KV into ``storage``'s pool.

    All chunks of a step are packed along one axis, ``[1, tokens]``; logits are computed only for the rows that
    sample. The only wait for the device is the read-back of the sampled ids, which every launch makes.
    """

    def __init__(self, model: Any, storage: Storage) -> None:
        self._model = model
        self._pool = storage.pool
        self._sampled: dict[int, int] = {}

    def run(self, chunks: Sequence[Chunk]) -> dict[int, int]:
        """Write the KV of ``chunks``; the sampled token id of each chunk that asked for one, by sequence id."""
        return self.launch(chunks).tokens()

    @torch.inference_mode()
    def launch(self, chunks: Sequence[Chunk], arrivals: Sequence[Fence] = ()) -> Done:
        """The same as :meth:`run`, for callers that prepare the next step meanwhile; it waits for all of ``arrivals`` first.

        Raises:
            ValueError: a chunk has an unread token, but the launch before sampled nothing for its sequence.
        """
        chunks = [read(chunk, self._sampled) for chunk in chunks]
        self._sampled = {}
        for fence in arrivals:
            fence.join()
        if not chunks:
            return Done({})
        ends = _ends(chunks)
        sampling = [(chunk, end - 1) for chunk, end in zip(chunks, ends, strict=True) if chunk.sample]
        logits = self._forward(chunks, [row for _, row in sampling])
        chosen = sample(logits, [chunk for chunk, _ in sampling])
        self._sampled = {chunk.sequence_id: token for (chunk, _), token in zip(sampling, chosen, strict=True)}
        return Done(self._sampled)

    def _forward(self, chunks: Sequence[Chunk], rows: list[int]) -> torch.Tensor:
        """Logits ``[len(rows), vocabulary]`` of the packed step at ``rows``."""
        tokens = [token for chunk in chunks for token in chunk.tokens]
        positions = [chunk.start + index for chunk in chunks for index in range(len(chunk.tokens))]
        device = self._pool.device
        output = self._model(
            input_ids=torch.tensor([tokens], device=device),
            position_ids=torch.tensor([positions], device=device),
            use_cache=False,
            logits_to_keep=torch.tensor(rows, dtype=torch.long, device=device),
            paged_batch=PagedBatch.pack(chunks, self._pool),
        )
        logits: torch.Tensor = output.logits[0]
        return logits


def read(chunk: Chunk, sampled: Mapping[int, int]) -> Chunk:
    """``chunk`` with its unread token filled in from what the launch before ``sampled``, by sequence id.

    Raises:
        ValueError: that launch sampled nothing for the chunk's sequence.
    """
    if UNREAD not in chunk.tokens:
        return chunk
    if chunk.sequence_id not in sampled:
        raise unread_error(chunk)
    token = sampled[chunk.sequence_id]
    return replace(chunk, tokens=tuple(token if one == UNREAD else one for one in chunk.tokens))


def unread_error(chunk: Chunk) -> ValueError:
    """What to raise where ``chunk`` stands for a token that nobody sampled."""
    return ValueError(
        f"sequence {chunk.sequence_id} has an unread token at position {chunk.start}, but the launch before sampled "
        "nothing for it; give the token itself"
    )


def _ends(chunks: Sequence[Chunk]) -> list[int]:
    """Where each chunk ends in the packed axis."""
    ends, end = [], 0
    for chunk in chunks:
        end += len(chunk.tokens)
        ends.append(end)
    return ends
