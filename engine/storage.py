"""The bytes of the KV cache: the device pool, the host tier, and exact copies between them."""

from __future__ import annotations

from typing import Final

import torch

from .errors import ConfigError
from .geometry import KVGeometry

HOST_CHUNK_BYTES: Final = 1 << 30  # the host allocator rounds pinned pieces up to powers of two, so ask for one


class Storage:
    """Device pool ``[device_blocks, layers, 2, kv_heads, 16, head_dim]`` and host slots of the same block shape.

    A block is one contiguous piece on both sides, so every copy is flat and one-dimensional. Host slots live in
    chunks of at most ``host_chunk_bytes``; a run of slots that crosses a chunk's border becomes two copies.
    The host tier is pinned where ``device`` is a GPU.

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
        self._chunk_slots = max(1, host_chunk_bytes // geometry.block_bytes)
        pinned = torch.device(device).type == "cuda"
        try:
            self.pool = torch.empty((device_blocks, *geometry.block_shape), dtype=dtype, device=device)
            self._host = [
                torch.empty((slots, geometry.block_bytes), dtype=torch.uint8, pin_memory=pinned)
                for slots in _chunk_sizes(host_blocks, self._chunk_slots)
            ]
        except RuntimeError as error:
            raise ConfigError(
                f"no memory for {device_blocks} device and {host_blocks} host blocks of {geometry.block_bytes:,} bytes "
                f"on {device}: give fewer blocks ({error})"
            ) from error
        self.pinned_bytes = host_blocks * geometry.block_bytes if pinned else 0
        self._device_bytes = self.pool.view(device_blocks, -1).view(torch.uint8)

    def copy_out(self, block: int, slot: int, count: int = 1) -> None:
        """Copy device blocks ``block … block + count - 1`` to host slots ``slot … slot + count - 1``."""
        for source, target in self._runs(block, slot, count):
            target.copy_(source)

    def copy_in(self, slot: int, block: int, count: int = 1) -> None:
        """Copy host slots ``slot … slot + count - 1`` to device blocks ``block … block + count - 1``."""
        for target, source in self._runs(block, slot, count):
            target.copy_(source)

    def _runs(self, block: int, slot: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Pairs of byte views ``(device, host)`` that cover the run, each inside one host chunk."""
        if count < 1 or not (0 <= block <= self.device_blocks - count and 0 <= slot <= self.host_blocks - count):
            raise IndexError(
                f"blocks {block}+{count} of {self.device_blocks} and slots {slot}+{count} of {self.host_blocks}: "
                "outside the pool or the host tier"
            )
        runs = []
        while count:
            chunk, row = divmod(slot, self._chunk_slots)
            length = min(count, self._chunk_slots - row)
            runs.append((self._device_bytes[block : block + length], self._host[chunk][row : row + length]))
            block, slot, count = block + length, slot + length, count - length
        return runs


def _chunk_sizes(total: int, most: int) -> list[int]:
    return [min(most, total - start) for start in range(0, total, most)]
