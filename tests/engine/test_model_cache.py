from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvtrace.engine.errors import ModelError
from kvtrace.engine.model import LoadedModel, load_model
from kvtrace.engine.model.cache import cache_root, converted, is_whole
from kvtrace.tracer.attributes import ENV_CACHE

LOAD = """
import sys
from kvtrace.engine.model import load_model
phases = []
load_model(sys.argv[1], on_phase=phases.append)
print(sum(phase.startswith("converting") for phase in phases))
"""


@pytest.fixture(scope="session")
def tiny_gguf(tiny_model: Callable[[str], LoadedModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama as a GGUF file."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    _write_gguf(tiny_model("llama"), path)
    return path


def _write_gguf(loaded: LoadedModel, path: Path) -> None:
    import gguf

    config, tokenizer = loaded.model.config, loaded.tokenizer
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([3] * 3 + [1] * (len(words) - 3))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(tokenizer.chat_template)
    for name, tensor in loaded.model.state_dict().items():
        writer.add_tensor(_gguf_name(name), _permuted(name, tensor, config).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    parts = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers.": "blk.",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    for ours, theirs in sorted(parts.items(), key=lambda pair: -len(pair[0])):
        name = name.replace(ours, theirs)
    return name


def _permuted(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """GGUF keeps the halves of each rotary pair of queries and keys next to each other."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    return tensor.view(heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape).contiguous()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ENV_CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def _load(gguf: Path) -> tuple[LoadedModel, bool]:
    """The model, and whether it had to be converted."""
    phases: list[str] = []
    loaded = load_model(gguf, on_phase=phases.append)
    return loaded, any(phase.startswith("converting") for phase in phases)


def _folder(cache: Path) -> Path:
    (folder,) = (path for path in (cache / "models").iterdir() if path.is_dir())
    return folder


def test_a_gguf_file_gives_the_same_model(tiny_gguf: Path, tiny_model: Callable[[str], LoadedModel]) -> None:
    loaded, original = _load(tiny_gguf)[0], tiny_model("llama")
    weights = dict(loaded.model.named_parameters())
    for name, expected in original.model.named_parameters():
        assert torch.equal(weights[name], expected), name
    assert loaded.geometry == original.geometry
    assert set(loaded.stop_ids) >= set(original.stop_ids)
    assert loaded.tokenizer.encode("a file: <|im_end|>\n") == original.tokenizer.encode("a file: <|im_end|>\n")
    assert loaded.tokenizer.chat_template == original.tokenizer.chat_template
    assert loaded.model_id == "tiny"


def test_only_the_first_load_converts(tiny_gguf: Path, own_cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _load(tiny_gguf)[1]
    assert capfd.readouterr() == ("", "")
    before = {path: path.stat().st_mtime_ns for path in _folder(own_cache).iterdir()}
    assert not _load(tiny_gguf)[1]
    assert {path: path.stat().st_mtime_ns for path in _folder(own_cache).iterdir()} == before


def test_another_content_of_the_same_name_is_another_model(tiny_gguf: Path, tmp_path: Path) -> None:
    first = converted(tiny_gguf, torch.float32, lambda _: None)
    changed = tmp_path / tiny_gguf.name
    changed.write_bytes(tiny_gguf.read_bytes()[:-4] + b"\x00\x00\x00\x00")
    assert converted(changed, torch.float32, lambda _: None) != first
    assert converted(tiny_gguf, torch.bfloat16, lambda _: None) != first


def _truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def _lose_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _spoil_manifest(folder: Path) -> None:
    (folder / "kvtrace.json").write_text("[1, 2")


def _age(folder: Path) -> None:
    manifest = json.loads((folder / "kvtrace.json").read_text())
    (folder / "kvtrace.json").write_text(json.dumps(manifest | {"made_by": "transformers 4.0"}))


@pytest.mark.parametrize("damage", [_truncate, _lose_tokenizer, _spoil_manifest, _age])
def test_a_damaged_conversion_is_made_again(tiny_gguf: Path, own_cache: Path, damage: Callable[[Path], None]) -> None:
    _load(tiny_gguf)
    damage(_folder(own_cache))
    assert not is_whole(_folder(own_cache))
    assert _load(tiny_gguf)[1]
    assert is_whole(_folder(own_cache))
    assert not _load(tiny_gguf)[1]


def test_two_processes_convert_once(tiny_gguf: Path, own_cache: Path) -> None:
    command = [sys.executable, "-c", LOAD, str(tiny_gguf)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum(int(out) for out, _ in outputs) == 1
    assert is_whole(_folder(own_cache))


def test_a_killed_conversion_leaves_nothing_half(tiny_gguf: Path, own_cache: Path) -> None:
    """The process dies after the weights were written and before the rename."""
    program = (
        "import os, signal, sys\nfrom kvtrace.engine.model import cache, load_model\n"
        "cache._sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
        "load_model(sys.argv[1])\n"
    )
    died = subprocess.run([sys.executable, "-c", program, str(tiny_gguf)], check=False, timeout=120)
    assert died.returncode == -signal.SIGKILL
    left = [path for path in (own_cache / "models").iterdir() if path.is_dir()]
    assert [path.name[0] for path in left] == ["."]
    assert (left[0] / "model.safetensors").is_file()
    assert _load(tiny_gguf)[1]
    assert is_whole(_folder(own_cache))


def test_a_cache_that_cannot_be_written_is_named(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(ENV_CACHE, str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set KVTRACE_CACHE to a folder"):
        load_model(tiny_gguf)


def test_a_file_that_is_no_gguf_is_named(tmp_path: Path) -> None:
    (tmp_path / "odd.gguf").write_bytes(b"GGUFnot really" * 10)
    with pytest.raises(ModelError, match=r"cannot read .*odd\.gguf"):
        load_model(tmp_path / "odd.gguf")


def test_the_default_cache_is_the_user_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ENV_CACHE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "kvtrace"
    assert list(tmp_path.iterdir()) == []
