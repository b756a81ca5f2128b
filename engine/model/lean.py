"""Which models have the shape that the lean decoder computes, and their weights as it wants them.

The shape: pre-norm layers of grouped-query attention (merged q, k and v; optional norm of query and key heads; rotary
positions) and a gated SiLU feed-forward (merged gate and up): Llama, Mistral, Qwen2, Qwen3 and what is loaded as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

_FAMILIES: Final = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})


class LayerWeights(NamedTuple):
    """One layer's tensors; ``None`` where the model has no such thing. ``[out, in]`` like :class:`torch.nn.Linear`.

    ``head_norm`` is ``[heads + kv_heads, head_dim]``: the norm of every query head, then of every key head.
    """

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class LeanShape(NamedTuple):
    """The figures that the forward pass needs besides the tensors; ``windows`` has one per layer, 0 where there is none."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    eps: float
    windows: tuple[int, ...]


class LeanWeights(NamedTuple):
    """A whole model. ``rotary`` is ``[positions, 2, head_dim / 2]``: cosine and sine of every position."""

    shape: LeanShape
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    rotary: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self.embedding.dtype


def why_not_lean(model: Any) -> str | None:
    """Why the lean decoder does not compute this transformers model; ``None`` where it does."""
    name, config = type(model).__name__, model.config
    if name not in _FAMILIES:
        return f"{name} is of another shape"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    if model.model.rotary_emb.inv_freq.shape[0] * 2 != _head_dim(model):
        return "it rotates only a part of each head"
    return None


def lean_weights(model: Any, positions: int) -> LeanWeights:
    """The weights of a model that :func:`why_not_lean` finds nothing about, without a second copy of them.

    Projections that read the same input are merged; the model's own parameters become views of the merged tensors,
    so it computes what it did before. Calling again merges nothing anew.

    Args:
        model: the transformers model, where it is to stay.
        positions: how many positions the table of rotary embeddings covers.
    """
    inner, config = model.model, model.config
    layers = tuple(map(_layer, inner.layers))
    attention = inner.layers[0].self_attn
    shape = LeanShape(
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=_head_dim(model),
        scale=float(attention.scaling),
        eps=float(config.rms_norm_eps),
        windows=tuple(_window(layer.self_attn, config) for layer in inner.layers),
    )
    return LeanWeights(
        shape=shape,
        embedding=inner.embed_tokens.weight.detach(),
        layers=layers,
        norm=inner.norm.weight.detach(),
        head=model.lm_head.weight.detach(),
        rotary=_rotary(inner.rotary_emb, inner.embed_tokens.weight, positions),
    )


def merge(modules: tuple[nn.Linear, ...]) -> tuple[Tensor, Tensor | None]:
    """One weight and bias for linear layers of one input; theirs become views of it."""
    weight = _merged([module.weight for module in modules])
    biases = [module.bias for module in modules if module.bias is not None]
    return weight, _merged(biases) if biases else None


def _merged(parts: Sequence[Tensor]) -> Tensor:
    first = parts[0].detach()
    rows = sum(part.shape[0] for part in parts)
    whole = first.new_empty(0)
    if first.untyped_storage().nbytes() == rows * first[0].nbytes and _adjacent(parts):
        return whole.set_(first.untyped_storage(), 0, (rows, *first.shape[1:]))  # type: ignore[call-overload, no-any-return]
    whole = torch.cat([part.detach() for part in parts])
    start = 0
    for part in parts:
        end = start + part.shape[0]
        part.data = whole[start:end]
        start = end
    return whole


def _adjacent(parts: Sequence[Tensor]) -> bool:
    """Whether these are the views, one after the other, that an earlier merge made."""
    start, storage = 0, parts[0].untyped_storage().data_ptr()
    for part in parts:
        if part.untyped_storage().data_ptr() != storage or part.storage_offset() != start:
            return False
        start += part.numel()
    return True


def _layer(layer: Any) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, qkv_bias = merge((attention.q_proj, attention.k_proj, attention.v_proj))
    gate_up, gate_up_bias = merge((mlp.gate_proj, mlp.up_proj))
    if qkv.is_cuda:
        # The parts are free now, but too small for the next layer's whole: give them back.
        torch.cuda.empty_cache()
    return LayerWeights(
        norm=layer.input_layernorm.weight.detach(),
        qkv=qkv,
        qkv_bias=qkv_bias,
        head_norm=_head_norm(attention),
        out=attention.o_proj.weight.detach(),
        out_bias=None if attention.o_proj.bias is None else attention.o_proj.bias.detach(),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down=mlp.down_proj.weight.detach(),
        down_bias=None if mlp.down_proj.bias is None else mlp.down_proj.bias.detach(),
    )


def _head_norm(attention: Any) -> Tensor | None:
    if getattr(attention, "q_norm", None) is None:
        return None
    weights = ((attention.q_proj, attention.q_norm), (attention.k_proj, attention.k_norm))
    rows = [norm.weight.detach().expand(linear.out_features // attention.head_dim, -1) for linear, norm in weights]
    return torch.cat(rows).contiguous()


def _head_dim(model: Any) -> int:
    return int(model.model.layers[0].self_attn.head_dim)


def _window(attention: Any, config: Any) -> int:
    """The layer's own sliding window; Mistral keeps one for all layers in its config."""
    own = getattr(attention, "sliding_window", None)
    if own is None and config.model_type == "mistral":
        own = getattr(config, "sliding_window", None)
    return int(own or 0)


@torch.no_grad()
def _rotary(embedding: Any, weight: Tensor, positions: int) -> Tensor:
    """Cosine and sine from transformers' own module, so that every kind of scaling is as it has it."""
    every = torch.arange(positions, device=weight.device)[None]
    cosine, sine = embedding(weight[:1], every)
    half = cosine.shape[-1] // 2
    return torch.stack((cosine[0, :, :half], sine[0, :, :half]), dim=1).contiguous()
