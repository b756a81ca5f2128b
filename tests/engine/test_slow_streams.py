"""The engine over the stream mover itself, with streams that are threads, each as slow as the seed wants.

The movers' own tests show that they keep the contract, those with lists that the engine needs no more than the contract; here
both meet, and copies really run beside steps. Whoever comes too early reads poison, or gives a wrong answer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import pytest
import torch

from kvtrace.engine.batch import UNREAD, Chunk
from kvtrace.engine.config import EngineConfig, PolicyMode
from kvtrace.engine.loop import EngineCore
from kvtrace.engine.sequence import SequenceStatus
from kvtrace.engine.storage import Storage
from kvtrace.engine.swap.choose import Way
from kvtrace.engine.swap.contract import Direction, Fence
from kvtrace.engine.swap.limits import Bounds
from kvtrace.engine.swap.stream import StreamMover

from .lists import mix, next_token
from .support import BLOCK, GEOMETRY, INFO, World, check_answer, park_and_evict
from .swap_support import WAIT_S, ThreadEvent, ThreadStreams, make_transport
from .test_interleavings import STOPS, work

SIZE = GEOMETRY.block_bytes
POISON = -1  # what a copy under way leaves, as 64 bits
DELAY_S = 0.0006
WAYS = (Way.BATCHED, Way.STAGED, Way.SINGLE)


class Launch:
    """A step on the compute stream; what it samples is known when the stream has come past it."""

    def __init__(self, runner: StreamRunner, chunks: Seq[Chunk], before: Launch | None) -> None:
        self.results: dict[int, int] = {}
        self._runner, self._chunks, self._before = runner, tuple(chunks), before
        self._over = ThreadEvent()
        runner.streams.compute.put(self._carry_out)
        runner.streams.compute.record_event(self._over)

    def done(self) -> bool:
        return self._over.query()

    def tokens(self) -> dict[int, int]:
        self._over.synchronize()
        return dict(self.results)

    def _carry_out(self) -> None:
        for chunk in self._chunks:
            unread = self._before.results.get(chunk.sequence_id, 0) if self._before is not None else 0
            for position, token in enumerate(chunk.tokens, chunk.start):
                before = self._row(chunk, position - 1) if position else 0
                if position >= chunk.write_from:
                    place = self._runner.words[chunk.table[position // BLOCK]]
                    place[position % BLOCK] = mix(before, unread if token == UNREAD else token)
            time.sleep(DELAY_S / 4)
            if chunk.sample:
                kv = [self._row(chunk, position) for position in range(chunk.start + len(chunk.tokens))]
                self.results[chunk.sequence_id] = next_token(kv)
        self._before = None

    def _row(self, chunk: Chunk, position: int) -> int:
        value = int(self._runner.words[chunk.table[position // BLOCK]][position % BLOCK])
        if value == POISON:
            self._runner.missing.append(f"sequence {chunk.sequence_id} reads position {position} before it was there")
        return value


class StreamRunner:
    """Computes chunks over the pool of a storage, whose blocks have room for a number of 64 bits a position."""

    def __init__(self, storage: Storage, streams: ThreadStreams) -> None:
        self.streams = streams
        self.words = [storage.device_run(block).view(torch.int64) for block in range(storage.device_blocks)]
        self.missing: list[str] = []
        self._last: Launch | None = None

    def launch(self, chunks: Seq[Chunk], arrivals: Seq[Fence] = ()) -> Launch:
        for fence in arrivals:
            fence.join()
        self._last = Launch(self, chunks, self._last)
        return self._last

    def run(self, chunks: Seq[Chunk]) -> dict[int, int]:
        return self.launch(chunks).tokens()


@dataclass
class StreamWorld(World):
    """A world whose bytes are moved by the engine's own mover; each call fails with probability ``broken``.

    ``most``: blocks on the device each way at once, drawn unless given.
    """

    stop_ids: tuple[int, ...] = STOPS
    most: int = 0
    broken: float = 0.0
    way: Way | None = None

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        storage = Storage(GEOMETRY, self.device_blocks, self.host_blocks, host_chunk_bytes=1 << 14)
        storage.device_bytes.fill_(0xFF)
        self.streams = ThreadStreams(DELAY_S, self.seed)
        self.streams.fail = self._break
        self._luck = random.Random(self.seed)
        few, many = (self.most or draw.choice([3, 8, 40])) * SIZE, draw.choice([0, 20, 60]) * SIZE
        piece = draw.choice([2, 4, 9]) * SIZE
        bounds = Bounds(piece, few, many, parted=piece)
        way = self.way or draw.choice(WAYS)
        self.own = StreamMover(make_transport(way, storage, self.streams, bounds, draw.choice([2, 3, 8])))
        self.computing = StreamRunner(storage, self.streams)
        config = EngineConfig(
            device_blocks=self.device_blocks,
            host_blocks=self.host_blocks,
            slots=self.slots,
            step_tokens=self.step_tokens,
            mixed_step_tokens=self.mixed_step_tokens,
            context_tokens=4096,
            policy=self.policy,
            pipelined=self.pipelined,
            step_copy_bytes=self.step_copies * SIZE,
        )
        self.core = EngineCore(config, GEOMETRY, self.computing, self.own, self.clock, INFO, self.events.append)

    def _break(self, targets: list[torch.Tensor]) -> None:
        if self._luck.random() < self.broken:
            raise RuntimeError("the link broke")


@pytest.mark.parametrize("policy", [PolicyMode.SWAP, PolicyMode.EAGER, PolicyMode.AUTO])
@pytest.mark.parametrize("seed", range(3))
def test_copies_beside_steps_change_no_answer(policy: PolicyMode, seed: int) -> None:
    world = StreamWorld(policy, 22, 200, step_tokens=(16, 32, 64)[seed], seed=seed, pipelined=True, way=WAYS[seed])
    try:
        assert len(work(world, agents=6, turns=3, seed=seed)) == 18
        assert world.computing.missing == []
        assert world.core.snapshot().totals.reprefilled_tokens == 0
        assert world.own.queued(Direction.IN) == world.own.in_flight() == 0
    finally:
        world.own.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_step_is_launched_behind_copies_that_have_not_begun(way: Way) -> None:
    world = StreamWorld(PolicyMode.SWAP, pipelined=True, most=40, way=way)
    try:
        context = park_and_evict(world, "a")
        inwards = world.streams.made[2:4]
        for stream in inwards:
            stream.gate.clear()
        request = world.submit("a", [*context, 1, 2, 3], max_tokens=6)
        until = time.monotonic() + WAIT_S
        while request.status is not SequenceStatus.RUNNING:
            assert time.monotonic() < until
            world.step()
        assert request.in_flight
        assert len(request.waits) == world.own.queued(Direction.IN) > 0
        for stream in inwards:
            stream.gate.set()
        world.run()
        check_answer(request)
        assert world.computing.missing == []
    finally:
        world.own.close()


@pytest.mark.parametrize("seed", range(3))
def test_copies_that_fail_beside_steps_change_no_answer(seed: int) -> None:
    world = StreamWorld(PolicyMode.SWAP, 18, 40, seed=seed, pipelined=True, broken=0.05, way=WAYS[seed])
    try:
        assert len(work(world, agents=6, turns=3, seed=seed)) == 18
    finally:
        world.own.close()


def test_aborts_beside_steps_and_copies_change_nobody_elses_answer() -> None:
    world = StreamWorld(PolicyMode.SWAP, 18, 200, seed=4, pipelined=True, way=Way.BATCHED)
    source = random.Random(4)
    try:
        for turn in range(12):
            contexts = {f"a{number}": [number] * (40 + 9 * (turn % 4)) for number in range(5)}
            requests = [world.submit(name, context, source.randint(3, 20)) for name, context in contexts.items()]
            world.step(source.randint(0, 6))
            gone = source.sample(requests, 2)
            for request in gone:
                world.core.abort(request.id)
                world.core.check()
            world.tool_starts(gone[0].agent)
            world.run()
            for request in requests:
                if request not in gone:
                    check_answer(request)
        assert world.computing.missing == []
    finally:
        world.own.close()
