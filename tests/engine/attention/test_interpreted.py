"""The kernels by Triton's interpreter, on the CPU, against the reference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is there for Linux alone")

from tests.engine.attention.interpreted import planned

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def results() -> dict[str, str | None]:
    """What the process printed that ran them all."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-m", "tests.engine.attention.interpreted"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", planned())
def test_interpreted_kernel_matches_the_reference(name: str, results: dict[str, str | None]) -> None:
    assert results[name] is None
