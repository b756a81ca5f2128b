"""A bar shows only when reading takes longer than a second, and stdout never hears of it."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from kvtrace.analysis.testing import otlp_line, otlp_span
from kvtrace.tui.reading_bar import ReadingBar


def shown(seconds_a_step: float, terminal: bool = True) -> str:
    now = [0.0]
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    with ReadingBar(console, lambda: now[0]) as bar:
        for done in (0, 10, 20, 30):
            bar.advance(done, 30)
            now[0] += seconds_a_step
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_quick_reading_shows_nothing() -> None:
    assert shown(0.1) == ""


def test_slow_reading_shows_a_bar_on_terminals_alone() -> None:
    assert "Reading" in shown(0.7)
    assert shown(0.7, terminal=False) == ""


def test_sentence_is_said_once() -> None:
    console = Console(file=io.StringIO(), width=80)
    with ReadingBar(console) as bar:
        bar.say("The cache [x] is damaged.")
        bar.say("The cache [x] is damaged.")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "The cache [x] is damaged.\n"


def test_report_reads_standard_input(tmp_path: Path) -> None:
    lines = [
        otlp_line([otlp_span("chat", 0, 1, span=1, agent="a")]),
        otlp_line([otlp_span("execute_tool", 1, 2, span=2, agent="a")]),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "kvtrace.tui", "report", "-", "--no-cache", "--csv", "agents"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split(",")[0] == "a"
    assert done.stderr == ""
