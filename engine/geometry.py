"""The shape of a model's KV cache, and the byte figures that follow from it. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

BLOCK_TOKENS: Final = 16
GPU_BLOCK_TOKENS: Final = 32
"""Deciding on a block of twice the size and queueing its copies costs the engine's thread less than twice as much (docs/policy.md),
and a fast card waits for that thread. Larger blocks are shared by fewer agents: a prefix counts up to its last full block."""
BLOCK_SIZES: Final = (16, 32, 64, 128)

MOST_PARTS: Final = 6
"""Groups of layers that a block may arrive in. With more of them less of a step is left once the last one is there, and each
takes a device graph of its own."""


def default_block_tokens(*, gpu: bool) -> int:
    """Positions of a block where nobody asks for another size."""
    return GPU_BLOCK_TOKENS if gpu else BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Shape of the KV cache of a model whose layers all use full attention.

    One block holds ``block_tokens`` positions of *all* layers as one contiguous piece, laid out
    ``[layer, k/v, kv_head, block_tokens, head_dim]``, so that it moves as one flat copy.
    """

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int
    block_tokens: int = BLOCK_TOKENS

    @property
    def token_bytes(self) -> int:
        """Bytes of KV per token over all layers (147,456 for Qwen3-8B in 16 bit)."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block (2.36 MB for Qwen3-8B in 16 bit and 16 tokens)."""
        return self.token_bytes * self.block_tokens

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        """``(layers, 2, kv_heads, block_tokens, head_dim)``."""
        return (self.layers, 2, self.kv_heads, self.block_tokens, self.head_dim)

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer of a block (64 KiB for Qwen3-8B in 16 bit and 16 tokens)."""
        return self.block_bytes // self.layers

    @property
    def parts(self) -> tuple[range, ...]:
        """The layers in groups of about equal length, first to last.

        The bytes of a group lie next to each other in every block, so a block can come one group after the other, and a
        step can compute the first layers while the KV of the last ones is on its way.
        """
        count = min(MOST_PARTS, self.layers)
        return tuple(range(*bounds) for bounds in pairwise(self.layers * part // count for part in range(count + 1)))

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` positions."""
        return -(-tokens // self.block_tokens)
