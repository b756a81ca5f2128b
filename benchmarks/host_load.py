"""How long a device waits for the server: ``python benchmarks/host_load.py [--agents N] [--seconds S] [--runs N] [--json FILE]``.

The real ``kvtrace serve`` with its HTTP front end, threads and copies, asked by the real ``kvtrace bench agents --steady``; only
the device's steps are a clock's: they take what the H200's take (:mod:`kvtrace.engine.simulation.machine`) and compute nothing. So
on any machine it shows what the server's own work costs a fast card: the share of the time in which that has nothing to do, and
what the engine's thread did between two launches where the second one came too late. The blocks are as many as there, and tiny.

It needs two processors for itself: wall time far above processor time is time that somebody else had. With few agents the
device has pauses in which nobody wants anything; those of up to a quarter of a second count as well.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

from machine import describe

SCHEMA_VERSION: Final = 1
TOKEN_BYTES: Final = 2048  # of random:tiny in float32
POOL_TOKENS, HOST_TOKENS = 55_000, 349_520  # as docs/proof.md has them
LAUNCH_S: Final = 0.0008  # a launch is so long in the driver, where it does not hold Python's lock
PAUSE_S: Final = 0.25  # a device that had nothing to do for so long was not wanted
LATE_S: Final = 0.0003
WARM_SHARE: Final = 0.3  # of a run; prompts that all came at once still queue
STOP_S: Final = 60.0
READY_S: Final = 120.0


@dataclass
class Spent:
    """Calls of one kind, and the time they took without what they called of the other kinds, seconds."""

    calls: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, other: Spent) -> None:
        """Take over what ``other`` has."""
        self.calls += other.calls
        self.wall_s += other.wall_s
        self.cpu_s += other.cpu_s


class Calls:
    """What the engine's thread did since the last :meth:`take`, by kind."""

    def __init__(self) -> None:
        self._spent: defaultdict[str, Spent] = defaultdict(Spent)
        self._inner: list[Spent] = []

    def watch(self, owner: type, name: str) -> None:
        """Note every call of method ``name`` of ``owner`` from now on; all of them are the engine's thread's."""
        real = getattr(owner, name)

        def noting(self_: Any, *args: Any, **options: Any) -> Any:
            wall_s, cpu_s = time.monotonic(), time.thread_time()
            self._inner.append(Spent())
            try:
                return real(self_, *args, **options)
            finally:
                took = Spent(1, time.monotonic() - wall_s, time.thread_time() - cpu_s)
                inner = self._inner.pop()
                if self._inner:
                    self._inner[-1].add(replace(took, calls=0))
                self._spent[name.strip("_")].add(Spent(1, took.wall_s - inner.wall_s, took.cpu_s - inner.cpu_s))

        setattr(owner, name, noting)

    def take(self) -> dict[str, Spent]:
        """What was noted, which is forgotten here."""
        taken, self._spent = dict(self._spent), defaultdict(Spent)
        return taken


@dataclass
class Launches:
    """When each step was launched (monotonic seconds), how long the device had nothing to do before, and what came between."""

    at_s: list[float] = field(default_factory=list)
    idle_s: list[float] = field(default_factory=list)
    between: list[dict[str, Spent]] = field(default_factory=list)

    def told(self) -> list[dict[str, Any]]:
        """The runs, told apart by their pauses, without their first part."""
        starts = [
            0,
            *(at for at in range(1, len(self.at_s)) if self.at_s[at] - self.at_s[at - 1] > 1.0),
            len(self.at_s),
        ]
        runs = [self._run(first, last) for first, last in pairwise(starts) if last - first > 100]
        return [run for run in runs if run["steps"]]

    def _run(self, first: int, last: int) -> dict[str, Any]:
        warm_s = self.at_s[first] + WARM_SHARE * (self.at_s[last - 1] - self.at_s[first])
        steps = [at for at in range(first, last) if self.at_s[at] >= warm_s]
        late = [at for at in steps if self.idle_s[at] > LATE_S]
        return {
            "seconds": self.at_s[steps[-1]] - self.at_s[steps[0]],
            "steps": len(steps),
            "idle_s": sum(self.idle_s[at] for at in steps),
            "late_launches": len(late),
            "before_late": _sums(self.between[at] for at in late),
            "all": _sums(self.between[at] for at in steps),
        }


