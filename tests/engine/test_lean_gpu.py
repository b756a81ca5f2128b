"""The lean decoder where it is used: compiled, with Triton's attention, under device graphs. Needs a GPU."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch

from kvtrace.engine.api import Engine
from kvtrace.engine.batch import UNREAD, Chunk
from kvtrace.engine.config import EngineConfig, PolicyMode
from kvtrace.engine.geometry import GPU_BLOCK_TOKENS
from kvtrace.engine.lean_runner import LeanRunner, Limits, compiling
from kvtrace.engine.model import load_model
from kvtrace.engine.model.lean import lean_weights
from kvtrace.engine.model.skinny_tiles import ModelSizes, Tiling, layer_tilings, whole_tiling
from kvtrace.engine.sequence import Sampling
from kvtrace.engine.storage import Storage
from kvtrace.engine.swap.driver import Addresses, DriverCopies
from kvtrace.engine.swap.streams import TorchStreams
from kvtrace.engine.swap.transport import DeviceFence

from .lean_support import FAMILIES, GREEDY, PROMPTS, expected, generate, lean_runner, random_model

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(600),
]
TINY = ModelSizes(128, 512, 256, 256, 512)  # of random:tiny
LONG = [*PROMPTS, list(range(200, 50, -1))]


@cache
def on_gpu(family: str, dtype: torch.dtype) -> Any:
    return copy.deepcopy(random_model(family)).to("cuda", dtype)


def gpu_runner(family: str, dtype: torch.dtype, **options: Any) -> LeanRunner:
    return lean_runner(on_gpu(family, dtype), wrap=compiling(), **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers_generate_in_float32(family: str) -> None:
    wanted = [expected(random_model(family), prompt, 20) for prompt in LONG]
    runner = gpu_runner(family, torch.float32, block_tokens=GPU_BLOCK_TOKENS)
    assert generate(runner, LONG, 20, block_tokens=GPU_BLOCK_TOKENS) == wanted
    assert generate(gpu_runner(family, torch.float32, graphs=False), LONG, 20, piece=33) == wanted


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_bfloat16_logits_are_near_those_of_float32(family: str) -> None:
    runner = gpu_runner(family, torch.bfloat16)
    prompt = tuple(range(40))
    wanted = random_model(family)(torch.tensor([prompt])).logits[0, -2:]
    own = on_gpu(family, torch.bfloat16)(torch.tensor([prompt], device="cuda")).logits[0, -2:].float().cpu()
    chosen = runner._launch_prefill([Chunk(0, prompt[:-1], 0, (3, 1, 2), 0, True, GREEDY, 0, 0)], {})
    prefilled = chosen.logits[0].float().cpu()
    decoded = runner._launch_decode([Chunk(0, prompt[-1:], 39, (3, 1, 2), 0, True, GREEDY, 0, 0)], {}).logits[0]
    for found, reference, theirs in zip((prefilled, decoded.float().cpu()), wanted, own, strict=True):
        # No further from float32 than transformers' own bfloat16 is, give or take the luck of rounding.
        allowed = 2 * (theirs - reference).abs().mean() + 0.01 * reference.std()
        assert (found - reference).abs().mean() <= allowed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_same_batches_give_the_same_tokens(dtype: torch.dtype) -> None:
    first = generate(gpu_runner("qwen3", dtype), LONG, 40)
    assert generate(gpu_runner("qwen3", dtype), LONG, 40) == first
    assert generate(gpu_runner("qwen3", dtype, graphs=False), LONG, 40) == first


def test_a_decoding_step_writes_its_own_positions_and_no_other() -> None:
    runner = gpu_runner("llama", torch.float32, slots=8)
    runner.run([Chunk(i, tuple(range(20)), 0, (2 * i, 2 * i + 1), 0, True, GREEDY, 0, 0) for i in range(3)])
    pools = torch.stack([pool.clone() for pool in runner._decoder._pools])
    # Three of four rows of a graph are used, one of them only reads.
    step = [Chunk(i, (UNREAD,), 20, (2 * i, 2 * i + 1), 21 if i == 2 else 0, True, GREEDY, 0, 1) for i in range(3)]
    runner.run(step)
    after = torch.stack(list(runner._decoder._pools))
    changed = (after != pools) & ~(after.isnan() & pools.isnan())
    assert changed[:, [1, 3], :, :, :, 4].any()
    changed[:, [1, 3], :, :, :, 4] = False
    assert not changed.any()


@pytest.mark.parametrize(("graphs", "size"), [(True, GPU_BLOCK_TOKENS), (True, 128), (False, 16)])
def test_prompts_of_every_size_give_the_tokens_of_transformers(graphs: bool, size: int) -> None:
    model = on_gpu("llama", torch.float32)
    prompts = [[number % 200 for number in range(3, 3 + length)] for length in (2, 30, 255, 300, 480)]
    runner = lean_runner(
        model,
        wrap=compiling(),
        graphs=graphs,
        blocks=256,
        slots=5,
        step_tokens=1100,
        context_tokens=512,
        block_tokens=size,
    )
    wanted = [expected(random_model("llama"), prompt, 8) for prompt in prompts]
    assert generate(runner, prompts, 8, 1000, size) == wanted  # all in one step
    assert [generate(runner, [prompt], 8, 1000, size)[0] for prompt in prompts] == wanted
    assert generate(runner, prompts, 8, 40, size) == wanted


def test_a_context_may_fill_the_table() -> None:
    model = on_gpu("llama", torch.float32)
    prompt = [number % 200 for number in range(250)]
    runner = lean_runner(model, wrap=compiling())
    assert generate(runner, [prompt], 6) == [expected(random_model("llama"), prompt, 6)]


SHAPES = [(256, 512, False), (512, 256, True), (640, 1024, False)]


@pytest.mark.parametrize("batch", [1, 7, 16, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("columns", "splits"), [(64, 1), (64, 4), (32, 2), (128, 2)])
@torch.inference_mode()
def test_skinny_products_are_the_reference(batch: int, dtype: torch.dtype, columns: int, splits: int) -> None:
    tiling = Tiling(columns, 64, splits, 4, 3)
    ops = torch.ops.kvtrace
    for width, depth, gated in SHAPES:
        torch.manual_seed(width + batch)
        state = torch.randn((batch, depth), device="cuda", dtype=dtype)
        weight = torch.randn((width * (2 if gated else 1), depth), device="cuda", dtype=dtype) / depth**0.5
        squares = torch.rand((5, batch), device="cuda") * depth / 2.5
        residual = torch.randn((batch, width), device="cuda", dtype=dtype)
        norm = torch.rand(width, device="cuda", dtype=dtype) + 0.5
        normed = (state, squares, weight, 1e-6, gated, list(tiling))
        found = [ops.skinny_normed(*normed) for _ in range(3)]
        _near(found[0], ops.skinny_normed(*_on_cpu(normed)))
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])
        if not gated:
            adds = (state, weight, residual, norm, list(tiling))
            for one, other in zip(ops.skinny_adds(*adds), ops.skinny_adds(*_on_cpu(adds)), strict=True):
                _near(one, other)


@pytest.mark.parametrize("batch", [1, 8, 13, 16])
@torch.inference_mode()
def test_a_layer_in_one_kernel_is_the_reference_and_the_same_every_time(batch: int) -> None:
    sizes = ModelSizes(hidden=512, qkv=768, attended=1024, mlp=1536, vocabulary=512)
    tiling = whole_tiling(132, batch, sizes)
    assert tiling is not None
    torch.manual_seed(batch)

    def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * scale

    given = (
        drawn(batch, sizes.attended),
        drawn(batch, sizes.hidden),
        drawn(sizes.hidden, sizes.attended, scale=sizes.attended**-0.5),
        drawn(sizes.hidden),
        drawn(2 * sizes.mlp, sizes.hidden, scale=sizes.hidden**-0.5),
        drawn(sizes.hidden, sizes.mlp, scale=sizes.mlp**-0.5),
        drawn(sizes.hidden),
    )
    for following in (drawn(sizes.qkv, sizes.hidden, scale=sizes.hidden**-0.5), None):
        results = []
        for _ in range(30):
            barriers = torch.zeros(3, device="cuda", dtype=torch.int32)
            results.append(torch.ops.kvtrace.skinny_layer(*given, following, barriers, 1e-6, list(tiling)))
            assert barriers.tolist() == [128, 128, 128 if following is not None else 0]
        wanted = torch.ops.kvtrace.skinny_layer(*_on_cpu((*given, following, barriers)), 1e-6, list(tiling))
        for found, other in zip(results[0], wanted, strict=True):
            assert found.shape == other.shape
            torch.testing.assert_close(found.float().cpu(), other.float(), rtol=3e-2, atol=3e-2)
        for again in results[1:]:
            assert all(torch.equal(one, other) for one, other in zip(again, results[0], strict=True))


def _on_cpu(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments on the CPU, in float32 where they were in 16 bits."""
    return tuple(one.cpu().float() if isinstance(one, torch.Tensor) else one for one in given)


