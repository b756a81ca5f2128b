"""What ends a start, and says why."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.errors import ConfigError, ModelError
from kvtrace.engine.server.launch import Launched, PortTaken
from kvtrace.engine.server.loading import NoGpu, _device, configure, step_sizes
from kvtrace.engine.server.settings import ServerSettings

from .conftest import tiny_settings
from .support import Running


def test_the_server_listens_before_torch_is_loaded() -> None:
    program = (
        "import sys, kvtrace.engine.server.launch\nprint([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_occupied_port_is_named_with_its_holder(tiny_server: Running) -> None:
    port = int(tiny_server.url.rpartition(":")[2])
    with pytest.raises(PortTaken, match=rf"port {port}.*by a kvtrace serve that already runs.*--port"):
        Launched(ServerSettings(port=port))


@pytest.mark.parametrize("host", ["192.0.2.1", "300.1.1.1", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(PortTaken, match=rf"cannot listen on {host} port 0: (?!Unknown).*--host"):
        Launched(ServerSettings(host=host, port=0))


def test_a_device_that_torch_does_not_have_is_a_sentence() -> None:
    with pytest.raises(NoGpu, match="kvtrace doctor"):
        _device("cuda:99")
    with pytest.raises(NoGpu, match="no device called 'tpu'"):
        _device("tpu")
    assert _device("cpu") == "cpu"


def test_a_model_that_is_not_there_ends_the_server(tmp_path: Path) -> None:
    for source, words in (
        (tmp_path / "none.gguf", "there is no file"),
        (tmp_path, r"has no config\.json"),
        (tmp_path / "none", "there is no folder"),
        ("./none", "there is no folder"),
    ):
        server = Launched(ServerSettings(source=str(source), port=0))
        with pytest.raises(ModelError, match=words):
            server.run()
        assert server.service.phase == "failed"


def test_sizes_that_do_not_fit_end_the_server_with_numbers(tiny_folder: Callable[[str], Path]) -> None:
    settings = tiny_settings(tiny_folder("llama"))
    for changes, words in (
        ({"kv_vram_bytes": 1 << 50}, r"GiB.*available.*--kv-vram"),
        ({"kv_vram_bytes": 8192}, r"one context of 256 needs"),
        ({"kv_host_bytes": 1 << 50}, r"--kv-host"),
        ({"context_tokens": 100_000}, r"trained for 512|needs"),
    ):
        with pytest.raises(ConfigError, match=words):
            Launched(replace(settings, **changes)).run()  # type: ignore[arg-type]


def test_start_up_says_phases_and_what_fits(tiny_server: Running) -> None:
    assert tiny_server.phases[0] == "importing torch and transformers"
    assert tiny_server.phases[-1] == "making the KV pools"
    block = 16
    pool = tiny_server.service.engine.state().tiers
    assert tiny_server.started.vram_tokens * 384 == pool.vram.kv_pool_bytes
    assert tiny_server.started.vram_tokens % block == 0
    assert tiny_server.started.host_tokens * 384 == pool.host.total_bytes
    assert (tiny_server.started.context_tokens, tiny_server.started.device) == (256, "cpu")


def test_a_context_that_nobody_asked_for_is_what_fits(tiny_server: Running) -> None:
    model = tiny_server.service.model
    open_end = replace(tiny_server.service.settings, context_tokens=None, kv_vram_bytes=512 * 384)
    config, pools = configure(open_end, model)
    assert (config.context_tokens, pools.device_blocks) == (512, 32)
    config, _ = configure(replace(open_end, policy=PolicyMode.KEEP, slots=600), model)
    assert (config.host_blocks, config.step_tokens, config.mixed_step_tokens) == (0, 600, None)


def test_steps_are_shorter_beside_decoding_on_a_gpu_unless_told_otherwise() -> None:
    assert step_sizes(ServerSettings(), gpu=True) == (1024, 256)
    assert step_sizes(ServerSettings(slots=200), gpu=True) == (1024, 400)
    assert step_sizes(ServerSettings(step_tokens=2048, mixed_step_tokens=512), gpu=True) == (2048, 512)
    assert step_sizes(ServerSettings(), gpu=False) == (512, None)
    assert step_sizes(ServerSettings(mixed_step_tokens=64), gpu=False) == (512, 64)