def _sums(some: Iterable[dict[str, Spent]]) -> dict[str, dict[str, float]]:
    sums: defaultdict[str, Spent] = defaultdict(Spent)
    for one in some:
        for kind, spent in one.items():
            sums[kind].add(spent)
    ordered = sorted(sums.items(), key=lambda item: -item[1].cpu_s)
    return {kind: {"calls": one.calls, "wall_s": one.wall_s, "cpu_s": one.cpu_s} for kind, one in ordered}


class Step:
    """A step that takes its time and gives made-up tokens; a :class:`kvtrace.engine.batch.Pending`."""

    def __init__(self, ends_s: float, tokens: dict[int, int]) -> None:
        self._ends_s, self._tokens = ends_s, tokens

    def done(self) -> bool:
        """Whether it is over by now."""
        return time.monotonic() >= self._ends_s

    def tokens(self) -> dict[int, int]:
        """Wait for it."""
        time.sleep(max(0.0, self._ends_s - time.monotonic()))
        return self._tokens


class ClockRunner:
    """Steps one after the other, each as long as the modelled device needs; the blocks stay as they are."""

    def __init__(
        self, step_s: Callable[[Sequence[Any]], float], vocabulary: int, calls: Calls, launches: Launches
    ) -> None:
        self._step_s, self._vocabulary = step_s, vocabulary
        self._calls, self._launches = calls, launches
        self._free_s = 0.0

    def launch(self, chunks: Sequence[Any], arrivals: Sequence[Any] = ()) -> Step:
        """Queue a step behind those before it."""
        for fence in arrivals:
            fence.join()
        now_s = time.monotonic()
        if not chunks:
            return Step(now_s, {})
        idle_s = now_s - self._free_s
        self._launches.at_s.append(now_s)
        self._launches.idle_s.append(idle_s if 0 < idle_s < PAUSE_S else 0.0)
        self._launches.between.append(self._calls.take())
        self._free_s = max(self._free_s, now_s) + self._step_s(chunks)
        time.sleep(LAUNCH_S)
        sampled = (chunk for chunk in chunks if chunk.sample)
        return Step(
            self._free_s,
            {one.sequence_id: (31 * one.generated + 7 * one.sequence_id) % self._vocabulary for one in sampled},
        )

    def run(self, chunks: Sequence[Any]) -> dict[int, int]:
        """Launch and wait."""
        return self.launch(chunks).tokens()


def serve(file: Path, options: Sequence[str]) -> None:
    """``kvtrace serve`` with a clock for a device; what was noted is in ``file`` when it ends."""
    from kvtrace.engine import api, build
    from kvtrace.engine.admission import Admission
    from kvtrace.engine.forward import Forward
    from kvtrace.engine.loop import EngineCore
    from kvtrace.engine.parking import Parking
    from kvtrace.engine.requests import Requests
    from kvtrace.engine.simulation.machine import H200
    from kvtrace.tui.cli import main as command_line

    calls, launches = Calls(), Launches()
    watched: dict[type, Sequence[str]] = {
        Admission: ("hand_out", "let_in"),
        EngineCore: ("signal", "submit", "snapshot", "_collect", "_submit_copies"),
        Forward: ("chunks", "_launch", "_read", "_accept"),
        Parking: ("make_room", "restore_ahead", "filled"),
        Requests: ("admit", "finish"),
        api.Engine: ("_publish", "_deliver", "_hand_over", "_meanwhile"),
    }
    for owner, names in watched.items():
        for name in names:
            calls.watch(owner, name)
    built = build.build_core
    build.make_runner = lambda model, *_: ClockRunner(  # type: ignore[assignment]
        H200.step_s, model.model.config.vocab_size, calls, launches
    )
    api.build_core = lambda model, config, *args, **named: built(  # type: ignore[attr-defined]
        model, replace(config, pipelined=True), *args, **named
    )
    atexit.register(lambda: file.write_text(json.dumps(launches.told()), encoding="utf-8"))
    sys.argv = ["kvtrace", "serve", *options]
    command_line()


