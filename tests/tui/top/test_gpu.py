"""What the GPU's own library says: asked aside, aged out, never in the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from kvtrace.tui.gpu import Card, GpuProbe, open_any
from kvtrace.tui.top.memory import OtherUse

GB = 10**9


class Counter:
    """A library that tells of these cards, or hangs, or fails."""

    name = "counter"

    def __init__(self, *cards: Card, hang: threading.Event | None = None, fail: bool = False) -> None:
        self._cards, self._hang, self._fail = list(cards), hang, fail
        self.asked = threading.Event()

    def cards(self) -> list[Card]:
        self.asked.set()
        if self._hang is not None:
            self._hang.wait()
        if self._fail:
            raise OSError("the driver fell over")
        return self._cards


def _wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_use_beyond_the_engines_own_is_other_processes() -> None:
    probe = GpuProbe(lambda: Counter(Card(16 * GB, 15 * GB)))
    probe.start()
    _wait(lambda: probe.other_use(16 * GB, 13 * GB) is not None)
    assert probe.other_use(16 * GB, 13 * GB) == OtherUse(2 * GB, "counter")
    assert probe.other_use(16 * GB, 15 * GB + 1) == OtherUse(0, "counter")
    probe.stop()


@pytest.mark.parametrize("total", [None, 24 * GB])
def test_nothing_is_said_of_a_card_that_is_not_the_engines(total: int | None) -> None:
    library = Counter(Card(16 * GB, 15 * GB))
    probe = GpuProbe(lambda: library)
    probe.start()
    _wait(lambda: probe.other_use(16 * GB, 0) is not None)
    assert probe.other_use(total, 0) is None
    probe.stop()


def test_two_cards_alike_are_not_told_apart() -> None:
    probe = GpuProbe(lambda: Counter(Card(16 * GB, 15 * GB), Card(16 * GB, GB), Card(8 * GB, GB)))
    probe.start()
    _wait(lambda: probe.other_use(8 * GB, 0) is not None)
    assert probe.other_use(16 * GB, 0) is None
    probe.stop()


def test_hung_driver_holds_nobody_up() -> None:
    release = threading.Event()
    library = Counter(Card(16 * GB, GB), hang=release)
    probe = GpuProbe(lambda: library)
    probe.start()
    assert library.asked.wait(10)
    assert probe.other_use(16 * GB, 0) is None
    probe.stop()
    release.set()


def test_old_answer_is_no_answer() -> None:
    now = [0.0]
    probe = GpuProbe(lambda: Counter(Card(16 * GB, GB)), clock=lambda: now[0])
    probe.start()
    _wait(lambda: probe.other_use(16 * GB, 0) is not None)
    probe.stop()
    now[0] = 60.0
    assert probe.other_use(16 * GB, 0) is None


def test_failing_driver_leaves_the_engines_figures() -> None:
    library = Counter(fail=True)
    probe = GpuProbe(lambda: library)
    probe.start()
    assert library.asked.wait(10)
    probe._thread.join(10)
    assert probe.other_use(16 * GB, 0) is None


def test_machine_without_a_library_is_no_error() -> None:
    found = open_any()
    assert found is None or found.cards()
