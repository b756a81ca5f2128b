"""How a step's own few bytes cross the link: its inputs to the device, and the sampled ids back.

The device's copy engines serve one copy after the other. A step whose 20 KB of inputs wait there behind the blocks of
an agent that comes back starts milliseconds late, and behind a stream of higher priority it may not start at all (an
H200: 200 ms instead of 6). On CUDA a kernel of the compute stream reads and writes the pinned memory itself and so
waits for nobody. On ROCm, where no kernel of ours touches host memory, the copy engines do it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

SmallCopy = Callable[[Tensor, Tensor], None]
"""``copy(target, source)`` of two flat tensors of one type and length, one of them pinned, on the current stream."""

_TRIED_WORDS: Final = 100
_PLACES: Final = 16
_NUMBERS: Final = 1024

_log = logging.getLogger(__name__)


def small_copy(device: torch.device) -> SmallCopy:
    """The way for ``device``; where a kernel cannot reach pinned memory though it should, the log says so."""
    if not kernels_reach_host(device):
        return by_copy_engine
    try:
        right = _arrives(device)
    except Exception as error:  # no Triton, or a driver that does not map pinned memory
        right, reason = False, f"{type(error).__name__}: {error}"
    else:
        reason = "it brought something else"
    if right:
        return by_kernel
    _log.warning("steps' inputs go through the copy engine, where they may wait: a kernel's copy failed (%s)", reason)
    return by_copy_engine


class Sender:
    """Takes a few numbers of 64 bits to ``device`` by ``copy``; a :class:`~.sampling.Send`.

    They pass through one of some pinned places that take turns: sixteen, where a step whose tokens are drawn needs four
    and at most two steps are under way. More numbers than a place holds go as torch sends them.
    """

    def __init__(self, device: torch.device, copy: SmallCopy) -> None:
        self._copy = copy
        pinned = device.type == "cuda"
        self._places = [torch.zeros(_NUMBERS, dtype=torch.int64, pin_memory=pinned) for _ in range(_PLACES)]
        self._sent = [torch.cuda.Event() if pinned else None for _ in range(_PLACES)]  # type: ignore[no-untyped-call]
        self._turn = 0

    def __call__(self, values: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
        """``values``, integers or numbers that ``dtype`` gives 64 bits, as a tensor on ``device``."""
        given = torch.tensor(values, dtype=dtype)
        count = given.numel()
        if count > _NUMBERS:
            return given.to(device)
        place, sent = self._places[self._turn], self._sent[self._turn]
        self._turn = (self._turn + 1) % _PLACES
        if sent is not None:
            sent.synchronize()
        place[:count] = given.view(torch.int64).flatten()
        there = torch.empty(count, dtype=torch.int64, device=device)
        self._copy(there, place[:count])
        if sent is not None:
            sent.record()
        return there.view(given.dtype).view(given.shape)


def kernels_reach_host(device: torch.device) -> bool:
    """Whether kernels on ``device`` may read and write pinned memory: on CUDA alone."""
    return device.type == "cuda" and torch.version.hip is None


def by_copy_engine(target: Tensor, source: Tensor) -> None:
    """By the runtime's own copy, which does not wait where one side is pinned."""
    target.copy_(source, non_blocking=True)


def by_kernel(target: Tensor, source: Tensor) -> None:
    """By a kernel on the device of whichever side is not on the host."""
    from .triton_words import copy_words  # Triton comes with the GPU builds of torch

    with torch.cuda.device(target.device if source.device.type == "cpu" else source.device):
        copy_words(target.view(torch.int32), source.view(torch.int32))


def _arrives(device: torch.device) -> bool:
    """Send some words there and back, by a kernel that is compiled and by one that is there already."""
    there = torch.zeros(_TRIED_WORDS, dtype=torch.int32, device=device)
    sent = torch.arange(1, _TRIED_WORDS + 1, dtype=torch.int32, pin_memory=True)
    back = torch.zeros(_TRIED_WORDS, dtype=torch.int32, pin_memory=True)
    by_kernel(there, sent)
    by_kernel(back[1:], there[1:])
    by_kernel(back[:1], there[:1])
    torch.cuda.current_stream(device).synchronize()
    return torch.equal(back, sent)
