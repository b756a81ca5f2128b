"""What one token and one sequence of a model keep in the cache: from a table, an HF config or a GGUF header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import ModelFileError
from .gguf_header import read_gguf_header
from .layers import layers_from_config, layers_from_gguf

_MAX_CONFIG_BYTES: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Bytes a model keeps: ``token_bytes`` a token over all layers, ``state_bytes`` a sequence whatever its length.

    ``weights_bytes`` is ``None`` where unknown; ``source`` says where the figures are from.
    """

    name: str
    token_bytes: int
    state_bytes: int
    weights_bytes: int | None
    source: str

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of a sequence of ``tokens``."""
        return tokens * self.token_bytes + self.state_bytes


_CONFIG: Final = "its published configuration, KV in 16 bit, weights in 16 bit"
MODELS: Final = (
    ModelShape("Qwen3-8B", 147_456, 0, 16_381_470_720, _CONFIG),
    ModelShape("Qwen3-4B", 147_456, 0, 8_044_936_192, _CONFIG),
    ModelShape("Qwen3.5-9B", 32_768, 51_511_296, None, _CONFIG),
    ModelShape("Llama-3.1-8B", 131_072, 0, 16_060_522_496, _CONFIG),
    ModelShape("SmolLM2-135M", 23_040, 0, 269_030_016, _CONFIG),
)


def find_model(name: str) -> ModelShape:
    """The shape of a model named like one of :data:`MODELS`, or described by a file.

    A path names a GGUF file, an HF ``config.json`` or a folder with one. Raises :class:`ModelFileError` for a name that is
    neither, and for files that cannot be read or do not tell.
    """
    known = next((model for model in MODELS if model.name.lower() == name.lower().rsplit("/", 1)[-1]), None)
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            return _from_config_file(path / "config.json", path)
        if path.is_file():
            return _from_gguf_file(path) if _is_gguf(path) else _from_config_file(path, None)
    except OSError as error:
        raise ModelFileError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error
    if known is None:
        names = ", ".join(model.name for model in MODELS)
        raise ModelFileError(
            f"no model {name!r}: name a GGUF file, a config.json, a folder with one, or one of {names}"
        )
    return known


def shape_from_config(config: Mapping[str, Any], name: str, weights_bytes: int | None = None) -> ModelShape:
    """Shape of the model an HF configuration describes. Raises :class:`ModelFileError` where it does not tell."""
    layers = layers_from_config(config, name)
    return ModelShape(name, layers.token_bytes, layers.state_bytes, weights_bytes, "its config.json, KV in 16 bit")


def shape_from_gguf(header: Mapping[str, Any], name: str, weights_bytes: int | None = None) -> ModelShape:
    """Shape of the model a GGUF header describes. Raises :class:`ModelFileError` where it does not tell."""
    layers = layers_from_gguf(header, name)
    return ModelShape(name, layers.token_bytes, layers.state_bytes, weights_bytes, "its GGUF header, KV in 16 bit")


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _from_gguf_file(path: Path) -> ModelShape:
    header = read_gguf_header(path)
    name = header.get("general.name")
    return shape_from_gguf(header, name if isinstance(name, str) and name else path.name, path.stat().st_size)


def _from_config_file(path: Path, folder: Path | None) -> ModelShape:
    with path.open("rb") as file:
        raw = file.read(_MAX_CONFIG_BYTES)
    try:
        config = json.loads(raw)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise ModelFileError(f"{path} is neither a GGUF file nor a JSON object; name a model's config.json")
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder else 0
    return shape_from_config(config, str(folder or path), weights or None)
