"""The mover that fits where a storage lives."""

from __future__ import annotations

from collections.abc import Callable

from ..storage import Storage
from .contract import Mover
from .stream import StreamMover
from .thread import ThreadMover
from .transport import StreamTransport


def make_mover(storage: Storage, on_done: Callable[[], None] | None = None, *, staged: bool = True) -> Mover:
    """A thread that copies on the CPU; on a GPU its own copy engines, and the host tier is pinned beside what runs.

    Args:
        storage: what to copy in; closed with a GPU's mover.
        on_done: called in a mover's thread after copies ended.
        staged: whether scattered blocks may be gathered on the device first; always right but for comparing.
    """
    if storage.pool.device.type == "cpu":
        return ThreadMover(storage, on_done)
    storage.start_pinning(gently=True)
    return StreamMover(StreamTransport(storage, staged=staged), on_done)
