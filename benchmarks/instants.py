"""Where a return's time goes in a running server, instant by instant: a profile of what waits for what.

    python benchmarks/instants.py serve FILE -- MODEL [options of `kvtrace serve`]     notes instants until it is stopped
    python benchmarks/instants.py report FILE                                          medians and p95, from such a file

The first form is ``kvtrace serve`` in this process with a note of some calls of the engine's thread and of the copying threads:
when they began and ended. Let `kvtrace bench agents` work against it, then stop it. Of each agent's return the report has the
milliseconds from its tool's end, as the client's clock told it, to:

* *signal*, *request*: the engine's thread takes them;
* *first copy*, *all queued*: what is missing goes to the device, and all of it is there, so that a step can be launched behind it;
* *admitted*: it has a slot and blocks;
* *launched*, *first token*: the step that computes its new tokens.

And of each kind of call that is noted, how long it took and how much of that its thread had a processor: the rest it waited, most
often for Python's lock. Of the steps, how many were launched late, after the one before had been read: the device had nothing to do
meanwhile. On a GPU also how long steps of each kind took there, by events of the device's own clock, and for how long it had none at
all. Notes cost the engine's thread some microseconds each. A sampling profile says where time is spent; this says what it was spent waiting for.
"""

from __future__ import annotations

import argparse
import atexit
import faulthandler
import functools
import gc
import gzip
import json
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

SCHEMA_VERSION: Final = 2
MOST: Final = 2_000_000
MOST_STEPS: Final = 100_000
PAUSE_MS: Final = 100.0  # when the device had nothing to do for so long, nobody wanted anything
ROWS: Final = 128  # steps with prompts are told apart by their positions, in classes of so many
LINES: Final = ("signal", "request", "first copy", "admitted", "all queued", "launched", "first token")

Note = tuple[str, int, int, dict[str, Any]]  # what, began and ended (unix ns), details
Details = Callable[[Any, Any, tuple[Any, ...]], dict[str, Any]]  # of the object, the result and the arguments


class Notes:
    """Calls that were noted; no more than :data:`MOST`, the first ones."""

    def __init__(self) -> None:
        self.kept: list[Note] = []

    def watch(self, owner: type, name: str, what: str, details: Details) -> None:
        """Note every call of method ``name`` of ``owner`` from now on."""
        real = getattr(owner, name)

        @functools.wraps(real)
        def noting(self_: Any, *args: Any, **options: Any) -> Any:
            worked, began = time.thread_time_ns(), time.time_ns()
            result = real(self_, *args, **options)
            if len(self.kept) < MOST:
                ended, worked = time.time_ns(), time.thread_time_ns() - worked
                self.kept.append((what, began, ended, {**details(self_, result, args), "worked_ns": worked}))
            return result

        setattr(owner, name, noting)

    def watch_collector(self) -> None:
        """Note every garbage collection from now on: it stops all threads."""
        began = worked = 0

        def note(phase: str, told: dict[str, int]) -> None:
            nonlocal began, worked
            if phase == "start":
                worked, began = time.thread_time_ns(), time.time_ns()
            elif len(self.kept) < MOST:
                told = {"generation": told["generation"], "worked_ns": time.thread_time_ns() - worked}
                self.kept.append((f"collection {told['generation']}", began, time.time_ns(), told))

        gc.callbacks.append(note)

    def watch_engine(self) -> None:
        """The calls that the report is made of."""
        from kvtrace.engine.admission import Admission
        from kvtrace.engine.api import Engine
        from kvtrace.engine.forward import Forward
        from kvtrace.engine.loop import EngineCore
        from kvtrace.engine.requests import Requests
        from kvtrace.engine.swap.contract import Direction
        from kvtrace.engine.swap.stream import StreamMover
        from kvtrace.engine.tiers import TieredCache

        self.watch(EngineCore, "signal", "signal", lambda core, result, args: _signal(args[0]))
        self.watch(EngineCore, "submit", "request", lambda core, result, args: {"agent": result.agent, "id": result.id})
        self.watch(
            Requests,
            "admit",
            "admitted",
            lambda requests, result, args: {"id": args[0].id, "ok": result, "waits": len(args[0].waits)},
        )
        self.watch(
            Forward,
            "_launch",
            "launch",
            lambda forward, result, args: {
                "number": None if result[0] is None else result[0].number,
                "tokens": {chunk.sequence_id: len(chunk.tokens) for chunk in args[0]},
            },
        )
        self.watch(Forward, "_read", "read", lambda forward, result, args: {"number": args[0].number})
        self.watch(Admission, "hand_out", "hand out", lambda admission, result, args: {})
        self.watch(Admission, "let_in", "let in", lambda admission, result, args: {"ok": result})
        self.watch(TieredCache, "prefetch", "prefetch", lambda cache, result, args: {"copies": len(result)})
        self.watch(Engine, "_publish", "publish", lambda engine, result, args: {})
        self.watch(
            StreamMover,
            "_launch",
            "copies",
            lambda mover, result, args: {"in": args[1] is Direction.IN, "count": len(args[2])},
        )
        self.watch(StreamMover, "_announce", "all queued", lambda mover, result, args: {})

    def write(self, path: Path, steps: DeviceSteps) -> None:
        """One JSON document, compressed."""
        with gzip.open(path, "wt", encoding="utf-8") as file:
            json.dump({"schema_version": SCHEMA_VERSION, "notes": self.kept, "steps": steps.told()}, file)


