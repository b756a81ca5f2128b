"""What this machine's accelerator and memory are, as torch and the system see them. Imports torch when called only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .wording import counted

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One device. ``runtime`` reads like ``CUDA 13.0``, ``ROCm 7.1`` or ``CPU``; bytes are ``None`` where unknown."""

    kind: str
    name: str
    runtime: str
    architecture: str | None
    total_bytes: int | None
    free_bytes: int | None

    @property
    def platform(self) -> str:
        """Runtime and architecture in short: ``ROCm 7.1 gfx1201``, ``CUDA 13.0 sm_90``, ``CPU``."""
        return f"{self.runtime} {self.architecture}" if self.architecture else self.runtime


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What is free now. ``own_bytes`` is this process's, ``other_bytes`` everybody else's; a CPU's own memory is all host.

    ``host_available_bytes`` is what the system would give without swapping, within this process's memory limit.
    """

    kind: str
    name: str
    total_bytes: int
    free_bytes: int
    own_bytes: int
    other_bytes: int
    host_available_bytes: int

    @property
    def described(self) -> str:
        """A sentence without its end: ``RX 9070 XT has 9.0 GiB of 16.0 GiB free (7.0 GiB held by other processes)``."""
        holders = ((self.other_bytes, "other processes"), (self.own_bytes, "this one"))
        held = ", ".join(f"{gib(size)} held by {who}" for size, who in holders if size >= 1 << 27)
        return f"{self.name} has {gib(self.free_bytes)} of {gib(self.total_bytes)} free{f' ({held})' if held else ''}"


def gib(size: int) -> str:
    """Bytes for people, in the unit that memory is sold in."""
    if 0 < size < 1 << 20:
        return f"{size:,} bytes"  # whoever wrote 8 for 8GiB sees it
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def device_memory(device: str) -> DeviceMemory:
    """What is free on ``device`` (``cpu``, ``cuda``, ``cuda:1``) and on the host.

    Raises:
        ConfigError: there is no such device.
        ImportError: a GPU was named and torch is not installed.
    """
    host = host_available_bytes()
    if device.partition(":")[0] == "cpu":
        return DeviceMemory("cpu", counted(os.cpu_count() or 1, "core"), host, host, 0, 0, host)
    import torch

    place = find_device(device)
    free, total = torch.cuda.mem_get_info(place)
    # What the allocator keeps without using it can be had for the pool as well.
    idle = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)
    own = torch.cuda.memory_allocated(place)
    name = torch.cuda.get_device_name(place)
    other = max(0, total - free - torch.cuda.memory_reserved(place))
    return DeviceMemory("cuda", name, total, free + idle, own, other, host)


def device_name(device: str) -> str | None:
    """What its maker calls the card behind ``cuda`` or ``cuda:1``; ``None`` for ``cpu``."""
    if not device.startswith("cuda"):
        return None
    import torch

    return str(torch.cuda.get_device_name(torch.device(device)))


def find_device(name: str | None = None) -> torch.device:
    """The device called ``cpu``, ``cuda`` or ``cuda:1``; without a name a GPU where there is one, else the CPU.

    Raises:
        ConfigError: torch cannot use such a device.
        ImportError: torch is not installed.
    """
    import torch

    from .errors import ConfigError

    usable = torch.cuda.is_available()
    try:
        place = torch.device(name or ("cuda" if usable else "cpu"))
    except RuntimeError as error:
        raise ConfigError(f"there is no device called {name!r}: give cpu, cuda or cuda:N") from error
    if place.type != "cpu" and (not usable or place.type != "cuda" or (place.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(f"there is no device {name} that torch can use: `kvtrace doctor` shows what there is")
    return torch.device("cuda", place.index or 0) if place.type == "cuda" else place


_CGROUPS: Final = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory"))  # version 2, version 1
_CGROUP_FILES: Final = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def host_available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroups: tuple[Path, ...] = _CGROUPS) -> int:
    """Memory that can be had without swapping, within a container's limit; 0 where the system does not tell."""
    try:
        available = _fields(meminfo)["MemAvailable"] * 1024
    except (OSError, KeyError, ValueError):
        available = 0
    left = [
        _left_in_cgroup(folder / most, folder / used, folder / "memory.stat", cache)
        for folder in cgroups
        for most, used, cache in _CGROUP_FILES
    ]
    return min([available, *(bytes_left for bytes_left in left if bytes_left is not None)])


def _left_in_cgroup(limit: Path, used: Path, stat: Path, cache: str) -> int | None:
    """What the group may still take; file cache that nobody uses gives way. ``None`` where there is no limit."""
    try:
        taken = int(used.read_text(encoding="ascii")) - _fields(stat).get(cache, 0)
        return max(0, int(limit.read_text(encoding="ascii")) - taken)
    except (OSError, ValueError):  # absent, or "max"
        return None


def _fields(path: Path) -> dict[str, int]:
    """Lines of a name and a number, as the kernel writes them."""
    lines = (line.replace(":", " ").split() for line in path.read_text(encoding="ascii").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def describe_devices() -> tuple[DeviceReport, ...]:
    """Every accelerator torch can use, or the CPU alone.

    Raises:
        ImportError: torch is not installed.

    """
    import torch

    if not torch.cuda.is_available():
        return (DeviceReport("cpu", counted(os.cpu_count() or 1, "core"), "CPU", None, None, None),)
    # ROCm answers to torch.cuda as well; torch.version.hip tells the two apart.
    hip = torch.version.hip
    runtime = f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}"
    reports = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        architecture = properties.gcnArchName.partition(":")[0] if hip else f"sm_{properties.major}{properties.minor}"
        reports.append(DeviceReport("cuda", properties.name, runtime, architecture, total, free))
    return tuple(reports)


if __name__ == "__main__":
    # `kvtrace doctor` runs this in a child process, so that a hung driver or a crashing runtime cannot take it along.
    import json
    import sys
    from dataclasses import asdict

    json.dump([asdict(report) for report in describe_devices()], sys.stdout)
