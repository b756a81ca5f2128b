"""``kvtrace bench link``: raw copies between host and device, each way and both at once, and in blocks of many sizes."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch

from ..rawlink import RawLink
from ..swap.contract import Direction
from ..swap.driver import batch_copy

SWEEP_BYTES: Final = tuple(1 << power for power in range(15, 24))  # 32 KiB … 8 MiB
LINK_BYTES: Final = 6_900 * 147_456  # an agent of the article: 6,900 tokens of Qwen3-8B
_LINK_BYTES_CPU: Final = 1 << 27
_MOST_BLOCKS: Final = 4096  # of a sweep's row: enough to measure, and soon done for the smallest


@dataclass(frozen=True, slots=True)
class SweepRow:
    """Scattered blocks of one size, one copy each; ``…_share`` is of one copy of all bytes.

    ``…_batched…``: the copies were queued by one call of the driver; ``None`` where it has none.
    """

    block_bytes: int
    out_bytes_per_s: float
    in_bytes_per_s: float
    out_share: float
    in_share: float
    out_batched_bytes_per_s: float | None = None
    in_batched_bytes_per_s: float | None = None
    out_batched_share: float | None = None
    in_batched_share: float | None = None


@dataclass(frozen=True, slots=True)
class LinkResult:
    """Medians. ``both_bytes_per_s`` counts both directions while they run at once."""

    copied_bytes: int
    pinned: bool
    out_bytes_per_s: float
    in_bytes_per_s: float
    both_bytes_per_s: float
    both_ratio: float
    sweep: tuple[SweepRow, ...]


def measure_link(
    device: torch.device,
    repeats: int,
    size: int | None = None,
    sweep: tuple[int, ...] = SWEEP_BYTES,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> LinkResult:
    """Rates of raw copies.

    Args:
        device: a GPU, or the CPU, where both sides are ordinary memory.
        repeats: how often each is measured, after once that does not count.
        size: bytes each way; an agent's KV unless given.
        sweep: sizes of blocks to try.
        on_phase: told in a few words what is being done.
    """
    on_phase("allocating")
    link = RawLink(device, size or (_LINK_BYTES_CPU if device.type == "cpu" else LINK_BYTES))
    on_phase("one copy of everything")
    out_s = repeat(repeats, lambda: link.copy(Direction.OUT))
    in_s = repeat(repeats, lambda: link.copy(Direction.IN))
    both_s = repeat(repeats, link.copy_both)
    source = random.Random(0)  # noqa: S311 - places of blocks, no secret
    rows = []
    for block in (block for block in sweep if block <= link.size):
        on_phase(f"blocks of {block // 1024} KiB")
        rows.append(_sweep_row(link, block, max(2, repeats // 3), source, (out_s / link.size, in_s / link.size)))
    both = 2 * link.size / both_s
    return LinkResult(
        copied_bytes=link.size,
        pinned=link.pinned,
        out_bytes_per_s=link.size / out_s,
        in_bytes_per_s=link.size / in_s,
        both_bytes_per_s=both,
        both_ratio=both / (link.size / max(out_s, in_s)),
        sweep=tuple(rows),
    )


def _sweep_row(link: RawLink, block: int, repeats: int, source: random.Random, whole: tuple[float, float]) -> SweepRow:
    """Both ways, queued one by one and by one call; ``whole``: seconds a byte of one copy of all, out and in."""
    count, batch = min(link.size // block, _MOST_BLOCKS), batch_copy(link.device)

    def rates(copy: Callable[[Direction], float]) -> list[float]:
        return [count * block / repeat(repeats, partial(copy, way)) for way in Direction]

    single = rates(lambda way: link.copy_blocks(way, block, count, source))
    row = SweepRow(block, *single, *(rate * least for rate, least in zip(single, whole, strict=True)))
    if batch is None:
        return row
    out_rate, in_rate = rates(lambda way: link.batch_blocks(way, block, count, source, batch))
    return replace(
        row,
        out_batched_bytes_per_s=out_rate,
        in_batched_bytes_per_s=in_rate,
        out_batched_share=out_rate * whole[0],
        in_batched_share=in_rate * whole[1],
    )


def repeat(times: int, call: Callable[[], float]) -> float:
    """The median of ``times`` results, after one that does not count."""
    call()
    return statistics.median(call() for _ in range(times))
