"""Multiples against published values, limits and an independent solution of the same queue."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.analysis.capacity import capacity, ideal, machine_repair


@pytest.mark.parametrize(
    ("slots", "multiple", "wait"), [(1, 1.71, 0.41), (4, 2.19, 0.34), (8, 2.27, 0.25), (32, 2.34, 0.11)]
)
def test_queue_corrected_gives_the_known_values(slots: int, multiple: float, wait: float) -> None:
    found = capacity(0.59, slots, 0.0)
    assert found.ideal == pytest.approx(2.44, abs=0.005)
    assert found.queue_corrected == pytest.approx(multiple, abs=0.005)
    assert found.added_wait_generations == pytest.approx(wait, abs=0.005)


def balance(b: Fraction, slots: int, agents: int) -> Fraction:
    """Throughput of the same queue from its balance equations, in exact fractions."""
    back = (1 - b) / b
    weights = [Fraction(1)]
    for ready in range(agents):
        weights.append(weights[-1] * (agents - ready) * back / min(ready + 1, slots))
    busy = sum((min(ready, slots) * weight for ready, weight in enumerate(weights)), Fraction(0))
    return busy / sum(weights) / (slots * (1 - b))


@given(st.integers(1, 99), st.integers(1, 12), st.integers(0, 40))
def test_queue_equals_its_balance_equations(percent: int, slots: int, more: int) -> None:
    found, _ = machine_repair(percent / 100, slots, slots + more)
    assert found == pytest.approx(float(balance(Fraction(percent, 100), slots, slots + more)), rel=1e-9)


@given(st.floats(0, 0.9999), st.integers(1, 64))
def test_queue_never_beats_the_ceiling(b: float, slots: int) -> None:
    found = capacity(b, slots, 0.0)
    assert found.ideal is not None
    assert found.queue_corrected is not None
    assert 1 - 1e-9 <= found.queue_corrected <= found.ideal * (1 + 1e-9)
    assert found.swap_corrected == pytest.approx(found.ideal)


def test_swap_corrected_follows_its_formula() -> None:
    assert capacity(0.5, 8, 0.1).swap_corrected == pytest.approx(1 / 0.6)


def test_swaps_at_every_short_wait_can_lose() -> None:
    found = capacity(0.1, 8, 0.4)
    assert found.swap_corrected is not None
    assert found.swap_corrected < 1


def test_no_waits_change_nothing() -> None:
    found = capacity(0.0, 8, 0.0)
    assert (found.ideal, found.queue_corrected, found.swap_corrected, found.added_wait_generations) == (1, 1, 1, 0)


@pytest.mark.parametrize("b", [None, 1.0])
def test_unknown_or_endless_waits_give_no_multiple(b: float | None) -> None:
    assert ideal(b) is None
    assert capacity(b, 8, 0.1).queue_corrected is None


def test_almost_endless_waits_are_answered_at_once() -> None:
    found = capacity(1 - 1e-12, 8, 0.0)
    assert found.queue_corrected == found.ideal
