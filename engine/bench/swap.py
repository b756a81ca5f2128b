"""``kvtrace bench swap``: an agent's KV out and back through the engine's own storage and mover, against raw copies."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from ..blocks import HostPool
from ..device import device_memory, gib
from ..errors import EngineError
from ..geometry import KVGeometry
from ..rawlink import RawLink, synchronize
from ..storage import Storage
from ..swap.choose import Way, choose_way, make_mover
from ..swap.contract import Copy, CopyDone, Direction, Mover
from ..swap.limits import staging_bytes

GEOMETRIES: Final = {
    "qwen3-8b": KVGeometry(layers=36, kv_heads=8, head_dim=128, element_bytes=2),  # 147,456 B a token, 2.36 MB a block
    "qwen3.5": KVGeometry(layers=8, kv_heads=4, head_dim=256, element_bytes=2),  # its full-attention layers: 512 KiB
    "smollm2": KVGeometry(layers=30, kv_heads=3, head_dim=64, element_bytes=2),  # 360 KiB a block
}


@dataclass(frozen=True, slots=True)
class SwapRow:
    """One way of moving the agent. ``ratio`` is its rate over that of one raw copy of as many bytes, in the same run.

    ``submit_ms``: how long the thread that steps the model was held up by handing the copies over.
    """

    case: str
    bytes_per_s: float
    raw_bytes_per_s: float
    ratio: float
    seconds: float
    submit_ms: float


@dataclass(frozen=True, slots=True)
class SwapResult:
    """One geometry, moved one ``way``, by name. ``both_ratio``: both ways at once over one way.

    ``device_configured_bytes`` is what the pool and the mover's buffers may take together, as ``--kv-vram`` of the server.
    """

    geometry: str
    way: str
    block_bytes: int
    blocks: int
    moved_bytes: int
    rows: tuple[SwapRow, ...]
    both_ratio: float
    host_configured_bytes: int
    host_pinned_bytes: int
    device_configured_bytes: int
    device_peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class SwapShape:
    """What moves, and out of what. ``way`` as in :func:`~kvtrace.engine.swap.choose.make_mover`."""

    tokens: int = 6_900
    pool_tokens: int = 55_000
    host_tokens: int = 30_000
    repeats: int = 15
    way: Way = Way.AUTO
    seed: int = 0


def _refuse_too_large(device: torch.device, device_bytes: int, host_bytes: int) -> None:
    """Refuse pools that cannot be had: a system that overcommits would hand them out and then run dry."""
    memory = device_memory(str(device))
    on_host = host_bytes + (device_bytes if device.type == "cpu" else 0)
    if memory.host_available_bytes and on_host > memory.host_available_bytes:
        free = gib(memory.host_available_bytes)
        raise EngineError(
            f"the pools need {gib(on_host)} of host memory, of which {free} are free: give fewer --tokens"
        )
    if device.type != "cpu" and device_bytes > memory.free_bytes:
        raise EngineError(f"the pool needs {gib(device_bytes)}, but {memory.described}: give fewer --pool-tokens")


class _Bench:
    """A storage full of random numbers, its mover, and an agent's blocks at random places of the pool."""

    def __init__(self, geometry: KVGeometry, shape: SwapShape, device: torch.device) -> None:
        self.count = geometry.blocks_for(shape.tokens)
        self.configured = geometry.blocks_for(shape.pool_tokens) * geometry.block_bytes
        self.way = _way(device, shape.way)
        buffers = staging_bytes(geometry.block_bytes, self.configured) if self.way is Way.STAGED else 0
        left = self.configured - buffers
        device_blocks = max(left // geometry.block_bytes, 2 * self.count)
        host_blocks = max(geometry.blocks_for(shape.host_tokens), 3 * self.count)
        _refuse_too_large(device, device_blocks * geometry.block_bytes, host_blocks * geometry.block_bytes)
        self.device = device
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        self.storage = Storage(geometry, device_blocks, host_blocks, device=device, dtype=torch.bfloat16)
        self.mover: Mover = make_mover(self.storage, way=self.way)
        self.device_peak = torch.cuda.memory_allocated(device) - before if device.type == "cuda" else None
        self.storage.wait_ready()
        self.words = self.storage.device_bytes.view(torch.int64).view(device_blocks, -1)
        self.words.random_(-(2**62), 2**62)
        self.random = random.Random(shape.seed)  # noqa: S311 - places of blocks, no secret
        self._next = 0

    def blocks(self, count: int) -> list[int]:
        """Random blocks of the pool, in random order."""
        return self.random.sample(range(self.storage.device_blocks), count)

    def slots(self, count: int) -> list[int]:
        """The slots that the engine's host pool would hand out, beginning somewhere."""
        pool = HostPool(self.storage.host_blocks)
        for _ in range(self.random.randrange(self.storage.host_blocks - count)):
            pool.take()
        return [pool.take() for _ in range(count)]

    def copies(self, direction: Direction, blocks: Sequence[int], slots: Sequence[int]) -> list[Copy]:
        """One copy a block."""
        pairs = zip(blocks, slots, strict=True)
        made = [Copy(self._next + index, direction, block, slot) for index, (block, slot) in enumerate(pairs)]
        self._next += len(made)
        return made

    def run(self, *batches: list[Copy]) -> tuple[float, float]:
        """Seconds until all copies were reported done, and seconds that submitting took."""
        synchronize(self.device)
        started = time.perf_counter()
        for batch in batches:
            self.mover.submit(batch)
        submitted = time.perf_counter()
        done: list[CopyDone] = []
        while self.mover.in_flight():
            self.mover.wait(1.0)
            done += self.mover.poll()
        ended = time.perf_counter()
        failed = [one.error for one in done if one.error is not None]
        if failed:
            raise EngineError(f"{len(failed)} of {len(done)} copies failed, the first with: {failed[0]}")
        return ended - started, submitted - started

    def check(self) -> None:
        """Move an agent out and back to other blocks, the first ones poisoned, and compare every byte.

        Raises:
            EngineError: a byte differs: no figure would mean anything.
        """
        blocks, slots = self.blocks(2 * self.count), self.slots(self.count)
        there, back = blocks[: self.count], blocks[self.count :]
        before = self.words[there].clone()
        self.run(self.copies(Direction.OUT, there, slots))
        self.words[there] = -1
        self.run(self.copies(Direction.IN, back, slots))
        if not torch.equal(self.words[back], before):
            raise EngineError("the blocks came back changed: this is a fault in kvtrace, do not use its swap tier here")


def measure_swap(
    name: str,
    device: torch.device,
    shape: SwapShape,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> SwapResult:
    """Move an agent's blocks out, in and both at once; every byte of one round trip is compared first.

    Every repeat takes other random blocks, so that nothing is found on the device, and is measured next to raw copies
    of as many bytes.

    Args:
        name: one of :data:`GEOMETRIES`.
        device: a GPU or the CPU.
        shape: sizes and repeats.
        on_phase: told in a few words what is being done.

    Raises:
        EngineError: the device has no such way, the memory cannot be had, or bytes came back changed.
    """
    geometry = GEOMETRIES[name]
    on_phase(f"{name}, {shape.way}: filling the pools")
    bench = _Bench(geometry, shape, device)
    try:
        on_phase(f"{name}: comparing every byte of a round trip")
        bench.check()
        raw = RawLink(device, bench.count * geometry.block_bytes)
        on_phase(f"{name}: measuring")
        rows = tuple(_measure(bench, raw, shape.repeats))
    finally:
        bench.mover.close()
    by_case = {row.case: row.bytes_per_s for row in rows}
    return SwapResult(
        geometry=name,
        way=bench.way,
        block_bytes=geometry.block_bytes,
        blocks=bench.count,
        moved_bytes=raw.size,
        rows=rows,
        both_ratio=by_case["both"] / min(by_case["out"], by_case["in"]),
        host_configured_bytes=bench.storage.host_blocks * geometry.block_bytes,
        host_pinned_bytes=bench.storage.pinned_bytes,
        device_configured_bytes=bench.configured,
        device_peak_bytes=bench.device_peak,
    )


def _way(device: torch.device, way: Way) -> Way:
    try:
        return choose_way(device, way)
    except ValueError as error:
        raise EngineError(f"{error}: leave --way out") from error


def _measure(bench: _Bench, raw: RawLink, repeats: int) -> list[SwapRow]:
    out_way, in_way = Direction.OUT, Direction.IN
    cases: dict[str, tuple[int, Callable[[], tuple[float, float]], Callable[[], float]]] = {
        "out": (1, lambda: _one_way(bench, out_way, bench.slots(bench.count)), lambda: raw.copy(out_way)),
        "in": (1, lambda: _one_way(bench, in_way, bench.slots(bench.count)), lambda: raw.copy(in_way)),
        "both": (2, lambda: _both_ways(bench), raw.copy_both),
        "out, scattered slots": (1, lambda: _one_way(bench, out_way, _scattered(bench)), lambda: raw.copy(out_way)),
        "in, scattered slots": (1, lambda: _one_way(bench, in_way, _scattered(bench)), lambda: raw.copy(in_way)),
    }
    rows = []
    for case, (ways, swap, copy) in cases.items():
        swap()
        copy()
        pairs = [(swap(), copy()) for _ in range(repeats)]
        seconds = statistics.median(took for (took, _), _ in pairs)
        submitting = statistics.median(submit for (_, submit), _ in pairs)
        raw_seconds = statistics.median(took for _, took in pairs)
        size = ways * raw.size
        rows.append(SwapRow(case, size / seconds, size / raw_seconds, raw_seconds / seconds, seconds, submitting * 1e3))
    return rows


def _one_way(bench: _Bench, direction: Direction, slots: Sequence[int]) -> tuple[float, float]:
    return bench.run(bench.copies(direction, bench.blocks(bench.count), slots))


def _both_ways(bench: _Bench) -> tuple[float, float]:
    blocks, slots = bench.blocks(2 * bench.count), bench.slots(2 * bench.count)
    return bench.run(
        bench.copies(Direction.OUT, blocks[: bench.count], slots[: bench.count]),
        bench.copies(Direction.IN, blocks[bench.count :], slots[bench.count :]),
    )


def _scattered(bench: _Bench) -> list[int]:
    return bench.random.sample(range(bench.storage.host_blocks), bench.count)
