from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvtrace.engine.batch import UNREAD, Chunk
from kvtrace.engine.geometry import KVGeometry
from kvtrace.engine.lean_runner import ENV_COMPILE, LeanRunner, Limits, compiling
from kvtrace.engine.model import LoadedModel
from kvtrace.engine.model.lean import lean_weights, why_not_lean
from kvtrace.engine.model.skinny_tiles import LayerTiling, LayerTilings, Tiling
from kvtrace.engine.model.support import geometry_of
from kvtrace.engine.runner import TorchRunner
from kvtrace.engine.sequence import Sampling
from kvtrace.engine.storage import Storage

from .lean_support import FAMILIES, GREEDY, PROMPTS, expected, generate, lean_runner, random_model


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers_generate(family: str) -> None:
    model = random_model(family)
    assert why_not_lean(model) is None
    wanted = [expected(model, prompt, 20) for prompt in PROMPTS]
    assert generate(lean_runner(model), PROMPTS, 20) == wanted
    assert generate(lean_runner(model), PROMPTS, 20, piece=7) == wanted
    assert generate(lean_runner(model, block_tokens=32), PROMPTS, 20, piece=7, block_tokens=32) == wanted
    # The model's own parameters are views of the merged ones now, and it still computes the same.
    assert [expected(model, prompt, 20) for prompt in PROMPTS] == wanted


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_logits_are_those_of_transformers(family: str) -> None:
    model, prompt = random_model(family), tuple(range(40))
    runner = lean_runner(model)
    chosen = runner._launch_prefill([Chunk(0, prompt, 0, (3, 1, 2), 0, True, GREEDY, 0, 0)], {})
    torch.testing.assert_close(chosen.logits[0], model(torch.tensor([prompt])).logits[0, -1], rtol=1e-4, atol=1e-4)


NARROW, BROAD = Tiling(8, 8, 1, 4, 1), Tiling(16, 8, 1, 4, 1)
TILINGS = LayerTilings(NARROW, BROAD, NARROW, BROAD, Tiling(2, 8, 1, 4, 1))


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "llama-biases"])
def test_skinny_products_decode_the_same_tokens(family: str) -> None:
    model = random_model(family)
    wanted = [expected(model, prompt, 20) for prompt in PROMPTS]
    assert generate(lean_runner(model, tilings=lambda batch: TILINGS if batch > 1 else None), PROMPTS, 20) == wanted
    assert generate(lean_runner(model, tilings=lambda batch: TILINGS), PROMPTS[:1], 20) == wanted[:1]
    whole = TILINGS._replace(whole=LayerTiling(2, 4, 8, 1, 8, 1, 8, 1, 0))
    assert generate(lean_runner(model, tilings=lambda batch: whole), PROMPTS, 20) == wanted


def test_merged_weights_exist_once() -> None:
    model = random_model("qwen2")
    first = lean_weights(model, 32)
    again = lean_weights(model, 32)
    for one, other in zip(first.layers, again.layers, strict=True):
        assert one.qkv.data_ptr() == other.qkv.data_ptr()
        assert one.qkv_bias is not None
        assert other.qkv_bias is not None
        assert one.qkv_bias.data_ptr() == other.qkv_bias.data_ptr()
        assert one.gate_up.data_ptr() == other.gate_up.data_ptr()
    layer, attention = first.layers[0], model.model.layers[0].self_attn
    assert torch.equal(
        layer.qkv, torch.cat([part.weight for part in (attention.q_proj, attention.k_proj, attention.v_proj)])
    )
    layer.qkv[-1, 0] += 1
    assert attention.v_proj.weight[-1, 0] == layer.qkv[-1, 0]
    layer.qkv[-1, 0] -= 1


def test_tied_embeddings_stay_one_tensor() -> None:
    weights = lean_weights(random_model("tied"), 32)
    assert weights.head.data_ptr() == weights.embedding.data_ptr()


def test_other_shapes_are_named() -> None:
    import transformers

    tiny = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    gelu = transformers.LlamaForCausalLM(transformers.LlamaConfig(**tiny, num_attention_heads=2, hidden_act="gelu"))
    assert why_not_lean(gelu) == "its activation is gelu"
    phi = transformers.PhiForCausalLM(transformers.PhiConfig(**tiny, num_attention_heads=2))
    assert why_not_lean(phi) == "PhiForCausalLM is of another shape"


def test_it_agrees_with_the_transformers_path_on_a_real_model(smollm2: LoadedModel) -> None:
    prompt = smollm2.tokenizer("The capital of France is").input_ids
    chunk = Chunk(0, tuple(prompt), 0, (0, 1), 0, True, GREEDY, 0, 0)
    storage = Storage(smollm2.geometry, 2, 0)
    lean = LeanRunner(lean_weights(smollm2.model, 64), storage, Limits(1, 64, 32), lambda function: function)
    tokens = [lean.run([chunk])[0]]
    plain = TorchRunner(smollm2.model, Storage(smollm2.geometry, 2, 0))
    assert plain.run([chunk])[0] == tokens[0]
    assert " Paris" in smollm2.tokenizer.decode(tokens)


