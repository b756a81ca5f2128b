"""A mover for devices that copy by themselves: it queues copies on the device and learns when they are over.

Torch-free: what touches the device stands behind :class:`Transport` (:mod:`.transport` is the one for GPUs).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from ..errors import EngineStopped
from .contract import Copy, CopyDone, Direction
from .limits import IN_FLIGHT_BYTES
from .runs import conflict_free, share

_FAIR: Final = 4  # every so many pieces the oldest batch goes first, however short the others are


class Ticket(Protocol):
    """A piece of work that was queued on the device."""

    def done(self) -> bool:
        """Whether it is over; never blocks."""
        ...

    def wait(self) -> None:
        """Block the calling thread, and no other, until it is over."""
        ...

    def seconds(self) -> float:
        """How long the device took, once it is over."""
        ...


class Transport(Protocol):
    """Queues copies on the device. ``mark`` is called by whoever submits, ``start`` by one thread a direction."""

    block_bytes: int

    def mark(self) -> object:
        """This point of the compute submitted so far: copies started with it begin after it."""
        ...

    def reached(self, mark: object) -> bool:
        """Whether compute has come past ``mark``; never blocks."""
        ...

    def plan(self, direction: Direction, copies: Sequence[Copy]) -> list[list[Copy]]:
        """Cut copies of distinct blocks and slots into pieces, each started by one call; any order."""
        ...

    def start(self, direction: Direction, piece: Sequence[Copy], after: object) -> Ticket:
        """Queue one piece on the device; returns without waiting for it."""
        ...

    def close(self) -> None:
        """Release what is held on the device; nothing is in flight any more."""
        ...


@dataclass(slots=True, eq=False)
class _Batch:
    """Copies submitted together, one direction, distinct blocks and slots. ``pieces`` is set by the lane's thread."""

    direction: Direction
    copies: Sequence[Copy]
    after: object
    blocks: set[int]
    slots: set[int]
    left: int  # copies not yet on the device
    pieces: deque[list[Copy]] | None = None


@dataclass(slots=True)
class _Flight:
    piece: list[Copy]
    ticket: Ticket


@dataclass(slots=True)
class _Lane:
    """One direction: what waits, shortest first, and what is on the device, oldest first."""

    wake: threading.Condition
    queue: list[_Batch] = field(default_factory=list)
    flights: deque[_Flight] = field(default_factory=deque)
    blocks: int = 0  # on the device
    turns: int = 0
    idle: bool = False  # its thread waits to be woken


