"""What ``kvtrace top`` costs: ``python benchmarks/top.py [--json] [--seconds 20]``.

A server with a simulated engine runs in a process of its own; `kvtrace top` runs in a pseudo-terminal of 160 by 45 cells
whose output is read away, with 50 agents and with 500, one sample a second. Measured are CPU time (user and system, of the
whole process with its threads) and not wall clock, so that a busy machine does not spoil it: until the first agents are
painted, and per second of watching afterwards, as a share of one core; and the largest resident memory. Beside them the
server's side: how long a snapshot takes to become JSON. stdout is a table, or JSON.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import msgspec
from machine import describe

from kvtrace.tui.feed.contract import Sample
from kvtrace.tui.feed.demo import DemoFeed

SCHEMA_VERSION: Final = 1
CELLS: Final = (45, 160)
TARGETS: Final = {"cpu_share": 0.05, "memory_bytes": 160e6, "first_paint_s": 0.6, "snapshot_ms": 1.0}
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SETTLE_S: Final = 3.0
FIRST_AGENT: Final = b"api-4"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run cost."""

    agents: int
    first_paint_cpu_s: float
    first_paint_s: float
    cpu_share: float
    memory_bytes: int
    written_bytes_per_s: float


def serve(agents: int) -> None:
    """Be the server: print the port, serve until stdin closes."""
    feed = DemoFeed(agents, 0, time.time_ns)
    feed.read()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = msgspec.json.encode(feed.read()[-1].snapshot)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def watch(agents: int, seconds: float) -> Cost:
    """Run `kvtrace top` against a server with so many agents."""
    server = subprocess.Popen([sys.executable, __file__, "--serve", str(agents)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    try:
        return _watch(agents, url, seconds)
    finally:
        server.kill()
        server.wait()


def _watch(agents: int, url: str, seconds: float) -> Cost:
    began = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *CELLS, 0, 0))
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-m", "kvtrace.tui", "top", "--url", url])
    try:
        painted = _read(terminal, lambda seen: FIRST_AGENT in seen, 60)
        assert FIRST_AGENT in painted, "nothing was painted"
        first_s, first_cpu_s = time.monotonic() - began, _cpu_s(pid)
        _read(terminal, lambda _: False, _SETTLE_S)
        before_s, before_cpu_s = time.monotonic(), _cpu_s(pid)
        written = _read(terminal, lambda _: False, seconds)
        passed_s, cpu_s = time.monotonic() - before_s, _cpu_s(pid) - before_cpu_s
        memory = _peak_bytes(pid)
    finally:
        os.kill(pid, signal.SIGTERM)
        _read(terminal, lambda _: False, 1.0)
        os.close(terminal)
        os.waitpid(pid, 0)
    return Cost(agents, first_cpu_s, first_s, cpu_s / passed_s, memory, len(written) / passed_s)


def _read(terminal: int, enough: object, seconds: float) -> bytes:
    """What the program writes, until it is enough or the time is over."""
    seen, until = b"", time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not enough(seen):  # type: ignore[operator]
        ready, _, _ = select.select([terminal], [], [], left)
        if ready:
            try:
                seen += os.read(terminal, 65536)
            except OSError:
                break
    return seen


def _cpu_s(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    fields = stat[stat.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def snapshot_ms(agents: int) -> float:
    """CPU milliseconds to turn one snapshot into JSON text, the best of many."""
    sample: Sample = DemoFeed(agents, 0, time.time_ns).read()[-1]
    best = float("inf")
    for _ in range(50):
        began = time.process_time()
        msgspec.json.encode(sample.snapshot)
        best = min(best, time.process_time() - began)
    return best * 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to watch")
    parser.add_argument("--serve", type=int, metavar="AGENTS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    costs = [watch(agents, options.seconds) for agents in (50, 500)]
    snapshots = {agents: snapshot_ms(agents) for agents in (50, 500)}
    if options.json:
        result = {
            "schema_version": SCHEMA_VERSION,
            "machine": describe(),
            "targets": TARGETS,
            "runs": [{**asdict(cost), "snapshot_json_ms": snapshots[cost.agents]} for cost in costs],
        }
        print(json.dumps(result, indent=2))
        return
    for cost in costs:
        print(
            f"{cost.agents:4} agents: first paint {cost.first_paint_cpu_s:.2f} s of CPU ({cost.first_paint_s:.2f} s), "
            f"then {cost.cpu_share:.1%} of a core, {cost.memory_bytes / 1e6:.0f} MB, "
            f"{cost.written_bytes_per_s / 1e3:.1f} kB/s to the terminal; snapshot to JSON {snapshots[cost.agents]:.2f} ms"
        )


if __name__ == "__main__":
    main()
