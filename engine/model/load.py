"""From a name, a GGUF file or a folder to a model that runs on kvtrace's attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ..attention import ATTENTION_NAME, register
from ..batch import Chunk
from ..device import device_memory
from ..errors import ConfigError, ModelError
from ..geometry import BLOCK_SIZES, KVGeometry, default_block_tokens
from ..runner import TorchRunner
from ..sequence import Sampling
from ..storage import Storage
from .cache import converted
from .embedded import EMBEDDED_MODEL_ID, EMBEDDED_NAME, embedded_gguf
from .fit import refuse_too_large
from .quiet import quiet_transformers
from .random_weights import RANDOM_PREFIX, number_tokenizer, random_model
from .support import geometry_of, refuse_unsupported


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for the engine.

    Attributes:
        model: the transformers model; its attention is kvtrace's.
        tokenizer: the transformers tokenizer, with its chat template where it has one.
        geometry: shape of its KV.
        weights_bytes: bytes of its parameters and buffers on ``device``.
        stop_ids: token ids that end an answer.
        model_id: name for people.
        context_tokens: longest context it was trained for.
        device: where the weights are.
        dtype: of weights and KV.
    """

    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    geometry: KVGeometry
    weights_bytes: int
    stop_ids: tuple[int, ...]
    model_id: str
    context_tokens: int
    device: torch.device
    dtype: torch.dtype


class _Form(NamedTuple):
    """Where and how a model and its KV are kept."""

    device: torch.device
    dtype: torch.dtype
    block_tokens: int


def load_model(
    source: str | Path = EMBEDDED_NAME,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    block_tokens: int | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> LoadedModel:
    """Load a model and make sure that kvtrace serves it rightly.

    Args:
        source: ``"smollm2"`` (the embedded model), a ``.gguf`` file, a folder with a transformers model, an id
            that transformers knows, or ``"random:qwen3-8b"`` (a known geometry with random weights, to measure speed).
        device: where to put the weights.
        dtype: of weights and KV; float32 on the CPU and bfloat16 elsewhere unless given.
        block_tokens: positions of a KV block, one of :data:`~kvtrace.engine.geometry.BLOCK_SIZES`; 16 on the CPU and 32
            elsewhere unless given.
        on_phase: told in a few words what is being done, before it is done.

    Raises:
        ConfigError: no such size of blocks.
        ModelError: the model is not there, cannot be read, or keeps state that kvtrace cannot park.
    """
    place = torch.device(device)
    gpu = place.type != "cpu"
    dtype = dtype or (torch.bfloat16 if gpu else torch.float32)
    block_tokens = default_block_tokens(gpu=gpu) if block_tokens is None else block_tokens
    if block_tokens not in BLOCK_SIZES:
        raise ConfigError(f"block_tokens is {block_tokens}; give one of {', '.join(map(str, BLOCK_SIZES))}")
    form = _Form(place, dtype, block_tokens)
    with quiet_transformers():
        if str(source).startswith(RANDOM_PREFIX):
            return _random(str(source), form, on_phase)
        location, model_id = _locate(source, dtype, on_phase)
        on_phase(f"loading {model_id}")
        return _load(location, model_id, form)


def _locate(source: str | Path, dtype: torch.dtype, on_phase: Callable[[str], None]) -> tuple[str, str]:
    """What transformers shall load, and the model's name for people."""
    if source == EMBEDDED_NAME:
        return str(converted(embedded_gguf(), dtype, on_phase)), EMBEDDED_MODEL_ID
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"there is no file {path}")
        return str(converted(path.resolve(), dtype, on_phase)), path.stem
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} has no config.json: give a folder that transformers can load, or a .gguf file")
        return str(path), path.resolve().name
    if str(source).startswith((".", "/", "~")) or str(source).count("/") > 1:
        raise ModelError(f"there is no folder {path}: give one that transformers can load, or a .gguf file")
    return str(source), str(source)


def _load(location: str, model_id: str, form: _Form) -> LoadedModel:
    register()
    try:
        config = AutoConfig.from_pretrained(location)
        refuse_unsupported(config.get_text_config(), model_id)
        refuse_too_large(location, model_id, form.dtype.itemsize, device_memory(str(form.device)))
        # Off by default and harmful where a checkpoint turns it on: text would differ from its tokens.
        tokenizer = AutoTokenizer.from_pretrained(location, clean_up_tokenization_spaces=False)
        model = AutoModelForCausalLM.from_pretrained(location, dtype=form.dtype, attn_implementation=ATTENTION_NAME)
    except ModelError:
        raise
    except Exception as error:  # the tokenizers library raises Exception itself
        where = f"{model_id} from {location}" if Path(location).exists() else f"{location}, which is no folder here"
        raise ModelError(f"transformers cannot load {where}: {error}") from error
    return _checked(model.to(form.device), tokenizer, model_id, form)


def _random(source: str, form: _Form, on_phase: Callable[[str], None]) -> LoadedModel:
    register()
    on_phase(f"drawing {source}")
    model = random_model(source.removeprefix(RANDOM_PREFIX), ATTENTION_NAME, form.device, form.dtype)
    return _checked(model, number_tokenizer(model.config.vocab_size), source, form)


def _checked(model: Any, tokenizer: Any, model_id: str, form: _Form) -> LoadedModel:
    model.eval()
    text = model.config.get_text_config()
    loaded = LoadedModel(
        model=model,
        tokenizer=tokenizer,
        geometry=geometry_of(text, form.dtype.itemsize, form.block_tokens),
        weights_bytes=sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())),
        stop_ids=_stop_ids(model, tokenizer),
        model_id=model_id,
        context_tokens=int(getattr(text, "max_position_embeddings", None) or 2048),
        device=form.device,
        dtype=form.dtype,
    )
    probe(loaded)
    return loaded


def probe(loaded: LoadedModel) -> None:
    """Compute two positions and see that every layer wrote its KV where, and only where, it should.

    The config can only name what it knows; a layer that keeps its state elsewhere shows here.

    Raises:
        ModelError: a layer's KV did not arrive in the pool.
    """
    storage = Storage(loaded.geometry, 1, 0, device=loaded.device, dtype=loaded.dtype)
    storage.pool.fill_(float("nan"))
    chunk = Chunk(
        sequence_id=0,
        tokens=(1, 2),
        start=0,
        table=(0,),
        write_from=0,
        sample=False,
        sampling=Sampling(),
        seed=0,
        generated=0,
    )
    try:
        TorchRunner(loaded.model, storage).run([chunk])
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        raise ModelError(f"{loaded.model_id} does not run on kvtrace's attention: {error}") from error
    written = ~storage.pool[0].isnan().any(dim=-1).any(dim=2).any(dim=1)
    lacking = [layer for layer, rows in enumerate(written.tolist()) if rows[:2] != [True, True] or any(rows[2:])]
    if lacking:
        raise ModelError(
            f"{loaded.model_id}: layers {lacking} do not keep their state in the KV cache as plain K and V of each "
            "position, so kvtrace cannot park it; choose a model with full attention in every layer"
        )


def _stop_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """End ids of generation config, model config and tokenizer; each may give none, one or several."""
    found: set[int] = set()
    for owner in (model.generation_config, model.config, tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or [])
    return tuple(sorted(found))
