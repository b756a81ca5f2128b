"""The mover that fits where a storage lives."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import torch

from ..storage import Storage
from .batched import BatchedTransport
from .contract import Mover
from .driver import batch_copy
from .staged import StagedTransport
from .stream import StreamMover
from .thread import ThreadMover
from .transport import StreamTransport


class Way(StrEnum):
    """How blocks cross between a GPU's memory and the host's."""

    AUTO = "auto"  # batched where the driver can, else staged
    BATCHED = "batched"  # many by one call of the driver
    STAGED = "staged"  # gathered on the device first
    SINGLE = "single"  # each by itself
    THREAD = "thread"  # by a thread of the CPU, where that is the device


def choose_way(device: torch.device, way: Way = Way.AUTO) -> Way:
    """What ``way`` comes to on ``device``.

    Raises:
        ValueError: it has no such way.
    """
    if device.type == "cpu":
        fits = [Way.THREAD]
    else:
        fits = [Way.STAGED, Way.SINGLE] if batch_copy(device) is None else [Way.BATCHED, Way.STAGED, Way.SINGLE]
    if way is Way.AUTO:
        return fits[0]
    if way not in fits:
        raise ValueError(f"blocks have no way {way} on {device}, only {', '.join(fits)}")
    return way


def make_mover(storage: Storage, on_done: Callable[[], None] | None = None, *, way: Way = Way.AUTO) -> Mover:
    """A thread that copies on the CPU; on a GPU its own copy engines, and the host tier is pinned beside what runs.

    Args:
        storage: what to copy in; closed with a GPU's mover.
        on_done: called in a mover's thread after copies ended, or when there may be a fence for them.
        way: how blocks cross; anything but the default is for comparing.

    Raises:
        ValueError: the device has no such way.
    """
    device = storage.pool.device
    chosen = choose_way(device, way)
    if chosen is Way.THREAD:
        return ThreadMover(storage, on_done)
    storage.start_pinning(gently=True)
    batch = batch_copy(device) if chosen is Way.BATCHED else None
    if batch is not None:
        return StreamMover(BatchedTransport(storage, batch), on_done)
    return StreamMover(StagedTransport(storage) if chosen is Way.STAGED else StreamTransport(storage), on_done)
