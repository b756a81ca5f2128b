"""Steps that begin while their blocks arrive, where copies really run beside them: under device graphs. Needs a GPU."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch

from kvtrace.engine.batch import UNREAD, Chunk
from kvtrace.engine.lean_runner import LeanRunner, compiling
from kvtrace.engine.model.support import geometry_of

from .lean_support import GREEDY, compute_pasts, lean_runner, new_tokens, pool_of, random_model

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(600),
]
MODEL = random_model("deep")
PARTS = geometry_of(MODEL.config, 4).parts
TABLES = [(5, 1, 2, 9, 7), (11, 12, 13, 14, 15), (20, 21, 22, 23, 24)]
STEPS = {
    "alone": [new_tokens(45, 20, TABLES[0])],
    "two that arrive": [new_tokens(45, 20, TABLES[0]), new_tokens(50, 7, TABLES[1], 1)],
    "beside one that decodes": [new_tokens(45, 20, TABLES[0]), new_tokens(61, 1, TABLES[2], 2)],
    "a long one": [new_tokens(45, 230, (5, 1, 2, 9, 7, *range(30, 50)))],
    "one token": [new_tokens(45, 1, TABLES[0]), new_tokens(61, 1, TABLES[2], 2)],
}


class SlowCopies:
    """Blocks that a stream of its own brings part by part, some milliseconds for each; a ``Fence``."""

    def __init__(self, source: torch.Tensor, target: torch.Tensor, blocks: Sequence[int]) -> None:
        self._events = []
        self._where = where = torch.tensor(blocks, device="cuda")
        target[where] = float("nan")
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for layers in PARTS:
                torch.cuda._sleep(10_000_000)  # type: ignore[no-untyped-call]  # five milliseconds
                for layer in layers:
                    target[where, layer] = source[where, layer]
                self._events.append(stream.record_event())

    def join(self, part: int | None = None) -> None:
        torch.cuda.current_stream().wait_event(self._events[-1 if part is None else part])


@pytest.fixture(scope="module", params=[True, False], ids=["graphs", "no graphs"])
def runner(request: pytest.FixtureRequest) -> LeanRunner:
    model = copy.deepcopy(MODEL).to("cuda")
    return lean_runner(model, wrap=compiling(), graphs=request.param, context_tokens=512, step_tokens=300)


@pytest.mark.parametrize("step", STEPS)
@torch.inference_mode()
def test_a_step_launched_before_its_blocks_came_is_the_same(runner: LeanRunner, step: str) -> None:
    assert len(PARTS) == 6
    chunks, pool = STEPS[step], pool_of(runner)
    pool.fill_(float("nan"))
    compute_pasts(runner, chunks)
    before = pool.clone()
    wanted, alone = runner.run(chunks), pool.clone()
    following = Chunk(0, (UNREAD,), chunks[0].start + len(chunks[0].tokens), chunks[0].table, 0, True, GREEDY, 0, 1)
    after = runner.run([following])
    written = pool.clone()
    arriving = [sorted(set(chunk.table[: -(-chunk.start // 16)])) for chunk in chunks if chunk.sequence_id < 2]
    for _ in range(3):
        pool.copy_(before)
        launched = runner.launch(chunks, [SlowCopies(before, pool, blocks) for blocks in arriving])
        next_one = runner.launch([following])
        assert (launched.tokens(), next_one.tokens()) == (wanted, after)
        assert torch.equal(pool.nan_to_num(-1), written.nan_to_num(-1))
    # Who does not wait finds nothing there: the test would have seen it.
    pool.copy_(before)
    copies = [SlowCopies(before, pool, blocks) for blocks in arriving]
    runner.run(chunks)
    torch.cuda.synchronize()
    assert copies
    assert not torch.equal(pool.nan_to_num(-1), alone.nan_to_num(-1))
