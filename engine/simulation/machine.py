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

    A step that only decodes takes ``decode_ms + decode_each_ms * sequences``, of contexts as long as in the measurement.
    ``prompts`` has, in order, rows of a step with prompts in it (their positions, and one of each sequence that decodes) and
    what everything but attention takes. ``padded``: these are the sizes that steps are padded to, and the next one is what
    counts; otherwise the time between two of them is interpolated. Beyond the last one its slope goes on; fewer rows than
    the first has take as long. Attention of prompts adds ``pair_ns`` for each of their positions and each that it looks at, that
    of ``n`` sequences that decode beside them ``beside_ms + beside_each_ms * n``, and the step never takes less than its
    decoding alone. ``link_bytes_per_s`` is one way. ``batched``: one call copies many blocks, so that
    the last of a restore crosses in groups of layers. ``step_host_ms`` is what a step costs the engine's thread, ``return_host_ms``
    what the return of an agent does, and ``copy_host_us`` what each copy of a block of 32 tokens to the device does, to be decided on and
    queued: hidden as long as the device has something to do. ``request_ms`` passes between a client and the engine.
    """

    name: str
    decode_ms: float
    decode_each_ms: float
    prompts: tuple[tuple[int, float], ...]
    beside_ms: float
    beside_each_ms: float
    link_bytes_per_s: float
    pair_ns: float = 0.0
    padded: bool = False
    batched: bool = False
    step_host_ms: float = 0.5
    return_host_ms: float = 2.2
    copy_host_us: float = 49.0
    request_ms: float = 1.0

    @property
    def bounds_in(self) -> Bounds:
        """How much of a restore a mover has on the device."""
        return (BATCHED if self.batched else STAGED)[Direction.IN]

    def step_s(self, chunks: Sequence[Chunk]) -> float:
        """Seconds that the device needs for a step."""
        prompts = [(chunk.start, len(chunk.tokens)) for chunk in chunks if len(chunk.tokens) > 1]
        decoding = len(chunks) - len(prompts)
        decode_ms = self.decode_ms + self.decode_each_ms * decoding if decoding else 0.0
        if not prompts:
            return decode_ms / 1e3
        beside_ms = self.beside_ms + self.beside_each_ms * decoding if decoding else 0.0
        pairs = sum(tokens * (start + tokens / 2) for start, tokens in prompts)
        rows_ms = self._rows_ms(decoding + sum(tokens for _, tokens in prompts))
        return max(decode_ms, rows_ms + beside_ms + pairs * self.pair_ns / 1e6) / 1e3

    def _rows_ms(self, rows: int) -> float:
        at = min(max(bisect_left(self.prompts, (rows, 0.0)), 1), len(self.prompts) - 1)
        (low, low_ms), (high, high_ms) = self.prompts[at - 1], self.prompts[at]
        if self.padded and rows <= high:
            return low_ms if rows <= low else high_ms
        return low_ms + (high_ms - low_ms) * max(rows - low, 0) / (high - low)


H200: Final = Machine(
    name="H200, Qwen3-8B geometry",
    decode_ms=4.5,
    decode_each_ms=0.235,
    prompts=(
        *((32, 5.65), (48, 5.7), (64, 5.75), (80, 5.8), (96, 5.8), (112, 5.85), (128, 6.25), (192, 6.95)),
        *((256, 8.0), (384, 10.6), (512, 12.8), (768, 18.3), (1024, 22.7), (1536, 34.5), (2048, 46.5)),
    ),
    beside_ms=0.3,
    beside_each_ms=0.15,
    link_bytes_per_s=55e9,
    pair_ns=1.4,
    padded=True,
    batched=True,
)
"""Fitted to what a running server's steps took, ms: 8 decoding at 6,400 tokens 6.38, one 4.73; 7 beside 249 positions of a prompt
10.3, 5 beside 507 16.3, one beside 1,023 27.7. The card was at its 700 W then; after a rest a step with prompts is up to a tenth faster."""

ARTICLE: Final = Machine(
    name="RX 9070 XT as published, Qwen3-8B geometry",
    decode_ms=23.7,
    decode_each_ms=1.54,
    prompts=((16, 25.3), (2048, 2129.0)),
    beside_ms=0.0,
    beside_each_ms=0.5,
    link_bytes_per_s=50e9,
)
"""As published for the article's card: 39.6 tokens/s alone, 5.6 times as many with eight agents, 962 tokens/s of prefill,
50 GB/s to pinned host memory. Beside prompts a sequence that decodes costs what it does without: 1.04 ms as a row, 0.5 for the rest."""
