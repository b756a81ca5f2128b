"""Which models kvtrace can serve, and the geometry of their KV: read from the config, never assumed."""

from __future__ import annotations

from typing import Any, Final

from ..errors import ModelError
from ..geometry import BLOCK_TOKENS, KVGeometry

# Settings whose presence means state or attention beyond plain K and V of every position.
_FOREIGN: Final = {
    "kv_lora_rank": "compressed (latent) attention",
    "mamba_d_state": "recurrent (Mamba) layers",
    "mamba_state_dim": "recurrent (Mamba) layers",
    "ssm_state_size": "recurrent (state-space) layers",
    "state_size": "recurrent (state-space) layers",
    "linear_conv_kernel_dim": "recurrent (linear attention) layers",
    "conv_L_cache": "convolution state",
    "layers_block_type": "a mix of layer kinds",
    "attn_logit_softcapping": "capped attention scores",
    "num_kv_shared_layers": "KV shared between layers",
    "alibi": "ALiBi position biases",
}
# Families whose layers say themselves how far back they look, compared with transformers' own attention in the tests.
# Their KV stays whole: only what a layer reads of it is cut.
_WINDOWED: Final = frozenset(
    {
        "cohere2",
        "exaone4",
        "gemma3_text",
        "ministral",
        "mistral",
        "olmo3",
        "phi3",
        "qwen2",
        "qwen3",
        "starcoder2",
    }
)
# These kinds of rotary embedding change with the longest sequence of the batch, so KV once written would not fit.
_BATCH_DEPENDENT_ROPE: Final = frozenset({"dynamic", "longrope"})


def refuse_unsupported(config: Any, model_id: str) -> None:
    """Refuse every model whose state kvtrace would not park completely, or whose attention it does not compute.

    Args:
        config: the transformers config of the text model.
        model_id: named in the message.

    Raises:
        ModelError: the first reason found, as a sentence.
    """
    reason = _encoder(config) or _foreign(config) or _window(config) or _rope(config)
    if reason:
        raise ModelError(
            f"{model_id} ({config.model_type}) has {reason}: kvtrace cannot park that completely, so it does not serve "
            "it. Choose a model with plain attention in every layer, such as Llama 3, Qwen3 or SmolLM2."
        )


def geometry_of(config: Any, element_bytes: int, block_tokens: int = BLOCK_TOKENS) -> KVGeometry:
    """The KV geometry that ``config`` describes, with elements of ``element_bytes`` and blocks of ``block_tokens``.

    Raises:
        ModelError: the config lacks a figure, or gives one per layer.
    """
    heads = _figure(config, "num_attention_heads")
    kv_heads = _figure(config, "num_key_value_heads", heads)
    head_dim = _figure(config, "head_dim", _figure(config, "hidden_size") // heads)
    value_dim = _figure(config, "v_head_dim", head_dim)
    if value_dim != head_dim:
        raise ModelError(
            f"{config.model_type}: keys have {head_dim} elements and values {value_dim}; kvtrace needs one size"
        )
    return KVGeometry(_figure(config, "num_hidden_layers"), kv_heads, head_dim, element_bytes, block_tokens)


def _figure(config: Any, name: str, default: int | None = None) -> int:
    value = getattr(config, name, None)
    value = default if value is None else value
    if not isinstance(value, int) or value < 1:
        raise ModelError(
            f"{config.model_type}: the config gives {name} = {value!r}; kvtrace needs one number above 0 for all layers"
        )
    return value


def _encoder(config: Any) -> str | None:
    return "an encoder" if getattr(config, "is_encoder_decoder", False) else None


def _foreign(config: Any) -> str | None:
    return next((f"{meaning} ({name})" for name, meaning in _FOREIGN.items() if getattr(config, name, None)), None)


def _window(config: Any) -> str | None:
    windowed = config.model_type in _WINDOWED
    kinds = getattr(config, "layer_types", None)
    if kinds:
        other = sorted(set(kinds) - {"full_attention"} - ({"sliding_attention"} if windowed else set()))
        return f"layers of other kinds ({', '.join(other)})" if other else None
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True) and not windowed:
        return f"a sliding window of {window} tokens"
    return None


def _rope(config: Any) -> str | None:
    parameters = getattr(config, "rope_parameters", None) or {}
    # Models with layers of two kinds have one set of parameters for each.
    each = [one for one in parameters.values() if isinstance(one, dict)] or [parameters]
    kinds = {str(one.get("rope_type", "default")) for one in each} & _BATCH_DEPENDENT_ROPE
    return f"rotary embeddings of the kind {min(kinds)!r}" if kinds else None
