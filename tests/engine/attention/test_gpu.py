"""The kernels on a real GPU (CUDA or ROCm) against the reference; skipped where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvtrace.engine.attention import dense, ops
from kvtrace.engine.attention.batch import PagedBatch
from kvtrace.engine.attention.rotated import rotated_attention
from kvtrace.engine.attention.tiles import DecodeTiles
from kvtrace.engine.batch import Chunk
from kvtrace.engine.graphs import Capturer
from kvtrace.engine.sequence import Sampling
from tests.engine.attention.cases import (
    LAYER,
    Case,
    beside_cases,
    build,
    check,
    check_rotated,
    decode_cases,
    expect,
    prefill_cases,
    rotated_cases,
)

triton_decode = pytest.importorskip("kvtrace.engine.attention.triton_decode", reason="needs Triton")
gpu = pytest.importorskip("kvtrace.engine.attention.gpu", reason="needs Triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
CASES = [*decode_cases(), *prefill_cases()]
# An 8B model's shape, long enough for every split and many tiles.
LARGE = (
    Case(((1, 1000), (1, 2049), (1, 0), (1, 640)), 32, 8, 128),
    Case(((300, 1500), (1, 900), (129, 129), (1, 0)), 32, 8, 128, extra_tokens=17),
    Case(((90, 1500),), 32, 8, 128),
    Case(((90, 1500), (1, 700)), 32, 8, 128, window=400),
)


@pytest.mark.parametrize("case", [*CASES, *beside_cases(), *LARGE], ids=str)
def test_bf16_matches_the_reference(case: Case) -> None:
    for seed in range(3):
        step = build(case, seed, "cuda", torch.bfloat16)
        check(case, step, ops.paged_attention, TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("case", [CASES[0], CASES[4], CASES[7], CASES[12], CASES[13], CASES[17]], ids=str)
def test_other_types_match_the_reference(case: Case, dtype: torch.dtype) -> None:
    check(case, build(case, 5, "cuda", dtype), ops.paged_attention, TOLERANCE[dtype])


@pytest.mark.parametrize(("case", "normed"), [*rotated_cases(), (LARGE[0], True), (LARGE[1], True)], ids=str)
def test_attention_from_the_raw_projection_matches_the_reference(case: Case, normed: bool) -> None:
    # Queries and keys are rounded before they meet: that alone, by the reference, makes one of the largest case's two million
    # elements 0.0604 wrong.
    check_rotated(
        case, build(case, 2, "cuda", torch.bfloat16), normed, rotated_attention, 6e-2 if case.decode else 8e-2
    )
    check_rotated(case, build(case, 2, "cuda", torch.float32), normed, rotated_attention, 1e-4)


def test_joined_parts_are_right_in_every_launch() -> None:
    """The last program to finish combines what the others stored: a race would show as a differing result."""
    step = build(LARGE[0], 0, "cuda", torch.bfloat16)
    tiles = DecodeTiles(64, 128, 2, 3, join=True)

    def launch(tiles: DecodeTiles) -> torch.Tensor:
        found: torch.Tensor = triton_decode.decode(
            step.query,
            step.key,
            step.value,
            step.pool,
            LAYER,
            step.write_slots,
            step.key_lengths,
            step.tables,
            step.scale,
            0,
            tiles,
        )
        return found

    expected = launch(replace(tiles, join=False))
    differing = sum((launch(tiles) != expected).sum() for _ in range(1000))
    assert int(differing) == 0


@pytest.mark.parametrize("tokens", [100, 2050, 2304])
def test_a_whole_prompt_is_the_same_by_either_way(tokens: int) -> None:
    case = Case(((tokens, tokens),), 8, 2, 128)
    step = build(case, 1, "cuda", torch.bfloat16)
    gpu.prepare(8, 2, 128, case.block_tokens, step.scale, torch.bfloat16, step.query.device, 2304)
    # The layout that plans are made for: query and key side by side, value within the projection.
    turned = torch.cat((step.query, step.key), 1)
    step = replace(step, query=turned[:, :8], key=turned[:, 8:])
    assert dense.ready(step.query, step.key, step.value) == (
        tokens >= 2048 and "sm_90" in str(gpu.target_of(step.query.device))
    )
    pool = step.pool.clone()
    paged = step.run(ops.paged_attention, step.pool, case)
    whole = step.run(lambda *arguments: ops.paged_attention(*arguments[:-1], True), pool, case)
    torch.testing.assert_close(whole, paged, rtol=2e-2, atol=2e-2)
    assert whole.is_contiguous()
    assert torch.equal(pool.view(torch.uint8), step.pool.view(torch.uint8))


def test_a_captured_decode_stays_right_while_lengths_change() -> None:
    """One graph for every length up to the table's width, padding rows included, replayed many times."""
    case = Case(((1, 300), (1, 17), (1, 64), (1, 1)), 8, 2, 128)
    step = build(case, 0, "cuda", torch.bfloat16)
    width = step.tables.shape[1]
    pool = torch.full((4 * width, *step.pool.shape[1:]), float("nan"), dtype=torch.bfloat16, device="cuda")
    static = replace(step, tables=torch.zeros_like(step.tables), pool=pool)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        static.key_lengths.zero_()
        static.write_slots.fill_(-1)
        static.run(ops.paged_attention, pool, case)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            output = static.run(ops.paged_attention, pool, case)
    for seed in range(12):
        source = torch.Generator().manual_seed(seed)
        lengths = torch.randint(0, (width - 1) * case.block_tokens, (4,), generator=source).tolist()
        now = replace(case, sequences=tuple((1, length) for length in lengths))
        step = build(now, seed, "cuda", torch.bfloat16)
        pool[: len(step.pool)].copy_(step.pool)
        static.tables.zero_()
        static.tables[:, : step.tables.shape[1]].copy_(step.tables[:, :width])
        for name in ("query", "key", "value", "write_slots", "key_lengths"):
            getattr(static, name).copy_(getattr(step, name))
        graph.replay()
        torch.cuda.synchronize()
        expected_pool = step.pool.cpu()
        expected = expect(now, step, expected_pool)
        torch.testing.assert_close(output.float().cpu(), expected, rtol=3e-2, atol=3e-2)
        written = pool[: len(step.pool)].cpu()
        assert torch.equal(written.view(torch.uint8), expected_pool.view(torch.uint8))


