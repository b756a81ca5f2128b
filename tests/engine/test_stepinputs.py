from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.batch import UNREAD, Chunk
from kvtrace.engine.sequence import Sampling
from kvtrace.engine.stepinputs import Layout, StepInputs

BLOCK, WIDTH, SEQUENCES = 4, 8, 3
SAMPLING = Sampling()


@st.composite
def steps(draw: st.DrawFn) -> list[Chunk]:
    """A step of up to three sequences, with tables of their own and tokens that may be unread."""
    single = draw(st.booleans())
    chunks = []
    for number in draw(st.lists(st.integers(0, 9), min_size=1, max_size=SEQUENCES, unique=True)):
        length = 1 if single else draw(st.integers(1, 10))
        start = draw(st.integers(0, BLOCK * WIDTH - length))
        table = tuple(draw(st.lists(st.integers(0, 99), min_size=-(-(start + length) // BLOCK), max_size=WIDTH + 2)))
        tokens = draw(st.lists(st.sampled_from([UNREAD, 5, 70]), min_size=length, max_size=length))
        write_from = draw(st.integers(0, BLOCK * WIDTH))
        chunks.append(Chunk(number, tuple(tokens), start, table, write_from, draw(st.booleans()), SAMPLING, 0, 0))
    return chunks


@given(st.lists(steps(), min_size=1, max_size=6))
def test_the_buffer_holds_what_the_chunks_say_whatever_it_held_before(sequence: list[list[Chunk]]) -> None:
    decode, prefill = Layout(SEQUENCES, SEQUENCES, WIDTH), Layout(32, SEQUENCES, WIDTH)
    inputs = StepInputs([decode, prefill], BLOCK, torch.device("cpu"))
    rows = {number: 9 - number for number in range(10)}
    for chunks in sequence:
        single = all(len(chunk.tokens) == 1 for chunk in chunks)
        layout = decode if single else prefill
        inputs.fill(layout, chunks, rows)
        _check(inputs, layout, chunks, rows)


def test_an_empty_step_of_prefill_has_no_queries_at_all() -> None:
    """It is what a graph is captured with: rows of padding with a query would lie behind the step's tokens."""
    layout = Layout(2, SEQUENCES, WIDTH)
    inputs = StepInputs([layout], BLOCK, torch.device("cpu"))
    inputs.fill(layout, (), {})
    assert inputs.views(layout).query_starts.tolist() == [0] * (SEQUENCES + 1)
    assert inputs.views(layout).key_lengths.tolist() == [0] * SEQUENCES


def _check(inputs: StepInputs, layout: Layout, chunks: list[Chunk], rows: dict[int, int]) -> None:
    views = inputs.views(layout)
    tokens = [(chunk, place, token) for chunk in chunks for place, token in enumerate(chunk.tokens, chunk.start)]
    padding = layout.tokens - len(tokens)
    unread = [token == UNREAD for _, _, token in tokens]
    assert views.ids.tolist() == [0 if token == UNREAD else token for _, _, token in tokens] + [0] * padding
    sources = [
        rows[chunk.sequence_id] if is_unread else -1 for (chunk, _, _), is_unread in zip(tokens, unread, strict=True)
    ]
    assert views.source.tolist() == sources + [-1] * padding
    assert views.positions.tolist() == [place for _, place, _ in tokens] + [0] * padding
    slots = [
        chunk.table[place // BLOCK] * BLOCK + place % BLOCK if place >= chunk.write_from else -1
        for chunk, place, _ in tokens
    ]
    assert views.write_slots.tolist() == slots + [-1] * padding
    lengths = [chunk.start + len(chunk.tokens) for chunk in chunks]
    empty = layout.sequences - len(chunks)
    assert views.key_lengths.tolist() == lengths + [0] * empty
    starts = views.query_starts.tolist()
    assert [after - before for before, after in pairwise(starts)][: len(chunks)] == [
        len(chunk.tokens) for chunk in chunks
    ]
    # A padding row of a decoding step has its one query; elsewhere it has none, and all stay inside the step.
    assert starts[len(chunks) :] == (
        list(range(len(chunks), layout.sequences + 1))
        if layout.tokens == layout.sequences
        else [len(tokens)] * (empty + 1)
    )
    for row, chunk in enumerate(chunks):
        assert views.tables[row, : len(chunk.table)].tolist() == list(chunk.table[:WIDTH])
    ends = [starts[row + 1] - 1 for row, chunk in enumerate(chunks) if chunk.sample]
    assert views.rows.tolist() == ends + [0] * (layout.sequences - len(ends))
    assert views.write_slots.dtype == torch.int64
    for view in views:
        assert view.data_ptr() % 128 == inputs.views(layout).write_slots.data_ptr() % 128
