"""Scripts of ``benchmarks/`` as modules, for tests that look at more than what they print."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

BENCHMARKS: Final = Path(__file__).parents[1] / "benchmarks"


def benchmark(name: str) -> ModuleType:
    """The script of that name, run as far as importing it does."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module
