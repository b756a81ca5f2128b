"""Starts a server, measures cells of ``kvtrace bench agents`` against it, and stops it again.

``python benchmarks/agents/run.py ENGINE CELLS... --append FILE [--budget SECONDS]``

ENGINE: ``kvtrace:auto`` or any other policy; ``vllm:plain``, ``vllm:offload``, ``vllm:offload1``, ``vllm:simple``;
``transformers``; ``at:LABEL`` for one that runs already at ``--port``. CELLS: ``16,32@1,2,3`` is 16 and 32 agents with seeds 1, 2 and 3; ``24@1+steady=45`` replaces finished
agents for 45 s; ``32@1+tool=real:10`` takes other tool times. Cells are measured in the order given and each is in the
file as soon as it is there, so a run that its budget cuts off leaves what it has.

``--small`` does all this with a tiny model on the CPU, to try it out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

HERE: Final = Path(__file__).parent
POOL: Final = ("--kv-vram", "8110080000", "--kv-host", "48GiB", "--slots", "8", "--context", "8192")  # 55,000 tokens
SMALL_POOL: Final = ("--kv-vram", "24MiB", "--kv-host", "200MiB", "--slots", "2", "--context", "400")
SMALL_SHAPE: Final = ("--prompt", "120", "--returns", "2", "--generate", "6", "--new", "10", "--slots", "2")
_STOP_S: Final = 8.0


@dataclass(frozen=True, slots=True)
class Cells:
    """Runs that one call of the client makes."""

    agents: str
    seeds: str
    steady_s: str | None = None
    tool: str | None = None

    def options(self) -> list[str]:
        """For the client."""
        words = ["--agents", self.agents, "--seeds", self.seeds]
        words += ["--steady", self.steady_s] if self.steady_s else []
        return words + (["--tool", self.tool] if self.tool else [])


def parse(text: str) -> Cells:
    """The call that ``text`` asks for.

    Raises:
        ValueError: it is not written as the module says.
    """
    head, *options = text.split("+")
    agents, at, seeds = head.partition("@")
    named = dict(option.split("=", 1) for option in options if "=" in option)
    if not (agents and at and seeds) or len(named) != len(options) or not set(named) <= {"steady", "tool"}:
        raise ValueError(f"{text}: write N[,N]@SEED[,SEED], then +steady=SECONDS or +tool=TIMES")
    return Cells(agents, seeds, named.get("steady"), named.get("tool"))


def server_command(engine: str, port: int, small: bool) -> list[str] | None:
    """What starts ``engine``; ``None`` for one that runs already.

    Raises:
        ValueError: no such engine.
    """
    kind, _, mode = engine.partition(":")
    if kind == "at" and mode:
        return None
    if kind == "kvtrace" and mode:
        source, pool, device = ("smollm2", SMALL_POOL, "cpu") if small else ("random:qwen3-8b", POOL, "cuda")
        serve = [sys.executable, "-m", "kvtrace.tui", "serve", source, *pool, "--policy", mode, "--device", device]
        return [*serve, "--port", str(port)]
    if kind == "vllm" and mode:
        return ["sh", str(HERE / "serve_vllm.sh"), mode, str(port)]
    if engine == "transformers":
        tiny = (
            ("--size", "tiny", "--pool-tokens", "2048", "--step-tokens", "256", "--offload-gib", "0") if small else ()
        )
        return [sys.executable, str(HERE / "serve_transformers.py"), "--port", str(port), *tiny]
    raise ValueError(f"no engine {engine}: give kvtrace:POLICY, vllm:MODE, transformers or at:LABEL")


class Server:
    """A server in a process group of its own, from ``with`` to its end; its output goes to ``log``.

    Without a command it runs already, and is left alone.
    """

    def __init__(self, command: Sequence[str] | None, port: int, log: Path) -> None:
        self._command, self._port, self._log = command, port, log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        if self._command is not None:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        return self

    def __exit__(self, *problem: object) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):  # a shell starts background jobs with SIGINT ignored
            if self._process is not None and self._process.poll() is None:
                os.killpg(self._process.pid, number)
                try:
                    self._process.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    continue

    @property
    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def wait(self, until_s: float) -> bool:
        """Whether it answers before ``until_s`` of the monotonic clock; false at once where it has ended."""
        while time.monotonic() < until_s and not self._ended:
            try:
                with urlopen(f"http://127.0.0.1:{self._port}/health", timeout=2) as answer:
                    if answer.status == 200:
                        return True
            except (URLError, OSError):
                pass
            time.sleep(0.5)
        return False

    def last_words(self) -> str:
        """The end of its output."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-1500:] if self._log.exists() else ""


