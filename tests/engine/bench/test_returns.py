"""The benches of returns and parking on a tiny model: where the KV was is real, how long it took is not looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from kvtrace.engine.bench import parking, returns
from kvtrace.engine.config import PolicyMode
from kvtrace.engine.model import LoadedModel, load_model


@pytest.mark.parametrize("policy", [PolicyMode.SWAP, PolicyMode.AUTO])
def test_every_case_finds_its_kv_where_the_case_says(
    tiny_model: Callable[[str], LoadedModel], policy: PolicyMode
) -> None:
    model = tiny_model("llama")
    setup = returns.ReturnSetup(100, 20, repeats=2, step_tokens=64)
    link, results = returns.measure_returns(model, setup, policy)
    assert link > 0
    cases = {result.case: result for result in results}
    assert list(cases) == ["resident", "demand", "prefetched", "recomputed"]
    block = model.geometry.block_bytes
    # 100 tokens: six full blocks and a partial one, which the tool's start parks as well.
    assert [cases[case].restored_bytes // block for case in cases] == [0, 7, 7, 0]
    assert [cases[case].prefilled_tokens for case in cases] == [21, 21, 21, 121]
    assert cases["resident"].times_resident == 1
    assert cases["demand"].exposed is not None
    assert cases["recomputed"].exposed is None
    assert cases["resident"].launched_ms < cases["demand"].launched_ms < cases["demand"].first_token_ms
    assert cases["demand"].waited_ms is not None


def test_parking_changes_no_token_and_the_link_was_used(tiny_model: Callable[[str], LoadedModel]) -> None:
    model = tiny_model("llama")
    setup = replace(parking.CPU_SETUP, seconds=0.3, period_s=0.1, parks=12, agents=3)
    gaps, exact = parking.measure_parking(model, setup)
    assert [gap.way for gap in gaps] == ["resident", "demand", "prefetched"]
    assert all(gap.tokens > 0 and gap.p50_ms <= gap.p99_ms <= gap.worst_ms for gap in gaps)
    assert gaps[0].p99_times_resident == 1
    assert (exact.parks, exact.differing_tokens, exact.differing_again) == (12, 0, 0)
    assert (exact.differing_steps, exact.differing_bytes) == (0, 0)
    assert exact.tokens == 3 * 5 * 4
    assert exact.restored_bytes >= 12 * 6 * model.geometry.block_bytes
    assert 0.5 < exact.mirrored_worst <= exact.mirrored_mean < 1


def test_pipelined_16_bit_parks_change_no_token_byte_or_batch(tiny_folder: Callable[[str], Path]) -> None:
    """In 16 bit a token may depend on who shares its batch: the runs must have equal ones, and then be equal."""
    model = load_model(tiny_folder("qwen3"), dtype=torch.bfloat16)
    setup = replace(parking.CPU_SETUP, seconds=0.2, period_s=0.1, parks=40, agents=5, pipelined=True)
    _, exact = parking.measure_parking(model, setup)
    assert exact.steps > 40
    assert (exact.differing_steps, exact.differing_bytes) == (0, 0)
    assert (exact.differing_tokens, exact.differing_again) == (0, 0)
