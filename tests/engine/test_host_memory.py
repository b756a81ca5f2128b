from __future__ import annotations

import logging
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine import host_memory
from kvtrace.engine.host_memory import HostMemory, chunk_sizes, touched

META = torch.device("meta")  # a device that is not the CPU; pinning for it fails for real where there is no GPU


@given(total=st.integers(0, 1 << 38), most=st.sampled_from([1 << 20, 1 << 28, 1 << 30, 1 << 32]))
def test_chunks_are_powers_of_two_and_hardly_exceed_what_was_asked_for(total: int, most: int) -> None:
    sizes = chunk_sizes(total, most)
    assert all(size & (size - 1) == 0 and size <= most for size in sizes)
    assert total <= sum(sizes) < total + (1 << 16)
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) <= total // most + 20


@given(order=st.permutations(range(6)))
def test_memory_can_be_used_from_the_front_on_in_whatever_order_it_comes(order: list[int]) -> None:
    memory = HostMemory(6000, META, 1000)
    come: set[int] = set()
    for index in order:
        memory._add(index, torch.empty(1000, dtype=torch.uint8), pinned=True)
        come.add(index)
        front = next(place for place in range(7) if place not in come)
        assert memory.ready_bytes == 1000 * front
    assert memory.wait(0)


@given(total=st.integers(1, 40_000), chunk=st.sampled_from([512, 1000, 4096]), data=st.data())
@settings(max_examples=60)
def test_rows_are_the_bytes_between_two_places_each_once(total: int, chunk: int, data: st.DataObject) -> None:
    memory = HostMemory(total, torch.device("cpu"), chunk)
    assert memory.ready_bytes >= total
    whole = torch.cat(list(memory.rows(0, total)))
    assert whole.numel() == total
    at = data.draw(st.integers(0, total))
    end = data.draw(st.integers(at, total))
    for offset, row in enumerate(memory.rows(at, end)):
        row.fill_(1 + offset % 200)
    whole = torch.cat(list(memory.rows(0, total)))[at:end]
    assert bool((whole > 0).all())
    assert sum(row.numel() for row in memory.rows(at, end)) == end - at


def test_all_of_it_comes_whoever_asks_first_and_however_often_the_pace_changes() -> None:
    told: list[int] = []
    memory = HostMemory(200_000, META, 1 << 12, lambda pinned, seconds: told.append(pinned))
    for gently in (True, False, True):
        memory.start(gently=gently)
    assert memory.wait(30)
    memory.close()
    assert told == [memory.pinned_bytes]
    assert memory.ready_bytes >= 200_000
    assert sum(row.numel() for row in memory.rows(0, 200_000)) == 200_000


def test_all_of_it_is_pinned_when_all_of_it_is_there() -> None:
    """Whoever looks while a chunk is being entered never sees one as ready that is not counted as pinned yet."""
    seen: list[tuple[int, int]] = []

    class Watched(HostMemory):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name in ("ready_bytes", "pinned_bytes") and hasattr(self, "pinned_bytes"):
                seen.append((self.ready_bytes, self.pinned_bytes))

    memory = Watched(10_000, META, 1000)
    for index in range(10):
        memory._add(index, torch.empty(1000, dtype=torch.uint8), pinned=True)
    assert len(seen) > 10
    assert all(ready <= pinned for ready, pinned in seen)
    assert memory.pinned_bytes == memory.ready_bytes == 10_000


def test_memory_that_does_not_come_is_told_and_what_came_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, asked = HostMemory._chunk, threading.Semaphore(3)

    def scarce(self: HostMemory, size: int) -> tuple[torch.Tensor, bool]:
        if not asked.acquire(blocking=False):
            raise RuntimeError("the machine is full")
        return real(self, size)

    monkeypatch.setattr(HostMemory, "_chunk", scarce)
    memory = HostMemory(10_000, META, 1000)
    with caplog.at_level(logging.WARNING):
        memory.start()
        assert memory.wait(30)
        memory.close()
    assert memory.failed is not None
    assert "the machine is full" in memory.failed
    assert memory.ready_bytes == 3000
    assert [record.getMessage().count("goes on with those") for record in caplog.records].count(1) == 1


def test_closing_ends_it_after_the_chunk_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_threads", lambda: 1)
    entered, go_on = threading.Event(), threading.Event()

    def slow(self: HostMemory, size: int) -> tuple[torch.Tensor, bool]:
        entered.set()
        assert go_on.wait(30)
        return torch.empty(size, dtype=torch.uint8), False

    monkeypatch.setattr(HostMemory, "_chunk", slow)
    memory = HostMemory(10_000, META, 1000)
    memory.start()
    assert entered.wait(30)
    closing = threading.Thread(target=memory.close)
    closing.start()
    while not memory._closed:
        closing.join(0.001)
    go_on.set()
    closing.join(30)
    assert memory.ready_bytes == 1000
    memory.start()
    assert memory.ready_bytes == 1000


def test_touched_memory_is_there_and_empty() -> None:
    row = touched(3 * 4096 + 100)
    assert row.numel() == 3 * 4096 + 100
    assert not bool(row.any())
    row.fill_(7)
    assert bool((row == 7).all())


def test_a_device_without_a_number_is_the_present_one_in_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)  # torch's own takes no device without one
    memory = HostMemory(10_000, torch.device("cuda"), 1000)
    memory.start()
    assert memory.wait(30)
    memory.close()
    assert set(chosen) == {torch.device("cuda:1")}


@pytest.mark.filterwarnings("error")
def test_a_device_that_no_thread_can_choose_is_told_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device) -> None:
        raise RuntimeError(f"no {device}")

    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    memory = HostMemory(10_000, torch.device("cuda:0"), 1000)
    memory.start()
    assert memory.wait(30)
    memory.close()
    assert memory.failed is not None
    assert "no cuda:0" in memory.failed
    assert memory.ready_bytes == 0
