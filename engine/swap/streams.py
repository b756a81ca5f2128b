"""Streams and events as :mod:`.transport` uses them, and torch's own. Nothing here but calls that CUDA and ROCm share."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, suppress
from typing import Final, Protocol, cast

import torch

_SPARE_CORES: Final = 4


class Event(Protocol):
    """A point in a stream; the names are torch's."""

    def query(self) -> bool:
        """Whether the stream has reached it."""
        ...

    def synchronize(self) -> None:
        """Block the calling thread until the stream has reached it."""
        ...

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from here to ``end_event``, once both were reached."""
        ...


class Stream(Protocol):
    """Work in order; the names are torch's."""

    def wait_event(self, event: Event) -> None:
        """Let what is queued from now on begin after ``event``."""
        ...

    def record_event(self, event: Event) -> object:
        """Let ``event`` stand for everything queued so far."""
        ...


class Streams(Protocol):
    """One device's streams."""

    def current(self) -> Stream:
        """The stream that the calling thread computes on."""
        ...

    def stream(self, *, first: bool = False) -> Stream:
        """A new stream beside it; the kernels of one that is ``first`` go before those of compute."""
        ...

    def event(self, *, timed: bool = False) -> Event:
        """A new event; ``timed`` ones know when they were reached, and whoever waits for one waits awake."""
        ...

    def copy(self, stream: Stream, targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        """Queue flat copies, each target from the source at the same place; from a thread that only does this."""
        ...

    def kept(self) -> AbstractContextManager[object]:
        """Within it a thread that does something else may call :meth:`copy`: it goes on with its current stream."""
        ...

    def close(self) -> None:
        """End the streams; nothing is queued any more."""
        ...


class TorchStreams:
    """The streams of a torch ``cuda`` device, which on ROCm is the same.

    Args:
        device: where they are.
        spin: let a thread that waits for a timed event ask again and again instead of sleeping, which costs a tenth of
            a millisecond; by default where there are cores to spare.
    """

    def __init__(self, device: torch.device, *, spin: bool = (os.cpu_count() or 1) >= _SPARE_CORES) -> None:
        self._device = device
        self._spin = spin

    def current(self) -> Stream:
        """The calling thread's current stream."""
        return cast(Stream, torch.cuda.current_stream(self._device))

    def stream(self, *, first: bool = False) -> Stream:
        """A stream of compute's own priority, the lowest that torch gives, unless it goes ``first``.

        Only kernels have a use for that: copy engines take their work in its order.
        """
        return cast(Stream, torch.cuda.Stream(self._device, priority=-1 if first else 0))  # type: ignore[no-untyped-call]

    def event(self, *, timed: bool = False) -> Event:
        """An event whose waiter sleeps, unless it is timed and there are cores to spare."""
        blocking = not (timed and self._spin)
        return cast(Event, torch.cuda.Event(enable_timing=timed, blocking=blocking))  # type: ignore[no-untyped-call]

    def copy(self, stream: Stream, targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        """Several between device tensors are one kernel, whose addresses travel as its arguments.

        An index tensor would have to be copied to the device first, and would queue there behind the copies in. Over the
        link the same call is a loop of flat copies, but one that holds no interpreter lock. The calling thread's current
        stream stays changed: it is a thread that does nothing else, and changing it back would take as long as a copy.
        """
        torch.cuda.set_stream(cast(torch.cuda.Stream, stream))
        if len(targets) == 1:
            targets[0].copy_(sources[0], non_blocking=True)
        else:
            torch._foreach_copy_(targets, sources, non_blocking=True)

    def kept(self) -> AbstractContextManager[object]:
        """Puts back the current stream and device."""
        return torch.cuda.stream(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        """Wait for the device: steps under way must not outlive the memory that they use. Streams are torch's to keep."""
        with suppress(RuntimeError):  # a device that has failed does nothing any more
            torch.cuda.synchronize(self._device)
