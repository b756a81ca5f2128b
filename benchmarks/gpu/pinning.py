"""How long the host tier's pinning holds up a step: ``python benchmarks/gpu/pinning.py [--json]``.

A loop launches a small kernel and waits for it, as a decoding step does, first alone and then while another thread pins
host memory in chunks of one size after the other: made by the driver, or touched first and registered with it. Reported are
the longest and the 99th percentile of a round, and the rate of pinning.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import torch

from kvtrace.engine.host_memory import register, registers, release, touched

CHUNKS: Final = (1 << 23, 1 << 25, 1 << 28, 1 << 30)
TOTAL: Final = 1 << 31
SCHEMA_VERSION: Final = 1


def rounds(done: Callable[[], bool], least_s: float) -> list[float]:
    """Seconds of each round of launch and wait, until ``done`` and for at least ``least_s``."""
    values = torch.zeros(1 << 16, device="cuda")
    seconds: list[float] = []
    began = time.perf_counter()
    while not (done() and time.perf_counter() - began > least_s):
        started = time.perf_counter()
        values.add_(1)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return seconds


def figures(case: str, seconds: list[float]) -> dict[str, Any]:
    """One row."""
    ordered = sorted(seconds)
    return {
        "case": case,
        "rounds": len(ordered),
        "p50_ms": ordered[len(ordered) // 2] * 1e3,
        "p99_ms": ordered[int(0.99 * len(ordered))] * 1e3,
        "max_ms": ordered[-1] * 1e3,
    }


def pinned(chunk: int, registered: bool) -> torch.Tensor:
    """One chunk, made in one of the two ways."""
    if not registered:
        return torch.empty(chunk, dtype=torch.uint8, pin_memory=True)
    row = touched(chunk)
    failed = register(row)
    if failed:
        raise RuntimeError(f"the driver does not register memory: {failed}")
    return row


def while_pinning(chunk: int, registered: bool) -> dict[str, Any]:
    """Rounds beside a thread that pins ``TOTAL`` bytes in pieces of ``chunk``."""
    kept: list[torch.Tensor] = []
    took: list[float] = []

    def pin() -> None:
        started = time.perf_counter()
        kept.extend(pinned(chunk, registered) for _ in range(TOTAL // chunk))
        took.append(time.perf_counter() - started)

    thread = threading.Thread(target=pin)
    thread.start()
    seconds = rounds(lambda: not thread.is_alive(), 0)
    thread.join()
    if registered:
        release(kept)
    # The allocator keeps what was freed for pieces of the same size, so that the next size is pinned anew.
    how = "registering" if registered else "pinning"
    return figures(f"{how} {chunk >> 20} MiB chunks", seconds) | {"pin_gb_per_s": TOTAL / took[0] / 1e9}


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    options = parser.parse_args()
    rounds(lambda: True, 0.2)
    ways = (False, True) if registers() else (False,)
    rows = [
        figures("alone", rounds(lambda: True, 1.0)),
        *(while_pinning(chunk, way) for way in ways for chunk in CHUNKS),
    ]
    if options.json:
        print(
            json.dumps(
                {"schema_version": SCHEMA_VERSION, "device": torch.cuda.get_device_name(), "rows": rows}, indent=2
            )
        )
        return
    for row in rows:
        rate = f"  {row['pin_gb_per_s']:.2f} GB/s pinned" if "pin_gb_per_s" in row else ""
        print(
            f"{row['case']:<26} p50 {row['p50_ms']:8.3f}  p99 {row['p99_ms']:8.3f}  max {row['max_ms']:8.3f} ms "
            f"({row['rounds']} rounds){rate}"
        )


if __name__ == "__main__":
    main()
