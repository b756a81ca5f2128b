"""One request while it lives in the engine. Torch-free; mutated by the loop's thread alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from .prefix import ROOT

if TYPE_CHECKING:
    from .chooser import Chooser
    from .grammar import Grammar

LEAST_TEMPERATURE: Final = 1e-5
"""Below this a draw is the most likely token in any case, and dividing by it would leave float32's range."""


class SequenceStatus(StrEnum):
    """Where a request stands."""

    WAITING = "waiting"  # holds no blocks
    RESTORING = "restoring"  # holds blocks; some are still being copied in
    RUNNING = "running"  # takes part in steps
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen and when to stop.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off; so are the penalties at 0, 0 and 1.
    ``presence_penalty`` and ``frequency_penalty`` look at the output, ``repetition_penalty`` at the prompt as well.
    ``logit_bias`` is added to the logits of these token ids. ``stop_ids`` end the output and are not part of it;
    ``ignore_eos`` makes only ``max_tokens`` end it. ``seed`` ``None`` takes the engine's. ``logprobs`` asks for the
    log probability of each token and of so many alternatives. ``grammar`` serves one request alone.
    ``chooser`` is made by the engine.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    grammar: Grammar | None = field(default=None, compare=False)
    chooser: Chooser | None = field(default=None, compare=False, repr=False)

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn rather than the likeliest taken."""
        return self.temperature >= LEAST_TEMPERATURE

    @property
    def greedy(self) -> bool:
        """Whether each token is the plain argmax of the logits, and nothing else is asked for."""
        return not self.draws and self.chooser is None

    @property
    def penalises(self) -> bool:
        """Whether tokens that came before are made more or less likely."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)

    @property
    def needs_history(self) -> bool:
        """Whether a token can only be chosen when the one before it is known to the host."""
        return self.penalises or self.grammar is not None


@dataclass(slots=True)
class Usage:
    """Counts of one request; every field is tokens except where its name says otherwise.

    ``reprefilled_tokens`` counts positions whose KV once existed and was computed again.
    ``wait_intervals_unix_ns`` holds ``(start, end)`` pairs spent queued or restoring; ``queued_s`` and ``restoring_s``
    split them. ``diverged_tokens`` is how much of the agent's last context the prompt does not continue: what lies
    behind their longest common prefix cannot be reused.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    prefilled_tokens: int = 0
    reprefilled_tokens: int = 0
    wait_intervals_unix_ns: list[tuple[int, int]] = field(default_factory=list)
    queued_s: float = 0.0
    restoring_s: float = 0.0
    diverged_tokens: int = 0


@dataclass(slots=True)
class Sequence:
    """A request: its tokens, how many of them have KV, and the device blocks that hold it.

    ``tokens`` is prompt then output. ``computed`` positions are done: ``table[i]`` holds positions
    ``16 i … 16 i + 15`` where a block has 16. Steps that were launched and not yet read compute positions up to ``launched`` besides, and
    sample ``unread`` further tokens. ``keys[i]`` is the content key of full block ``i``, the first one's parent is
    ``root``. The KV of positions below
    ``write_from`` came from the cache, which is one more than ``computed`` where the cache held the whole
    prompt: its last token is computed again for its logits, without being written. ``known`` positions are
    prefill when they are computed, the others decode. ``waits`` are the ids of copies it waits for, which the device
    does for it where it runs already. ``since_unix_ns`` is when it took its ``status``, ``attempt`` how often it started
    over.
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
    launched: int = 0
    last_launch: int = 0
    unread: int = 0
    root: bytes = ROOT
    since_unix_ns: int = 0
    attempt: int = 0

    @property
    def output_tokens(self) -> list[int]:
        """Tokens generated so far."""
        return self.tokens[self.prompt_tokens :]

    @property
    def pending(self) -> int:
        """Positions that no step has been launched for, up to the newest token, read or not (1 while decoding)."""
        return len(self.tokens) + self.unread - self.launched

    @property
    def in_flight(self) -> bool:
        """Whether launched steps that nobody has read yet compute a part of it."""
        return self.launched > self.computed

    @property
    def kv_tokens(self) -> int:
        """Leading positions whose KV exists."""
        return max(self.computed, self.write_from)

    @property
    def most_kv_tokens(self) -> int:
        """Positions that will ever need KV: the last token it may sample needs none."""
        return self.prompt_tokens + self.sampling.max_tokens - 1
