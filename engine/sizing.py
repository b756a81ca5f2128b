"""How large both tiers of the KV cache are to be: from what is free, or from what was asked for. Torch-free itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from .device import DeviceMemory, device_memory, gib
from .errors import ConfigError
from .geometry import KVGeometry
from .swap.limits import staging_bytes

_UNITS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DECIMAL: Final = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE: Final = re.compile(r"\s*(\d+(?:[._]\d+)*|\.\d+)\s*([kmgt]?)(i?b)?\s*", re.IGNORECASE)

MARGIN_SHARE: Final = 0.04
"""Share of a GPU's memory left free for activations, graphs and the runtime, but never less than ``MARGIN_BYTES``."""
MARGIN_BYTES: Final = 1 << 30
_CPU_SHARE: Final = 0.25  # of a CPU's available memory, for the pool that stands in for VRAM
_HOST_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Pools:
    """Sizes of the two tiers: blocks, and the bytes those blocks take."""

    device_blocks: int
    host_blocks: int
    device_bytes: int
    host_bytes: int


def parse_bytes(text: str) -> int:
    """``"8GiB"`` → 8,589,934,592. ``8G`` is 8 GiB as well, ``8GB`` is 8,000,000,000, a plain number is bytes.

    Raises:
        ConfigError: the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[1].count(".") > 1:
        raise ConfigError(f"{text!r} is not a size: write bytes, or a number with a unit such as 8GiB, 500MB or 16G")
    unit, suffix = match[2].lower(), (match[3] or "").lower()
    factor = _DECIMAL[unit + suffix] if unit and suffix == "b" else _UNITS[unit]
    return int(float(match[1].replace("_", "")) * factor)


def plan_pools(
    model_geometry: KVGeometry,
    weights_bytes: int,
    device: str,
    kv_vram: int | None,
    kv_host: int | None,
    context_tokens: int,
    slots: int,
) -> Pools:
    """Sizes of both tiers on ``device`` (``cpu``, ``cuda``, ``cuda:1``), whether the weights are loaded yet or not.

    Without ``kv_vram`` (bytes) a GPU gives what is free less a margin; the CPU gives what ``slots`` contexts need, at
    most a quarter of the available memory. Without ``kv_host`` (bytes) the host tier is half of the available memory;
    0 means no host tier.

    Raises:
        ConfigError: it does not fit; the message gives need, free, who holds the rest, and what to try.
    """
    memory = device_memory(device)
    return size_pools(
        model_geometry, weights_bytes, memory, kv_vram, kv_host, context_tokens, slots, staged=_stages(device, memory)
    )


def size_pools(
    geometry: KVGeometry,
    weights_bytes: int,
    memory: DeviceMemory,
    kv_vram: int | None,
    kv_host: int | None,
    context_tokens: int,
    slots: int,
    *,
    staged: bool = True,
) -> Pools:
    """:func:`plan_pools` on a device with this ``memory``; ``staged``: if it is a GPU, its mover needs buffers.

    Raises:
        ConfigError: it does not fit.
    """
    coming = max(0, weights_bytes - memory.own_bytes)
    least = geometry.blocks_for(context_tokens) * geometry.block_bytes
    if memory.kind == "cpu":
        device_bytes = _cpu_pool(geometry, memory, coming, kv_vram, context_tokens * slots)
    else:
        device_bytes = _gpu_pool(memory, coming, kv_vram)
    if device_bytes < least:
        raise ConfigError(_too_small(geometry, memory, coming, kv_vram, device_bytes, context_tokens))
    if memory.kind != "cpu" and staged:
        # The mover's buffers are part of what was asked for, unless that is hardly more than they are.
        device_bytes = max(least, device_bytes - staging_bytes(geometry.block_bytes, device_bytes))
    device_blocks = device_bytes // geometry.block_bytes
    left = memory.host_available_bytes - (coming + device_bytes if memory.kind == "cpu" else 0)
    host_blocks = _host_pool(memory, left, kv_host) // geometry.block_bytes
    return Pools(device_blocks, host_blocks, device_blocks * geometry.block_bytes, host_blocks * geometry.block_bytes)


def _stages(device: str, memory: DeviceMemory) -> bool:
    """Whether the mover on ``device`` gathers blocks in buffers there."""
    if memory.kind == "cpu":
        return False
    from .device import find_device  # torch comes with what is asked here
    from .swap.choose import Way, choose_way

    return choose_way(find_device(device)) is Way.STAGED


def _gpu_pool(memory: DeviceMemory, coming: int, asked: int | None) -> int:
    room = memory.free_bytes - coming
    if asked is None:
        return max(0, room - max(MARGIN_BYTES, int(MARGIN_SHARE * memory.total_bytes)))
    if asked > room:
        raise ConfigError(
            f"a KV pool of {gib(asked)}{_and_weights(coming)} is asked for, but {memory.described}: "
            f"give --kv-vram at most {gib(max(0, room - MARGIN_BYTES))}, or leave it out"
        )
    return asked


def _cpu_pool(geometry: KVGeometry, memory: DeviceMemory, coming: int, asked: int | None, wanted_tokens: int) -> int:
    room = memory.host_available_bytes - coming
    if asked is None:
        wanted = (geometry.blocks_for(wanted_tokens) + 1) * geometry.block_bytes
        return max(0, min(wanted, int(_CPU_SHARE * room)))
    if asked > room:
        raise ConfigError(
            f"a KV pool of {gib(asked)}{_and_weights(coming)} is asked for, but only "
            f"{gib(memory.host_available_bytes)} of memory are available: give a smaller --kv-vram, or leave it out"
        )
    return asked


def _host_pool(memory: DeviceMemory, left: int, asked: int | None) -> int:
    if asked is None:
        return max(0, int(_HOST_SHARE * left))
    if asked > left:
        raise ConfigError(
            f"a host tier of {gib(asked)} is asked for, but only {gib(max(0, left))} of memory are available: "
            "give a smaller --kv-host (0 for none), or leave it out"
        )
    return asked


def _too_small(
    geometry: KVGeometry, memory: DeviceMemory, coming: int, asked: int | None, got: int, context_tokens: int
) -> str:
    blocks = geometry.blocks_for(context_tokens)
    need = blocks * geometry.block_bytes
    advice = "stop what holds the memory, give a shorter --context, or choose a smaller model"
    if asked is not None:
        return (
            f"a KV pool of {gib(asked)} holds {got // geometry.block_bytes:,} blocks of {geometry.block_tokens} tokens, one "
            f"context of {context_tokens:,} needs {blocks:,}: give --kv-vram {-(-need // 2**20)}MiB or more, or a shorter "
            "--context"
        )
    if memory.kind == "cpu":
        free = f"{gib(memory.host_available_bytes)} of memory are available, of which a quarter may be used"
    else:
        margin = max(MARGIN_BYTES, int(MARGIN_SHARE * memory.total_bytes))
        free = f"{memory.described}, and {gib(margin)} are kept for activations"
    return (
        f"one context of {context_tokens:,} tokens needs {gib(need)} of KV{_and_weights(coming)}, but {free}: {advice}"
    )


def _and_weights(coming: int) -> str:
    return f" beside {gib(coming)} of weights" if coming else ""
