"""The benchmark of simulated agents joins the engine in virtual time with the planner's ideal and prediction."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from kvtrace.engine.bench.agents.workload import Shape
from kvtrace.engine.config import PolicyMode
from kvtrace.engine.simulation.agents import QWEN3_8B
from kvtrace.engine.simulation.machine import ARTICLE

from .scripts import BENCHMARKS, benchmark


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return benchmark("simulated_agents")


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


def test_auto_is_held_against_eager_as_it_is_here_and_as_the_article_words_it(script: ModuleType) -> None:
    rows = [
        measure(script, part="real", agents=6, tools="real", policy=policy)
        for policy in (PolicyMode.AUTO, PolicyMode.EAGER)
    ]
    (compared,) = script.against_eager(rows)
    # All have room: auto copies each block out once, eager brings it back as well, the article's rule does both every time.
    assert 0 < compared["bytes_of_literal_eager"] < compared["bytes_of_eager"] < 1
    assert compared["handed_of_eager"] is None
    assert script.against_eager([measure(script, part="closed", agents=2)]) == []
    moved_blocks = rows[0]["literal_eager_bytes"] / QWEN3_8B.block_bytes
    assert moved_blocks == 2 * 6 * (13 + 14)  # 407 and 435 tokens have KV when the two calls of each begin


def test_agents_of_whose_tools_nobody_tells_are_told_apart_in_the_table(script: ModuleType) -> None:
    row = measure(script, part="silent", agents=4, silent=2)
    assert (row["turns"], row["silent_share"], row["reprefilled_tokens"]) == (12, 0.5, 0)
    assert "50% silent" in script.line(row)


def test_plan_is_beside_the_article_s_rig(script: ModuleType) -> None:
    row = measure(script, part="article", agents=8, machine=ARTICLE, tools="exp:4", seconds=20.0)
    predicted, costs = script.plan([row])
    assert predicted["b"] == row["b"]
    assert predicted["resident_agents"] == 8
    assert costs["times_cheaper"] == pytest.approx(176, abs=1)


@pytest.mark.parametrize("name", ["agents-simulated.json", "agents-article-model.json"])
def test_committed_results_say_that_they_are_a_models(name: str) -> None:
    document = json.loads((BENCHMARKS / "results" / name).read_text())
    assert document["kind"].startswith("a model")
    assert document["runs"]
    assert document["command"].startswith("python benchmarks/simulated_agents.py --part")
