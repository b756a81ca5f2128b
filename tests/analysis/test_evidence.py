"""Only the very process that wrote a file, still alive on this host, makes its open spans last until now."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from kvtrace.analysis.evidence import ThisHost, last_sign_ns
from kvtrace.analysis.normal import Process
from kvtrace.analysis.testing import FixedHost, at_ns

HERE = socket.gethostname()
DAY_NS = 86_400_000_000_000


def test_this_process_is_running() -> None:
    assert ThisHost().is_running(Process(HERE, os.getpid(), time.time_ns()))


def test_same_id_on_another_host_is_not() -> None:
    assert not ThisHost().is_running(Process("elsewhere", os.getpid(), time.time_ns()))


def test_reused_id_is_not_the_old_process() -> None:
    assert not ThisHost().is_running(Process(HERE, os.getpid(), time.time_ns() - DAY_NS))


def test_unknown_process_is_not_running() -> None:
    host = ThisHost()
    assert not host.is_running(Process())
    assert not host.is_running(Process(HERE, os.getpid(), None))


def test_zombie_and_reaped_process_are_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = Process(HERE, child.pid, time.time_ns())
    assert ThisHost().is_running(process)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not ThisHost().is_running(process)
    child.communicate()
    assert not ThisHost().is_running(process)


def test_without_proc_nothing_is_known_to_run(tmp_path: Path) -> None:
    assert not ThisHost(proc=tmp_path).is_running(Process(HERE, os.getpid(), time.time_ns()))


def test_touch_counts_only_for_writers_that_touch() -> None:
    host = FixedHost(now_s=50, running=frozenset({1}))
    assert last_sign_ns(Process("h", 1, 1, touched=True), at_ns(20), host) == (at_ns(50), True)
    assert last_sign_ns(Process("h", 2, 1, touched=True), at_ns(20), host) == (at_ns(20), False)
    assert last_sign_ns(Process("h", 2, 1), at_ns(20), host) == (None, False)
