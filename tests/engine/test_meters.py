from __future__ import annotations

from kvtrace.engine.events import EventLog, Operation
from kvtrace.engine.meters import BusyRate, LinkMeter, RateMeter
from kvtrace.engine.records import EngineEvent, EventKind
from kvtrace.engine.swap.contract import Copy, CopyDone, Direction

SECOND = 10**9


def test_rate_counts_the_last_second_only() -> None:
    meter = RateMeter()
    meter.add(0, 5)
    meter.add(SECOND // 2, 7)
    assert meter.rate(SECOND // 2) == 12
    assert meter.rate(SECOND) == 7
    assert meter.rate(2 * SECOND) == 0
    assert (meter.peak, meter.total) == (12, 12)


def test_link_keeps_directions_apart() -> None:
    meter = LinkMeter()
    meter.add(Direction.OUT, 0, 3)
    meter.add(Direction.IN, 0, 4)
    link = meter.link(1)
    assert (link.out_total_bytes, link.in_total_bytes) == (3, 4)
    assert (link.out_bytes_per_s, link.in_peak_bytes_per_s) == (3, 4)


def test_busy_rate_counts_the_time_of_overlapping_copies_once() -> None:
    rate = BusyRate()
    assert rate.per_s is None
    rate.add(100, [(0, SECOND // 2), (SECOND // 4, SECOND // 2)])
    assert rate.per_s == 400
    rate.add(50, [(9 * SECOND, 9 * SECOND + SECOND // 2)])
    assert rate.per_s == 250


def test_link_learns_its_rate_from_copies_that_ended() -> None:
    meter = LinkMeter()
    assert meter.bytes_per_s(Direction.IN) is None
    meter.copied([CopyDone(Copy(1, Direction.IN, 0, 0), 0, SECOND // 100)], SECOND, 1000)
    assert meter.link(SECOND).in_total_bytes == 1000
    assert meter.bytes_per_s(Direction.IN) == 100_000
    assert meter.bytes_per_s(Direction.OUT) is None


def test_operation_is_one_event_from_first_to_last_copy() -> None:
    heard: list[EngineEvent] = []
    log = EventLog(heard.append)
    log.begin(Operation(EventKind.PARK, "a", "grep", 64, "why", {1, 2}), 0)
    log.copied({2: CopyDone(Copy(2, Direction.OUT, 0, 0), 1_000_000, 3_000_000)}, 5)
    assert heard == []
    assert log.under_way(EventKind.PARK) == {"a"}
    log.copied({1: CopyDone(Copy(1, Direction.OUT, 1, 1), 2_000_000, 9_000_000)}, 7)
    assert heard == [EngineEvent(7, "a", EventKind.PARK, "grep", 64, 8.0, "why")]
    assert list(log.recent) == heard


def test_operation_without_copies_is_an_event_at_once() -> None:
    log = EventLog()
    (event,) = log.begin(Operation(EventKind.PARK, "a", None, 64, "why", set()), 3)
    assert event.duration_ms is None
