"""What a request was and what became of it, for metrics and spans. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..sequence import Sampling, Usage


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request for a completion; complete when listeners get it. Instants are unix ns.

    ``outcome``: ``stop``, ``length`` or ``tool_calls``; ``refused`` (it can never run), ``queue_full`` (come back
    later), ``cancelled`` (the client went away) or ``error``. ``usage`` sums its ``choices``, the prompt counted once.
    """

    response_id: str
    endpoint: str
    agent: str
    model: str
    stream: bool
    arrived_unix_ns: int
    traceparent: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    first_token_unix_ns: int | None = None
    last_token_unix_ns: int | None = None
    ended_unix_ns: int = 0
    outcome: str = ""
    error: str | None = None
    usage: Usage = field(default_factory=Usage)
    queued_s: float = 0.0
    restoring_s: float | None = None
    tool_calls: dict[str, str | None] = field(default_factory=dict)
    choices: int = 1

    def chosen(self, sampling: Sampling) -> None:
        """Note what the request's tokens are chosen by."""
        self.max_tokens, self.temperature, self.top_p = sampling.max_tokens, sampling.temperature, sampling.top_p
