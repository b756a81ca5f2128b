"""Steps that compute a group of layers at a time while their blocks arrive in parts, over the stream mover itself."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq

import pytest

from kvtrace.engine.batch import UNREAD, Chunk
from kvtrace.engine.config import PolicyMode
from kvtrace.engine.sequence import SequenceStatus
from kvtrace.engine.storage import Storage
from kvtrace.engine.swap.batched import BatchedTransport
from kvtrace.engine.swap.choose import Way
from kvtrace.engine.swap.contract import Direction, Fence
from kvtrace.engine.swap.limits import Bounds

from .lists import mix, next_token
from .support import BLOCK, GEOMETRY, check_answer, park_and_evict
from .swap_support import WAIT_S, ThreadEvent, ThreadStreams
from .test_interleavings import work
from .test_slow_streams import DELAY_S, POISON, SIZE, StreamRunner, StreamWorld

LAYER_WORDS = GEOMETRY.layer_bytes // 8
LAST = len(GEOMETRY.parts) - 1


class PartsLaunch:
    """A step in as many pieces as there are parts, each behind what arrives of that part; every layer holds the same rows."""

    def __init__(
        self, runner: PartsRunner, chunks: Seq[Chunk], arrivals: Seq[Fence], before: PartsLaunch | None
    ) -> None:
        self.results: dict[int, int] = {}
        self._runner, self._chunks, self._before = runner, tuple(chunks), before
        self._over = ThreadEvent()
        compute = runner.streams.compute
        runner.behind += [ticket.part for fence in arrivals for ticket in fence.tickets]  # type: ignore[attr-defined]
        for part in range(LAST + 1):
            for fence in arrivals:
                fence.join(None if part == LAST else part)
            compute.put(lambda part=part: self._carry_out(part))  # type: ignore[misc]
        compute.record_event(self._over)

    def done(self) -> bool:
        return self._over.query()

    def tokens(self) -> dict[int, int]:
        self._over.synchronize()
        return dict(self.results)

    def _carry_out(self, part: int) -> None:
        runner = self._runner
        for chunk in self._chunks:
            unread = self._before.results.get(chunk.sequence_id, 0) if self._before is not None else 0
            for layer in GEOMETRY.parts[part]:
                for position, token in enumerate(chunk.tokens, chunk.start):
                    before = runner.row(chunk, layer, position - 1) if position else 0
                    if position >= chunk.write_from:
                        value = mix(before, unread if token == UNREAD else token)
                        runner.words[chunk.table[position // BLOCK]][layer * LAYER_WORDS + position % BLOCK] = value
                kv = [runner.row(chunk, layer, position) for position in range(chunk.start + len(chunk.tokens))]
            time.sleep(DELAY_S / 8)
            if chunk.sample and part == LAST:
                self.results[chunk.sequence_id] = next_token(kv)


class PartsRunner(StreamRunner):
    """Computes chunks part by part over the pool of a storage."""

    parts_last: PartsLaunch | None = None
    early = 0

    def __init__(self, storage: Storage, streams: ThreadStreams) -> None:
        super().__init__(storage, streams)
        self.behind: list[int | None] = []  # the parts that steps waited for

    def launch(self, chunks: Seq[Chunk], arrivals: Seq[Fence] = ()) -> PartsLaunch:  # type: ignore[override]
        self.early += bool(arrivals)
        self.parts_last = PartsLaunch(self, chunks, arrivals, self.parts_last)
        return self.parts_last

    def row(self, chunk: Chunk, layer: int, position: int) -> int:
        value = int(self.words[chunk.table[position // BLOCK]][layer * LAYER_WORDS + position % BLOCK])
        if value == POISON:
            self.missing.append(f"sequence {chunk.sequence_id}: position {position} of layer {layer} was not there")
        return value


def parts_world(seed: int) -> tuple[StreamWorld, PartsRunner]:
    """A world whose copies and steps both come in parts."""
    world = StreamWorld(PolicyMode.SWAP, 22, 200, step_tokens=64, seed=seed, pipelined=True, way=Way.BATCHED)
    transport, lane = world.own._transport, world.own._lanes[Direction.IN]
    lane.bounds = Bounds(piece=2 * SIZE, in_flight=4 * SIZE, last=60 * SIZE)
    assert isinstance(transport, BatchedTransport)
    runner = PartsRunner(transport._storage, world.streams)
    world.core._forward._runner = runner
    return world, runner


@pytest.mark.parametrize("seed", range(4))
def test_steps_in_parts_beside_copies_in_parts_change_no_answer(seed: int) -> None:
    world, runner = parts_world(seed)
    try:
        assert len(work(world, agents=6, turns=3, seed=seed)) == 18
        assert runner.missing == []
        assert runner.early
    finally:
        world.own.close()


@pytest.mark.parametrize("seed", range(6))
def test_the_first_layers_are_computed_while_the_last_ones_are_on_their_way(seed: int) -> None:
    world, runner = parts_world(seed)
    inwards = world.streams.made[2:4]  # for copies at once, and for those that wait for compute
    try:
        context = park_and_evict(world, "a", length=200)
        for link in inwards:
            link.gate.clear()
            link.delay_s = 20 * DELAY_S  # so that the first layers are done before the last ones come
        request = world.submit("a", [*context, 1, 2, 3], max_tokens=6)
        until = time.monotonic() + WAIT_S
        while request.status is not SequenceStatus.RUNNING:
            assert time.monotonic() < until
            world.step()
        assert [part for part in runner.behind if part is not None] == list(range(LAST + 1))
        for link in inwards:
            link.gate.set()
        world.run()
        check_answer(request)
        assert runner.missing == []
    finally:
        for link in inwards:
            link.gate.set()
        world.own.close()
