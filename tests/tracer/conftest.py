from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvtrace.tracer import diagnostics
from kvtrace.tracer.testing import Captured, capture

Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def _fresh_diagnostics() -> Iterator[None]:
    diagnostics.COUNTS.reset()
    diagnostics.forget_warnings()
    yield
    diagnostics.forget_warnings()


@pytest.fixture
def captured() -> Iterator[Captured]:
    with capture() as recording:
        yield recording


@pytest.fixture
def child_environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a program that records below ``tmp_path`` and knows no other settings of ours."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("KVTRACE_", "OTEL_"))}
    return inherited | {"KVTRACE_DIR": str(tmp_path)}


@pytest.fixture
def program(child_environment: dict[str, str]) -> Program:
    """Run a Python program to its end, with warnings as errors."""

    def run(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", source],
            env=child_environment | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
