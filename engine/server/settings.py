"""What ``kvtrace serve`` was told. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..config import PolicyMode

DEFAULT_PORT: Final = 8177
MOST_BODY_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one server; ``None`` leaves a size to the machine and the model.

    Attributes:
        source: model to load: ``smollm2``, a folder, a ``.gguf`` file or an id.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        api_key: bearer key that requests must bear.
        allowed_hosts: names a ``Host`` header may have besides loopback, addresses and this machine's name.
        allowed_origins: origins of web pages that may call.
        aliases: further names under which requests may ask for the model; ``*`` takes any.
        device: torch device, or ``auto``.
        kv_vram_bytes: device memory for KV.
        kv_host_bytes: host memory for parked KV.
        slots: sequences that decode together.
        policy: what happens to a waiting agent's KV.
        forecast: what `auto` knows of tools at the start: what ``kvtrace report --forecast`` wrote.
        max_agents: most agents in the middle of their turns; a new one beyond waits, for a minute at most.
        context_tokens: longest prompt plus output.
        step_tokens: most tokens one forward step computes.
        mixed_step_tokens: most tokens of a step in which nearly all slots decode.
        block_tokens: positions of a KV block.
        queue_requests: most requests that wait.
        drain_s: how long open requests may take after the server was told to stop.
        vllm_metrics: whether ``/metrics`` also has vLLM's names.
    """

    source: str = "smollm2"
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    api_key: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    device: str = "auto"
    kv_vram_bytes: int | None = None
    kv_host_bytes: int | None = None
    slots: int = 8
    policy: PolicyMode = PolicyMode.AUTO
    forecast: Mapping[str, Any] | None = None
    max_agents: int | None = None
    context_tokens: int | None = None
    step_tokens: int | None = None
    queue_requests: int = 256
    drain_s: float = 30.0
    vllm_metrics: bool = False
    mixed_step_tokens: int | None = None
    block_tokens: int | None = None