class StreamMover:
    """Carries out copies on the device's own copy engines, each direction in a lane with a thread of its own.

    How each clause of the contract is kept:

    * a copy starts after the compute submitted before it: :meth:`submit` marks the compute stream in the caller's
      thread, and the transport makes the copy wait for that mark on the device;
    * sources stay untouched until the copy's end was returned: ends are seen by events that the host has waited for or
      queried, so whatever the caller submits after :meth:`poll` comes after the copy;
    * copies that touch the same block or slot keep their order: one that conflicts with a copy not yet over is held back
      on the host, and with it everything submitted later, until that copy's end was seen.

    The caller's thread only marks and appends. Sorting, planning, launching and waiting happen in the lanes' threads; no
    more than about ``in_flight_bytes`` each way are on the device, so that a short batch overtakes a long one soon.

    Args:
        transport: queues the copies; closed with the mover.
        on_done: called in a lane's thread after copies ended, so that a sleeping loop can wake.
        now_ns: monotonic nanoseconds.
        in_flight_bytes: bytes on the device each way from which on no further piece is queued.
    """

    def __init__(
        self,
        transport: Transport,
        on_done: Callable[[], None] | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
        in_flight_bytes: int = IN_FLIGHT_BYTES,
    ) -> None:
        self._transport = transport
        self._on_done = on_done
        self._now_ns = now_ns
        self._most_blocks = max(1, in_flight_bytes // transport.block_bytes)
        # One lock; whoever waits for one thing is not woken by another, which would cost the step's thread its turn.
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._lanes = {direction: _Lane(threading.Condition(self._lock)) for direction in Direction}
        self._inbox: deque[tuple[Sequence[Copy], object]] = deque()
        self._routing = threading.Lock()
        self._held: deque[_Batch] = deque()
        self._busy_blocks: set[int] = set()
        self._busy_slots: set[int] = set()
        self._done: list[CopyDone] = []
        self._in_flight = 0
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(direction,), name=f"kvtrace-copy-{direction}", daemon=True)
            for direction in Direction
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, copies: Sequence[Copy]) -> None:
        """Queue ``copies``; returns at once.

        Raises:
            EngineStopped: the mover was closed.
        """
        if not copies:
            return
        after = self._transport.mark()
        with self._lock:
            if self._closed:
                raise EngineStopped("the mover is closed: no copy can be queued any more")
            self._inbox.append((tuple(copies), after))
            self._in_flight += len(copies)
            own = self._lanes[copies[0].direction]
            if own.idle:
                own.wake.notify()
            else:  # the other one sorts what was submitted, if it has nothing better to do
                self._wake_lanes()

    def poll(self) -> list[CopyDone]:
        """Copies that ended since the last call, each exactly once; never blocks."""
        with self._lock:
            for lane in self._lanes.values():
                self._reap(lane)
            done, self._done = self._done, []
            self._in_flight -= len(done)
        return done

    def wait(self, timeout_s: float) -> None:
        """Block until a copy has ended that :meth:`poll` has not returned yet, none is in flight, or the time is up."""
        with self._lock:
            self._ended.wait_for(lambda: self._done or not self._in_flight, timeout_s)

    def in_flight(self) -> int:
        """Copies submitted and not yet returned by :meth:`poll`."""
        with self._lock:
            return self._in_flight

    def close(self) -> None:
        """Finish what was submitted, end the threads and close the transport; what ended stays there for :meth:`poll`."""
        with self._lock:
            self._closed, closed = True, self._closed
            self._wake_lanes()
        for thread in self._threads:
            thread.join()
        if not closed:
            self._transport.close()

    # In the lanes' threads

    def _work(self, direction: Direction) -> None:
        lane = self._lanes[direction]
        while True:
            with self._lock:
                lane.idle = True
                lane.wake.wait_for(lambda: self._inbox or lane.queue or lane.flights or self._over())
                lane.idle = False
                if not (self._inbox or lane.queue or lane.flights):
                    return
                waiting = bool(self._inbox)
            if waiting:
                self._route()
            with self._lock:
                batch = self._next_batch(lane)
                flight = lane.flights[0] if lane.flights else None
            if batch is not None:
                self._launch(lane, direction, self._take_piece(lane, batch), batch.after)
            elif flight is not None:
                self._await(lane, flight)

    def _over(self) -> bool:
        lanes = self._lanes.values()
        return self._closed and not (self._inbox or self._held or any(lane.queue or lane.flights for lane in lanes))

    def _route(self) -> None:
        """Sort what was submitted into batches, in the order of submission: one lane's thread at a time."""
        with self._routing:
            while True:
                with self._lock:
                    if not self._inbox:
                        return
                    copies, after = self._inbox[0]
                batches = _batches(copies, after)
                with self._lock:
                    self._inbox.popleft()
                    self._held.extend(batches)
                    self._release()

    def _next_batch(self, lane: _Lane) -> _Batch | None:
        """Whose turn it is; ``None`` where nobody waits or the device has enough to do.

        A batch whose compute is over goes before one that would let the link wait for it, a short one before a long one.
        """
        if not lane.queue or (lane.blocks and lane.blocks >= self._most_blocks):
            return None
        lane.turns += 1
        ready = [batch for batch in lane.queue if self._reached(batch)]
        if not ready or lane.turns % _FAIR == 0:
            return (ready or lane.queue)[0]
        return min(ready, key=lambda batch: batch.left)

    def _reached(self, batch: _Batch) -> bool:
        try:
            return self._transport.reached(batch.after)
        except Exception:  # a device that has failed: starting the copies will tell, for each of them
            return True

    def _take_piece(self, lane: _Lane, batch: _Batch) -> list[Copy]:
        """The batch's next piece; it leaves the queue with its last one. Planned here, where nobody waits for the lock."""
        if batch.pieces is None:
            batch.pieces = deque(self._transport.plan(batch.direction, batch.copies))
        piece = batch.pieces.popleft()
        batch.left -= len(piece)
        with self._lock:
            if not batch.pieces:
                lane.queue.remove(batch)
            lane.blocks += len(piece)
        return piece

    def _launch(self, lane: _Lane, direction: Direction, piece: list[Copy], after: object) -> None:
        """Queue a piece on the device; where that fails, its copies one by one, to tell the bad from their neighbours."""
        try:
            flight = _Flight(piece, self._transport.start(direction, piece, after))
        except Exception as error:
            if len(piece) > 1:
                for copy in piece:
                    self._launch(lane, direction, [copy], after)
                return
            self._end(lane, [CopyDone(piece[0], self._now_ns(), self._now_ns(), f"{type(error).__name__}: {error}")])
            return
        with self._lock:
            lane.flights.append(flight)

    def _await(self, lane: _Lane, flight: _Flight) -> None:
        """Wait for the oldest flight without the lock, then note every flight that is over."""
        with suppress(Exception):  # asked again below, where the flight is taken off the books
            flight.ticket.wait()
        with self._lock:
            told = self._reap(lane) or bool(self._done)
        if told and self._on_done is not None:
            self._on_done()

    def _end(self, lane: _Lane, done: list[CopyDone]) -> None:
        with self._lock:
            self._note(lane, done)
        if self._on_done is not None:
            self._on_done()

    # With the lock held

    def _reap(self, lane: _Lane) -> bool:
        """Note the ends of the lane's flights, oldest first, as far as they are over."""
        found = False
        while lane.flights:
            flight = lane.flights[0]
            try:
                if not flight.ticket.done():
                    break
                ended = self._now_ns()
                done = share(flight.piece, ended - int(flight.ticket.seconds() * 1e9), ended)
            except Exception as error:
                now = self._now_ns()
                done = [CopyDone(copy, now, now, f"{type(error).__name__}: {error}") for copy in flight.piece]
            lane.flights.popleft()
            self._note(lane, done)
            found = True
        return found

    def _note(self, lane: _Lane, done: list[CopyDone]) -> None:
        lane.blocks -= len(done)
        self._done += done
        _, _, blocks, slots = zip(*(one.copy for one in done), strict=True)
        self._busy_blocks.difference_update(blocks)
        self._busy_slots.difference_update(slots)
        self._release()
        self._ended.notify_all()
        if self._closed:
            self._wake_lanes()

    def _wake_lanes(self) -> None:
        for lane in self._lanes.values():
            lane.wake.notify()

    def _release(self) -> None:
        """Hand held batches to their lanes, in order, as long as they touch nothing that a copy under way touches."""
        while self._held:
            batch = self._held[0]
            if not (self._busy_blocks.isdisjoint(batch.blocks) and self._busy_slots.isdisjoint(batch.slots)):
                return
            self._busy_blocks |= batch.blocks
            self._busy_slots |= batch.slots
            self._lanes[batch.direction].queue.append(batch)
            self._lanes[batch.direction].wake.notify()
            self._held.popleft()


def _batches(copies: Sequence[Copy], after: object) -> list[_Batch]:
    """Batches of one direction and without conflict, in an order that keeps the order of conflicting copies."""
    _, directions, blocks, slots = zip(*copies, strict=True)
    count = len(copies)
    if directions.count(directions[0]) == len(set(blocks)) == len(set(slots)) == count:
        # What the engine submits, but for the odd step that moves blocks both ways.
        return [_Batch(directions[0], copies, after, set(blocks), set(slots), count)]
    return [
        _Batch(
            group[0].direction,
            group,
            after,
            {copy.device_block for copy in group},
            {copy.host_slot for copy in group},
            len(group),
        )
        for group in conflict_free(copies)
    ]