def _near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.shape == wanted.shape
    torch.testing.assert_close(found.float().cpu(), wanted, rtol=2e-2, atol=2e-2)


def test_a_model_decodes_by_skinny_products_as_without() -> None:
    """Greedy tokens may part where two logits are equal but for rounding; here the first steps agree."""
    model = load_model("random:tiny", device="cuda")
    weights = lean_weights(model.model, 512)
    logits = []
    for tilings in (lambda batch: None, lambda batch: layer_tilings("sm_90", 132, batch, TINY)):
        storage = Storage(model.geometry, 64, 0, device="cuda", dtype=model.dtype)
        storage.pool.fill_(float("nan"))
        runner = LeanRunner(weights, storage, Limits(8, 256, 512), compiling(), tilings=tilings)
        tables = [tuple(range(8 * index, 8 * index + 8)) for index in range(5)]
        runner.run([Chunk(i, tuple(range(3, 20 + i)), 0, tables[i], 0, True, GREEDY, 0, 0) for i in range(5)])
        step = [Chunk(i, (7,), 17 + i, tables[i], 0, True, GREEDY, 0, 1) for i in range(5)]
        logits.append(runner._launch_decode(step, {}).logits[:5].float())
    assert layer_tilings("sm_90", 132, 5, TINY) is not None
    torch.testing.assert_close(logits[0], logits[1], rtol=0.05, atol=0.02 * float(logits[0].std()))


