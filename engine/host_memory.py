"""Host memory that a GPU copies from and to by itself: asked for once, there piece by piece, from the front on."""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Final

import torch

from .device import gib

CHUNK_BYTES: Final = 1 << 25
"""Largest piece asked for at once: a power of two, since torch rounds what it pins up to one.

While the driver takes a piece it lets nobody launch anything, 10 ms for 32 MiB that it has to clear first, 0.4 s for 1 GiB.
"""
_LEAST_CHUNK_BYTES: Final = 1 << 16
_MOST_THREADS: Final = 8
_LONGEST_PAUSE_S: Final = 0.005
_PORTABLE: Final = 1  # cudaHostRegisterPortable, and hipHostRegisterPortable: for every device of this process

_log = logging.getLogger(__name__)


class HostMemory:
    """A row of at least ``total`` bytes over chunks; the first ``ready_bytes`` of it can be used.

    On the CPU all of it is there at once. For a GPU it is pinned, from :meth:`start` on, by threads of its own, so that a
    model is compiled, or requests served, meanwhile. With CUDA the threads touch their pages first, all at the same
    time, and have the driver take them over then, which keeps it busy for a fifth of the time that it needs to make pinned memory
    itself; with ROCm, where nobody has tried that yet, it makes it itself. What cannot be pinned is used as it is.

    Args:
        total: bytes.
        device: who shall copy.
        chunk_bytes: the largest chunk.
        on_whole: told, in one of the threads, how many bytes are pinned and after how many seconds, when all is there.

    Raises:
        RuntimeError: the CPU has no such memory.
    """

    def __init__(
        self,
        total: int,
        device: torch.device,
        chunk_bytes: int = CHUNK_BYTES,
        on_whole: Callable[[int, float], None] = lambda pinned, seconds: None,
    ) -> None:
        self.total = total
        # Its threads choose the device, which torch lets nobody do without a number.
        bare = device.type == "cuda" and device.index is None
        self._device = torch.device("cuda", torch.cuda.current_device()) if bare else device
        self._on_whole = on_whole
        self._sizes = chunk_sizes(total, chunk_bytes)
        self._starts = list(accumulate(self._sizes, initial=0))  # and the end of the last one
        self._chunks: list[torch.Tensor | None] = [None] * len(self._sizes)
        self._next = self._front = 0  # the next chunk to ask for, and the first that is not there
        self.ready_bytes = self.pinned_bytes = self.pageable_bytes = 0
        self.failed: str | None = None
        self._changed = threading.Condition()
        self._turn = threading.Lock()
        self._gentle = self._hurry = self._closed = False
        self._pins = device.type != "cpu"
        self._registers = self._pins and registers()
        self._registered: list[torch.Tensor] = []
        self._threads: list[threading.Thread] = []
        self._started = 0.0
        if not self._pins:
            for index, size in enumerate(self._sizes):
                self._add(index, torch.empty(size, dtype=torch.uint8), pinned=False)

    def start(self, *, gently: bool = False) -> None:
        """Let the memory come; ``gently`` leaves the driver to others most of the time, from now on if it comes already."""
        with self._changed:
            self._gentle = gently
            if self._threads or self._closed or not self._pins:
                return
            self._started = time.monotonic()
            for number in range(min(_threads(), len(self._sizes))):
                self._threads.append(threading.Thread(target=self._work, name=f"kvtrace-pin-{number}", daemon=True))
            for thread in self._threads:
                thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait, in a hurry, until all of it can be used or no more will come; ``False`` if that takes longer."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._whole() or bool(self.failed) or self._closed, timeout_s)

    def rows(self, at: int, end: int) -> Iterator[torch.Tensor]:
        """The bytes from ``at`` to ``end``, which must be ready, as rows that follow each other."""
        while at < end:
            index = bisect_right(self._starts, at) - 1
            chunk, start = self._chunks[index], self._starts[index]
            assert chunk is not None
            stop = min(end, start + chunk.numel())
            yield chunk[at - start : stop - start]
            at = stop

    def places(self) -> list[tuple[int, int]]:
        """Of each chunk that can be used by now: its first byte in the row, and the address of that."""
        ready = zip(self._starts, self._chunks[: self._front], strict=False)
        return [(start, chunk.data_ptr()) for start, chunk in ready if chunk is not None]

    def close(self) -> None:
        """Ask for nothing more, and wait until nobody does."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    # In the threads

    def _work(self) -> None:
        if self._device.type == "cuda":
            # A thread starts on the first device, and would make a context there.
            try:
                torch.cuda.set_device(self._device)
            except RuntimeError as error:
                self._fail(str(error))
                return
        while True:
            with self._changed:
                index = self._next
                if self._closed or self.failed or index == len(self._sizes):
                    return
                self._next += 1
            try:
                chunk, pinned = self._chunk(self._sizes[index])
            except (RuntimeError, OSError) as error:
                self._fail(str(error))
                return
            with self._changed:
                self._add(index, chunk, pinned)
                whole = self._whole()
                self._changed.notify_all()
            if whole:
                self._on_whole(self.pinned_bytes, time.monotonic() - self._started)

    def _chunk(self, size: int) -> tuple[torch.Tensor, bool]:
        """A chunk, pinned one way or the other if possible, and whether it is."""
        if self._registers:
            chunk = touched(size)
            with self._one_after_the_other():
                failed = register(chunk)
            if failed is None:
                with self._changed:
                    if not self._registered:
                        weakref.finalize(self, release, self._registered).atexit = False
                    self._registered.append(chunk)
                return chunk, True
            self._registers = False
            _log.warning(
                "the driver does not take over memory (%s): it is asked to make the host tier's itself", failed
            )
        if self._pins:
            try:
                with self._one_after_the_other():
                    return torch.empty(size, dtype=torch.uint8, pin_memory=True), True
            except RuntimeError as error:
                self._give_up_pinning(error)
        return torch.empty(size, dtype=torch.uint8), False

    @contextmanager
    def _one_after_the_other(self) -> Iterator[None]:
        """Where others use the device: one thread at a time, and then as long a pause as that took, but a short one."""
        if not self._gentle or self._hurry:
            yield
            return
        with self._turn:
            began = time.monotonic()
            yield
            pause_s = min(time.monotonic() - began, _LONGEST_PAUSE_S)
            with self._changed:
                self._changed.wait_for(lambda: self._hurry or self._closed, pause_s)

    def _give_up_pinning(self, error: RuntimeError) -> None:
        with self._changed:
            first, self._pins = self._pins, False
        if first:
            _log.warning(
                "the system lets no more host memory be pinned (%s): the rest of the host tier is pageable, and copies "
                "from and to it are slower. Give a smaller --kv-host, or raise the limit on locked memory",
                str(error).splitlines()[0],
            )

    def _add(self, index: int, chunk: torch.Tensor, pinned: bool) -> None:
        # Counted before it is ready: who sees that all of it is there shall see that all of it is pinned, or is not.
        self.pinned_bytes += chunk.numel() if pinned else 0
        self.pageable_bytes += chunk.numel() if self._device.type != "cpu" and not pinned else 0
        self._chunks[index] = chunk
        while self._front < len(self._chunks) and self._chunks[self._front] is not None:
            self._front += 1
        self.ready_bytes = self._starts[self._front]

    def _whole(self) -> bool:
        return self._front == len(self._sizes)

    def _fail(self, why: str) -> None:
        with self._changed:
            first = self.failed is None
            self.failed = (
                self.failed or f"no memory for the host tier beyond {gib(self.ready_bytes)} of {gib(self.total)}: {why}"
            )
            self._changed.notify_all()
        if first:
            _log.warning("%s; the engine goes on with those", self.failed)


def chunk_sizes(total: int, most: int) -> list[int]:
    """Powers of two from ``most`` down that add up to at least ``total`` bytes, and to less than 64 KiB more."""
    sizes = [most] * (total // most)
    left, size = total % most, most
    while left > 0:
        size //= 2
        if size <= left or size < _LEAST_CHUNK_BYTES:
            size = max(size, min(most, _LEAST_CHUNK_BYTES))
            sizes.append(size)
            left -= size
    return sizes


def registers() -> bool:
    """Whether memory is touched first and taken over by the driver then."""
    return torch.version.cuda is not None and torch.cuda.is_available() and hasattr(mmap, "MAP_ANONYMOUS")


def touched(size: int) -> torch.Tensor:
    """Memory of this process alone whose pages are there; a child process does not inherit it.

    Raises:
        OSError: there is none.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
        with suppress(AttributeError, OSError):  # an older system does without
            memory.madvise(getattr(mmap, advice))
    row = torch.frombuffer(memory, dtype=torch.uint8)
    row[:: mmap.PAGESIZE].zero_()
    return row


def register(row: torch.Tensor) -> str | None:
    """Have the driver take ``row`` over as pinned memory; what is wrong, if anything."""
    error = torch.cuda.cudart().cudaHostRegister(row.data_ptr(), row.numel(), _PORTABLE)  # type: ignore[no-untyped-call]
    return None if int(error) == 0 else str(error)


def release(rows: list[torch.Tensor]) -> None:
    """Give back what was registered; before its pages go, or they would stay pinned."""
    for row in rows:
        torch.cuda.cudart().cudaHostUnregister(row.data_ptr())  # type: ignore[no-untyped-call]
    rows.clear()


def _threads() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST_THREADS, cores // 2))
