"""What the engine measures at its start: the link each way, the device's memory, and how fast a prompt is computed.

``python -m kvtrace.engine.calibrate [DEVICE]`` prints it as JSON; ``kvtrace doctor --measure`` asks in that way.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

import torch

from .device import describe_devices, device_memory, find_device
from .rawlink import RawLink, synchronize
from .swap.contract import Direction

_LINK_BYTES: Final = 1 << 28
_LINK_BYTES_CPU: Final = 1 << 26
_REPEATS: Final = 5


@dataclass(frozen=True, slots=True)
class Calibration:
    """Medians, bytes a second. ``copy_bytes_per_s`` counts what is read and what is written.

    ``platform`` reads like ``ROCm 7.1 gfx1201``, ``CUDA 13.0 sm_90`` or ``CPU``. ``prefill_tokens_per_s`` is ``None``
    where nothing was there to compute a prompt with.
    """

    device: str
    platform: str
    total_bytes: int
    free_bytes: int
    pinned: bool
    out_bytes_per_s: float
    in_bytes_per_s: float
    both_bytes_per_s: float
    copy_bytes_per_s: float
    prefill_tokens_per_s: float | None = None


def calibrate(
    device: str | torch.device, prefill: Callable[[int], object] | None = None, prefill_tokens: int = 2048
) -> Calibration:
    """Measure ``device``; takes about a second, besides what the prompt takes.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        prefill: computes a prompt of so many tokens, and returns when that is done; called twice.
        prefill_tokens: how many.

    Raises:
        ConfigError: torch cannot use such a device.
    """
    place = find_device(str(device))
    memory = device_memory(str(place))
    link = RawLink(place, _LINK_BYTES_CPU if place.type == "cpu" else _LINK_BYTES)
    return Calibration(
        device=memory.name,
        platform="CPU" if place.type == "cpu" else describe_devices()[place.index or 0].platform,
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        pinned=link.pinned,
        out_bytes_per_s=link.size / _median(lambda: link.copy(Direction.OUT)),
        in_bytes_per_s=link.size / _median(lambda: link.copy(Direction.IN)),
        both_bytes_per_s=2 * link.size / _median(link.copy_both),
        copy_bytes_per_s=2 * link.size / _median(lambda: _copy_within(link)),
        prefill_tokens_per_s=None if prefill is None else prefill_tokens / _timed_prefill(prefill, prefill_tokens),
    )


def _copy_within(link: RawLink) -> float:
    """Seconds of a copy from device memory to device memory."""
    synchronize(link.device)
    started = time.perf_counter()
    link.near[Direction.IN].copy_(link.near[Direction.OUT])
    synchronize(link.device)
    return time.perf_counter() - started


def _timed_prefill(prefill: Callable[[int], object], tokens: int) -> float:
    prefill(tokens)  # compiles, allocates
    started = time.perf_counter()
    prefill(tokens)
    return time.perf_counter() - started


def _median(call: Callable[[], float]) -> float:
    call()
    return statistics.median(call() for _ in range(_REPEATS))


if __name__ == "__main__":
    json.dump(asdict(calibrate(sys.argv[1] if len(sys.argv) > 1 else find_device())), sys.stdout)
