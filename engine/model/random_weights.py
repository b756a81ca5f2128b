"""Models of a known geometry with random weights: speed can be measured with nothing downloaded."""

from __future__ import annotations

from typing import Any, Final

import torch

from ..errors import ModelError

RANDOM_PREFIX: Final = "random:"
_SPREAD: Final = 0.02  # as models are initialised: activations stay in range through any number of layers

_QWEN3: Final = {
    "vocab_size": 151_936,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "rms_norm_eps": 1e-6,
}
# Class of the config, and what differs from its defaults; figures from the models' published configs.
_GEOMETRIES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "qwen3-8b": (
        "Qwen3Config",
        _QWEN3
        | {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "tie_word_embeddings": False},
    ),
    "qwen3-4b": (
        "Qwen3Config",
        _QWEN3 | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "tie_word_embeddings": True},
    ),
    "llama-3.1-8b": (
        "LlamaConfig",
        {
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            "tie_word_embeddings": False,
        },
    ),
    "tiny": (
        "Qwen3Config",
        {
            "vocab_size": 512,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": False,
        },
    ),
}


def random_model(name: str, attention: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A transformers model of geometry ``name``, made where it is to stay; always the same weights on one device.

    Args:
        name: a key of the table above.
        attention: name of the attention implementation.
        device: where the weights are drawn; nothing of them ever exists elsewhere.
        dtype: of the weights.

    Raises:
        ModelError: there is no such geometry.
    """
    import transformers

    if name not in _GEOMETRIES:
        raise ModelError(f"there is no geometry {name!r} for random weights; choose one of {', '.join(_GEOMETRIES)}")
    kind, figures = _GEOMETRIES[name]
    config = getattr(transformers, kind)(**figures, dtype=dtype, pad_token_id=0, bos_token_id=0, eos_token_id=0)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    model.to_empty(device=device)
    model.tie_weights()
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(std=_SPREAD, generator=generator)
    # Buffers are computed, not drawn: what `to_empty` left in them is nothing.
    with torch.device(device):
        model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
    return model


def number_tokenizer(vocabulary: int) -> Any:
    """A tokenizer for models that know no language: the text of a token is its number."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    unknown = "0"
    raw = Tokenizer(models.WordLevel({str(number): number for number in range(vocabulary)}, unk_token=unknown))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token=unknown)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return tokenizer
