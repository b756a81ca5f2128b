from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvtrace.engine.device import DeviceMemory
from kvtrace.engine.errors import ModelError
from kvtrace.engine.model import LoadedModel
from kvtrace.engine.model.fit import refuse_too_large, stored_elements


def _memory(free: int) -> DeviceMemory:
    gib = 1 << 30
    return DeviceMemory("cuda", "RX 9070 XT", 16 * gib, free, 0, 16 * gib - free, 32 * gib)


def test_files_tell_how_many_weights_there_are(
    tiny_folder: Callable[[str], Path], tiny_model: Callable[[str], LoadedModel]
) -> None:
    assert stored_elements(tiny_folder("llama")) == sum(one.numel() for one in tiny_model("llama").model.parameters())


def test_what_cannot_be_read_is_left_to_the_loader(tmp_path: Path) -> None:
    assert stored_elements(tmp_path) == stored_elements(tmp_path / "none") == 0
    for name, content in (("a", b""), ("b", b"\x05" + bytes(7) + b"[1,2]"), ("c", b"\xff" * 40)):
        (tmp_path / f"{name}.safetensors").write_bytes(content)
    assert stored_elements(tmp_path) == 0
    refuse_too_large("some/hub-id", "hub", 2, _memory(0))


def test_weights_that_do_not_fit_are_refused_with_the_numbers(tiny_folder: Callable[[str], Path]) -> None:
    folder = str(tiny_folder("llama"))
    refuse_too_large(folder, "tiny", 2, _memory(1 << 30))
    with pytest.raises(
        ModelError, match=r"tiny needs 79,936 bytes .* at 16 bit, but RX 9070 XT has .* held by other processes"
    ):
        refuse_too_large(folder, "tiny", 2, _memory(10))
