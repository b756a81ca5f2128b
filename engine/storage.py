"""The bytes of the KV cache: the device pool, the host tier, and exact copies between them."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

import torch

from .device import device_memory, gib
from .errors import ConfigError
from .geometry import KVGeometry

HOST_CHUNK_BYTES: Final = 1 << 25
"""Largest piece of host memory asked for at once: a power of two, since torch rounds pinned pieces up to one.

While a piece is being pinned the driver lets nobody launch anything: a step that comes then waits for all of it, 0.4 s for
1 GiB on the H200's machine. So the pieces are small, and between them others have their turn.
"""
_LEAST_CHUNK_BYTES: Final = 1 << 16

_log = logging.getLogger(__name__)


class Storage:
    """Device pool ``[device_blocks, layers, 2, kv_heads, 16, head_dim]`` and host slots of the same block size.

    A block is one contiguous piece on the device, so every copy is flat and one-dimensional. The host tier is one row
    of slots over chunks of memory; a slot that crosses a chunk's border is copied in two parts.

    Where ``device`` is a GPU the host tier is pinned, from :meth:`start_pinning` on, chunk by chunk in a thread of its
    own, so that the engine serves meanwhile: slots from 0 up to ``ready_host_blocks`` can be used. Memory that cannot be
    pinned is used as it is.

    Attributes:
        pool: the device tensor that attention reads and writes.

    Raises:
        ConfigError: the memory cannot be had, or ``dtype`` does not have the geometry's element size.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        device_blocks: int,
        host_blocks: int,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        host_chunk_bytes: int = HOST_CHUNK_BYTES,
    ) -> None:
        if dtype.itemsize != geometry.element_bytes:
            raise ConfigError(
                f"{dtype} has {dtype.itemsize} bytes an element, the KV geometry {geometry.element_bytes}"
            )
        self.geometry = geometry
        self.device_blocks = device_blocks
        self.host_blocks = host_blocks
        sizes = chunk_sizes(host_blocks * geometry.block_bytes, host_chunk_bytes)
        self._starts = [sum(sizes[:index]) for index in range(len(sizes))]
        self._chunks: list[torch.Tensor] = []
        self._ready_bytes = self._pinned_bytes = 0
        self._changed = threading.Condition()
        self._closed = self._hurry = False
        self._failed: str | None = None
        try:
            self.pool = torch.empty((device_blocks, *geometry.block_shape), dtype=dtype, device=device)
            if self.pool.device.type == "cpu":
                for size in sizes:
                    self._add(torch.empty(size, dtype=torch.uint8))
        except RuntimeError as error:
            need = device_blocks * geometry.block_bytes
            raise ConfigError(
                f"no memory for {device_blocks} device blocks ({gib(need)}) and {host_blocks} host blocks of "
                f"{geometry.block_bytes:,} bytes: {device_memory(str(device)).described}; give fewer blocks, or stop what "
                f"holds the memory ({str(error).splitlines()[0]})"
            ) from error
        self.device_bytes = self.pool.view(-1).view(torch.uint8)
        """All of the device pool as a row of bytes."""
        self._coming = sizes if self.pool.device.type != "cpu" else []
        self._pinning: threading.Thread | None = None

    @property
    def ready_host_blocks(self) -> int:
        """Host slots that can be used by now."""
        return min(self.host_blocks, self._ready_bytes // self.geometry.block_bytes)

    @property
    def pinned_bytes(self) -> int:
        """Host memory that is pinned by now."""
        return self._pinned_bytes

    def start_pinning(self) -> None:
        """Let the host tier of a GPU be pinned from now on; not while device graphs are captured, which it would break."""
        if self._coming and self._pinning is None:
            self._pinning = threading.Thread(target=self._pin, args=(self._coming,), name="kvtrace-pin", daemon=True)
            self._pinning.start()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until every host slot can be used; starts the pinning if nobody did.

        Raises:
            TimeoutError: that takes longer than ``timeout_s``.
            ConfigError: the memory for the rest cannot be had.
        """
        self.start_pinning()
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            whole = self._changed.wait_for(
                lambda: self.ready_host_blocks == self.host_blocks or self._failed or self._closed, timeout_s
            )
        if self._failed:
            raise ConfigError(self._failed)
        if not whole:
            raise TimeoutError(f"{self.ready_host_blocks} of {self.host_blocks} host slots ready after {timeout_s} s")

    def close(self) -> None:
        """End the pinning, after the chunk under way."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._pinning is not None:
            self._pinning.join()

    def copy_out(self, block: int, slot: int, count: int = 1) -> None:
        """Copy device blocks ``block … block + count - 1`` to host slots ``slot … slot + count - 1``."""
        for source, target in self._pieces(block, slot, count):
            target.copy_(source)

    def copy_in(self, slot: int, block: int, count: int = 1) -> None:
        """Copy host slots ``slot … slot + count - 1`` to device blocks ``block … block + count - 1``."""
        for target, source in self._pieces(block, slot, count):
            target.copy_(source)

    def device_run(self, block: int, count: int = 1) -> torch.Tensor:
        """The bytes of ``count`` device blocks from ``block`` on, as a row.

        Raises:
            IndexError: a block is outside of the pool.
        """
        if count < 1 or not 0 <= block <= self.device_blocks - count:
            raise IndexError(f"blocks {block}+{count} of {self.device_blocks}: outside the pool")
        size = self.geometry.block_bytes
        return self.device_bytes[block * size : (block + count) * size]

    def host_runs(self, slot: int, count: int = 1) -> Iterator[torch.Tensor]:
        """The bytes of ``count`` host slots from ``slot`` on, as rows that follow each other.

        Raises:
            IndexError: a slot is outside of the host tier, or its memory is not there yet.
        """
        if count < 1 or not 0 <= slot <= self.ready_host_blocks - count:
            raise IndexError(
                f"slots {slot}+{count} of {self.host_blocks}, {self.ready_host_blocks} of them ready: "
                "outside the host tier"
            )
        size = self.geometry.block_bytes
        at, end = slot * size, (slot + count) * size
        while at < end:
            index = bisect_right(self._starts, at) - 1
            chunk, start = self._chunks[index], self._starts[index]
            stop = min(end, start + chunk.numel())
            yield chunk[at - start : stop - start]
            at = stop

    def _pieces(self, block: int, slot: int, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Pairs of views ``(device, host)`` of the same length that cover a run."""
        device, at = self.device_run(block, count), 0
        for host in self.host_runs(slot, count):
            yield device[at : at + host.numel()], host
            at += host.numel()

    def _pin(self, sizes: list[int]) -> None:
        """Fill the host tier with pinned memory; in a thread of its own."""
        pin = True
        for size in sizes:
            started = time.monotonic()
            try:
                chunk, pin = _host_chunk(size, pin)
            except RuntimeError as error:
                self._fail(
                    f"no memory for the host tier beyond {self.ready_host_blocks} of {self.host_blocks} slots: {error}"
                )
                return
            with self._changed:
                if self._closed:
                    return
                self._add(chunk)
                self._changed.notify_all()
                # As long a pause as the pinning took, unless somebody waits for the end of it.
                self._changed.wait_for(lambda: self._hurry or self._closed, time.monotonic() - started)

    def _add(self, chunk: torch.Tensor) -> None:
        self._chunks.append(chunk)
        self._ready_bytes += chunk.numel()
        self._pinned_bytes += chunk.numel() if chunk.is_pinned() else 0

    def _fail(self, why: str) -> None:
        _log.warning("%s; the engine goes on with those", why)
        with self._changed:
            self._failed = why
            self._changed.notify_all()


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


def _host_chunk(size: int, pin: bool) -> tuple[torch.Tensor, bool]:
    """A chunk, pinned if ``pin`` and possible; and whether pinning is worth another try."""
    if pin:
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True), True
        except RuntimeError as error:
            _log.warning(
                "the system lets no more host memory be pinned (%s): the rest of the host tier is pageable, and copies "
                "from and to it are slower. Give a smaller --kv-host, or raise the limit on locked memory",
                str(error).splitlines()[0],
            )
    return torch.empty(size, dtype=torch.uint8), False
