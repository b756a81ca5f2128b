"""What a benchmark's figures depend on: the processor, the system and the versions of the libraries it names."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any


def describe(*packages: str) -> dict[str, Any]:
    """Return the machine, Python and the versions of ``packages``, ``None`` for one that is not installed."""
    about: dict[str, Any] = {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    if packages:
        about["versions"] = {name: _version(name) for name in packages}
    return about


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
