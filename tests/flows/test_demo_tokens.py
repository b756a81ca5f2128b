"""The promise of the whole engine, on the real model: eviction changes when tokens come, never which."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from kvtrace import tracer
from kvtrace.engine.config import PolicyMode
from kvtrace.engine.model import LoadedModel, load_model
from kvtrace.tui.demo.scene import SceneFacts, engine_config, play
from kvtrace.tui.demo.script import AgentScript, Step, write_scripts

AGENTS = 5


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("smollm2")


@pytest.fixture(autouse=True)
def _spans_go_to_a_folder_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRACE_DIR", str(tmp_path))
    monkeypatch.delenv("KVTRACE_RUN", raising=False)
    tracer.configure(directory=tmp_path)


def _scripts() -> tuple[AgentScript, ...]:
    """The demo's agents with waits short enough for a test; the tools' results are the same in every run."""
    steps = (Step("run_checks", "0.5"), Step("grep", "agent"), Step("run_checks", "0.2"))
    return tuple(replace(script, steps=steps) for script in write_scripts(AGENTS, 3, seed=0))


def _play(model: LoadedModel, policy: PolicyMode, *, roomy: bool) -> tuple[dict[str, list[list[int]]], SceneFacts]:
    scripts = _scripts()
    config = engine_config(model, scripts, policy, seed=0)
    if roomy:
        config = replace(config, device_blocks=4 * config.device_blocks)
    answers: dict[str, list[list[int]]] = defaultdict(list)
    facts = play(model, config, scripts, lambda _event: None, lambda name, answer: answers[name].append(answer))
    return dict(answers), facts


def test_every_agent_generates_the_same_tokens_under_swap_and_keep(model: LoadedModel) -> None:
    kept, without = _play(model, PolicyMode.KEEP, roomy=True)
    swapped, facts = _play(model, PolicyMode.SWAP, roomy=False)
    assert swapped == kept
    assert all(len(answers) == 4 for answers in kept.values())
    assert without.out_bytes == 0
    assert facts.in_bytes > 0, "nothing was ever brought back, so nothing was compared"
    assert facts.totals.reprefilled_tokens == 0
