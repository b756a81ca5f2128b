"""Settings of one engine, validated where they are made. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from .errors import ConfigError


class PolicyMode(StrEnum):
    """What happens to the KV of an agent that waits for a tool."""

    KEEP = "keep"  # signals are ignored; a full pool drops the least recently used blocks
    RECOMPUTE = "recompute"  # a waiting agent's blocks are the first to be dropped; no host tier
    EAGER = "eager"  # copied out and freed at every tool start, brought back at its end
    SWAP = "swap"  # copied early, freed late: only when somebody needs the space

    @property
    def uses_host(self) -> bool:
        """Whether this mode ever copies blocks to the host tier."""
        return self in (PolicyMode.EAGER, PolicyMode.SWAP)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine's sizes and policy.

    Attributes:
        device_blocks: blocks of the device pool.
        host_blocks: slots of the host tier; 0 means there is none.
        slots: sequences that decode together.
        step_tokens: most tokens one forward step computes (prefill chunks and decodes together).
        context_tokens: longest prompt plus output that a request may ask for.
        queue_requests: most requests that wait; one more is refused.
        policy: what happens to a waiting agent's KV; its plain name will do.
        signal_ttl_s: a tool start whose end never came is forgotten after this many seconds.
        seed: seed of requests that name none.

    Raises:
        ConfigError: a value is out of range; the message names the field, the value and what to do.

    """

    device_blocks: int
    host_blocks: int
    slots: int = 8
    step_tokens: int = 512
    context_tokens: int = 8192
    queue_requests: int = 1024
    policy: PolicyMode = PolicyMode.SWAP
    signal_ttl_s: float = 3600.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.policy not in list(PolicyMode):
            raise ConfigError(f"policy is {self.policy!r}; give one of {', '.join(PolicyMode)}")
        object.__setattr__(self, "policy", PolicyMode(self.policy))
        least = {
            "device_blocks": 1,
            "host_blocks": 0,
            "slots": 1,
            "step_tokens": 1,
            "context_tokens": 2,
            "queue_requests": 1,
        }
        for name, minimum in least.items():
            value = getattr(self, name)
            if value < minimum:
                raise ConfigError(f"{name} is {value}; give at least {minimum}")
        if self.step_tokens < self.slots:
            raise ConfigError(
                f"step_tokens is {self.step_tokens} but slots is {self.slots}: every decoding sequence needs one token "
                f"of each step; raise step_tokens to at least {self.slots}"
            )
        if not 0 < self.signal_ttl_s < math.inf:
            raise ConfigError(f"signal_ttl_s is {self.signal_ttl_s}; give seconds above 0, and finite")