class DeviceSteps:
    """When steps began and ended on a GPU: no more than :data:`MOST_STEPS`, the first ones. Nothing on a CPU."""

    def __init__(self) -> None:
        self._events: list[tuple[Any, Any]] = []
        self._kinds: list[dict[str, Any]] = []

    def watch(self) -> None:
        """Note every step of the lean runner from now on."""
        import torch

        from kvtrace.engine.lean_runner import LeanRunner

        launch = LeanRunner.launch

        def noting(runner: LeanRunner, chunks: Sequence[Any], arrivals: Sequence[Any] = ()) -> Any:
            if not (chunks and torch.cuda.is_available() and len(self._events) < MOST_STEPS):
                return launch(runner, chunks, arrivals)
            begins, ends = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began = time.time_ns()
            begins.record()
            launched = launch(runner, chunks, arrivals)
            ends.record()
            self._events.append((begins, ends))
            prompts = [(chunk.start, len(chunk.tokens)) for chunk in chunks if len(chunk.tokens) > 1]
            self._kinds.append(
                {
                    "launched_ns": [began, time.time_ns()],
                    "decoding": len(chunks) - len(prompts),
                    "prompts": prompts,
                    "waits": len(arrivals) > 0,
                }
            )
            return launched

        LeanRunner.launch = noting  # type: ignore[method-assign]

    def told(self) -> list[dict[str, Any]]:
        """What was noted, with ``begins_ms`` and ``ends_ms`` from the first step's begin on."""
        if not self._events:
            return []
        first, (_, last) = self._events[0][0], self._events[-1]
        last.synchronize()
        return [
            {"begins_ms": first.elapsed_time(begins), "ends_ms": first.elapsed_time(ends), **kind}
            for (begins, ends), kind in zip(self._events, self._kinds, strict=True)
        ]


def _signal(signal: Any) -> dict[str, Any]:
    return {"kind": type(signal).__name__, "agent": signal.agent, "sent": signal.time_unix_ns}


def returns(notes: Iterable[Note]) -> list[dict[str, float]]:
    """Milliseconds from each tool's end to what came after it; ``copies`` is how many its request waited for."""
    ordered = sorted(notes, key=lambda note: note[2])
    ends: dict[str, tuple[int, int]] = {}  # by agent: when its tool ended, and when the signal was taken
    of_request: dict[int, dict[str, Any]] = {}
    newest_of: dict[str, int] = {}
    step_of: dict[int, list[int]] = defaultdict(list)
    queued, whole = [], []
    found: list[dict[str, float]] = []
    for what, began, ended, told in ordered:
        if what == "signal" and told["kind"] == "ToolEnded":
            # It may come after the request that it belongs to.
            newest = of_request.get(newest_of.get(told["agent"], -1), {"began": 0})
            if "end" in newest or told["sent"] > newest["began"]:
                ends[told["agent"]] = (told["sent"], ended)
            else:
                newest.update({"end": told["sent"], "signal": ended})
        elif what == "request":
            one = of_request[told["id"]] = {"request": ended, "began": began}
            newest_of[told["agent"]] = told["id"]
            if told["agent"] in ends:
                end, signal = ends.pop(told["agent"])
                one.update({"end": end, "signal": signal})
        elif what == "copies" and told["in"]:
            queued.append(ended)
        elif what == "all queued":
            whole.append(ended)
        elif what == "admitted" and told["ok"] and told["id"] in of_request:
            of_request[told["id"]].setdefault("admitted", ended)
            of_request[told["id"]].setdefault("copies", told["waits"])
        elif what == "launch":
            for number in map(int, told["tokens"]):
                if number in of_request and "launched" not in of_request[number]:
                    of_request[number]["launched"] = ended
                    step_of[told["number"]].append(number)
        elif what == "read":
            for number in step_of.pop(told["number"], ()):
                of_request[number]["first token"] = ended
    for one in of_request.values():
        if "end" in one and "first token" in one:
            first = min(one["signal"], one["began"])
            if one["copies"]:
                between = [at for at in queued if first - 5_000_000 < at <= one["launched"]]
                over = [at for at in whole if first < at <= one["launched"]]
                one.update({"first copy": min(between)} if between else {})
                one.update({"all queued": max(over)} if over else {})
            found.append(
                {"copies": one["copies"]} | {line: (one[line] - one["end"]) / 1e6 for line in LINES if line in one}
            )
    return found


