"""What one traced call costs with one library, in its own environment: ``peer_overhead.py ADAPTER`` prints JSON.

The adapter is a class of ``peer_adapters``. An empty tool is called with arguments of three sizes, in turns with the same
tool under plain ``start_as_current_span``, so that a busy moment of the machine hits both. Nothing may leave the machine.
"""

from __future__ import annotations

import json
import logging
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import peer_adapters
from opentelemetry.sdk.trace import TracerProvider

SIZES = {"1 B": 1, "200 kB": 200_000, "10 MB": 10_000_000}
BLOCK = 200
MOST_CALLS = 4_000
BUDGET_S = 4.0  # for one size of one library: some take a second a call


def tool(argument: str) -> int:
    """Do next to nothing."""
    return len(argument)


def times_of(function: Callable[[str], Any], argument: str, calls: int, deadline: float) -> list[int]:
    """Time calls one by one, in ns, until the deadline; at least one."""
    clock = time.perf_counter_ns
    times: list[int] = []
    while len(times) < calls and (not times or time.monotonic() < deadline):
        start = clock()
        function(argument)
        times.append(clock() - start)
    return times


def measure(traced: Callable[[str], Any], plain: Callable[[str], Any], argument: str) -> dict[str, float | int]:
    """Return p50 and p99 in µs, and the ratio of medians to the plain span."""
    ours: list[int] = []
    theirs: list[int] = []
    deadline = time.monotonic() + BUDGET_S
    for function in (traced, plain):
        function(argument)
    while not ours or (len(ours) < MOST_CALLS and time.monotonic() < deadline):
        ours += times_of(traced, argument, BLOCK, deadline)
        theirs += times_of(plain, argument, BLOCK, deadline)
    ours.sort()
    p50 = statistics.median(ours)
    return {
        "p50_us": round(p50 / 1000, 1),
        "p99_us": round(ours[int(0.99 * len(ours))] / 1000, 1),
        "ratio": round(p50 / statistics.median(theirs), 2),
        "calls": len(ours),
    }


def refuse(*_: Any) -> NoReturn:
    """Stand in for ``socket.connect``."""
    raise OSError("this measurement sends nothing")


def main() -> None:
    """Print one JSON object: figures for each size of the argument."""
    logging.disable()
    socket.socket.connect = refuse  # type: ignore[method-assign]
    adapter = getattr(peer_adapters, sys.argv[1])()
    adapter.attach(None)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("plain")

    def plain(argument: str) -> int:
        with tracer.start_as_current_span("execute_tool tool"):
            return tool(argument)

    traced = adapter.with_parentheses(tool)
    print(json.dumps({label: measure(traced, plain, "x" * size) for label, size in SIZES.items()}), flush=True)
    import os

    os._exit(0)  # some libraries wait at exit for a server that is not there


if __name__ == "__main__":
    main()
