"""What a benchmark's figures depend on: device, runtime, and the versions that matter."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import torch

from ..device import DeviceReport, describe_devices
from ..wording import counted

_PACKAGES: Final = ("kvtrace", "torch", "triton", "transformers")


def machine(device: torch.device) -> dict[str, Any]:
    """The machine as plain JSON values."""
    report = report_of(device)
    return {
        "device": report.name,
        "platform": report.platform,
        "vram_bytes": report.total_bytes,
        "cpu_count": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def report_of(device: torch.device) -> DeviceReport:
    """What torch says of ``device``."""
    if device.type == "cpu":
        return DeviceReport("cpu", counted(os.cpu_count() or 1, "core"), "CPU", None, None, None)
    return describe_devices()[device.index or 0]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
