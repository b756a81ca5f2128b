"""In a real terminal: tmux shows what a person would see; a pseudo-terminal tells how the program leaves."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvtrace.tui.exits import ExitCode

from .conftest import StateServer

TOP = [sys.executable, "-m", "kvtrace.tui", "top"]


class Tmux:
    """A terminal of its own, on a tmux server of its own."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "tmux")

    def do(self, *args: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, "-f", "/dev/null", *args], capture_output=True, text=True, check=True
        )
        return done.stdout

    def screen(self) -> str:
        return self.do("capture-pane", "-p")

    def type(self, *keys: str) -> None:
        self.do("send-keys", *keys)

    def until(self, holds: Callable[[str], bool]) -> str:
        deadline = time.monotonic() + 60
        while not holds(shown := self.screen()):
            assert time.monotonic() < deadline, shown
            time.sleep(0.05)
        return shown


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        assert not os.environ.get("CI"), "tmux is missing"
        pytest.skip("tmux is not installed")
    terminal = Tmux(tmp_path)
    terminal.do(
        "new-session", "-d", "-x", "100", "-y", "30", "env COLUMNS=80 LINES=24 PS1='$ ' XDG_CONFIG_HOME=/nonexistent sh"
    )
    yield terminal
    terminal.do("kill-server")


def test_terminal_shows_resizes_suspends_and_is_given_back_while_the_server_dies_and_returns(
    tmux: Tmux, state_server: StateServer
) -> None:
    tmux.until(lambda shown: "$" in shown)
    tmux.type("echo was here before", "Enter")
    tmux.until(lambda shown: "\nwas here before" in shown)
    tmux.type(f"'{sys.executable}' -m kvtrace.tui top -i 0.25 --url {state_server.url}", "Enter")
    shown = tmux.until(lambda shown: "LAST 60 s" in shown and "api-4" in shown)
    assert "was here before" not in shown
    tmux.type("Down", "Enter")
    tmux.until(lambda shown: "TOOLS BY TOTAL WAIT" in shown)
    tmux.type("Escape")
    tmux.do("resize-window", "-x", "60", "-y", "12")
    tmux.until(lambda shown: "HOST" in shown and "LINK" not in shown and "api-4" in shown)
    state_server.kill()
    shown = tmux.until(lambda shown: "DISCONNECTED" in shown)
    assert "api-4" in shown
    state_server.start()
    tmux.until(lambda shown: "LIVE" in shown)
    tmux.type("C-z")
    tmux.until(lambda shown: "topped" in shown)
    tmux.type("fg", "Enter")
    tmux.until(lambda shown: all(words in shown for words in ("kvtrace top  ", "STATE", "api-4", "HOST")))
    tmux.type("C-c")
    tmux.until(lambda shown: "STATE" not in shown)
    tmux.type("echo left with $?", "Enter")
    tmux.until(lambda shown: f"left with {ExitCode.INTERRUPTED}" in shown)
    tmux.type("stty -a | grep -c ' -echo '", "Enter")
    counted = tmux.until(lambda shown: shown.rstrip().splitlines()[-2].removeprefix("$ ") in ("0", "1"))
    assert counted.rstrip().splitlines()[-2].removeprefix("$ ") == "0"


class Terminal:
    """A pseudo-terminal with ``kvtrace top --demo`` in it."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (30, 100))
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            [*TOP, "--demo"],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "XDG_CONFIG_HOME": "/nonexistent"},
        )

    def read_until(self, wanted: bytes) -> bytes:
        seen, deadline = b"", time.monotonic() + 60
        while wanted not in seen:
            assert time.monotonic() < deadline, seen[-500:]
            if select.select([self.master], [], [], 0.2)[0]:
                seen += os.read(self.master, 65536)
        return seen

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for descriptor in (self.master, self.slave):
            try:
                os.close(descriptor)
            except OSError:
                continue


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signal_ends_it_with_the_terminal_as_it_was(terminal: Terminal, number: signal.Signals) -> None:
    terminal.read_until(b"SIMULATED")
    assert termios.tcgetattr(terminal.slave) != terminal.before
    terminal.process.send_signal(number)
    # The alternate screen is left, mouse reports are off, the cursor is back.
    tail = terminal.read_until(b"\x1b[?1049l")
    assert terminal.process.wait(30) == ExitCode.INTERRUPTED
    while select.select([terminal.master], [], [], 0.1)[0]:
        tail += os.read(terminal.master, 65536)
    assert b"\x1b[?1000l" in tail
    assert b"\x1b[?25h" in tail
    assert b"Traceback" not in tail
    assert termios.tcgetattr(terminal.slave) == terminal.before


def test_it_ends_when_its_terminal_goes_even_if_nobody_hangs_up(terminal: Terminal) -> None:
    terminal.read_until(b"SIMULATED")
    os.close(terminal.slave)
    os.close(terminal.master)
    terminal.process.wait(30)
    assert terminal.process.returncode is not None
