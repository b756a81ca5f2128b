"""What ``kvtrace doctor`` shows of measurements; the measuring itself is tested with the engine."""

from __future__ import annotations

from typing import Any

import pytest

from kvtrace.tui.commands import doctor

MEASURED = {
    "pinned": True,
    "out_bytes_per_s": 55.3e9,
    "in_bytes_per_s": 54.9e9,
    "both_bytes_per_s": 95.6e9,
    "copy_bytes_per_s": 4277e9,
}
CARD = {
    "kind": "cuda",
    "name": "RX 9070 XT",
    "runtime": "ROCm 7.1",
    "architecture": "gfx1201",
    "total_bytes": 17_100_000_000,
    "free_bytes": 16_000_000_000,
}


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Real facts of this machine, but for its devices, which take torch seconds to tell."""
    monkeypatch.setattr(doctor, "devices", lambda: [CARD])
    return doctor.collect()


def test_nothing_is_measured_unless_asked_for(facts: dict[str, Any]) -> None:
    assert facts["measured"] is None
    assert "measured" not in doctor.render(facts)
    assert "RX 9070 XT (ROCm 7.1 gfx1201), 16.0 GB of 17.1 GB free" in doctor.render(facts)


def test_measured_rates_are_shown_with_what_they_mean(facts: dict[str, Any]) -> None:
    shown = doctor.render(facts | {"measured": MEASURED})
    assert "copies of pinned memory: 55.3 GB/s out, 54.9 GB/s in, 95.6 GB/s both" in shown
    assert "copies within the device: 4,277 GB/s, read and written" in shown


def test_why_nothing_could_be_measured_is_shown_instead(facts: dict[str, Any]) -> None:
    assert "measured             torch is not installed" in doctor.render(
        facts | {"measured": "torch is not installed"}
    )
