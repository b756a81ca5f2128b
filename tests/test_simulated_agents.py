"""The benchmark of simulated agents joins the engine in virtual time with the planner's ideal and prediction."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvtrace.engine.bench.agents.workload import Shape
from kvtrace.engine.config import PolicyMode
from kvtrace.engine.simulation.machine import ARTICLE

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulated_agents", ROOT / "benchmarks/simulated_agents.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def measure(script: ModuleType, **fields: Any) -> dict[str, Any]:
    shape = Shape(1, prompt_tokens=400, returns=2, generated_tokens=8, new_tokens=20)
    row: dict[str, Any] = script.measure(
        script.Cell(**{"shape": shape, "seed": 1, "policy": PolicyMode.AUTO, **fields})
    )
    return row


def test_small_cell_is_held_against_the_ideal_queue(script: ModuleType) -> None:
    row = measure(script, part="closed", agents=3)
    assert row["turns"] == 9
    # The card's decode steps are a little shorter than the ideal's, its way from client to engine is not free.
    assert 0.8 < row["turns_per_s_of_ideal"] < 1.1
    assert row["ceiling_multiple"] == pytest.approx(1 / (1 - row["b"]))
    assert f"{row['turns_per_s']:.3f} turns/s" in script.line(row)


def test_plan_is_beside_the_article_s_rig(script: ModuleType) -> None:
    row = measure(script, part="article", agents=8, machine=ARTICLE, tools="exp:4", seconds=20.0)
    predicted, costs = script.plan([row])
    assert predicted["b"] == row["b"]
    assert predicted["resident_agents"] == 8
    assert costs["times_cheaper"] == pytest.approx(176, abs=1)


@pytest.mark.parametrize("name", ["agents-simulated.json", "agents-article-model.json"])
def test_committed_results_say_that_they_are_a_models(name: str) -> None:
    document = json.loads((ROOT / "benchmarks/results" / name).read_text())
    assert document["kind"].startswith("a model")
    assert document["runs"]
    assert document["command"].startswith("python benchmarks/simulated_agents.py --part")
