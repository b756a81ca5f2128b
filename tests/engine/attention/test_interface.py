from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtrace.engine.attention import paged_attention
from kvtrace.engine.attention.batch import PagedBatch
from kvtrace.engine.batch import Chunk
from kvtrace.engine.errors import ModelError
from kvtrace.engine.model import LoadedModel
from kvtrace.engine.sequence import Sampling
from kvtrace.engine.storage import Storage

BLOCKS = 40
KINDS = ["llama", "qwen3", "mistral"]


def _chunk(tokens: Sequence[int], start: int, table: Sequence[int], write_from: int = 0) -> Chunk:
    return Chunk(0, tuple(tokens), start, tuple(table), write_from, True, Sampling(), 0, 0)


def _poisoned(loaded: LoadedModel) -> Storage:
    """A pool where reading anything that was never written spoils the result."""
    storage = Storage(loaded.geometry, BLOCKS, 0)
    storage.pool.fill_(float("nan"))
    return storage


@torch.inference_mode()
def _forward(loaded: LoadedModel, storage: Storage, chunks: Sequence[Chunk]) -> list[torch.Tensor]:
    """Logits of every position, by chunk."""
    positions = [chunk.start + index for chunk in chunks for index in range(len(chunk.tokens))]
    logits = loaded.model(
        input_ids=torch.tensor([[token for chunk in chunks for token in chunk.tokens]]),
        position_ids=torch.tensor([positions]),
        use_cache=False,
        paged_batch=PagedBatch.pack(chunks, storage.pool),
    ).logits[0]
    return list(logits.split([len(chunk.tokens) for chunk in chunks]))


@torch.inference_mode()
def _expected(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=torch.tensor([tokens])).logits[0]
    return logits


