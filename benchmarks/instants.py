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

And of the steps, how many were launched late, after the one before had been read: the device had nothing to do meanwhile. Notes
cost the engine's thread some microseconds each. A sampling profile says where time is spent; this says what it was spent waiting for.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import gzip
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

MOST: Final = 2_000_000
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
            began = time.time_ns()
            result = real(self_, *args, **options)
            if len(self.kept) < MOST:
                self.kept.append((what, began, time.time_ns(), details(self_, result, args)))
            return result

        setattr(owner, name, noting)

    def watch_engine(self) -> None:
        """The calls that the report is made of."""
        from kvtrace.engine.forward import Forward
        from kvtrace.engine.loop import EngineCore
        from kvtrace.engine.requests import Requests
        from kvtrace.engine.swap.contract import Direction
        from kvtrace.engine.swap.stream import StreamMover

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
        self.watch(
            StreamMover,
            "_launch",
            "copies",
            lambda mover, result, args: {"in": args[1] is Direction.IN, "count": len(args[2])},
        )
        self.watch(StreamMover, "_announce", "all queued", lambda mover, result, args: {})

    def write(self, path: Path) -> None:
        """One JSON document, compressed."""
        with gzip.open(path, "wt", encoding="utf-8") as file:
            json.dump({"schema_version": 1, "notes": self.kept}, file)


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


def report(notes: Sequence[Note]) -> str:
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
    steps, behind, idle_ms = late(notes)
    parts.append(f"{steps} steps, {behind} launched after the one before had been read ({idle_ms:.1f} ms between)")
    return "\n".join(parts)


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
            print(report([tuple(note) for note in json.load(file)["notes"]]))
        return
    notes = Notes()
    notes.watch_engine()
    atexit.register(notes.write, asked.file)
    from kvtrace.tui.cli import main as command_line

    sys.argv = ["kvtrace", "serve", *asked.options]
    command_line()


if __name__ == "__main__":
    main()
