from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kvtrace.engine.calibrate import calibrate
from kvtrace.engine.device import DeviceReport, find_device
from kvtrace.engine.errors import ConfigError


def test_rates_of_this_machine_are_measured_and_the_prompt_counted_once() -> None:
    asked: list[int] = []
    found = calibrate("cpu", asked.append, prefill_tokens=64)
    assert asked == [64, 64]
    assert found.platform == "CPU"
    assert found.prefill_tokens_per_s is not None
    assert found.prefill_tokens_per_s > 0
    assert min(found.out_bytes_per_s, found.in_bytes_per_s, found.both_bytes_per_s, found.copy_bytes_per_s) > 0
    assert found.free_bytes <= found.total_bytes


def test_a_child_process_prints_it_as_json() -> None:
    program = [sys.executable, "-m", "kvtrace.engine.calibrate", "cpu"]
    facts = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    assert facts["prefill_tokens_per_s"] is None
    assert facts["out_bytes_per_s"] > 0


@pytest.mark.parametrize("name", ["cuda:63", "tpu", "meta", "mps"])
def test_devices_that_are_not_there_are_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no device.*{name}"):
        find_device(name)


def test_platform_names_runtime_and_architecture() -> None:
    assert DeviceReport("cuda", "AMD", "ROCm 7.1", "gfx1201", 1, 1).platform == "ROCm 7.1 gfx1201"
    assert DeviceReport("cpu", "4 cores", "CPU", None, None, None).platform == "CPU"