@pytest.mark.parametrize("decoding", [(3000, 2049, 3000), (200,)], ids=["much decoding", "little decoding"])
@pytest.mark.parametrize("new", [90, 400])
def test_a_captured_step_that_decodes_beside_prefill_is_the_same_every_time(
    new: int, decoding: tuple[int, ...]
) -> None:
    """Both kernels run at once there, and the last program of a run combines what the others stored."""
    sequences = (*((1, keys) for keys in decoding), (1, 0), (new, new + 900))
    case = Case(sequences, 32, 8, 128, extra_tokens=5)
    step = build(case, 0, "cuda", torch.bfloat16)
    pool = step.pool.clone()
    graph = Capturer().capture(lambda: step.run(ops.paged_attention, pool, case))
    first = graph.replay().clone()
    torch.testing.assert_close(first.float().cpu(), expect(case, step, step.pool.cpu()), rtol=3e-2, atol=3e-2)
    differing = sum((graph.replay() != first).sum() for _ in range(300))
    assert int(differing) == 0


def test_pools_beyond_two_to_the_31_elements() -> None:
    case = Case(((1, 100), (1, 40)), 4, 2, 128)
    block = LAYER + 1, 2, 2, case.block_tokens, 128
    blocks = (1 << 31) // torch.Size(block).numel() + 64
    if torch.cuda.mem_get_info()[0] < 3 * blocks * torch.Size(block).numel():
        pytest.skip("not enough free memory")
    pool = torch.empty((blocks, *block), dtype=torch.bfloat16, device="cuda")
    for one in (case, Case(((60, 100), (1, 40)), 4, 2, 128)):
        step = build(one, 2, "cuda", torch.bfloat16)
        first = blocks - len(step.pool)
        pool[first:].copy_(step.pool)
        slots = torch.where(step.write_slots < 0, step.write_slots, step.write_slots + first * case.block_tokens)
        far = replace(step, tables=step.tables + first, write_slots=slots)
        found = far.run(ops.paged_attention, pool, one)
        near = step.run(ops.paged_attention, step.pool, one)
        assert torch.equal(found, near)
        assert torch.equal(pool[first:].view(torch.uint8), step.pool.view(torch.uint8))


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_transformers_models_run_on_the_kernels(kind: str, tiny_folder: Callable[[str], Path], own_model: Any) -> None:
    from kvtrace.engine.model import load_model
    from kvtrace.engine.storage import Storage

    loaded = load_model(tiny_folder(kind), device="cuda", dtype=torch.float32)
    storage = Storage(loaded.geometry, 12, 0, device="cuda", dtype=torch.float32)
    storage.pool.fill_(float("nan"))
    tokens, other = list(range(10, 80)), list(range(100, 130))
    plans = [
        [(tokens[:50], 0, (3, 1, 4, 5, 9)), (other[:7], 0, (2, 6))],
        [(tokens[50:69], 50, (3, 1, 4, 5, 9)), (other[7:8], 7, (2, 6))],
        [(tokens[69:], 69, (3, 1, 4, 5, 9)), (other[8:9], 8, (2, 6))],
    ]
    with torch.inference_mode():
        whole = [own_model(kind)(input_ids=torch.tensor([one])).logits[0] for one in (tokens, other)]
        for plan in plans:
            chunks = [Chunk(0, tuple(part), start, table, 0, True, Sampling(), 0, 0) for part, start, table in plan]
            positions = [chunk.start + index for chunk in chunks for index in range(len(chunk.tokens))]
            logits = loaded.model(
                input_ids=torch.tensor([[token for chunk in chunks for token in chunk.tokens]], device="cuda"),
                position_ids=torch.tensor([positions], device="cuda"),
                use_cache=False,
                paged_batch=PagedBatch.pack(chunks, storage.pool),
            ).logits[0]
            parts = logits.cpu().split([len(chunk.tokens) for chunk in chunks])
            for chunk, found, expected in zip(chunks, parts, whole, strict=True):
                wanted = expected[chunk.start : chunk.start + len(chunk.tokens)]
                torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)
