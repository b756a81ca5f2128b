"""How much the stream mover queues, gathers and keeps on the device. Tried on an H200 (docs/swap.md). Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from .contract import Direction


class Bounds(NamedTuple):
    """One direction's bounds, in bytes.

    ``piece``: queued by one call at most, and reported done together. ``in_flight``: on the device, from which on no further
    piece is queued: enough to keep the link busy while a thread wakes, little enough that a copy submitted now starts
    soon, and far from the thousand queued copies that slow every launch. ``last``: as much may be there as the rest of a
    batch behind which no other waits: once its last copy is on the device, a step can be launched that waits for it there.
    ``parted``: a rest of more than this crosses in parts, where the transport knows how; ``in_parts``: no more than the last so
    many bytes of it, all of it if 0. ``alone``: as much is in flight, if that is more, of a batch behind which no other waits.
    """

    piece: int
    in_flight: int
    last: int
    parted: int = 0
    alone: int = 0
    in_parts: int = 0


STAGED: Final[Mapping[Direction, Bounds]] = dict.fromkeys(Direction, Bounds(32 << 20, 64 << 20, 128 << 20))
"""A call and the changes of thread that go with its end take a few tenths of a millisecond, which is what 16 MB take over a
link of 55 GB/s. Planning and launching a step takes as long as 128 MB."""

BATCHED: Final[Mapping[Direction, Bounds]] = {
    # Two pieces, or the link stands still between them; nobody waits behind the copies out but a tool's last block.
    Direction.OUT: Bounds(32 << 20, 64 << 20, 64 << 20),
    # A whole agent of some thousand tokens is on the device at once: the step that needs it is launched a step or two before
    # the last byte, since the one under way and the one behind it come first (a restore of 1 GB: 19 ms). Its last 384 MB cross
    # in parts while that step computes: they take about as long. A shorter rest is there whole before the step could begin.
    Direction.IN: Bounds(32 << 20, 64 << 20, 1280 << 20, parted=192 << 20, alone=128 << 20, in_parts=384 << 20),
}

GROUP_BYTES: Final = 256 << 10
"""Least of a block that crosses by itself: each copy costs the driver a microsecond."""

CALL_COPIES: Final = 64
"""Copies of one call of the driver at most: the link begins when the call returns."""

PART_COPIES: Final = 256
"""The same for parts, before which the link is busy: nobody else has Python's lock during a call."""

LEAD_COPIES: Final = 128
"""Copies that are reported done together at most, of those before the parts of a restore."""

HERE_COPIES: Final = 512
"""Copies that whoever submits them queues before it leaves the rest to the lane's thread: a restore of 1 GB has 216 of 32 tokens of Qwen3-8B."""

BUFFER_BYTES: Final = 32 << 20
"""What is gathered at a time at most, and the size of each buffer for it. 16 MB moved an agent up to 2 % slower."""

BUFFER_SHARE: Final = 64
"""A buffer is no larger than this part of the pool."""

BUFFERS: Final = 2
"""Buffers each way: one is filled while the other is emptied."""

FLAT_BYTES: Final = 8 << 20
"""From this length on a copy reaches the link's full rate by itself, so that staging could not make it faster."""


def buffer_blocks(block_bytes: int, pool_bytes: int) -> int:
    """Blocks of one buffer beside a pool of ``pool_bytes``: at least two, for one needs no gathering."""
    return max(2, min(BUFFER_BYTES, pool_bytes // BUFFER_SHARE) // block_bytes)


def staging_bytes(block_bytes: int, pool_bytes: int) -> int:
    """Device memory that the buffers of both ways take beside a pool of ``pool_bytes``."""
    return 2 * BUFFERS * buffer_blocks(block_bytes, pool_bytes) * block_bytes
