"""A mover for devices that copy by themselves: it queues copies on the device and learns when they are over.

Torch-free: what touches the device stands behind :class:`.carrier.Transport` (:mod:`.transport` is the one for GPUs).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from ..errors import EngineStopped
from .carrier import Ticket, Transport
from .contract import Copy, CopyDone, Direction, Fence
from .limits import IN_FLIGHT_BYTES, LAST_BYTES, PIECE_BYTES
from .runs import conflict_free, share

_LOOK_S: Final = 0.0003  # how often a lane looks whether compute has come to what waits for it
_FAIR: Final = 4  # every so many pieces the oldest batch goes first, however short the others are


@dataclass(slots=True, eq=False)
class _Batch:
    """Copies submitted together, one direction, distinct blocks and slots. ``pieces`` is set by the lane's thread."""

    direction: Direction
    copies: Sequence[Copy]
    after: object | None  # none any more once compute has come past it
    blocks: set[int]
    slots: set[int]
    left: int  # copies not yet on the device
    pieces: deque[list[Copy]] | None = None


@dataclass(slots=True, eq=False)
class _Flight:
    piece: list[Copy]
    ticket: Ticket
    after: object | None  # what it was made to wait for


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

    * a copy starts after the compute submitted before it, or before the mark given with it: a mark is taken on the
      compute stream in the caller's thread, and the transport makes the copy wait for it on the device;
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
        last_bytes: how much may be there where it is the rest of the only batch.
    """

    def __init__(
        self,
        transport: Transport,
        on_done: Callable[[], None] | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
        in_flight_bytes: int = IN_FLIGHT_BYTES,
        last_bytes: int = LAST_BYTES,
    ) -> None:
        self._transport = transport
        self._on_done = on_done
        self._now_ns = now_ns
        self._most_blocks = max(1, in_flight_bytes // transport.block_bytes)
        self._last_blocks = last_bytes // transport.block_bytes
        self._short_blocks = PIECE_BYTES // transport.block_bytes
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

    def mark(self) -> object:
        """This point of the calling thread's compute stream, for :meth:`submit`."""
        return self._transport.mark()

    def submit(self, copies: Sequence[Copy], after: object | None = None) -> None:
        """Queue ``copies``, which start after what was computed before the mark ``after``, or else before this call.

        Raises:
            EngineStopped: the mover was closed.
        """
        if not copies:
            return
        if after is None:
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

    def fence(self, copy_ids: Collection[int]) -> Fence | None:
        """What compute can wait for on the device; ``None`` while one of the copies waits its turn, or if it failed."""
        with self._lock:
            if len(copy_ids) > len(self._done) + sum(lane.blocks for lane in self._lanes.values()):
                return None  # most often: an agent has hundreds, and this is asked in every step
            missing, tickets = set(copy_ids), []
            for done in self._done if missing else ():
                if done.copy.id in missing:
                    if done.error is not None:
                        return None
                    missing.discard(done.copy.id)
            for flight in (one for lane in self._lanes.values() for one in lane.flights):
                if not missing.isdisjoint(ids := [copy.id for copy in flight.piece]):
                    missing.difference_update(ids)
                    tickets.append(flight.ticket)
            return None if missing else self._transport.fence(tickets)

    def queued(self, direction: Direction) -> int:
        """Copies of one direction that were submitted and are not over."""
        with self._lock:
            lane = self._lanes[direction]
            waiting = sum(batch.left for batch in (*self._held, *lane.queue) if batch.direction is direction)
            unsorted = sum(copy.direction is direction for copies, _ in self._inbox for copy in copies)
            return lane.blocks + waiting + unsorted

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

        A batch whose compute is over goes before one that would let the link wait for it, and one that is soon done before
        longer ones. Those keep their order: of two agents that come back, the first is there when the second is half there.
        """
        if not lane.queue:
            return None
        if lane.blocks >= self._most_blocks:
            rest = lane.queue[0].left if len(lane.queue) == 1 else self._last_blocks
            if lane.blocks + rest > self._last_blocks:
                return None
        lane.turns += 1
        ready = [batch for batch in lane.queue if self._computed(batch)]
        if not ready or lane.turns % _FAIR == 0:
            return (ready or lane.queue)[0]
        return min(ready, key=lambda batch: min(batch.left, self._short_blocks))

    def _computed(self, work: _Batch | _Flight) -> bool:
        """Whether the compute is over that ``work`` comes after. Once it is, nothing is made to wait for it any more."""
        try:
            if work.after is not None and self._transport.reached(work.after):
                work.after = None
        except Exception:  # a device that has failed: starting the copies will tell, for each of them
            return True
        return work.after is None

    def _take_piece(self, lane: _Lane, batch: _Batch) -> list[Copy]:
        """The batch's next piece; it leaves the queue with its last one. Planned here, where nobody waits for the lock."""
        if batch.pieces is None:
            busy = bool(lane.flights)
            batch.pieces = deque(self._transport.plan(batch.direction, batch.copies, busy=busy))
        piece = batch.pieces.popleft()
        batch.left -= len(piece)
        with self._lock:
            if not batch.pieces:
                lane.queue.remove(batch)
            lane.blocks += len(piece)
        return piece

    def _launch(self, lane: _Lane, direction: Direction, piece: list[Copy], after: object | None) -> None:
        """Queue a piece on the device; where that fails, its copies one by one, to tell the bad from their neighbours."""
        try:
            flight = _Flight(piece, self._transport.start(direction, piece, after), after)
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
        if not self._computed(flight):
            with self._lock:  # that may take a whole step, and others may come that need not wait for it
                lane.wake.wait(_LOOK_S)
            return
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
        """Note the ends of the lane's flights that are over; one need not wait for an older one of another stream."""
        found = False
        for flight in tuple(lane.flights):
            try:
                if not flight.ticket.done():
                    continue
                ended = self._now_ns()
                done = share(flight.piece, ended - int(flight.ticket.seconds() * 1e9), ended)
            except Exception as error:
                now = self._now_ns()
                done = [CopyDone(copy, now, now, f"{type(error).__name__}: {error}") for copy in flight.piece]
            lane.flights.remove(flight)
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
