"""Which layers of a model keep what, read from the figures of an HF configuration or of a GGUF header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..errors import ModelFileError

ELEMENT_BYTES: Final = 2
_STATE_BYTES: Final = 4  # recurrent state is kept in 32 bit
_LINEAR_PERIOD: Final = 4  # where a hybrid's config names no period, every fourth layer has full attention


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers that keep state: ``full`` attention, ``window`` attention of ``window_tokens``, ``recurrent``."""

    full: int
    kv_bytes: int
    window: int = 0
    window_tokens: int = 0
    recurrent: int = 0
    recurrent_bytes: int = 0

    @property
    def token_bytes(self) -> int:
        """Bytes that every token adds."""
        return self.full * self.kv_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes whatever the length; a window counts as full."""
        return self.window * self.window_tokens * self.kv_bytes + self.recurrent * self.recurrent_bytes


def layers_from_config(config: Mapping[str, Any], name: str) -> Layers:
    """Layers of the (text) model an HF configuration describes.

    Raises :class:`ModelFileError`, naming the model by ``name``, where a figure is missing or a kind of layer not known.
    """
    text = config.get("text_config")
    figures = _Figures(text if isinstance(text, Mapping) else config, name)
    return _latent_layers(figures) or _config_layers(figures)


def layers_from_gguf(header: Mapping[str, Any], name: str) -> Layers:
    """Layers of the model a GGUF header describes. Raises as :func:`layers_from_config` does."""
    prefix = f"{header.get('general.architecture')}."
    return _gguf_layers(_Figures({k.removeprefix(prefix): v for k, v in header.items() if k.startswith(prefix)}, name))


class _Figures:
    """Positive whole numbers of a mapping that may hold anything."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values, self._name = values, name

    def figure(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            if default is None or value is not None:
                raise self.bad(f"its {key} is {str(value)[:40]!r}" if key in self.values else f"it has no {key}")
            return default
        return value

    def bad(self, why: str) -> ModelFileError:
        return ModelFileError(f"the cache of {self._name} cannot be told, since {why}; give --bytes-per-token")


def _latent_layers(config: _Figures) -> Layers | None:
    """Layers that keep one compressed vector a token instead of keys and values."""
    if not config.values.get("kv_lora_rank"):
        return None
    elements = config.figure("kv_lora_rank") + config.figure("qk_rope_head_dim")
    return Layers(config.figure("num_hidden_layers"), elements * ELEMENT_BYTES)


def _config_layers(config: _Figures) -> Layers:
    layers = config.figure("num_hidden_layers")
    heads = config.figure("num_attention_heads")
    head_dim = config.figure("head_dim") if config.values.get("head_dim") else config.figure("hidden_size") // heads
    kv_bytes = 2 * config.figure("num_key_value_heads", heads) * head_dim * ELEMENT_BYTES
    kinds = [str(kind) for kind in _layer_kinds(config, layers)]
    unknown = set(kinds) - {"full_attention", "sliding_attention", "linear_attention"}
    if unknown:
        raise config.bad(f"layers of kind {min(unknown)[:40]!r} are not known")
    recurrent, window = kinds.count("linear_attention"), kinds.count("sliding_attention")
    return Layers(
        full=layers - recurrent - window,
        kv_bytes=kv_bytes,
        window=window,
        window_tokens=config.figure("sliding_window") if window else 0,
        recurrent=recurrent,
        recurrent_bytes=_linear_bytes(config) if recurrent else 0,
    )


def _layer_kinds(config: _Figures, layers: int) -> Sequence[Any]:
    kinds = config.values.get("layer_types")
    if isinstance(kinds, list):
        if len(kinds) != layers:
            raise config.bad(f"it has {layers} layers but {len(kinds)} layer_types")
        return kinds
    if "linear_num_value_heads" in config.values:
        period = config.figure("full_attention_interval", _LINEAR_PERIOD)
        return ["full_attention" if (layer + 1) % period == 0 else "linear_attention" for layer in range(layers)]
    strange = {"ssm_state_size", "mamba_d_state", "state_size", "layers_block_type", "conv_L_cache"} & set(
        config.values
    )
    if strange:
        raise config.bad(f"it has recurrent layers of a kind that is not known ({min(strange)})")
    return ["full_attention"] * layers


def _linear_bytes(config: _Figures) -> int:
    """State of one gated linear-attention layer: a matrix a value head, and the inputs its convolution looks back to."""
    values = config.figure("linear_num_value_heads") * config.figure("linear_value_head_dim")
    key_dim = config.figure("linear_key_head_dim")
    channels = values + 2 * config.figure("linear_num_key_heads") * key_dim
    looks_back = config.figure("linear_conv_kernel_dim") - 1
    return values * key_dim * _STATE_BYTES + channels * looks_back * ELEMENT_BYTES


def _gguf_layers(header: _Figures) -> Layers:
    layers = header.figure("block_count")
    key_dim = _key_dim(header)
    elements = key_dim + header.figure("attention.value_length", key_dim)
    full, kv_heads = _gguf_heads(header, layers)
    recurrent = layers - full
    return Layers(
        full=full,
        kv_bytes=kv_heads * elements * ELEMENT_BYTES,
        recurrent=recurrent,
        recurrent_bytes=_ssm_bytes(header) if recurrent else 0,
    )


def _key_dim(header: _Figures) -> int:
    if "attention.key_length" in header.values:
        return header.figure("attention.key_length")
    return header.figure("embedding_length") // header.figure("attention.head_count")


def _gguf_heads(header: _Figures, layers: int) -> tuple[int, int]:
    """Layers with full attention, and the KV heads of each; a list has no heads where a layer keeps recurrent state."""
    heads = header.values.get("attention.head_count_kv")
    if not isinstance(heads, list):
        period = header.figure("full_attention_interval", 1)
        return layers // period, header.figure("attention.head_count_kv", header.figure("attention.head_count"))
    with_kv = [count for count in heads if count]
    if len(heads) != layers or len(set(with_kv)) != 1 or not isinstance(with_kv[0], int):
        raise header.bad("its layers differ in their number of KV heads")
    return len(with_kv), with_kv[0]


def _ssm_bytes(header: _Figures) -> int:
    inner, state = header.figure("ssm.inner_size"), header.figure("ssm.state_size")
    channels = inner + 2 * header.figure("ssm.group_count") * state
    return inner * state * _STATE_BYTES + channels * (header.figure("ssm.conv_kernel") - 1) * ELEMENT_BYTES
