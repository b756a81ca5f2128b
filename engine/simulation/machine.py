"""How long a card's steps and copies take, as far as a simulation of the engine has to know. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..batch import Chunk
from ..swap.contract import Direction
from ..swap.limits import BATCHED, STAGED, Bounds


@dataclass(frozen=True, slots=True)
class Machine:
    """A card's costs, all measured with one model; ms except where the name says otherwise.

    A step that only decodes takes ``decode_ms + decode_each_ms * sequences``. ``prompts`` has, in order, positions of
    prompts in a step and what the step takes with no sequence that decodes beside them; between two of them the time is
    interpolated, beyond the last one its slope goes on, below the first the time is the first (less work is padded to as
    much). Each sequence that decodes beside ``p`` positions costs ``beside_ms + beside_token_ms * p`` more; the step
    never takes less than its decoding alone. ``link_bytes_per_s`` is one way. ``batched``: one call copies many blocks, so that
    the last of a restore crosses in groups of layers. ``step_host_ms`` is the
    engine's own time per step and ``return_host_ms`` what the return of an agent costs its thread besides: hidden as
    long as the device is busy. ``request_ms`` passes between a client and the engine.
    """

    name: str
    decode_ms: float
    decode_each_ms: float
    prompts: tuple[tuple[int, float], ...]
    beside_ms: float
    beside_token_ms: float
    link_bytes_per_s: float
    batched: bool = False
    step_host_ms: float = 0.5
    return_host_ms: float = 4.0
    request_ms: float = 1.0

    @property
    def bounds_in(self) -> Bounds:
        """How much of a restore a mover has on the device."""
        return (BATCHED if self.batched else STAGED)[Direction.IN]

    def step_s(self, chunks: Sequence[Chunk]) -> float:
        """Seconds that the device needs for a step."""
        prompts = sum(len(chunk.tokens) for chunk in chunks if len(chunk.tokens) > 1)
        decoding = sum(len(chunk.tokens) == 1 for chunk in chunks)
        decode_ms = self.decode_ms + self.decode_each_ms * decoding if decoding else 0.0
        if not prompts:
            return decode_ms / 1e3
        beside_ms = decoding * (self.beside_ms + self.beside_token_ms * prompts)
        return max(decode_ms, self._prompts_ms(prompts) + beside_ms) / 1e3

    def _prompts_ms(self, positions: int) -> float:
        at = min(max(bisect_left(self.prompts, (positions, 0.0)), 1), len(self.prompts) - 1)
        (low, low_ms), (high, high_ms) = self.prompts[at - 1], self.prompts[at]
        return low_ms + (high_ms - low_ms) * max(positions - low, 0) / (high - low)


H200: Final = Machine(
    name="H200, Qwen3-8B geometry",
    decode_ms=4.74,
    decode_each_ms=0.205,
    prompts=((101, 7.6), (240, 10.2), (505, 14.8), (1017, 26.8), (2048, 50.4)),
    beside_ms=0.30,
    beside_token_ms=0.00028,
    link_bytes_per_s=55e9,
    batched=True,
)
"""Measured: 8 decoding at 6,400 tokens 6.38 ms, one 4.93; 101 prompt tokens alone 7.65, 2,048 of them 50.4; beside seven that
decode 9.94, and 56.5 with 2,041."""

ARTICLE: Final = Machine(
    name="RX 9070 XT as published, Qwen3-8B geometry",
    decode_ms=23.7,
    decode_each_ms=1.54,
    prompts=((16, 25.3), (2048, 2129.0)),
    beside_ms=1.54,
    beside_token_ms=0.0,
    link_bytes_per_s=50e9,
)
"""As published for the article's card: 39.6 tokens/s alone, 5.6 times as many with eight agents, 962 tokens/s of prefill,
50 GB/s to pinned host memory."""
