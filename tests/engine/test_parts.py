"""Steps that begin while their blocks arrive, one group of layers after the other: the same tokens and the same KV."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine.batch import UNREAD, Chunk
from kvtrace.engine.geometry import KVGeometry
from kvtrace.engine.graphs import Graph
from kvtrace.engine.lean_runner import LeanRunner
from kvtrace.engine.pieces import Pieces, next_piece, run_pieces
from kvtrace.engine.runner import TorchRunner
from kvtrace.engine.storage import Storage

from .lean_support import FAMILIES, GREEDY, compute_pasts, lean_runner, new_tokens, pool_of, random_model

PARTS = KVGeometry(3, 2, 8, 4).parts  # of the tiny models


@dataclass
class Arrival:
    """Blocks whose bytes come as late as they may: each part when it is joined; a ``Fence``.

    Whoever reads sooner finds NaN, and whoever writes sooner loses what was written. ``written``: in how many layers the
    step had written anything beside these blocks when each part was joined.
    """

    source: torch.Tensor
    target: torch.Tensor
    blocks: Sequence[int]
    joined: list[int | None] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    come: int = 0

    def __post_init__(self) -> None:
        self.target[list(self.blocks)] = float("nan")

    def join(self, part: int | None = None) -> None:
        self.joined.append(part)
        others = [block for block in range(len(self.target)) if block not in self.blocks]
        self.written.append(int((~self.target[others].isnan()).transpose(0, 1).flatten(1).any(1).sum()))
        until = len(PARTS) if part is None else part + 1
        for layers in PARTS[self.come : until]:
            for block in self.blocks:
                self.target[block, layers.start : layers.stop] = self.source[block, layers.start : layers.stop]
        self.come = max(self.come, until)


class BrokenAfterOne(Arrival):
    """An arrival that cannot be waited for once its first part has come."""

    def join(self, part: int | None = None) -> None:
        if part != 0:
            raise RuntimeError("no such event")
        super().join(part)


def run_both(
    family: str, chunks: Sequence[Chunk], arriving: Sequence[Collection[int]]
) -> tuple[LeanRunner, LeanRunner, list[Arrival]]:
    """A step over blocks that are there and one over blocks that arrive; they must give the same tokens and the same KV."""
    there, late = lean_runner(random_model(family)), lean_runner(random_model(family))
    compute_pasts(there, chunks)
    compute_pasts(late, chunks)
    source = pool_of(there).clone()
    arrivals = [Arrival(source, pool_of(late), sorted(blocks)) for blocks in arriving]
    assert late.launch(chunks, arrivals).tokens() == there.run(chunks)
    assert torch.equal(pool_of(late).nan_to_num(-1), pool_of(there).nan_to_num(-1))
    return there, late, arrivals


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefill_that_begins_before_its_blocks_are_there_is_the_same(family: str) -> None:
    # The last of the blocks that arrive has rows that this step writes.
    *_, (arrival,) = run_both(family, [new_tokens(45, 20, (5, 1, 2, 9, 7))], [{5, 1, 2}])
    assert arrival.joined == [0, 1, None]
    assert arrival.written == [0, 1, 2]


@settings(max_examples=25, deadline=None)
@given(
    pasts=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    lengths=st.lists(st.integers(1, 20), min_size=4, max_size=4),
    away=st.lists(st.integers(1, 4), min_size=4, max_size=4),
)
def test_any_mixture_of_those_that_arrive_and_those_that_are_there_is_the_same(
    pasts: list[int], lengths: list[int], away: list[int]
) -> None:
    tables = [tuple(range(8 * number, 8 * number + 8)) for number in range(4)]
    chunks = [new_tokens(past, lengths[number], tables[number], number) for number, past in enumerate(pasts)]
    last = [-(-past // 16) for past in pasts]
    arriving = [set(tables[number][max(0, last[number] - away[number]) : last[number]]) for number in range(len(pasts))]
    *_, arrivals = run_both("qwen3", chunks, arriving[::2])
    decodes = all(len(chunk.tokens) == 1 for chunk in chunks)
    assert all(arrival.joined == ([None] if decodes else [0, 1, None]) for arrival in arrivals)


def test_steps_after_it_find_all_of_it() -> None:
    there, late, _ = run_both("llama", [new_tokens(45, 20, (5, 1, 2, 9, 7))], [{5, 1, 2}])
    following = Chunk(0, (UNREAD,), 65, (5, 1, 2, 9, 7), 0, True, GREEDY, 0, 1)
    assert late.run([following]) == there.run([following])


def test_a_launch_that_is_refused_joins_nothing() -> None:
    runner = lean_runner(random_model("llama"), slots=1)
    arrival = Arrival(pool_of(runner).clone(), pool_of(runner), [0])
    for bad in (
        [new_tokens(0, 3, (0,)), new_tokens(0, 3, (1,), 1)],
        [Chunk(0, (UNREAD,), 3, (0,), 0, True, GREEDY, 0, 0)],
    ):
        with pytest.raises(ValueError, match=r"2 sequences|unread token"):
            runner.launch(bad, [arrival])
    assert arrival.joined == []


def test_a_launch_that_fails_between_two_parts_leaves_the_runner_whole() -> None:
    there, late = lean_runner(random_model("llama")), lean_runner(random_model("llama"))
    steps = [new_tokens(45, 20, (5, 1, 2, 9, 7)), new_tokens(30, 9, (20, 21, 22), 1)]
    for runner in (there, late):
        compute_pasts(runner, steps)
    with pytest.raises(RuntimeError, match="no such event"):
        late.launch(steps[:1], [BrokenAfterOne(pool_of(there).clone(), pool_of(late), [5, 1, 2])])
    assert late.run(steps[1:]) == there.run(steps[1:])
    assert torch.equal(pool_of(late)[20:23].nan_to_num(-1), pool_of(there)[20:23].nan_to_num(-1))


def test_a_model_of_transformers_own_waits_for_all_of_it() -> None:
    from kvtrace.engine.attention import ATTENTION_NAME, register

    model = random_model("llama")
    register()
    model.set_attn_implementation(ATTENTION_NAME)
    storages = [Storage(KVGeometry(3, 2, 8, 4), 8, 0) for _ in range(2)]
    there, late = (TorchRunner(model, storage) for storage in storages)
    for runner in (there, late):
        runner.run([new_tokens(0, 45, (5, 1, 2, 3))])
    arrival = Arrival(storages[0].pool.clone(), storages[1].pool, [5, 1, 2])
    step = [new_tokens(45, 10, (5, 1, 2, 3))]
    assert late.launch(step, [arrival]).tokens() == there.run(step)
    assert arrival.joined == [None]
    assert torch.equal(storages[1].pool[[5, 1, 2]], storages[0].pool[[5, 1, 2]])
    model.set_attn_implementation("eager")


class Recorded:
    """Stands for a device graph: notes that it was started."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def replay(self) -> None:
        self.notes.append(self.name)


def test_a_graph_in_pieces_calls_back_before_each() -> None:
    notes: list[str] = []
    graph = Graph([Recorded("first", notes), Recorded("second", notes)], 7)
    assert graph.replay(lambda piece: notes.append(f"before {piece}")) == 7
    assert notes == ["before 0", "first", "before 1", "second"]
    assert graph.replay() == 7


def test_pieces_run_in_order_and_give_their_result() -> None:
    def work() -> Pieces[str]:
        notes.append("one")
        yield
        notes.append("two")
        return "done"

    notes: list[str] = []
    assert run_pieces(work(), lambda piece: notes.append(f"before {piece}")) == "done"
    assert notes == ["before 0", "one", "before 1", "two"]
    pieces = work()
    assert next_piece(pieces) is None
    assert next_piece(pieces) == ("done",)
