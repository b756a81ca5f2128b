"""What this machine's accelerator is, as torch sees it. Imports torch; ``kvtrace doctor`` asks for it."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One device. ``runtime`` reads like ``CUDA 13.0``, ``ROCm 7.1`` or ``CPU``; bytes are ``None`` where unknown."""

    kind: str
    name: str
    runtime: str
    architecture: str | None
    total_bytes: int | None
    free_bytes: int | None


def describe_devices() -> tuple[DeviceReport, ...]:
    """Every accelerator torch can use, or the CPU alone.

    Raises:
        ImportError: torch is not installed.

    """
    import torch

    if not torch.cuda.is_available():
        return (DeviceReport("cpu", f"{os.cpu_count()} cores", "CPU", None, None, None),)
    # ROCm answers to torch.cuda as well; torch.version.hip tells the two apart.
    hip = torch.version.hip
    runtime = f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}"
    reports = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        architecture = properties.gcnArchName if hip else f"sm_{properties.major}{properties.minor}"
        reports.append(DeviceReport("cuda", properties.name, runtime, architecture, total, free))
    return tuple(reports)


if __name__ == "__main__":
    # `kvtrace doctor` runs this in a child process, so that a hung driver or a crashing runtime cannot take it along.
    import json
    import sys
    from dataclasses import asdict

    json.dump([asdict(report) for report in describe_devices()], sys.stdout)
