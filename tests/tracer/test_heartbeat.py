from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kvtrace.tracer.heartbeat import Heartbeat


class Touches:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited 10 s in vain"
        time.sleep(0.005)


@pytest.fixture
def touches() -> Touches:
    return Touches()


@pytest.fixture
def heartbeat(touches: Touches) -> Iterator[Heartbeat]:
    beat = Heartbeat(touches, period_s=0.01)
    yield beat
    beat.stop()


def test_beats_while_a_span_is_open(heartbeat: Heartbeat, touches: Touches) -> None:
    assert not heartbeat.beating
    heartbeat.enter("a")
    until(lambda: touches.count >= 3)


def test_rests_between_spans_and_ends_when_idle(heartbeat: Heartbeat, touches: Touches) -> None:
    heartbeat.enter("a")
    until(lambda: touches.count >= 1)
    heartbeat.leave("a")
    until(lambda: not heartbeat.beating)
    count = touches.count
    heartbeat.enter("b")
    until(lambda: touches.count > count)


def test_two_spans_share_one_thread(heartbeat: Heartbeat) -> None:
    for name in "abc":
        heartbeat.enter(name)
    assert [thread.name for thread in threading.enumerate()].count("kvtrace-heartbeat") == 1


def test_stop_is_final_until_the_next_span(heartbeat: Heartbeat, touches: Touches) -> None:
    heartbeat.enter("a")
    heartbeat.stop()
    count = touches.count
    time.sleep(0.05)
    assert touches.count == count
    heartbeat.enter("b")
    until(lambda: touches.count > count)
