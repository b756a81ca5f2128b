"""One request while it lives in the engine. Torch-free; mutated by the loop's thread alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class SequenceStatus(StrEnum):
    """Where a request stands."""

    WAITING = "waiting"  # holds no blocks
    RESTORING = "restoring"  # holds blocks; some are still being copied in
    RUNNING = "running"  # takes part in steps
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen and when to stop.

    ``temperature`` 0 is greedy. ``top_k`` 0 and ``top_p`` 1 are off. ``stop_ids`` end the output and are
    not part of it; ``ignore_eos`` makes only ``max_tokens`` end it. ``seed`` ``None`` takes the engine's.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(slots=True)
class Usage:
    """Counts of one request; every field is tokens except where its name says otherwise.

    ``reprefilled_tokens`` counts positions whose KV once existed and was computed again.
    ``wait_intervals_unix_ns`` holds ``(start, end)`` pairs spent queued or restoring.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    prefilled_tokens: int = 0
    reprefilled_tokens: int = 0
    wait_intervals_unix_ns: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Sequence:
    """A request: its tokens, how many of them have KV, and the device blocks that hold it.

    ``tokens`` is prompt then output. ``computed`` positions are done: ``table[i]`` holds positions
    ``16 i … 16 i + 15``. ``keys[i]`` is the content key of full block ``i``. The KV of positions below
    ``write_from`` came from the cache, which is one more than ``computed`` where the cache held the whole
    prompt: its last token is computed again for its logits, without being written. ``known`` positions are
    prefill when they are computed, the others decode. ``waits`` are the ids of copies it waits for.
    """

    id: int
    agent: str
    tokens: list[int]
    prompt_tokens: int
    sampling: Sampling
    arrived_unix_ns: int
    status: SequenceStatus = SequenceStatus.WAITING
    computed: int = 0
    table: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None
    error: str | None = None
    write_from: int = 0
    committed_blocks: int = 0
    known: int = 0
    waits: set[int] = field(default_factory=set)
    waiting_since_unix_ns: int = 0
    overtaken: int = 0

    @property
    def output_tokens(self) -> list[int]:
        """Tokens generated so far."""
        return self.tokens[self.prompt_tokens :]

    @property
    def pending(self) -> int:
        """Positions that still need computing before the next token can be sampled (1 while decoding)."""
        return len(self.tokens) - self.computed

    @property
    def kv_tokens(self) -> int:
        """Leading positions whose KV exists."""
        return max(self.computed, self.write_from)

    @property
    def most_kv_tokens(self) -> int:
        """Positions that will ever need KV: the last token it may sample needs none."""
        return self.prompt_tokens + self.sampling.max_tokens - 1
