from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine.attention import ops
from kvtrace.engine.attention.batch import PagedBatch, pack_step
from kvtrace.engine.attention.reference import attend, write_kv
from kvtrace.engine.batch import Chunk
from kvtrace.engine.sequence import Sampling

CPU = torch.device("cpu")
CHUNKS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(0, 60)), min_size=1, max_size=4)


def _chunks(shapes: list[tuple[int, int, int]]) -> list[Chunk]:
    """Chunks of (start, tokens, write_from), each with blocks of its own and one to spare."""
    chunks, first = [], 0
    for start, tokens, write_from in shapes:
        blocks = -(-(start + tokens) // 16) + 1
        table = tuple(range(first, first + blocks))
        chunks.append(Chunk(0, (1,) * tokens, start, table, write_from, True, Sampling(), 0, 0))
        first += blocks
    return chunks


@given(CHUNKS)
@settings(max_examples=40, deadline=None)
def test_the_ops_tensors_say_what_the_groups_say(shapes: list[tuple[int, int, int]]) -> None:
    """Both forms of a step give the same bits, so that a GPU computes what the CPU does."""
    chunks = _chunks(shapes)
    tokens = sum(len(chunk.tokens) for chunk in chunks)
    torch.manual_seed(0)
    pool = torch.randn(sum(len(chunk.table) for chunk in chunks), 2, 2, 2, 16, 8)
    query, key, value = torch.randn(tokens, 4, 8), torch.randn(tokens, 2, 8), torch.randn(tokens, 2, 8)
    other = pool.clone()

    batch = PagedBatch.pack(chunks, pool)
    write_kv(pool, 1, key, value, batch.write_slots)
    expected = attend(pool, 1, batch.groups, query, 0.3)
    step = pack_step(chunks, 16, CPU)
    found = ops.paged_attention(
        query,
        key,
        value,
        other,
        1,
        step.write_slots,
        step.query_starts,
        step.key_lengths,
        step.tables,
        0.3,
        step.decode,
    )
    assert torch.equal(found, expected)
    assert torch.equal(other, pool)


def test_kinds_of_steps_are_told_apart() -> None:
    decode = pack_step(_chunks([(7, 1, 0), (0, 1, 0)]), 16, CPU)
    assert (decode.decode, decode.whole) == (True, False)
    whole = pack_step(_chunks([(0, 5, 0)]), 16, CPU)
    assert (whole.decode, whole.whole) == (False, True)
    for shapes in ([(4, 5, 0)], [(0, 5, 0), (0, 5, 0)], [(3, 1, 0), (0, 5, 0)]):
        step = pack_step(_chunks(shapes), 16, CPU)
        assert (step.decode, step.whole) == (False, False)
