"""The demo's tools. They really run, on kvtrace's own installed source, and only ever read."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from kvtrace.tracer import traced_tool

# The folder that holds the four packages: the checkout when editable, site-packages/kvtrace when installed.
SOURCE: Final = Path(__file__).parents[2]
FOLDERS: Final = ("tracer", "engine", "analysis", "tui")
RESULT_CHARACTERS: Final = 160
COMMAND_TIMEOUT_S: Final = 60


_running: Final[set[subprocess.Popen[str]]] = set()


@traced_tool
def read_file(name: str) -> str:
    """The beginning of a source file."""
    return (SOURCE / name).read_text(encoding="utf-8")[:RESULT_CHARACTERS]


@traced_tool
def grep(word: str) -> str:
    """How many lines of which source files contain a word, the most frequent first."""
    counts = {
        path.relative_to(SOURCE).as_posix(): sum(word in line for line in path.read_text(encoding="utf-8").splitlines())
        for folder in FOLDERS
        for path in (SOURCE / folder).rglob("*.py")
    }
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{name}: {count}" for name, count in ranked[:5])[:RESULT_CHARACTERS]


@traced_tool
def shell(line: str) -> str:
    """The output of a short shell command (one of the script's own, never the model's)."""
    return _run(["/bin/sh", "-c", line]).strip()[:RESULT_CHARACTERS]


@traced_tool
def run_checks(seconds: str) -> str:
    """A slow command, waited for as one waits for a test suite."""
    _run(["sleep", seconds])
    return f"all checks passed after {seconds} s"


def stop_tools() -> None:
    """Kill the commands that run now; their tools raise :class:`subprocess.CalledProcessError`."""
    for process in tuple(_running):
        process.kill()


def _run(command: list[str]) -> str:
    """What a command prints; it must end well, and in time."""
    with subprocess.Popen(
        command, cwd=SOURCE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        _running.add(process)
        try:
            output, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
        finally:
            process.kill()
            _running.discard(process)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return output


TOOLS: Final[Mapping[str, Callable[[str], str]]] = {
    "read_file": read_file,
    "grep": grep,
    "shell": shell,
    "run_checks": run_checks,
}
