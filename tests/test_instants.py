"""The bench of a running server's instants: a real server, a real client, and what the report makes of its notes."""

from __future__ import annotations

import gzip
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from .scripts import BENCHMARKS, benchmark

SCRIPT = BENCHMARKS / "instants.py"
SERVE = [
    "random:tiny",
    "--device",
    "cpu",
    "--kv-vram",
    "8MiB",
    "--kv-host",
    "32MiB",
    "--context",
    "400",
    "--slots",
    "2",
]
AGENTS = ["--agents", "3", "--prompt", "120", "--returns", "2", "--generate", "4", "--new", "10", "--slots", "2"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return benchmark("instants")


def test_a_server_notes_its_returns_and_the_report_puts_them_in_order(script: ModuleType, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    path, url = tmp_path / "notes.json.gz", f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, str(SCRIPT), "serve", str(path), "--", *SERVE, "--port", port])
    try:
        wait_for(f"{url}/health", server)
        bench = [
            sys.executable,
            "-m",
            "kvtrace.tui",
            "bench",
            "agents",
            "--url",
            url,
            *AGENTS,
            "--tool",
            "exp:0.1",
            "--vocabulary",
            "500",
        ]
        done = subprocess.run(bench, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    with gzip.open(path, "rt", encoding="utf-8") as file:
        notes = [tuple(note) for note in json.load(file)["notes"]]
    told = script.returns(notes)
    assert len(told) == 6
    for one in told:
        assert 0 < one["request"] < one["admitted"] < one["launched"] < one["first token"]
    shown = subprocess.run(
        [sys.executable, str(SCRIPT), "report", str(path)], capture_output=True, text=True, check=True
    )
    assert "launched" in shown.stdout
    assert script.late(notes)[0] > 6


def test_the_report_tells_a_signal_after_its_request_and_a_restore_whose_step_came_late(script: ModuleType) -> None:
    ms = 1_000_000
    notes = [
        ("request", 90 * ms, 91 * ms, {"agent": "a", "id": 1}),  # the first one, after no tool
        ("admitted", 92 * ms, 93 * ms, {"id": 1, "ok": True, "waits": 0}),
        ("launch", 94 * ms, 95 * ms, {"number": 1, "tokens": {1: 100}}),
        ("read", 96 * ms, 99 * ms, {"number": 1}),
        ("request", 103 * ms, 104 * ms, {"agent": "a", "id": 2}),
        ("signal", 105 * ms, 106 * ms, {"kind": "ToolEnded", "agent": "a", "sent": 100 * ms}),
        ("copies", 104 * ms, 107 * ms, {"in": True, "count": 9}),
        ("admitted", 108 * ms, 109 * ms, {"id": 2, "ok": False, "waits": 0}),
        ("admitted", 109 * ms, 110 * ms, {"id": 2, "ok": True, "waits": 9}),
        ("all queued", 111 * ms, 111 * ms, {}),
        ("launch", 112 * ms, 113 * ms, {"number": 2, "tokens": {2: 10}}),
        ("read", 114 * ms, 120 * ms, {"number": 2}),
    ]
    assert script.returns(notes) == [
        {"copies": 9, "signal": 6, "request": 4, "first copy": 7, "admitted": 10, "all queued": 11}
        | {"launched": 13, "first token": 20}
    ]
    assert script.late(notes) == (2, 1, 14.0)


def test_the_report_tells_how_long_steps_took_on_the_device_and_for_how_long_it_had_none(script: ModuleType) -> None:
    def step(
        begins_ms: float, ends_ms: float, prompts: list[tuple[int, int]], *, waits: bool = False
    ) -> dict[str, Any]:
        return {"begins_ms": begins_ms, "ends_ms": ends_ms, "decoding": 7, "prompts": prompts, "waits": waits}

    pause_ms = 1000.0
    steps = [
        step(0.0, 6.0, []),
        step(5.9, 16.0, [(3000, 249)]),  # begun, by its event, while the one before was under way
        step(20.0, 26.0, []),  # four milliseconds late
        step(26.0 + pause_ms, 36.0 + pause_ms, [(6000, 100), (0, 1)], waits=True),  # nobody wanted anything before
    ]
    assert script.on_device(steps) == [
        "4 steps on the device in 0.0 s, for 11.1% of which it had none",
        "  7 decoding                                              2 steps, median   6.00 ms, p90   6.00,  33.3% of the time",
        "  7 decoding + up to 256 of prompts                       1 steps, median  10.00 ms, p90  10.00,  27.8% of the time",
        "  7 decoding + up to 128 of prompts, waits for KV         1 steps, median  10.00 ms, p90  10.00,  27.8% of the time",
    ]
    assert script.on_device([]) == []


def test_the_report_tells_how_much_of_a_call_its_thread_had_a_processor(script: ModuleType) -> None:
    ms = 1_000_000
    notes = [
        ("hand out", 0, 4 * ms, {"worked_ns": 1 * ms}),
        ("hand out", 10 * ms, 30 * ms, {"worked_ns": 5 * ms}),
        ("publish", 5 * ms, 6 * ms, {"worked_ns": 1 * ms}),
    ]
    _, hand_out, publish = script.calls(notes)
    assert hand_out.split() == ["hand", "out", "2", "x", "12.00", "20.00", "24", "6"]
    assert publish.split() == ["publish", "1", "x", "1.00", "1.00", "1", "1"]


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until it answers."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert server.poll() is None, "the server ended"
        try:
            with urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except (URLError, OSError):
            time.sleep(0.1)
    raise AssertionError("no answer")