def test_positions_of_the_cache_are_read_and_not_written() -> None:
    model = random_model("llama")
    runner = lean_runner(model)
    whole = Chunk(0, tuple(range(16)), 0, (5,), 0, True, GREEDY, 0, 0)
    token = runner.run([whole])[0]
    pool = runner._decoder._pools[0][5].clone()
    last = replace(whole, sequence_id=1, tokens=(15,), start=15, write_from=16)
    with_other = [last, Chunk(2, (9, 8, 7), 0, (6,), 0, True, GREEDY, 0, 0)]
    assert runner.run([last]) == {1: token}
    assert runner.run(with_other)[1] == token
    assert torch.equal(runner._decoder._pools[0][5], pool)


def test_drawn_and_greedy_tokens_share_a_step() -> None:
    model = random_model("llama")
    hot = Sampling(temperature=1.5, seed=4)
    storage = Storage(geometry_of(model.config, 4), 8, 0)
    lean = LeanRunner(lean_weights(model, 64), storage, Limits(4, 64, 64), lambda function: function)
    start = [Chunk(0, (1, 2), 0, (0,), 0, True, hot, 4, 0), Chunk(1, (1, 2), 0, (1,), 0, True, GREEDY, 0, 0)]
    drawn, greedy = [], []
    step = start
    for generated in range(1, 9):
        tokens = lean.run(step)
        drawn.append(tokens[0])
        greedy.append(tokens[1])
        step = [replace(chunk, tokens=(UNREAD,), start=1 + generated, generated=generated) for chunk in start]
    assert greedy == expected(model, (1, 2), 8)
    assert drawn != greedy
    alone = TorchRunner(_paged(model), Storage(geometry_of(model.config, 4), 8, 0))
    for generated, token in enumerate(drawn):
        before = (1, 2) if generated == 0 else (drawn[generated - 1],)
        one = replace(start[0], tokens=before, start=0 if generated == 0 else 1 + generated, generated=generated)
        assert alone.run([one]) == {0: token}
    model.set_attn_implementation("eager")


def _paged(model: Any) -> Any:
    from kvtrace.engine.attention import ATTENTION_NAME, register

    register()
    model.set_attn_implementation(ATTENTION_NAME)
    return model


def test_a_step_above_the_limits_is_refused_before_it_starts() -> None:
    runner = lean_runner(random_model("llama"), slots=1, step_tokens=16)
    ok = Chunk(0, (1, 2), 0, (0,), 0, True, GREEDY, 0, 0)
    token = runner.run([ok])[0]
    for bad, why in (
        ([ok, replace(ok, sequence_id=1)], "2 sequences and 4 tokens"),
        ([replace(ok, tokens=tuple(range(17)))], "1 sequences and 17 tokens"),
        ([replace(ok, start=255)], "reaches position 257"),
        ([replace(ok, sequence_id=1, tokens=(UNREAD,))], "sequence 1 has an unread token"),
    ):
        with pytest.raises(ValueError, match=why):
            runner.launch(bad)
    # What was refused left no trace: the token of the step before can still be taken up.
    assert runner.run([replace(ok, tokens=(UNREAD,), start=2)]) == runner.run([replace(ok, tokens=(token,), start=2)])


def test_results_can_be_read_late_and_twice() -> None:
    runner = lean_runner(random_model("llama"))
    chunks = [Chunk(0, (number,), number, (0,), 0, True, GREEDY, 0, 0) for number in range(8)]
    pending = [runner.launch([chunk]) for chunk in chunks]
    late = [one.tokens()[0] for one in pending]
    fresh = lean_runner(random_model("llama"))
    assert late == [fresh.run([chunk])[0] for chunk in chunks]
    assert late == [one.tokens()[0] for one in pending]
    assert runner.launch([]).tokens() == {}


def test_the_functions_compile_whole_and_prefill_once_for_every_length() -> None:
    compiled: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    def wrap(function: Any) -> Any:
        return torch.compile(function, fullgraph=True, dynamic=False, backend=backend)

    torch._dynamo.reset()
    model = random_model("qwen3")
    runner = lean_runner(model, slots=2, step_tokens=512, context_tokens=512, wrap=wrap)
    wanted = [expected(model, prompt, 6) for prompt in PROMPTS[:2]]
    assert generate(runner, PROMPTS[:2], 6, piece=9) == wanted
    for length in (100, 300, 16, 401):
        tokens = tuple(place % 200 for place in range(length))
        runner.run([Chunk(0, tokens, 0, tuple(range(26)), 0, True, GREEDY, 0, 0)])
    layers = [graph for graph in compiled if "silu_mul" in graph.code]
    # One row is a case of its own; everything else, prompts, batches and the rows that sample, is one.
    assert len(layers) == 2
    torch._dynamo.reset()


def test_geometry_of_the_tiny_models() -> None:
    assert geometry_of(random_model("qwen3").config, 4) == KVGeometry(3, 2, 8, 4)


def test_compiling_can_be_forbidden_and_is_kept_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENV_COMPILE, "0")
    assert compiling()(len) is len
    monkeypatch.delenv(ENV_COMPILE)
    monkeypatch.setenv("KVTRACE_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / "torchinductor_somebody"))
    compiling()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/chosen")
    compiling()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/chosen"
