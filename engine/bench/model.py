"""What the benches of a model's steps share: a runner over a filled pool, and the device's own speed beside it."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

from ..batch import Runner
from ..choose import make_runner
from ..lean_runner import Limits
from ..model import LoadedModel
from ..rawlink import synchronize
from ..storage import Storage

_COPY_BYTES: Final = 1 << 30
_COPY_BYTES_CPU: Final = 1 << 27
_COPY_REPEATS: Final = 10


def runner_for(model: LoadedModel, limits: Limits, blocks: int) -> Runner:
    """A runner over a pool of ``blocks`` whose KV is random numbers, as good as any for timing."""
    gc.collect()  # an earlier runner's pool may still be there
    storage = Storage(model.geometry, blocks, 0, device=model.device, dtype=model.dtype)
    with torch.inference_mode():
        for block in storage.pool:  # one at a time: drawing all would need scratch space of the pool's size
            block.normal_()
    return make_runner(model, storage, limits)


def copy_bytes_per_s(device: torch.device) -> float:
    """Bytes that ``device`` reads and writes a second while it copies its own memory: the median of some copies."""
    size = _COPY_BYTES if device.type == "cuda" else _COPY_BYTES_CPU
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    seconds = timed(lambda: target.copy_(source), device, _COPY_REPEATS)
    return 2 * size / statistics.median(seconds)


def timed(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Seconds of each of ``repeats`` calls, the device's work included, after one that does not count."""
    seconds = []
    for _ in range(repeats + 1):
        synchronize(device)
        started = time.perf_counter()
        call()
        synchronize(device)
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def table_of(index: int, width: int) -> tuple[int, ...]:
    """The block table of the ``index``-th sequence where each has ``width`` blocks of its own, every other one reversed."""
    blocks: Sequence[int] = range(index * width, (index + 1) * width)
    return tuple(reversed(blocks)) if index % 2 else tuple(blocks)
