"""A mover for devices that copy by themselves: it queues copies on the device and learns when they are over.

Torch-free: what touches the device stands behind :class:`.carrier.Transport` (:mod:`.transport` and its two heirs are for GPUs).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from ..errors import EngineStopped
from .carrier import Ticket, Transport
from .contract import Copy, CopyDone, Direction, Fence
from .lanes import Batch, Flight, Lane, Touched, in_batches
from .limits import HERE_COPIES, LEAD_COPIES, Bounds
from .runs import share

_LOOK_S: Final = 0.0003  # how often a lane looks whether compute has come to what waits for it
_FAIR: Final = 4  # every so many pieces the oldest batch goes first, however short the others are


class StreamMover:
    """Carries out copies on the device's own copy engines, each direction in a lane with a thread of its own.

    How each clause of the contract is kept:

    * a copy starts after the compute submitted before it, or before the mark given with it: a mark is taken on the
      compute stream in the caller's thread, and the transport makes the copy wait for it on the device;
    * sources stay untouched until the copy's end was returned: ends are seen by events that the host has waited for or
      queried, so whatever the caller submits after :meth:`poll` comes after the copy;
    * copies that touch the same block or slot keep their order: one that conflicts with a copy not yet over is held back
      on the host, and with it everything submitted later, until that copy's end was seen.

    The caller's thread only marks and appends; sorting, planning, launching and waiting happen in the lanes' threads. But where
    launching takes next to nothing, it launches copies in itself: somebody waits for them, and a lane's thread would come to
    that only once the caller lets go of Python's lock. No more than the transport's bounds say is on the device, so that a
    short batch overtakes a long one soon. The rest of a batch in behind which no other waits goes there at once, and its end
    crosses in parts, where the transport knows how.

    Args:
        transport: queues the copies; closed with the mover.
        on_done: called after copies ended, and after the last of a batch in has come to be on the device, so that a
            sleeping loop can wake; in a lane's thread, or within :meth:`submit`.
        now_ns: monotonic nanoseconds.
    """

    def __init__(
        self,
        transport: Transport,
        on_done: Callable[[], None] | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._transport = transport
        self._on_done = on_done
        self._now_ns = now_ns
        # One lock; whoever waits for one thing is not woken by another, which would cost the step's thread its turn.
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._lanes = {
            direction: Lane(threading.Condition(self._lock), transport.bounds[direction]) for direction in Direction
        }
        self._inbox: deque[tuple[Sequence[Copy], object]] = deque()
        self._routing = threading.Lock()
        self._held: deque[Batch] = deque()
        self._touched = Touched()
        self._done: list[CopyDone] = []
        self._arriving = False  # a batch in is on the device as a whole, and nobody has been told
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
            here = own is self._lanes[Direction.IN] and self._transport.quick() and own.driving.acquire(blocking=False)
            if not here and not own.idle:  # the other one sorts what was submitted, if it has nothing better to do
                self._wake_lanes()
            elif not here:
                own.wake.notify()
        if here:
            self._drive_here(own)

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
            missing = set(copy_ids)
            tickets: list[Ticket] = []
            for done in self._done if missing else ():
                if done.copy.id in missing:
                    if done.error is not None:
                        return None
                    missing.discard(done.copy.id)
            for flight in (one for lane in self._lanes.values() for one in lane.flights):
                if not missing.isdisjoint(ids := [copy.id for copy in flight.piece]):
                    missing.difference_update(ids)
                    tickets += flight.tickets
            return None if missing else self._transport.fence(tickets)

    def queued(self, direction: Direction) -> int:
        """Copies of one direction that were submitted and are not over."""
        with self._lock:
            lane = self._lanes[direction]
            waiting = sum(batch.left for batch in (*self._held, *lane.queue) if batch.direction is direction)
            unsorted = sum(copy.direction is direction for copies, _ in self._inbox for copy in copies)
            return lane.blocks + waiting + unsorted

    def wait(self, timeout_s: float) -> None:
        """Block until a copy has ended that :meth:`poll` has not returned yet, none is in flight, or the time is up.

        It returns once as well when the last of a batch in has come to be on the device.
        """
        with self._lock:
            self._ended.wait_for(lambda: self._done or self._arriving or not self._in_flight, timeout_s)
            self._arriving = False

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

    def _drive_here(self, lane: Lane) -> None:
        """Queue copies in from the caller's thread, as many as the device shall have; the lane's own sees to their ends.

        No more than an agent has, in the main: of small blocks a restore has thousands, and the caller has a step to launch.
        """
        left, again = HERE_COPIES, True
        while again:
            try:
                while left > 0 and (count := self._drive(lane, Direction.IN)):
                    left -= count
            finally:
                lane.driving.release()
                with self._lock:
                    lane.wake.notify()
            with self._lock:  # who came meanwhile found the lane driven
                again = left > 0 and bool(self._inbox) and lane.driving.acquire(blocking=False)

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
            with lane.driving:
                driven = self._drive(lane, direction)
            if not driven and not self._note_ends(lane):
                self._await(lane)

    def _drive(self, lane: Lane, direction: Direction) -> int:
        """Sort what was submitted, and queue one piece; of how many copies. The caller holds ``lane.driving``."""
        if self._inbox:
            self._route()
        with self._lock:
            batch, take, in_parts = self._next_batch(lane)
        if batch is None:
            return 0
        piece = self._take_piece(lane, batch, take)
        self._launch(lane, direction, piece, batch.after, in_parts=in_parts)
        if direction is Direction.IN and not batch.left:
            self._announce()
        return len(piece)

    def _over(self) -> bool:
        lanes = self._lanes.values()
        return self._closed and not (self._inbox or self._held or any(lane.queue or lane.blocks for lane in lanes))

    def _route(self) -> None:
        """Sort what was submitted into batches, in the order of submission: one lane's thread at a time."""
        with self._routing:
            while True:
                with self._lock:
                    if not self._inbox:
                        return
                    copies, after = self._inbox[0]
                batches = in_batches(copies, after)
                with self._lock:
                    self._inbox.popleft()
                    self._held.extend(batches)
                    self._release()

    def _next_batch(self, lane: Lane) -> tuple[Batch | None, int, bool]:
        """Whose turn it is, with how many copies at least, and whether in parts; nobody's where the device has enough to do.

        A batch whose compute is over goes before one that would let the link wait for it, and one that is soon done before
        longer ones. Those keep their order: of two agents that come back, the first is there when the second is half there.
        """
        lane.fresh = False
        if not lane.queue:
            return None, 0, False
        bounds, size = lane.bounds, self._transport.block_bytes
        ready = [batch for batch in lane.queue if self._computed(batch)]
        # What waits for compute does not keep the link busy, and holds nobody up who need not.
        flying = sum(flight.left() for flight in lane.flights if not ready or self._computed(flight))
        alone = lane.queue[0] if len(lane.queue) == 1 else None
        rest = alone is not None and flying + alone.left * size <= bounds.last
        if flying >= (bounds.in_flight if alone is None else max(bounds.in_flight, bounds.alone)) and not rest:
            return None, 0, False
        if alone is not None:
            return alone, *self._share(bounds, alone, rest=rest, busy=flying > 0)
        lane.turns += 1
        if not ready or lane.turns % _FAIR == 0:
            return (ready or lane.queue)[0], 1, False
        return min(ready, key=lambda batch: min(batch.left * size, bounds.piece)), 1, False

    def _share(self, bounds: Bounds, batch: Batch, *, rest: bool, busy: bool) -> tuple[int, bool]:
        """How much of the only batch goes next, and whether in parts: first what crosses whole, then its end."""
        size = self._transport.block_bytes
        if not rest or batch.direction is not Direction.IN or self._transport.parts == 1:
            return 1, False
        if not busy:  # what takes long to queue comes when the link is busy
            return (batch.left if batch.left * size <= bounds.parted else 1), False
        if batch.left * size <= bounds.parted:
            return 1, False
        most = bounds.in_parts // size or batch.left
        return (batch.left, True) if batch.left <= most else (min(batch.left - most, LEAD_COPIES), False)

    def _computed(self, work: Batch | Flight) -> bool:
        """Whether the compute is over that ``work`` comes after. Once it is, nothing is made to wait for it any more."""
        try:
            if work.after is not None and self._transport.reached(work.after):
                work.after = None
        except Exception:  # a device that has failed: starting the copies will tell, for each of them
            return True
        return work.after is None

    def _take_piece(self, lane: Lane, batch: Batch, least: int) -> Sequence[Copy]:
        """The batch's next piece, or several that make ``least`` copies; it leaves the queue with its last one.

        Planned here, where nobody waits for the lock.
        """
        if batch.pieces is None:
            busy = bool(lane.flights)
            batch.pieces = deque(self._transport.plan(batch.direction, batch.copies, busy=busy))
        piece = list(batch.pieces.popleft())
        while len(piece) < least:
            piece += batch.pieces.popleft()
        with self._lock:
            batch.left -= len(piece)
            if not batch.pieces:
                lane.queue.remove(batch)
            lane.blocks += len(piece)
        return piece

    def _launch(
        self, lane: Lane, direction: Direction, piece: Sequence[Copy], after: object | None, *, in_parts: bool = False
    ) -> None:
        """Queue a piece on the device; where that fails, its copies one by one, to tell the bad from their neighbours."""
        try:
            tickets = self._transport.start(direction, piece, after, in_parts=in_parts)
        except Exception as error:
            if len(piece) > 1:
                for copy in piece:
                    self._launch(lane, direction, [copy], after)
                return
            self._end(lane, [CopyDone(piece[0], self._now_ns(), self._now_ns(), f"{type(error).__name__}: {error}")])
            return
        with self._lock:
            lane.flights.append(Flight(piece, deque(tickets), after))

    def _announce(self) -> None:
        """All of a batch in is on the device: whoever sleeps until it may be waited for there is woken."""
        with self._lock:
            self._arriving = True
            self._ended.notify_all()
        if self._on_done is not None:
            self._on_done()

    def _await(self, lane: Lane) -> None:
        """Wait without the lock until something is over that does not wait for compute."""
        with self._lock:
            if self._inbox or lane.fresh:  # from one who found the lane driven, after the last look
                return
            going = next((flight for flight in lane.flights if self._computed(flight)), None)
            if going is None:  # it may take a whole step, and others may come that need not wait for it
                if lane.flights:
                    lane.wake.wait(_LOOK_S)
                return
            ticket = going.tickets[0]
        with suppress(Exception):  # asked again below, where the flight is taken off the books
            ticket.wait()

    def _note_ends(self, lane: Lane) -> bool:
        """Note what is over, once there is nothing to launch: the link is busy while the books are kept."""
        with self._lock:
            found = self._reap(lane)
        if found and self._on_done is not None:
            self._on_done()
        return found

    def _end(self, lane: Lane, done: list[CopyDone]) -> None:
        with self._lock:
            self._note(lane, done)
        if self._on_done is not None:
            self._on_done()

    # With the lock held

    def _reap(self, lane: Lane) -> bool:
        """Note the ends of the lane's copies that are over; they need not wait for older ones of another stream."""
        found = False
        for flight in tuple(lane.flights):
            done = self._ends(flight)
            if done:
                lane.flights.remove(flight)
                self._note(lane, done)
                found = True
        return found

    def _ends(self, flight: Flight) -> list[CopyDone]:
        """Take the tickets off that are over; with the last one the copies are. If one failed, they all have."""
        try:
            while flight.tickets[0].done():
                ticket = flight.tickets.popleft()
                if not flight.tickets:
                    ended = self._now_ns()
                    return share(flight.piece, ended - int(ticket.seconds() * 1e9), ended)
        except Exception as error:
            now = self._now_ns()
            return [CopyDone(copy, now, now, f"{type(error).__name__}: {error}") for copy in flight.piece]
        return []

    def _note(self, lane: Lane, done: list[CopyDone]) -> None:
        lane.blocks -= len(done)
        self._done += done
        self._touched.remove(one.copy for one in done)
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
            if not self._touched.leaves_alone(batch):
                return
            self._touched.add(batch)
            lane = self._lanes[batch.direction]
            lane.queue.append(batch)
            lane.fresh = True
            lane.wake.notify()
            self._held.popleft()