@torch.inference_mode()
def test_a_step_that_samples_nothing_is_over_when_the_device_has_done_it() -> None:
    runner = gpu_runner("qwen3", torch.float32)
    runner.run([Chunk(0, tuple(range(32)), 0, (3, 1, 2), 0, False, GREEDY, 0, 0)])
    torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]  # a second
    prompt = runner.launch([Chunk(0, tuple(range(32, 40)), 32, (3, 1, 2), 0, False, GREEDY, 0, 0)])
    assert not prompt.done()
    assert prompt.tokens() == {}
    assert prompt.done()
    assert torch.cuda.current_stream().query()


def test_an_engine_on_a_gpu_parks_and_returns_agents_without_changing_a_token() -> None:
    _work_and_check()


def test_steps_launched_while_their_blocks_still_come_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    copy, batch, join = TorchStreams.copy, DriverCopies.__call__, DeviceFence.join
    joined: list[int | None] = []

    def late(self: TorchStreams, stream: Any, targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        torch.cuda.set_stream(stream)
        torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]  # ten milliseconds
        copy(self, stream, targets, sources)

    def late_batch(self: DriverCopies, stream: Any, *addresses: Addresses) -> None:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
        batch(self, stream, *addresses)

    def counted(self: DeviceFence, part: int | None = None) -> None:
        joined.append(part)
        join(self, part)

    monkeypatch.setattr(TorchStreams, "copy", late)
    monkeypatch.setattr(DriverCopies, "__call__", late_batch)
    monkeypatch.setattr(DeviceFence, "join", counted)
    _work_and_check()
    assert {0, None} <= set(joined)  # part by part, to the last


def _work_and_check() -> None:
    """Six agents of which the pool holds two take three turns; their tokens are those of transformers."""
    model = load_model("random:tiny", device="cuda", dtype=torch.float32)
    config = EngineConfig(
        device_blocks=20, host_blocks=64, slots=4, step_tokens=64, context_tokens=512, policy=PolicyMode.SWAP
    )
    asked = Sampling(max_tokens=12, ignore_eos=True)
    contexts = {f"agent {index}": [index * 7 + place % 300 for place in range(100 + 20 * index)] for index in range(6)}
    with Engine.start(model, config) as engine:
        for turn in range(3):
            streams = {agent: engine.submit(agent, context, asked) for agent, context in contexts.items()}
            for agent, stream in streams.items():
                tokens = list(stream)
                contexts[agent] += [*tokens, turn + 1]
                engine.turn_ended(agent, [f"call {turn} of {agent}"])
        moved = engine.state().link.out_total_bytes
    assert moved > 0
    model.model.set_attn_implementation("eager")
    for agent, context in contexts.items():
        start = 100 + 20 * int(agent.split()[1])
        for _ in range(3):
            assert context[start : start + 12] == expected(model.model, context[:start], 12)
            start += 13
