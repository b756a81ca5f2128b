"""The benchmark of steps on a tiny model: each step runs through the engine's runner, and its bounds are those of its sizes."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

pytest.importorskip("torch")

from kvtrace.engine.model import LoadedModel
from tests.scripts import benchmark


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return benchmark("steps")


def test_steps_have_a_time_two_bounds_and_a_profile(
    script: ModuleType, tiny_model: Callable[[str], LoadedModel], capsys: pytest.CaptureFixture[str]
) -> None:
    found = script.measure(tiny_model("llama"), script.SMALL, repeats=1, seconds=0.1)
    alone, prompt, both = found["steps"]
    assert all(row["ms"] > 0 for row in found["steps"])
    (again,) = found["sustained"]
    assert (again["new"], again["decoding"]) == (both["new"], both["decoding"])
    assert again["seconds"] >= 0.1
    assert min(again["first_ms"], again["last_ms"]) > 0
    assert (alone["decoding"], prompt["new"], both["new"], both["decoding"]) == (2, 16, 16, 2)
    # Weights are read once however many rows there are; every row and every pair of positions is computed.
    assert both["memory_ms"] < alone["memory_ms"] + prompt["memory_ms"]
    assert both["compute_ms"] == pytest.approx(alone["compute_ms"] + prompt["compute_ms"])
    (profiled,) = found["profile"]
    assert sum(kernel["ms"] for kernel in profiled["kernels"]) <= profiled["kernels_ms"] * 1.001
    assert any("mm" in kernel["name"] for kernel in profiled["kernels"])
    script.show(found)
    assert "16 new at 16, 2 decoding" in capsys.readouterr().out


def test_every_step_of_the_gpu_plan_fits_its_runner(script: ModuleType) -> None:
    plan = script.GPU
    for step in {*plan.steps, *plan.profiled}:
        assert step.new + step.decoding <= plan.step_tokens
        assert step.decoding + bool(step.new) <= plan.slots
        assert max(step.start + step.new, step.past + 1) <= plan.width * 16
    assert set(plan.profiled) <= set(plan.steps)
