"""Trajectories of SWE-agent (lengths of tool calls, no instants) and of mini-swe-agent (instants of the messages)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..normal import Notes, SpanRecord
from ..options import NS_PER_S
from .json_values import json_values
from .stamps import DERIVED_MODEL, NO_APPROVALS, NO_FIRST_TOKEN, NO_TURNS, count, length_ns, loose_stamp, say
from .transcript import Book, Lane, Owner, tool_span
from .values import text

KIND: Final = "SWE-agent trajectory"

_UNTIMED_MINI: Final = "a mini-swe-agent trajectory of a version without instants, so nothing can be measured"
_LAST: Final = "length of the command that hands the answer in not visible (it counts as none)"
_DURATIONS: Final = "a SWE-agent trajectory has no instants, only lengths of tool calls"


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like a trajectory of either."""
    if b'"trajectory_format"' in head or b'"mini_version"' in head:
        return True
    steps = b'"execution_time"' in head and b'"observation"' in head and b'"thought"' in head
    messages = b'"messages"' in head and b'"role"' in head and b'"extra"' in head
    return steps or messages


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield the calls of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    for line, value in json_values(path, notes):
        steps = value.get("trajectory") if isinstance(value, dict) else None
        messages = value.get("messages") if isinstance(value, dict) else None
        if isinstance(steps, list):
            yield from _durations(steps, path.stem, notes)
        elif isinstance(messages, list):
            yield from _mini(messages, path.stem, notes)
        else:
            notes.skip(line, "no trajectory and no messages")


def _durations(steps: list[Any], name: str, notes: Notes) -> Iterator[SpanRecord]:
    """Tool calls with a length and nothing else."""
    book, owner, total_ns = Book(notes, f"swe-agent:{name}"), Owner(name, name), 0
    for number, step in enumerate(steps):
        lasted_ns = length_ns(step.get("execution_time")) if isinstance(step, dict) else None
        if lasted_ns is not None:
            words = (text(step.get("action")) or "").split()
            tool = words[0] if words else "tool"
            total_ns += lasted_ns
            book.add("tool", tool_span(str(number)), tool, owner, None, None, confidence="duration_only")
            book.made[-1] = book.made[-1]._replace(lasted_ns=lasted_ns)
    notes.skip(0, f"{_DURATIONS}: {len(book.made)} calls of {total_ns / NS_PER_S:.3f} s in all")
    yield from book.drain()


def _mini(messages: list[Any], name: str, notes: Notes) -> Iterator[SpanRecord]:
    """The assistant's messages are stamped when they are complete, the others when the command has ended."""
    say(notes, NO_APPROVALS, NO_FIRST_TOKEN, NO_TURNS, DERIVED_MODEL)
    timed = [(at_ns, message) for message in messages if (at_ns := _at(message, notes)) is not None]
    if not timed:
        notes.skip(0, _UNTIMED_MINI)
        return
    began = timed[0][0]
    book = Book(notes, f"mini-swe-agent:{name}:{began}")
    lane = Lane(book, Owner(f"{name}@{began}", name))
    for number, (at_ns, message) in enumerate(timed):
        if message.get("role") != "assistant":
            for call in list(lane.pending):
                lane.result(at_ns, call)
            lane.told(at_ns)
            lane.seen(at_ns)
            continue
        lane.output(at_ns, str(number), _usage(message))
        # Several commands run one after the other, and their results come at once: one wait.
        if message["extra"].get("actions", [None]):
            lane.call(at_ns, str(number), "bash")
    if lane.pending and any(isinstance(each, dict) and each.get("role") == "exit" for each in messages):
        # The command that hands the answer in has ended, but the message that says so bears no instant.
        say(notes, _LAST)
        for call in list(lane.pending):
            lane.result(timed[-1][0], call)
    lane.finish()
    yield from book.drain()


def _at(message: Any, notes: Notes) -> int | None:
    extra = message.get("extra") if isinstance(message, dict) else None
    return loose_stamp(extra.get("timestamp"), notes) if isinstance(extra, dict) else None


def _usage(message: dict[str, Any]) -> tuple[int | None, int | None]:
    response = message["extra"].get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    if not isinstance(usage, dict):
        return None, None
    return count(usage.get("prompt_tokens")), count(usage.get("completion_tokens"))
