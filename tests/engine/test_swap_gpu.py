"""The stream mover on a real GPU: the same random lives, with delays between its streams, and exact round trips."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from kvtrace.engine import host_memory
from kvtrace.engine.calibrate import calibrate
from kvtrace.engine.errors import ConfigError
from kvtrace.engine.geometry import KVGeometry
from kvtrace.engine.graphs import Capturer
from kvtrace.engine.host_memory import HostMemory
from kvtrace.engine.sizing import plan_pools
from kvtrace.engine.storage import Storage
from kvtrace.engine.swap.batched import BatchedTransport
from kvtrace.engine.swap.choose import Way, choose_way
from kvtrace.engine.swap.contract import Copy, Direction
from kvtrace.engine.swap.driver import Addresses, batch_copy
from kvtrace.engine.swap.limits import BATCHED, staging_bytes
from kvtrace.engine.swap.staged import StagedTransport
from kvtrace.engine.swap.stream import StreamMover
from kvtrace.engine.swap.streams import Stream, TorchStreams
from kvtrace.engine.swap.transport import StreamTransport

from .swap_support import WAIT_S, Life

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

QWEN3_8B = KVGeometry(layers=36, kv_heads=8, head_dim=128, element_bytes=2)
SMOLLM2 = KVGeometry(layers=30, kv_heads=3, head_dim=64, element_bytes=2)
TINY = KVGeometry(layers=1, kv_heads=1, head_dim=8, element_bytes=2)
ODD = KVGeometry(layers=7, kv_heads=1, head_dim=1, element_bytes=2)  # layers of 64 bytes, blocks of 448
WAYS = [Way.BATCHED, Way.STAGED, Way.SINGLE]
OUT, IN = Direction.OUT, Direction.IN


class SleepyStreams(TorchStreams):
    """Lets the device idle for a random while before a copy, so that streams drift apart."""

    def __init__(self, device: torch.device, seed: int, cycles: int) -> None:
        super().__init__(device)
        self._random = random.Random(seed)
        self._cycles = cycles

    def copy(self, stream: Stream, targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        self._doze(stream)
        super().copy(stream, targets, sources)

    def batch(self, stream: Stream, targets: Addresses, sources: Addresses, sizes: Addresses) -> None:
        self._doze(stream)
        batch = batch_copy(self._device)
        assert batch is not None
        batch(stream, targets, sources, sizes)

    def _doze(self, stream: Stream) -> None:
        if self._cycles and self._random.random() < 0.5:
            with torch.cuda.stream(stream):  # type: ignore[arg-type]  # whoever submits may be the one who computes
                torch.cuda._sleep(self._random.randrange(self._cycles))  # type: ignore[no-untyped-call]


class TorchCompute:
    """Compute on the current stream, now and then after a pause."""

    def __init__(self, storage: Storage, seed: int, cycles: int) -> None:
        self._storage = storage
        self._random = random.Random(seed)
        self._cycles = cycles

    def write(self, block: int, value: int) -> None:
        self._pause()
        words = self._storage.device_run(block).view(torch.int32)
        words.fill_(-1)  # what a reader that comes too early gets
        self._pause()
        words.fill_(value)

    def read(self, block: int) -> Callable[[], set[int]]:
        self._pause()
        seen = self._storage.device_run(block).view(torch.int32).clone()
        return lambda: set(seen.unique().tolist())  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def _pause(self) -> None:
        if self._cycles and self._random.random() < 0.3:
            torch.cuda._sleep(self._random.randrange(self._cycles))  # type: ignore[no-untyped-call]


@contextmanager
def _tier(
    geometry: KVGeometry,
    blocks: int,
    slots: int,
    *,
    seed: int = 0,
    cycles: int = 0,
    way: Way = Way.STAGED,
    buffer_blocks: int | None = 6,
    piece_blocks: int | None = None,
) -> Iterator[tuple[Storage, StreamMover]]:
    storage = Storage(geometry, blocks, slots, device="cuda", dtype=torch.bfloat16)
    storage.wait_ready(120)
    streams = SleepyStreams(storage.pool.device, seed, cycles)
    transport: StreamTransport
    if way is Way.BATCHED:
        _skip_without_batches(storage.pool.device)
        bounds = dict(BATCHED)
        if piece_blocks is not None:
            piece = piece_blocks * geometry.block_bytes
            bounds[IN] = bounds[IN]._replace(piece=piece, parted=piece)
        transport = BatchedTransport(storage, streams.batch, streams, bounds, group_bytes=1)
    elif way is Way.STAGED:
        transport = StagedTransport(storage, streams, buffer_blocks=buffer_blocks)
    else:
        transport = StreamTransport(storage, streams)
    mover = StreamMover(transport)
    try:
        yield storage, mover
    finally:
        mover.close()


def _skip_without_batches(device: torch.device) -> None:
    if batch_copy(device) is None:
        pytest.skip("the driver has no call for many copies at once")


def _run(mover: StreamMover, copies: list[Copy]) -> None:
    mover.submit(copies)
    while mover.in_flight():
        mover.wait(WAIT_S)
        assert [done.error for done in mover.poll() if done.error] == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("geometry", "rounds"), [(QWEN3_8B, 300), (SMOLLM2, 500), (TINY, 500), (ODD, 500)])
@pytest.mark.parametrize("cycles", [0, 300_000])
def test_blocks_survive_any_interleaving(geometry: KVGeometry, rounds: int, cycles: int, way: Way) -> None:
    for seed in range(2):
        # Pieces of one block, so that as many batches as can be come in parts.
        with _tier(geometry, 40, 60, seed=seed, cycles=cycles, way=way, piece_blocks=1) as (storage, mover):
            life = Life(storage, mover, TorchCompute(storage, seed, cycles), seed)
            life.live(rounds)
            life.check()
            assert life.done > rounds / 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("geometry", [QWEN3_8B, SMOLLM2, TINY, ODD])
def test_bytes_are_the_same_after_a_thousand_round_trips(geometry: KVGeometry, way: Way) -> None:
    source = random.Random(7)
    with _tier(geometry, 100, 150, way=way) as (storage, mover):
        words = storage.device_bytes.view(torch.int64).view(100, -1)
        words.random_(-(2**62), 2**62)
        for trip in range(20):
            blocks, back = source.sample(range(100), 50), source.sample(range(100), 50)
            start = source.randrange(100)
            slots = list(range(start, start + 50)) if trip % 2 else source.sample(range(150), 50)
            before = words[blocks].clone()
            _run(mover, [Copy(100 * trip + i, OUT, b, s) for i, (b, s) in enumerate(zip(blocks, slots, strict=True))])
            kept = words.clone()
            storage.pool.fill_(float("nan"))
            poison = words[0].clone()
            _run(mover, [Copy(100 * trip + 50 + i, IN, b, s) for i, (b, s) in enumerate(zip(back, slots, strict=True))])
            assert torch.equal(words[back], before)
            others = [block for block in range(100) if block not in back]
            assert bool((words[others] == poison).all())
            words.copy_(kept)


def test_pinned_memory_is_what_was_asked_for_and_comes_while_the_device_works() -> None:
    storage = Storage(QWEN3_8B, 8, 1200, device="cuda", dtype=torch.bfloat16)
    assert storage.ready_host_blocks == storage.pinned_bytes == 0
    storage.start_pinning()
    steps = 0
    while storage.ready_host_blocks < 1200 and steps < 1_000_000:
        storage.pool.fill_(1.0)
        torch.cuda.synchronize()
        steps += 1
    assert steps > 10
    asked = 1200 * QWEN3_8B.block_bytes
    assert asked <= storage.pinned_bytes <= 1.02 * asked
    assert all(part.is_pinned() for part in storage.host_runs(0, 1200))
    storage.close()


def test_device_graphs_can_be_captured_while_memory_is_pinned() -> None:
    storage = Storage(QWEN3_8B, 8, 3000, device="cuda", dtype=torch.bfloat16)
    values = torch.zeros(1 << 20, device="cuda")
    capturer, captured = Capturer(), 0
    storage.start_pinning()
    while storage.ready_host_blocks < 3000 or not captured:
        graph = capturer.capture(lambda: values.add_(1))
        before = values.clone()
        graph.replay()
        assert torch.equal(values, before + 1)
        captured += 1
    assert all(part.is_pinned() for part in storage.host_runs(0, 3000))
    storage.close()


@pytest.mark.parametrize("registered", [True, False])
def test_host_memory_of_either_kind_keeps_every_byte_and_is_given_back(
    registered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "registers", lambda: registered)
    memory = HostMemory(3 << 20, torch.device("cuda"), 1 << 20)
    memory.start(gently=True)
    assert memory.wait(60)
    assert memory.pinned_bytes == 3 << 20
    rows = list(memory.rows(1000, (3 << 20) - 8))
    sent = [torch.randint(0, 256, (row.numel(),), dtype=torch.uint8, device="cuda") for row in rows]
    for row, values in zip(rows, sent, strict=True):
        row.copy_(values, non_blocking=True)
    back = [row.to("cuda", non_blocking=True) for row in rows]
    assert all(torch.equal(one, other) for one, other in zip(back, sent, strict=True))
    registered_rows = memory._registered
    assert len(registered_rows) == (3 if registered else 0)
    del memory, rows
    gc.collect()
    assert registered_rows == []


@pytest.mark.parametrize("way", WAYS)
def test_copies_end_while_compute_goes_on(way: Way) -> None:
    """Nothing on the way waits for the whole device."""
    with _tier(QWEN3_8B, 40, 40, way=way) as (storage, mover):
        mover.submit([Copy(index, OUT, 39 - index, index) for index in range(40)])
        after = torch.cuda.Event()  # type: ignore[no-untyped-call]
        torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]
        after.record()
        while mover.in_flight():
            mover.wait(WAIT_S)
            mover.poll()
        assert not after.query()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        assert storage.ready_host_blocks == 40


@pytest.mark.parametrize("way", WAYS)
def test_compute_behind_a_fence_finds_what_was_copied_in_and_the_host_has_not_waited(way: Way) -> None:
    with _tier(QWEN3_8B, 60, 60, cycles=0, way=way) as (storage, mover):
        words = storage.device_bytes.view(torch.int64).view(60, -1)
        words.copy_(torch.arange(60, device="cuda")[:, None].expand_as(words))
        _run(mover, [Copy(index, OUT, 59 - index, index) for index in range(20)])
        words.fill_(-1)
        blocks = random.Random(3).sample(range(60), 20)
        places = torch.tensor(blocks, device="cuda")
        torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]  # a second: others may use the processors as well
        mover.submit([Copy(100 + index, IN, block, index) for index, block in enumerate(blocks)])
        ids = [100 + index for index in range(20)]
        while (fence := mover.fence(ids)) is None:
            pass
        fence.join()
        seen = words[places]
        over = torch.cuda.Event()  # type: ignore[no-untyped-call]
        over.record()
        assert not over.query()  # type: ignore[no-untyped-call]
        over.synchronize()
        assert sorted(done.copy.id for done in mover.poll()) == ids
        assert seen[:, 0].tolist() == [59 - index for index in range(20)]
        assert bool((seen == seen[:, :1]).all())


@pytest.mark.parametrize("geometry", [QWEN3_8B, SMOLLM2, ODD])
@pytest.mark.parametrize("cycles", [0, 2_000_000])
def test_compute_finds_a_group_of_layers_while_the_later_ones_are_on_their_way(
    geometry: KVGeometry, cycles: int
) -> None:
    source, count = random.Random(11), 60
    with _tier(geometry, 2 * count, count, way=Way.BATCHED, cycles=cycles, piece_blocks=8) as (storage, mover):
        words = storage.device_bytes.view(torch.int64).view(2 * count, geometry.layers, -1)
        for trip in range(8):
            words.random_(-(2**62), 2**62)
            blocks, slots = source.sample(range(2 * count), 2 * count), source.sample(range(count), count)
            there, back = blocks[:count], blocks[count:]
            before = words[there].clone()
            first = 1000 * trip
            _run(mover, [Copy(first + i, OUT, b, s) for i, (b, s) in enumerate(zip(there, slots, strict=True))])
            words.fill_(-1)
            places = torch.tensor(back, device="cuda")
            torch.cuda.synchronize()
            ids = [first + 500 + i for i in range(count)]
            mover.submit([Copy(*copy) for copy in zip(ids, [IN] * count, back, slots, strict=True)])
            while (fence := mover.fence(ids)) is None:
                pass
            seen = []
            for part, layers in enumerate(geometry.parts):
                fence.join(part)
                seen.append(words[places, layers.start : layers.stop])
            torch.cuda.synchronize()
            assert torch.equal(torch.cat(seen, 1), before)
            assert sorted(done.copy.id for done in mover.poll()) == ids


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_with_a_mark_does_not_wait_for_what_came_after_it(way: Way) -> None:
    with _tier(QWEN3_8B, 40, 40, way=way) as (storage, mover):
        storage.pool.fill_(3.0)
        mark = mover.mark()
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]
        after = torch.cuda.Event()  # type: ignore[no-untyped-call]
        after.record()
        mover.submit([Copy(index, OUT, 39 - 2 * index, index) for index in range(20)], mark)
        while mover.in_flight():
            mover.wait(WAIT_S)
            mover.poll()
        assert not after.query()  # type: ignore[no-untyped-call]
        assert all(bool((part.view(torch.bfloat16) == 3.0).all()) for part in storage.host_runs(0, 20))


def test_a_pool_that_does_not_fit_names_need_and_free() -> None:
    with pytest.raises(ConfigError, match=r"2\d{3}\.\d GiB.*has [\d.]+ GiB of [\d.]+ GiB free"):
        Storage(QWEN3_8B, 1_000_000, 0, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("way", WAYS)
def test_memory_on_the_device_is_pool_and_buffers(way: Way) -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    with _tier(SMOLLM2, 400, 60, way=way, buffer_blocks=None) as (storage, _):
        taken, pool = torch.cuda.memory_allocated() - before, storage.device_bytes.numel()
        buffers = staging_bytes(SMOLLM2.block_bytes, pool) if way is Way.STAGED else 0
        assert taken == pytest.approx(pool + buffers, rel=0.01)


def test_a_driver_that_has_the_call_for_many_copies_is_used_with_it() -> None:
    device = torch.device("cuda", 0)
    _skip_without_batches(device)
    assert choose_way(device) is Way.BATCHED


def test_a_real_device_can_be_calibrated_and_planned_for() -> None:
    found = calibrate("cuda")
    assert found.pinned
    assert found.platform.startswith(("CUDA", "ROCm"))
    assert found.both_bytes_per_s > 1.2 * min(found.out_bytes_per_s, found.in_bytes_per_s)
    pools = plan_pools(QWEN3_8B, 0, "cuda", None, 1 << 30, 8192, 8)
    assert pools.host_blocks == 455
    assert pools.device_bytes < found.free_bytes
