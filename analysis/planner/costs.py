"""What parking a cache costs on a rig, and what rebuilding it costs: the table of swap against recompute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .models import ModelShape

LENGTHS: Final = (2_000, 6_900, 16_000, 32_000, 55_000)
"""Context lengths of the table, tokens."""


@dataclass(frozen=True, slots=True)
class Rig:
    """A card in a host. ``link_bytes_per_s`` is one way between VRAM and pinned host memory.

    Raises ``ValueError`` for a rate or a size that means nothing.
    """

    vram_bytes: int
    link_bytes_per_s: float
    prefill_tok_s: float
    host_bytes: int
    slots: int

    def __post_init__(self) -> None:
        for name in ("vram_bytes", "link_bytes_per_s", "prefill_tok_s", "slots"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a finite number above 0, got {getattr(self, name)}")
        if self.host_bytes < 0:
            raise ValueError(f"host_bytes must be at least 0, got {self.host_bytes}")

    def copy_s(self, size_bytes: float) -> float:
        """Seconds of a copy one way."""
        return size_bytes / self.link_bytes_per_s

    def prefill_s(self, tokens: float) -> float:
        """Seconds of computing ``tokens`` of a prompt."""
        return tokens / self.prefill_tok_s


@dataclass(frozen=True, slots=True)
class CostRow:
    """A context of ``tokens``: parked and brought back in ``round_trip_ms``, or rebuilt in ``recompute_s``.

    ``times_cheaper`` compares the two. The ``return_*`` figures are what the agent waits for when its tool has ended, new
    tokens computed included: the copy back, or the whole prompt.
    """

    tokens: int
    cache_bytes: int
    one_way_ms: float
    round_trip_ms: float
    recompute_s: float
    times_cheaper: float
    return_swapped_s: float
    return_recomputed_s: float
    return_times_cheaper: float


def cost_row(model: ModelShape, rig: Rig, tokens: int, new_tokens: int) -> CostRow:
    """Costs of one context length, in which a returning agent brings ``new_tokens``."""
    one_way_s = rig.copy_s(model.cache_bytes(tokens))
    recompute_s = rig.prefill_s(tokens)
    swapped_s = one_way_s + rig.prefill_s(new_tokens)
    recomputed_s = rig.prefill_s(tokens + new_tokens)
    return CostRow(
        tokens=tokens,
        cache_bytes=model.cache_bytes(tokens),
        one_way_ms=one_way_s * 1e3,
        round_trip_ms=2 * one_way_s * 1e3,
        recompute_s=recompute_s,
        times_cheaper=recompute_s / (2 * one_way_s),
        return_swapped_s=swapped_s,
        return_recomputed_s=recomputed_s,
        return_times_cheaper=recomputed_s / swapped_s,
    )


def cost_table(model: ModelShape, rig: Rig, new_tokens: int, lengths: Sequence[int] = LENGTHS) -> tuple[CostRow, ...]:
    """Costs of each context length."""
    return tuple(cost_row(model, rig, tokens, new_tokens) for tokens in lengths)
