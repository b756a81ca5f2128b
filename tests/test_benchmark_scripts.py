"""Benchmarks that watch the product from inside still run, in small: what they time is for them to say, not for a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .scripts import BENCHMARKS

SMALL = {
    "host_path": (["--agents", "9", "--repeat", "1"], "a return in all"),
    "host_load": (["--agents", "4", "--seconds", "5", "--runs", "1"], "the device had nothing to do for"),
    "frontend": (["--times", "1", "--tokens", "4"], "loop_cpu_ms_per_token"),
    "signal_latency": (["--calls", "20"], "p50"),
    "decorator_overhead": (["--calls", "200"], "traced_tool"),
    "report": (["--spans", "3000", "--by-hand-up-to", "0", "--out", "report.json"], "3,000"),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs_in_small_and_prints_its_table(name: str, tmp_path: Path) -> None:
    if name in ("frontend", "host_load"):
        pytest.importorskip("torch")
    options, shown = SMALL[name]
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
