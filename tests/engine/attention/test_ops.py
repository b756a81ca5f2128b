"""The operator on the CPU, the reference of the kernels, against attention written out query by query."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvtrace.engine.attention import ops
from kvtrace.engine.geometry import BLOCK_SIZES
from tests.engine.attention.cases import LAYER, Case, Step, build, decode_cases, prefill_cases

QUERIES_OF_KEYS = st.integers(1, 60).flatmap(lambda keys: st.tuples(st.integers(1, keys), st.just(keys)))


def _written_out(case: Case, step: Step, pool: Tensor) -> Tensor:
    """One query, one head and one key after the other, in float64, from the pool after the step."""
    output = torch.zeros(step.query.shape, dtype=torch.float64)
    group, size = case.heads // case.kv_heads, case.block_tokens
    row = 0
    for (queries, keys), table in zip(case.sequences, step.tables.tolist(), strict=True):
        for index in range(queries):
            last = keys - queries + index
            first = max(0, last - case.window + 1) if case.window else 0
            places = [(table[key // size], key % size) for key in range(first, last + 1)] if keys else []
            for head in range(case.heads if places else 0):
                kv = torch.stack([pool[block, LAYER, :, head // group, at] for block, at in places]).double()
                weights = torch.softmax(kv[:, 0] @ step.query[row, head].double() * step.scale, 0)
                output[row, head] = weights @ kv[:, 1]
            row += 1
    return output


def _check(case: Case, seed: int) -> None:
    step = build(case, seed, "cpu", torch.float32)
    pool = step.pool.clone()
    found = step.run(ops.paged_attention, pool, case)
    torch.testing.assert_close(found.double(), _written_out(case, step, pool), rtol=1e-4, atol=1e-5)
    # Each written position has its own key and value, and nothing else has changed.
    for token, slot in enumerate(step.write_slots.tolist()):
        if slot >= 0:
            block, at = divmod(slot, case.block_tokens)
            cell = pool[block, LAYER, :, :, at]
            assert torch.equal(cell, torch.stack((step.key[token], step.value[token])))
            cell.copy_(step.pool[block, LAYER, :, :, at])
    assert torch.equal(pool.view(torch.uint8), step.pool.view(torch.uint8))


@given(
    sequences=st.lists(st.one_of(QUERIES_OF_KEYS, st.just((1, 0))), min_size=1, max_size=4),
    shape=st.sampled_from([(1, 1), (3, 1), (4, 2), (8, 1)]),
    window=st.sampled_from([0, 0, 1, 7, 16, 100]),
    extra=st.sampled_from([0, 5]),
    block_tokens=st.sampled_from(BLOCK_SIZES),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_any_step_is_plain_causal_attention(
    sequences: list[tuple[int, int]], shape: tuple[int, int], window: int, extra: int, block_tokens: int, seed: int
) -> None:
    _check(Case(tuple(sequences), *shape, 8, window, extra_tokens=extra, block_tokens=block_tokens), seed)


@pytest.mark.parametrize("case", [*list(decode_cases())[6:8], *list(prefill_cases())[3:5]], ids=str)
def test_the_cases_of_the_kernels_are_right_themselves(case: Case) -> None:
    _check(case, 1)


def test_one_layers_view_of_the_pool_will_do() -> None:
    case = Case(((3, 20), (1, 5)), head_dim=8)
    step = build(case, 0, "cpu", torch.float32)
    whole, viewed = step.pool.clone(), step.pool.clone()
    expected = step.run(ops.paged_attention, whole, case)
    found = step.run(
        lambda query, key, value, pool, layer, *rest: ops.paged_attention(
            query, key, value, pool[:, layer : layer + 1], 0, *rest
        ),
        viewed,
        case,
    )
    assert torch.equal(found, expected)
    assert torch.equal(viewed.view(torch.uint8), whole.view(torch.uint8))


def test_the_operator_keeps_torchs_rules() -> None:
    """Schema, shapes without data and tracing: what torch.compile relies on."""
    case = Case(((3, 20), (1, 5), (1, 0)), head_dim=8)
    step = build(case, 0, "cpu", torch.float32)
    arguments = (step.query, step.key, step.value, step.pool.nan_to_num(), LAYER, step.write_slots, step.query_starts)
    torch.library.opcheck(
        torch.ops.kvtrace.paged_attention.default,
        (*arguments, step.key_lengths, step.tables, step.scale, False, 7),
    )