def late(notes: Iterable[Note]) -> tuple[int, int, float]:
    """Steps, those of them that were launched after the one before had been read, and milliseconds between the two."""
    read: dict[int, int] = {}
    steps, behind, idle_ms = 0, 0, 0.0
    for what, _, ended, told in sorted(notes, key=lambda note: note[2]):
        if what == "read":
            read[told["number"]] = ended
        elif what == "launch" and told["number"] is not None:
            steps += 1
            before = read.get(told["number"] - 1)
            if before is not None:
                behind, idle_ms = behind + 1, idle_ms + (ended - before) / 1e6
    return steps, behind, idle_ms


def calls(notes: Iterable[Note]) -> list[str]:
    """Lines on how long each kind of call took, and for how much of that its thread had a processor."""
    taken: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for what, began, ended, told in notes:
        taken[what].append(((ended - began) / 1e6, told["worked_ns"] / 1e6))
    lines = ["calls, ms: median, p99, all together; of that with a processor"]
    for what, each in sorted(taken.items()):
        values = sorted(ms for ms, _ in each)
        whole, worked = sum(values), sum(ms for _, ms in each)
        p99 = values[min(len(values) - 1, int(0.99 * len(values)))]
        lines.append(
            f"  {what:<14} {len(each):7} x {statistics.median(values):8.2f} {p99:8.2f} {whole:10.0f} {worked:10.0f}"
        )
    return lines


def on_device(steps: Sequence[dict[str, Any]]) -> list[str]:
    """Lines on how long steps of each kind took on the device, those with the most time first, and how long it had none."""
    if not steps:
        return []
    taken: defaultdict[str, list[float]] = defaultdict(list)
    idle_ms, pause_ms, ended_ms = 0.0, 0.0, steps[0]["begins_ms"]
    for step in steps:
        gap_ms = max(step["begins_ms"] - ended_ms, 0.0)
        idle_ms, pause_ms = (idle_ms + gap_ms, pause_ms) if gap_ms < PAUSE_MS else (idle_ms, pause_ms + gap_ms)
        taken[_kind(step)].append(step["ends_ms"] - max(step["begins_ms"], ended_ms))
        ended_ms = step["ends_ms"]
    whole_ms = ended_ms - steps[0]["begins_ms"] - pause_ms
    lines = [
        f"{len(steps)} steps on the device in {whole_ms / 1e3:.1f} s, for {idle_ms / whole_ms:.1%} of which it had none"
    ]
    for kind, each in sorted(taken.items(), key=lambda item: -sum(item[1])):
        p90 = sorted(each)[min(len(each) - 1, int(0.9 * len(each)))]
        lines.append(
            f"  {kind:<50} {len(each):6} steps, median {statistics.median(each):6.2f} ms, p90 {p90:6.2f}, "
            f"{sum(each) / whole_ms:6.1%} of the time"
        )
    return lines


def _kind(step: dict[str, Any]) -> str:
    new = sum(tokens for _, tokens in step["prompts"])
    beside = f" + up to {-(-new // ROWS) * ROWS} of prompts" if new else ""
    return f"{step['decoding']} decoding{beside}{', waits for KV' if step['waits'] else ''}"


def report(notes: Sequence[Note], steps: Sequence[dict[str, Any]] = ()) -> str:
    """The tables."""
    told = returns(notes)
    parts = []
    for name, some in (("with something to fetch", True), ("resident", False)):
        chosen = [one for one in told if bool(one["copies"]) is some]
        parts.append(f"{len(chosen)} returns {name}, ms after the tool's end: median, p95")
        for line in LINES:
            values = sorted(one[line] for one in chosen if line in one)
            if values:
                p95 = values[min(len(values) - 1, int(0.95 * len(values)))]
                parts.append(f"  {line:<12} {statistics.median(values):8.1f} {p95:8.1f}")
    launched, behind, idle_ms = late(notes)
    parts.append(f"{launched} steps, {behind} launched after the one before had been read ({idle_ms:.1f} ms between)")
    return "\n".join([*parts, *calls(notes), *on_device(steps)])


def main() -> None:
    """Serve with notes, or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="`kvtrace serve` with notes of its calls")
    serve.add_argument("file", type=Path)
    serve.add_argument("options", nargs="*", help="what `kvtrace serve` takes, after --")
    commands.add_parser("report", help="what a file of notes says").add_argument("file", type=Path)
    asked = parser.parse_args()
    if asked.command == "report":
        with gzip.open(asked.file, "rt", encoding="utf-8") as file:
            kept = json.load(file)
        print(report([tuple(note) for note in kept["notes"]], kept.get("steps", ())))
        return
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # where every thread stands, if it should not go on
    notes, steps = Notes(), DeviceSteps()
    notes.watch_engine()
    notes.watch_collector()
    steps.watch()
    atexit.register(notes.write, asked.file, steps)
    from kvtrace.tui.cli import main as command_line

    sys.argv = ["kvtrace", "serve", *asked.options]
    command_line()


if __name__ == "__main__":
    main()
