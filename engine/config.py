"""Settings of one engine, validated where they are made. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from .errors import ConfigError


class PolicyMode(StrEnum):
    """What happens to the KV of an agent that waits for a tool."""

    KEEP = "keep"  # signals are ignored; a full pool drops the least recently used blocks
    RECOMPUTE = "recompute"  # a waiting agent's blocks are the first to be dropped; no host tier
    EAGER = "eager"  # copied out and freed at every tool start, brought back at its end
    SWAP = "swap"  # copied early, freed late: only when somebody needs the space
    AUTO = "auto"  # swap that knows how long tools take, how fast the link is and who lacks space

    @property
    def uses_host(self) -> bool:
        """Whether this mode ever copies blocks to the host tier."""
        return self in (PolicyMode.EAGER, PolicyMode.SWAP, PolicyMode.AUTO)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine's sizes and policy.

    Attributes:
        device_blocks: blocks of the device pool.
        host_blocks: slots of the host tier; 0 means there is none.
        slots: sequences that decode together.
        step_tokens: most tokens one forward step computes (prefill chunks and decodes together).
        mixed_step_tokens: most tokens of a step in which seven of eight slots decode; twice as many where half of them do.
            ``None``: ``step_tokens`` whoever decodes.
        context_tokens: longest prompt plus output that a request may ask for.
        queue_requests: most requests that wait; one more is refused.
        policy: what happens to a waiting agent's KV; its plain name will do.
        signal_ttl_s: a tool start whose end never came is forgotten after this many seconds.
        seed: seed of requests that name none.
        forecast: what `auto` knows of tools at the start: a file of `kvtrace report --forecast` or what it holds.
        link_bytes_per_s: how fast the link is taken to be, one way, until copies were measured.
        step_copy_bytes: most bytes of copies started per step, each way.
        turn_handicap_s: in the order of admission a request counts as having come so many seconds later for each turn that
            its agent had before, up to five. 0: first come, first served; below 0: returning agents first.
        max_agents: most agents in the middle of their turns; a new one waits until another one's turns are over, a minute
            at most. ``None``: no limit but, under `auto`, what both tiers hold.
        pipelined: launch a step before the tokens of the one before are read; ``None``: on a GPU, not on a CPU.

    Raises:
        ConfigError: a value is out of range; the message names the field, the value and what to do.

    """

    device_blocks: int
    host_blocks: int
    slots: int = 8
    step_tokens: int = 512
    context_tokens: int = 8192
    queue_requests: int = 1024
    policy: PolicyMode = PolicyMode.AUTO
    signal_ttl_s: float = 3600.0
    seed: int = 0
    pipelined: bool | None = None
    forecast: str | Path | Mapping[str, Any] | None = None
    link_bytes_per_s: float = 25e9
    step_copy_bytes: int = 1 << 30
    turn_handicap_s: float = 1.0
    max_agents: int | None = None
    mixed_step_tokens: int | None = None

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
            "step_copy_bytes": 1,
            "max_agents": 1,
        }
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ConfigError(f"{name} is {value}; give at least {minimum}")
        for name in ("step_tokens", "mixed_step_tokens"):
            tokens = getattr(self, name)
            if tokens is not None and tokens < self.slots:
                raise ConfigError(
                    f"{name} is {tokens} but slots is {self.slots}: every decoding sequence needs one token "
                    f"of each step; raise {name} to at least {self.slots}"
                )
        for name, unit in (("signal_ttl_s", "seconds"), ("link_bytes_per_s", "bytes a second")):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ConfigError(f"{name} is {value}; give {unit} above 0, and finite")
        if not abs(self.turn_handicap_s) < math.inf:
            raise ConfigError(f"turn_handicap_s is {self.turn_handicap_s}; give a finite number of seconds")