def measure(agents: int, seconds: float, runs: int, block_tokens: int) -> tuple[list[dict[str, Any]], list[float]]:
    """Start the server, let the agents work ``runs`` times, and stop it: what it noted of each run, and turns/s."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder, "launches.json"), Path(folder, "serve.log")
        sizes = ["--kv-vram", str(POOL_TOKENS * TOKEN_BYTES), "--kv-host", str(HOST_TOKENS * TOKEN_BYTES)]
        options = ["random:tiny", "--device", "cpu", *sizes, "--context", "8192", "--port", str(port)]
        options += ["--block-tokens", str(block_tokens)]
        with log.open("wb") as out:
            command = [sys.executable, __file__, "--serve", str(file), "--", *options]
            server = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | {"OMP_NUM_THREADS": "1"})
        try:
            _wait(url, server)
            rates = [_work(url, agents, seconds, seed) for seed in range(1, runs + 1)]
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(STOP_S)
        if not file.exists():
            sys.exit(f"the server left no notes; it said:\n{log.read_text(encoding='utf-8')[-2000:]}")
        return json.loads(file.read_text(encoding="utf-8")), rates


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and server.poll() is None:
        try:
            with urlopen(f"{url}/health", timeout=2):
                return
        except (URLError, OSError):
            time.sleep(0.2)
    sys.exit("the server did not come up")


def _work(url: str, agents: int, seconds: float, seed: int) -> float:
    asked = ["--agents", str(agents), "--steady", str(seconds), "--seeds", str(seed), "--json", "--vocabulary", "500"]
    done = subprocess.run(
        [sys.executable, "-m", "kvtrace.tui", "bench", "agents", "--url", url, *asked], capture_output=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr.decode(errors="replace")[-1000:])
    rate: float = json.loads(done.stdout)["runs"][0]["turns_per_s"]
    time.sleep(1.5)  # a pause by which the next run is told apart
    return rate


def table(runs: Sequence[dict[str, Any]], rates: Sequence[float]) -> str:
    """A line a run, and what the engine's thread did, per 1,000 steps."""
    lines = [
        f"run {number}: {rate:.2f} turns/s; the device had nothing to do for {run['idle_s'] / run['seconds']:.1%} of the time, "
        f"{run['late_launches']} of {run['steps']} launches were late"
        for number, (run, rate) in enumerate(zip(runs, rates, strict=False), 1)
    ]
    lines.append("of the engine's thread, ms per 1,000 steps: processor time, wall; before late launches")
    for kind in runs[-1]["all"]:
        spent = [
            statistics.fmean(1e6 * run[where].get(kind, {what: 0.0})[what] / run["steps"] for run in runs)
            for where, what in (
                ("all", "cpu_s"),
                ("all", "wall_s"),
                ("before_late", "cpu_s"),
                ("before_late", "wall_s"),
            )
        ]
        lines.append(f"  {kind:<14} {spent[0]:8.0f} {spent[1]:8.0f}   {spent[2]:6.0f} {spent[3]:6.0f}")
    return "\n".join(lines)


def main() -> None:
    """Measure, or be the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each run")
    parser.add_argument("--runs", type=int, default=2, help="one after the other, on one server")
    parser.add_argument("--block-tokens", type=int, default=32, help="of a KV block; 32 is a GPU's own size")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("options", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve is not None:
        serve(asked.serve, asked.options)
        return
    runs, rates = measure(asked.agents, asked.seconds, asked.runs, asked.block_tokens)
    if not runs:
        sys.exit("too few steps to tell anything: give more --seconds")
    print(table(runs, rates))
    if asked.json is not None:
        told = {
            "schema_version": SCHEMA_VERSION,
            "agents": asked.agents,
            "seconds": asked.seconds,
            "block_tokens": asked.block_tokens,
            "turns_per_s": rates,
        }
        about = {"machine": describe("kvtrace", "torch", "uvloop", "aiohttp")}
        asked.json.write_text(json.dumps(told | {"runs": runs} | about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
