from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from kvtrace.engine.batch import UNREAD, Chunk
from kvtrace.engine.model import LoadedModel, encode_chat
from kvtrace.engine.runner import TorchRunner
from kvtrace.engine.sequence import Sampling
from kvtrace.engine.storage import Storage

GREEDY = Sampling()


def _runner(loaded: LoadedModel, blocks: int = 64) -> TorchRunner:
    storage = Storage(loaded.geometry, blocks, 0)
    storage.pool.fill_(float("nan"))
    return TorchRunner(loaded.model, storage)


def _generate(
    runner: TorchRunner, prompts: Sequence[Sequence[int]], count: int, piece: int = 10_000, sampling: Sampling = GREEDY
) -> list[list[int]]:
    """Continue all prompts together: prefill in pieces of ``piece`` tokens, then ``count`` tokens each."""
    tokens = [list(prompt) for prompt in prompts]
    computed = [0] * len(prompts)
    per_prompt = -(-(max(map(len, prompts)) + count) // 16)
    while any(len(sequence) < len(prompt) + count for sequence, prompt in zip(tokens, prompts, strict=True)):
        step = []
        for index, sequence in enumerate(tokens):
            end = min(len(sequence), computed[index] + piece)
            table = tuple(range(index * per_prompt, (index + 1) * per_prompt))
            new = tuple(sequence[computed[index] : end])
            generated = len(sequence) - len(prompts[index])
            step.append(Chunk(index, new, computed[index], table, 0, end == len(sequence), sampling, index, generated))
            computed[index] = end
        for index, token in runner.run([chunk for chunk in step if chunk.tokens]).items():
            tokens[index].append(token)
    return [sequence[len(prompt) :][:count] for sequence, prompt in zip(tokens, prompts, strict=True)]


@torch.inference_mode()
def _expected(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    ids = torch.tensor([list(prompt)])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
    )
    return [int(token) for token in output[0, len(prompt) :]]


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
@pytest.mark.parametrize("piece", [10_000, 16, 7])
def test_greedy_tokens_equal_transformers_generate(
    tiny_model: Callable[[str], LoadedModel], own_model: Callable[[str], Any], kind: str, piece: int
) -> None:
    prompts = [list(range(3, 3 + length)) for length in (1, 17, 40)]
    found = _generate(_runner(tiny_model(kind)), prompts, 24, piece)
    assert found == [_expected(own_model(kind), prompt, 24) for prompt in prompts]


def test_smollm2_answers_as_transformers_does(smollm2: LoadedModel) -> None:
    prompts = [
        encode_chat(smollm2.tokenizer, [{"role": "user", "content": text}])
        for text in ("What is the capital of France?", "Count to five.")
    ]
    together = _generate(_runner(smollm2), prompts, 8, piece=33)
    smollm2.model.set_attn_implementation("sdpa")
    try:
        expected = [_expected(smollm2.model, prompt, 8) for prompt in prompts]
    finally:
        smollm2.model.set_attn_implementation("kvtrace_paged")
    assert together == expected
    assert "Paris" in smollm2.tokenizer.decode(together[0])


def test_drawn_tokens_do_not_depend_on_the_batch(tiny_model: Callable[[str], LoadedModel]) -> None:
    hot = Sampling(temperature=1.0, top_p=0.95)
    prompts = [[5, 6, 7], [8] * 20, [9, 10]]
    together = _generate(_runner(tiny_model("llama")), prompts, 12, sampling=hot)
    alone = _generate(_runner(tiny_model("llama")), prompts[:1], 12, sampling=hot)
    assert together[0] == alone[0]
    assert len(set(map(tuple, together))) == 3


def test_chunks_that_do_not_sample_give_no_token(tiny_model: Callable[[str], LoadedModel]) -> None:
    runner = _runner(tiny_model("llama"))
    assert runner.run([]) == {}
    assert runner.run([Chunk(4, (5, 6), 0, (0,), 0, False, GREEDY, 0, 0)]) == {}
    both = [Chunk(4, (7,), 2, (0,), 0, False, GREEDY, 0, 0), Chunk(9, (7,), 0, (1,), 0, True, GREEDY, 0, 0)]
    assert list(runner.run(both)) == [9]


def test_a_step_can_be_launched_before_the_one_before_is_read(tiny_model: Callable[[str], LoadedModel]) -> None:
    prompts = [[5, 6, 7], [8] * 20]
    expected = _generate(_runner(tiny_model("llama")), prompts, 5)
    runner = _runner(tiny_model("llama"))
    tables = [(0, 1), (2, 3)]
    pending = [
        runner.launch(
            [Chunk(i, tuple(prompts[i]), 0, tables[i], 0, True, GREEDY, 0, 0) for i in range(2)],
        )
    ]
    for step in range(4):
        # The order of the sequences changes from step to step.
        order = (0, 1) if step % 2 else (1, 0)
        chunks = [Chunk(i, (UNREAD,), len(prompts[i]) + step, tables[i], 0, True, GREEDY, 0, step + 1) for i in order]
        pending.append(runner.launch(chunks))
    steps = [one.tokens() for one in pending]
    assert [[step[i] for step in steps] for i in range(2)] == expected
    assert pending[0].tokens() == steps[0]


def test_an_unread_token_that_nobody_sampled_is_refused(tiny_model: Callable[[str], LoadedModel]) -> None:
    runner = _runner(tiny_model("llama"))
    runner.run([Chunk(4, (5, 6), 0, (0,), 0, False, GREEDY, 0, 0)])
    with pytest.raises(ValueError, match="sequence 4 has an unread token at position 2"):
        runner.launch([Chunk(4, (UNREAD,), 2, (0,), 0, True, GREEDY, 0, 0)])