def _close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def _random_plan(lengths: Sequence[int], seed: int) -> tuple[list[list[int]], list[list[int]], list[list[Chunk]]]:
    """Tokens and shuffled block tables of sequences, and steps that compute them in random pieces together."""
    source = random.Random(seed)
    free = source.sample(range(BLOCKS), BLOCKS)
    tokens = [[source.randrange(3, 259) for _ in range(length)] for length in lengths]
    tables = [[free.pop() for _ in range(-(-length // 16))] for length in lengths]
    done = [0] * len(lengths)
    steps: list[list[Chunk]] = []
    while any(at < length for at, length in zip(done, lengths, strict=True)):
        step = []
        for index in source.sample(range(len(lengths)), len(lengths)):
            size = min(source.choice([0, 1, 1, 5, 16, 17, 40]), lengths[index] - done[index])
            if size:
                step.append(_chunk(tokens[index][done[index] : done[index] + size], done[index], tables[index]))
                done[index] += size
        if step:
            steps.append(step)
    return tokens, tables, steps


@pytest.mark.parametrize("kind", KINDS)
@given(lengths=st.lists(st.integers(1, 70), min_size=1, max_size=4), seed=st.integers(0, 10_000))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_chunks_and_batches_match_transformers(
    tiny_model: Callable[[str], LoadedModel], own_model: Callable[[str], Any], kind: str, lengths: list[int], seed: int
) -> None:
    loaded, own = tiny_model(kind), own_model(kind)
    storage = _poisoned(loaded)
    tokens, tables, steps = _random_plan(lengths, seed)
    whole = [_expected(own, sequence) for sequence in tokens]
    owner = {table[0]: index for index, table in enumerate(tables)}
    for step in steps:
        for chunk, logits in zip(step, _forward(loaded, storage, step), strict=True):
            expected = whole[owner[chunk.table[0]]]
            _close(logits, expected[chunk.start : chunk.start + len(chunk.tokens)])


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 33])
def test_only_the_sequences_own_rows_are_written(tiny_model: Callable[[str], LoadedModel], length: int) -> None:
    loaded = tiny_model("llama")
    storage = _poisoned(loaded)
    table = [9, 2, 30]
    _forward(loaded, storage, [_chunk(range(3, 3 + length), 0, table)])
    for block in range(BLOCKS):
        rows = min(16, max(0, length - 16 * table.index(block))) if block in table else 0
        assert not storage.pool[block, :, :, :, :rows].isnan().any()
        assert storage.pool[block, :, :, :, rows:].isnan().all()


def test_positions_below_write_from_are_read_and_not_written(
    tiny_model: Callable[[str], LoadedModel], own_model: Callable[[str], Any]
) -> None:
    loaded = tiny_model("qwen3")
    storage = _poisoned(loaded)
    tokens, table = list(range(40, 72)), [5, 6]
    _forward(loaded, storage, [_chunk(tokens, 0, table)])
    before = storage.pool.view(torch.uint8).clone()
    # What a full prefix hit needs: the last position again, its block shared with others.
    logits = _forward(loaded, storage, [_chunk(tokens[31:], 31, table, write_from=32)])[0]
    assert torch.equal(storage.pool.view(torch.uint8), before)
    _close(logits, _expected(own_model("qwen3"), tokens)[31:])


def test_a_chunk_may_begin_below_write_from_and_end_above(
    tiny_model: Callable[[str], LoadedModel], own_model: Callable[[str], Any]
) -> None:
    loaded = tiny_model("llama")
    storage = _poisoned(loaded)
    tokens = list(range(50, 90))
    _forward(loaded, storage, [_chunk(tokens[:32], 0, [1, 2, 3])])
    before = storage.pool[1:3].clone()
    other = _chunk([7, 8, 9], 0, [20])
    logits = _forward(loaded, storage, [other, _chunk(tokens[30:], 30, [1, 2, 3], write_from=32)])[1]
    assert torch.equal(storage.pool[1:3], before)
    assert not storage.pool[3, :, :, :, :8].isnan().any()
    _close(logits, _expected(own_model("llama"), tokens)[30:])


def test_shared_prefix_blocks_serve_two_sequences(
    tiny_model: Callable[[str], LoadedModel], own_model: Callable[[str], Any]
) -> None:
    loaded, own = tiny_model("llama"), own_model("llama")
    storage = _poisoned(loaded)
    prefix, one, two = list(range(100, 116)), [3, 4, 5], [6, 7]
    _forward(loaded, storage, [_chunk(prefix, 0, [11])])
    logits = _forward(loaded, storage, [_chunk(one, 16, [11, 12]), _chunk(two, 16, [11, 13])])
    for found, suffix in zip(logits, (one, two), strict=True):
        _close(found, _expected(own, prefix + suffix)[16:])


def test_unwritten_rows_poison_the_result(tiny_model: Callable[[str], LoadedModel]) -> None:
    """The poison of these tests works: a table that points at blocks nobody wrote is noticed."""
    loaded = tiny_model("llama")
    storage = _poisoned(loaded)
    assert _forward(loaded, storage, [_chunk([5], 20, [0, 1])])[0].isnan().any()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"softcap": 30.0}, "capped attention scores"),
        ({"s_aux": torch.zeros(4)}, "attention sinks"),
        ({"position_bias": torch.zeros(1)}, "a position bias"),
        ({"is_causal": False}, "not plainly causal"),
    ],
)
def test_other_kinds_of_attention_are_refused(asked: dict[str, Any], sentence: str) -> None:
    pool = torch.zeros(1, 1, 2, 2, 16, 8)
    batch = PagedBatch.pack([_chunk([1], 0, [0])], pool)
    states = torch.zeros(1, 2, 1, 8)
    layer = SimpleNamespace(layer_idx=0, is_causal=True)
    with pytest.raises(ModelError, match=sentence):
        paged_attention(layer, states, states, states, None, paged_batch=batch, **asked)  # type: ignore[arg-type]
    assert (pool == 0).all()


def test_a_ready_made_mask_is_refused() -> None:
    states = torch.zeros(1, 2, 1, 8)
    batch = PagedBatch.pack([_chunk([1], 0, [0])], torch.zeros(1, 1, 2, 2, 16, 8))
    with pytest.raises(ModelError, match="not plainly causal"):
        paged_attention(torch.nn.Identity(), states, states, states, torch.ones(1, 1, 1, 1), paged_batch=batch)
