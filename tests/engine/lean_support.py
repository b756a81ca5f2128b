"""Tiny random models of each family that the lean decoder computes, and how to run them with and without it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from kvtrace.engine.batch import UNREAD, Chunk
from kvtrace.engine.geometry import BLOCK_TOKENS
from kvtrace.engine.lean_runner import LeanRunner, Limits
from kvtrace.engine.model.lean import lean_weights
from kvtrace.engine.model.support import geometry_of
from kvtrace.engine.sequence import Sampling
from kvtrace.engine.storage import Storage

GREEDY = Sampling()
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-3-rope": ("LlamaConfig", {"rope_parameters": LLAMA3_ROPE}),
    "llama-biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "mistral-window": ("MistralConfig", {"sliding_window": 12}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
}
DEEP: dict[str, tuple[str, dict[str, Any]]] = {"deep": ("Qwen3Config", {"num_hidden_layers": 9})}
"""With as many parts as a block can have."""


@cache
def random_model(family: str) -> Any:
    """A tiny random transformers model with its own attention."""
    import transformers

    name, changes = (FAMILIES | DEEP)[family]
    figures: dict[str, Any] = {
        "vocab_size": 250,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(3)
    config = getattr(transformers, name)(**figures | changes)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # norms and biases would else be ones and zeros
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def lean_runner(
    model: Any,
    blocks: int = 64,
    slots: int = 4,
    step_tokens: int = 256,
    context_tokens: int = 256,
    block_tokens: int = BLOCK_TOKENS,
    **options: Any,
) -> LeanRunner:
    geometry = geometry_of(model.config, next(model.parameters()).element_size(), block_tokens)
    storage = Storage(geometry, blocks, 0, device=model.device, dtype=model.dtype)
    storage.pool.fill_(float("nan"))
    limits = Limits(slots, step_tokens, context_tokens)
    wrap = options.pop("wrap", lambda function: function)
    return LeanRunner(lean_weights(model, limits.context_tokens), storage, limits, wrap, **options)


def generate(
    runner: Any,
    prompts: Sequence[Sequence[int]],
    count: int,
    piece: int = 100,
    block_tokens: int = BLOCK_TOKENS,
) -> list[list[int]]:
    """Continue all prompts together, launching each step before the one before it is read."""
    computed, found = [0] * len(prompts), [list[int]() for _ in prompts]
    per_prompt = -(-(max(map(len, prompts)) + count) // block_tokens)
    pending: list[Any] = []
    while any(done < len(prompt) + count - 1 for done, prompt in zip(computed, prompts, strict=True)):
        step = []
        for index, prompt in enumerate(prompts):
            start = computed[index]
            if start >= len(prompt) + count - 1:
                continue
            new = tuple(prompt[start : start + piece]) or (UNREAD,)
            table = tuple(range(index * per_prompt, (index + 1) * per_prompt))
            computed[index] = start + len(new)
            step.append(Chunk(index, new, start, table, 0, computed[index] >= len(prompt), GREEDY, 0, 0))
        pending.append(runner.launch(step))
    for launched in pending:
        for index, token in launched.tokens().items():
            found[index].append(token)
    return found


def pool_of(runner: LeanRunner) -> torch.Tensor:
    """The runner's whole pool, ``[blocks, layers, 2, kv_heads, block_tokens, head_dim]``."""
    pool = runner._decoder._pools[0]._base
    assert pool is not None
    return pool


def new_tokens(start: int, new: int, table: Sequence[int], number: int = 0) -> Chunk:
    """``new`` tokens of an agent that has ``start`` already; its tokens follow from ``number`` alone."""
    tokens = tuple((7 * number + place) % 200 for place in range(start, start + new))
    return Chunk(number, tokens, start, tuple(table), 0, True, GREEDY, 0, 0)


def compute_pasts(runner: LeanRunner, chunks: Sequence[Chunk]) -> None:
    """Give every chunk of :func:`new_tokens` the KV of the positions before it."""
    for chunk in chunks:
        runner.run([new_tokens(0, chunk.start, chunk.table, chunk.sequence_id)])


@torch.inference_mode()
def expected(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    ids = torch.tensor([list(prompt)], device=model.device)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [int(token) for token in output[0, len(prompt) :]]


PROMPTS = [list(range(3, 3 + length)) for length in (1, 17, 40)]