def measure(cells: Cells, url: str, asked: argparse.Namespace, left_s: float) -> list[str]:
    """Run one call of the client and return what came of it, a line a run."""
    kind, _, mode = asked.engine.partition(":")
    label = {"kvtrace": [], "at": ["--label", mode]}.get(kind, ["--label", asked.engine.replace(":", "-")])
    machine = ["--machine", asked.machine] if asked.machine else []
    command = [sys.executable, "-m", "kvtrace.tui", "bench", "agents", "--url", url, "--append", str(asked.append)]
    command += ["--json", *(SMALL_SHAPE if asked.small else ()), *cells.options(), *label, *machine]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=left_s, check=False)
    except subprocess.TimeoutExpired:
        return [f"{cells} was cut off; what was measured before is in the file"]
    runs = json.loads(done.stdout)["runs"] if done.stdout.strip() else []  # what was measured before it failed as well
    said = done.stderr.strip()[-400:] if done.returncode or any(run["failed"] for run in runs) else ""
    return [line(run) for run in runs] + ([f"{cells} failed: {said}"] if said else [])


def line(run: dict[str, Any]) -> str:
    """The run in short; a return's first token is split into queued + restoring + computing and on the way, medians."""
    cell, first = run["cell"], run["return_ttft_s"]["p50"]
    name = f"{cell['engine']} {cell['policy'] or ''} N={cell['agents']} seed {cell['seed']} {cell['tool']}"
    name += f" steady {cell['steady_s']:.0f} s" if cell["steady_s"] else ""
    shown = [f"{name}: {run['turns_per_s']:.2f} turns/s"]
    shown += [f"{run['turns_per_s_of_ideal']:.3f} of ideal"] if run["turns_per_s_of_ideal"] else []
    shown += [f"first token {first * 1e3:.0f} ms"] if first else []
    parts = [run[f"return_{name}_s"]["p50"] for name in ("queued", "restoring", "starting")]
    shown += [" + ".join(f"{part * 1e3:.0f}" for part in parts)] if None not in parts else []
    shown += [f"{run['reprefilled_tokens']} prefilled twice"] if run["reprefilled_tokens"] is not None else []
    shown += [f"{run['decoding_mean']:.1f} decoding"] if run["decoding_mean"] else []
    return ", ".join([*shown, f"{run['failed']} failed, {run['makespan_s']:.0f} s"])


def in_use(port: int) -> bool:
    """Whether somebody listens there: the server that is started would end, and the other one be measured."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def arguments() -> argparse.Namespace:
    """What is asked; ``plan`` and ``command`` are ``cells`` and ``engine`` understood."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("cells", nargs="+")
    parser.add_argument("--append", type=Path, required=True, help="JSON file of results")
    parser.add_argument(
        "--budget", type=float, default=3600.0, help="seconds for everything, the server's start included"
    )
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--machine", help="name of the device, as 'NVIDIA H200'")
    parser.add_argument("--log", type=Path, help="the server's output; beside the results by default")
    parser.add_argument("--small", action="store_true", help="a tiny model on the CPU")
    asked = parser.parse_args()
    try:
        asked.plan = [parse(text) for text in asked.cells]
        asked.command = server_command(asked.engine, asked.port, asked.small)
    except ValueError as error:
        parser.error(str(error))
    if asked.command is not None and in_use(asked.port):
        parser.error(f"something listens on port {asked.port} already: stop it, or give --port")
    return asked


def main() -> int:
    """1 where the server did not come."""
    asked = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the server is stopped on the way out
    until_s = time.monotonic() + asked.budget
    log = asked.log or asked.append.with_name(f"{asked.append.stem}-{asked.engine.replace(':', '-')}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with Server(asked.command, asked.port, log) as server:
        began_s = time.monotonic()
        if not server.wait(until_s):
            print(f"{asked.engine} did not come:\n{server.last_words()}", flush=True)
            return 1
        print(f"{asked.engine} came after {time.monotonic() - began_s:.0f} s", flush=True)
        for cells in asked.plan:
            if (left_s := until_s - _STOP_S - time.monotonic()) <= 0:
                print(f"{asked.engine}: no time left for {cells}", flush=True)
                continue
            print("\n".join(measure(cells, f"http://127.0.0.1:{asked.port}", asked, left_s)), flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
