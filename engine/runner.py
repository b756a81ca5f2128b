"""One forward step of a transformers model over the block pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .attention.batch import PagedBatch
from .batch import Chunk
from .sampling import sample
from .storage import Storage


class TorchRunner:
    """Computes chunks with ``model``, whose attention is ours, writing KV into ``storage``'s pool.

    All chunks of a step are packed along one axis, ``[1, tokens]``; logits are computed only for the rows that
    sample. The only wait for the device is the read-back of the sampled ids.
    """

    def __init__(self, model: Any, storage: Storage) -> None:
        self._model = model
        self._pool = storage.pool

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> dict[int, int]:
        """Write the KV of ``chunks``; the sampled token id of each chunk that asked for one, by sequence id."""
        if not chunks:
            return {}
        ends = _ends(chunks)
        sampling = [(chunk, end - 1) for chunk, end in zip(chunks, ends, strict=True) if chunk.sample]
        logits = self._forward(chunks, [row for _, row in sampling])
        chosen = sample(logits, [chunk for chunk, _ in sampling])
        return {chunk.sequence_id: token for (chunk, _), token in zip(sampling, chosen, strict=True)}

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


def _ends(chunks: Sequence[Chunk]) -> list[int]:
    """Where each chunk ends in the packed axis."""
    ends, end = [], 0
    for chunk in chunks:
        end += len(chunk.tokens)
        ends.append(end)
    return ends
