"""How long a tool's start takes to reach another process: ``python benchmarks/signal_latency.py [--json]``.

An agent calls a traced tool 100 times a second; a receiver in a process of its own (the standard library's HTTP server
around ``kvtrace.tracer.Receiver``) notes when its handler is entered (delivery) and when it has decoded the signal.
Measured is from just before the decorated call, on the monotonic clock that both processes share. Cases: the tool sleeps, and the tool computes in
Python, when the sending thread must first get the interpreter lock. The first row is what the machine itself takes: a
bare datagram from the calling thread to a thread of the other process, at the same rate. Beside them stands the tool's
own time with the engine up, with none configured, and with one that hangs: the last two must be alike. stdout is a
table, or JSON.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from machine import describe

from kvtrace.tracer import agent, configure, flush, traced_tool
from kvtrace.tracer.receive_server import SignalHandler, SignalServer
from kvtrace.tracer.signals import Signal, ToolStarted

PERIOD_S: Final = 0.01
TOOL_S: Final = 0.005
WARM_UP: Final = 20  # calls that are not counted: imports, the first connection
SCHEMA_VERSION: Final = 1


def receive() -> None:
    """Be the receiver: print URL and datagram port, serve until stdin closes, print ``{call id: [entered, decoded] ns}``."""
    arrived: dict[str, tuple[int, int]] = {}
    request = threading.local()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))

    def listen() -> None:
        while True:
            call_id = datagrams.recv(100).decode()
            arrived[call_id] = (time.monotonic_ns(), time.monotonic_ns())

    def note(signal: Signal) -> None:
        if isinstance(signal, ToolStarted) and signal.call_id is not None:
            arrived[signal.call_id] = (request.entered_ns, time.monotonic_ns())

    class NotingHandler(SignalHandler):
        def do_POST(self) -> None:  # noqa: N802 - the name in the base class
            request.entered_ns = time.monotonic_ns()
            super().do_POST()

    with SignalServer(note, handler=NotingHandler) as server:
        threading.Thread(target=listen, daemon=True).start()
        print(server.url, datagrams.getsockname()[1], flush=True)
        sys.stdin.read()
    print(json.dumps(dict(arrived)))


@contextmanager
def receiver() -> Iterator[tuple[str, int, Callable[[], dict[str, list[int]]]]]:
    """Run a receiver; its URL, its datagram port, and a function that ends it and returns what arrived."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--receive"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        url, port = process.stdout.readline().split()
        yield url, int(port), lambda: json.loads(process.communicate()[0])
    finally:
        process.kill()
        process.wait()


@contextmanager
def hanging_engine() -> Iterator[str]:
    """Listen without ever answering."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def wait() -> None:
    """Wait as a tool does that asks another machine."""
    time.sleep(TOOL_S)


def compute() -> None:
    """Hold the interpreter lock as a tool does that works in Python."""
    until = time.perf_counter() + TOOL_S * 5
    total = 0
    while time.perf_counter() < until:
        total += 1


def call_steadily(tool: Callable[[], None], calls: int) -> tuple[dict[str, int], list[int]]:
    """Call ``tool``, once each period; when each call began by id, and how long the calls took, ns."""
    numbers = (f"call-{number}" for number in count())
    traced = traced_tool(call_id=lambda: next(numbers))(tool)
    began: dict[str, int] = {}
    took: list[int] = []
    with agent("benchmark"):
        for number in range(calls + WARM_UP):
            start = began[f"call-{number}"] = time.monotonic_ns()
            traced()
            took.append(time.monotonic_ns() - start)
            time.sleep(max(0.0, PERIOD_S - took[-1] / 1e9))
    return began, took[WARM_UP:]


def figures(values: list[int], prefix: str) -> dict[str, float]:
    """Return p50, p99 and maximum of ns, in ms."""
    ordered = sorted(values)
    picked = {"p50": ordered[len(ordered) // 2], "p99": ordered[int(0.99 * len(ordered))], "max": ordered[-1]}
    return {f"{prefix}_{name}_ms": round(value / 1e6, 3) for name, value in picked.items()}


def delivery(name: str, tool: Callable[[], None], calls: int) -> dict[str, Any]:
    """Measure one tool against a running receiver."""
    with receiver() as (url, _, stop):
        configure(engine=url)
        began, took = call_steadily(tool, calls)
        sent = flush(10)
        arrived = stop()
    entered, decoded = delays_of(began, arrived)
    return {
        "case": name,
        "calls": calls,
        "lost": calls - len(entered),
        "flushed": sent,
        **figures(entered, "delivery"),
        **figures(decoded, "decoded"),
        **figures(took, "tool"),
    }


def datagrams(calls: int) -> dict[str, Any]:
    """Measure what a datagram takes, sent as a tool's start would be."""
    began: dict[str, int] = {}
    with receiver() as (_, port, stop), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(calls + WARM_UP):
            began[f"call-{number}"] = time.monotonic_ns()
            sender.sendto(f"call-{number}".encode(), ("127.0.0.1", port))
            time.sleep(PERIOD_S)
        entered, _ = delays_of(began, stop())
    return {"case": "bare datagram", "calls": calls, "lost": calls - len(entered), **figures(entered, "delivery")}


def delays_of(began: dict[str, int], arrived: dict[str, list[int]]) -> tuple[list[int], list[int]]:
    """Return how long each call took to the handler and to the decoded signal, ns, without those of the warm-up."""
    calls = [call for call in list(began)[WARM_UP:] if call in arrived]
    return [arrived[call][0] - began[call] for call in calls], [arrived[call][1] - began[call] for call in calls]


def undelivered(name: str, url: str, calls: int) -> dict[str, Any]:
    """Measure the sleeping tool's own time where nothing is delivered."""
    configure(engine=url)
    _, took = call_steadily(wait, calls)
    return {"case": name, "calls": calls, **figures(took, "tool")}


def measure(calls: int) -> list[dict[str, Any]]:
    """Return one row for each case."""
    with tempfile.TemporaryDirectory() as folder:
        configure(directory=folder)
        rows = [
            datagrams(calls),
            delivery("tool sleeps", wait, calls),
            delivery("tool computes in Python", compute, calls // 4),
        ]
        rows.append(undelivered("no engine configured", "", calls))
        with hanging_engine() as url:
            rows.append(undelivered("engine hangs", url, calls))
        configure(engine="")
    return rows


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=2000, help="calls of each case (default: 2000)")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receive:
        receive()
        return
    rows = measure(options.calls)
    if options.json:
        about = {"schema_version": SCHEMA_VERSION, "machine": describe("opentelemetry-sdk")}
        print(json.dumps({**about, "calls_per_s": 1 / PERIOD_S, "cases": rows}, indent=2))
        return
    keys = [f"{what}_{which}_ms" for what in ("delivery", "decoded", "tool") for which in ("p50", "p99", "max")]
    print(f"{'ms':<26}" + "".join(f"{key.removesuffix('_ms').replace('_', ' '):>14}" for key in keys) + f"{'lost':>7}")
    for row in rows:
        print(f"{row['case']:<26}" + "".join(f"{row.get(key, ''):>14}" for key in keys) + f"{row.get('lost', ''):>7}")


if __name__ == "__main__":
    main()
