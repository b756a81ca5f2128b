"""How much the stream mover queues, gathers and keeps on the device. Tried on an H200 (docs/swap.md). Torch-free."""

from __future__ import annotations

from typing import Final

PIECE_BYTES: Final = 32 << 20
"""Copies queued by one call, and reported done together: a call and the changes of thread that go with its end take a few
tenths of a millisecond, which is what 16 MB take over a link of 55 GB/s."""

BUFFER_BYTES: Final = 32 << 20
"""What is gathered at a time at most, and the size of each buffer for it. 16 MB moved an agent up to 2 % slower."""

BUFFER_SHARE: Final = 64
"""A buffer is no larger than this part of the pool."""

BUFFERS: Final = 2
"""Buffers each way: one is filled while the other is emptied."""

FLAT_BYTES: Final = 8 << 20
"""From this length on a copy reaches the link's full rate by itself, so that staging could not make it faster."""

IN_FLIGHT_BYTES: Final = 64 << 20
"""Bytes on the device each way from which on no further piece is queued: enough to keep the link busy while a thread
wakes, little enough that a copy submitted now starts within two milliseconds, and far from the thousand queued copies that
slow every launch."""


LAST_BYTES: Final = 128 << 20
"""As much of a batch may be there where no other waits behind it: once its last copy is on the device a step can be launched
that waits for it there, and planning and launching a step take about as long as this does."""


def buffer_blocks(block_bytes: int, pool_bytes: int) -> int:
    """Blocks of one buffer beside a pool of ``pool_bytes``: at least two, for one needs no gathering."""
    return max(2, min(BUFFER_BYTES, pool_bytes // BUFFER_SHARE) // block_bytes)


def staging_bytes(block_bytes: int, pool_bytes: int) -> int:
    """Device memory that the buffers of both ways take beside a pool of ``pool_bytes``."""
    return 2 * BUFFERS * buffer_blocks(block_bytes, pool_bytes) * block_bytes
