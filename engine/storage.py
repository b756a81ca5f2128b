"""The bytes of the KV cache: the device pool, the host tier, and exact copies between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from .device import device_memory, gib
from .errors import ConfigError
from .geometry import KVGeometry
from .host_memory import CHUNK_BYTES, HostMemory
from .wording import counted


class Storage:
    """Device pool ``[device_blocks, layers, 2, kv_heads, block_tokens, head_dim]`` and host slots of the same block size.

    A block is one contiguous piece on the device, so every copy is flat and one-dimensional. The host tier is one row
    of slots over chunks of memory; a slot that crosses a chunk's border is copied in two parts.

    Where ``device`` is a GPU the host tier is pinned, from :meth:`start_pinning` on, chunk by chunk in the background, so
    that the engine serves meanwhile: slots from 0 up to ``ready_host_blocks`` can be used. Memory that cannot be pinned is
    used as it is. See :class:`.host_memory.HostMemory`; ``on_host_whole`` is its ``on_whole``.

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
        host_chunk_bytes: int = CHUNK_BYTES,
        on_host_whole: Callable[[int, float], None] = lambda pinned, seconds: None,
    ) -> None:
        if dtype.itemsize != geometry.element_bytes:
            raise ConfigError(
                f"{dtype} has {dtype.itemsize} bytes an element, the KV geometry {geometry.element_bytes}"
            )
        self.geometry = geometry
        self.device_blocks = device_blocks
        self.host_blocks = host_blocks
        try:
            self.pool = torch.empty((device_blocks, *geometry.block_shape), dtype=dtype, device=device)
            self._host = HostMemory(
                host_blocks * geometry.block_bytes, self.pool.device, host_chunk_bytes, on_host_whole
            )
        except RuntimeError as error:
            need = f"{counted(device_blocks, 'device block')} ({gib(device_blocks * geometry.block_bytes)})"
            raise ConfigError(
                f"no memory for {need} and {counted(host_blocks, 'host block')} of "
                f"{geometry.block_bytes:,} bytes: {device_memory(str(device)).described}; give fewer blocks, or stop what "
                f"holds the memory ({str(error).splitlines()[0]})"
            ) from error
        self.device_bytes = self.pool.view(-1).view(torch.uint8)
        """All of the device pool as a row of bytes."""

    @property
    def ready_host_blocks(self) -> int:
        """Host slots that can be used by now."""
        return min(self.host_blocks, self._host.ready_bytes // self.geometry.block_bytes)

    @property
    def pinned_bytes(self) -> int:
        """Host memory that is pinned by now."""
        return self._host.pinned_bytes

    @property
    def pageable_bytes(self) -> int:
        """Host memory that should be pinned and could not be, by now."""
        return self._host.pageable_bytes

    def start_pinning(self, *, gently: bool = False) -> None:
        """Let the host tier of a GPU be pinned from now on; ``gently`` once somebody waits for steps.

        Device graphs may be captured meanwhile, if what a capture forbids is forbidden to its own thread alone.
        """
        self._host.start(gently=gently)

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until every host slot can be used; starts the pinning if nobody did.

        Raises:
            TimeoutError: that takes longer than ``timeout_s``.
            ConfigError: the memory for the rest cannot be had.
        """
        self._host.start()
        came = self._host.wait(timeout_s)
        if self._host.failed:
            raise ConfigError(self._host.failed)
        if not came:
            raise TimeoutError(f"{self.ready_host_blocks} of {self.host_blocks} host slots ready after {timeout_s} s")

    def close(self) -> None:
        """End the pinning, after the chunks under way."""
        self._host.close()

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
        yield from self._host.rows(slot * size, (slot + count) * size)

    def host_places(self) -> list[tuple[int, int]]:
        """Where the chunks of the host tier lie that are there: first byte in the row of slots, and its address."""
        return self._host.places()

    def _pieces(self, block: int, slot: int, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Pairs of views ``(device, host)`` of the same length that cover a run."""
        device, at = self.device_run(block, count), 0
        for host in self.host_runs(slot, count):
            yield device[at : at + host.numel()], host
            at += host.numel()
