"""Real models for the engine's tests: tiny random ones of several families, and the embedded SmolLM2."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kvtrace.engine.model import LoadedModel

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 256 + 3 + 2


def tiny_tokenizer() -> Any:
    """One token a byte, two of two bytes, two marks of turns and an unused one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    words = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "cd"]
    raw = Tokenizer(
        models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[("a", "b"), ("c", "d")])
    )
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<|im_start|>", eos_token="<|im_end|>", unk_token="<|endoftext|>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_config(kind: str, **changes: Any) -> Any:
    """A config of ``kind`` with three layers and two query heads a KV head."""
    from transformers import LlamaConfig, MistralConfig, Qwen3Config

    classes: dict[str, Any] = {"llama": LlamaConfig, "qwen3": Qwen3Config, "mistral": MistralConfig}
    figures: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,  # far from the default, so that logits differ clearly
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    if kind == "mistral":
        figures["sliding_window"] = None
    return classes[kind](**(figures | changes))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``tiny_folder(kind)``: a folder with a random model of that family and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM

    @cache
    def make(kind: str) -> Path:
        torch.manual_seed(7)
        folder = tmp_path_factory.mktemp(f"tiny-{kind}")
        AutoModelForCausalLM.from_config(tiny_config(kind)).save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_model(tiny_folder: Callable[[str], Path]) -> Callable[[str], LoadedModel]:
    """``tiny_model(kind)``: the same model, loaded by kvtrace."""
    from kvtrace.engine.model import load_model

    @cache
    def load(kind: str) -> LoadedModel:
        return load_model(tiny_folder(kind))

    return load


@pytest.fixture(scope="session")
def own_model(tiny_folder: Callable[[str], Path]) -> Callable[[str], Any]:
    """``own_model(kind)``: the same model with transformers' own attention, to compare with."""
    from transformers import AutoModelForCausalLM

    @cache
    def load(kind: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(tiny_folder(kind), attn_implementation="eager").eval()

    return load


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """The embedded model; the first run on a machine converts it."""
    from kvtrace.engine.model import load_model

    return load_model("smollm2")
