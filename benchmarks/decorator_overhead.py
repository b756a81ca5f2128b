"""What one traced call costs, next to plain OpenTelemetry: ``python benchmarks/decorator_overhead.py [--calls N]``.

Every variant runs the same empty tool, call by call, in turns of blocks, so that a busy moment of the machine hits all
of them. kvtrace writes its two records to a real file and has one subscriber that queues. Prints p50 and p99 in µs and
the ratio of medians to ``start_as_current_span`` on an SDK provider without exporter.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.trace import TracerProvider

from kvtrace.tracer import agent, subscribe, traced_tool
from kvtrace.tracer.testing import capture

BLOCK = 500


def tool(argument: str) -> int:
    """Do next to nothing."""
    return len(argument)


def block_of(function: Callable[[str], Any], argument: str) -> list[int]:
    """Time BLOCK calls one by one, in ns."""
    clock = time.perf_counter_ns
    times = []
    for _ in range(BLOCK):
        start = clock()
        function(argument)
        times.append(clock() - start)
    return times


def measure(calls: int, argument: str) -> dict[str, list[int]]:
    """Return the sorted times of each variant, in ns."""
    provider = TracerProvider()
    tracer = provider.get_tracer("benchmark")
    signals: deque[Any] = deque(maxlen=16)

    def plain(argument: str) -> int:
        with tracer.start_as_current_span("execute_tool tool"):
            return tool(argument)

    traced = traced_tool(tool)
    variants: dict[str, tuple[Callable[[str], int], TracerProvider | None]] = {
        "bare call": (tool, None),
        "start_as_current_span": (plain, None),
        "traced_tool": (traced, None),
        "traced_tool + SDK span": (traced, provider),
    }
    times: dict[str, list[int]] = {name: [] for name in variants}
    for _ in range(max(1, calls // BLOCK)):
        for name, (function, used) in variants.items():
            with capture(tracer_provider=used), agent("benchmark"):
                subscribe(signals.append)
                function(argument)
                times[name] += block_of(function, argument)
    return {name: sorted(values) for name, values in times.items()}


def main() -> None:
    """Print one table for a small and one for a large argument."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000, help="calls of each variant (default: 20000)")
    calls = parser.parse_args().calls
    for label, argument in (("small argument", "x"), ("10 MB argument", "x" * 10_000_000)):
        times = measure(calls, argument)
        plain = statistics.median(times["start_as_current_span"])
        print(f"\n{label:<26}{'p50 µs':>9}{'p99 µs':>9}{'ratio':>8}")
        for name, values in times.items():
            p50 = statistics.median(values)
            p99 = values[int(0.99 * len(values))]
            print(f"{name:<26}{p50 / 1000:>9.1f}{p99 / 1000:>9.1f}{p50 / plain:>8.2f}")


if __name__ == "__main__":
    main()
