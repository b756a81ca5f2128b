"""The timelines as a Perfetto trace, for ui.perfetto.dev: that page reads a file in the browser, and sends nothing."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, groupby
from operator import attrgetter
from typing import IO, Final

import duckdb
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import BuiltinClock, TracePacket, TrackDescriptor, TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from ..chart import State
from ..queries import stream
from ..study import Study
from .gantt import SHAPES
from .lanes import choose_lanes
from .words import agent_labels

_SEQUENCE: Final = 1
_KINDS: Final = {"agent": "runs", "model": "model calls", "tool": "tool calls", "human": "waits for a person"}


@dataclass(frozen=True, slots=True)
class _Run:
    """One state of an agent (``chart/states.sql``)."""

    agent: str
    state: State
    start_ns: int
    stop_ns: int


@dataclass(frozen=True, slots=True)
class _Level:
    """How many agents were blocked or generating from an instant on (``chart/levels.sql``)."""

    at_ns: int
    blocked: int
    generating: int


@dataclass(frozen=True, slots=True)
class _Call:
    """One call, run or wait (``chart/calls.sql``); ``starts_runs`` are ids of sub-agents' runs."""

    id: int
    agent: str
    kind: str
    name: str
    start_ns: int
    stop_ns: int
    still_open: bool
    error: str | None
    starts_runs: list[int]
    is_started: bool


def write_perfetto(study: Study, file: IO[bytes]) -> None:
    """Write a trace: a track per agent (sub-agents below their parent) with its states, below it its calls.

    Calls that overlap lie on tracks side by side, as the format demands. Instants are Unix nanoseconds. Arrows lead
    from a tool call to the sub-agent's run it started; counters say how many agents are blocked and generating.
    """
    writer = _Writer(StreamingTraceProtoBuilder(file))
    writer.clock(study)
    tracks = _agent_tracks(study, writer)
    for run in stream(study.connection, "chart/states", _Run):
        # Agents that called nothing have a timeline, but no place in a report.
        if run.agent in tracks:
            writer.slice(tracks[run.agent], run.start_ns, run.stop_ns, SHAPES[run.state].word)
    _write_calls(study.connection, writer, tracks)
    _write_levels(study.connection, writer)


@dataclass(slots=True)
class _Writer:
    """Turns tracks, slices and counters into packets of one sequence."""

    builder: StreamingTraceProtoBuilder
    uuids: Iterator[int] = field(default_factory=lambda: count(1))

    def clock(self, study: Study) -> None:
        """Say that the trace's clock is the Unix clock, so that the viewer can show dates."""
        first = study.connection.execute("select coalesce(min(start_ns), 0) from timeline").fetchone()
        assert first is not None
        packet = self._packet()
        for clock in (BuiltinClock.BUILTIN_CLOCK_BOOTTIME, BuiltinClock.BUILTIN_CLOCK_REALTIME):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=first[0])
        self.builder.write_packet(packet)

    def track(self, name: str, parent: int | None, rank: int, unit: str | None = None) -> int:
        """Describe a track and return its id; with a unit it is a counter."""
        packet, uuid = self._packet(), next(self.uuids)
        track = packet.track_descriptor
        track.uuid, track.name, track.sibling_order_rank = uuid, name, rank
        track.child_ordering = TrackDescriptor.ChildTracksOrdering.EXPLICIT
        if parent is not None:
            track.parent_uuid = parent
        if unit is not None:
            track.counter.unit_name = unit
        self.builder.write_packet(packet)
        return uuid

    def slice(self, track: int, start_ns: int, stop_ns: int, name: str, call: _Call | None = None) -> None:
        """Begin and end one slice."""
        begin = self._event(track, start_ns, TrackEvent.Type.TYPE_SLICE_BEGIN)
        begin.track_event.name = name
        if call is not None:
            _annotate(begin.track_event, call)
        self.builder.write_packet(begin)
        self.builder.write_packet(self._event(track, stop_ns, TrackEvent.Type.TYPE_SLICE_END))

    def count(self, track: int, at_ns: int, value: int) -> None:
        """One value of a counter."""
        packet = self._event(track, at_ns, TrackEvent.Type.TYPE_COUNTER)
        packet.track_event.counter_value = value
        self.builder.write_packet(packet)

    def _event(self, track: int, at_ns: int, kind: TrackEvent.Type) -> TracePacket:
        packet = self._packet()
        packet.timestamp = at_ns
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet

    def _packet(self) -> TracePacket:
        packet = self.builder.create_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet


def _annotate(event: TrackEvent, call: _Call) -> None:
    event.flow_ids.extend(call.starts_runs)
    if call.is_started:
        event.terminating_flow_ids.append(call.id)
    if call.error is not None:
        event.debug_annotations.add(name="error", string_value=call.error)
    if call.still_open:
        event.debug_annotations.add(name="never ended", bool_value=True)


def _agent_tracks(study: Study, writer: _Writer) -> dict[str, int]:
    """A track for every agent, each below its parent's."""
    agents = study.report.agents
    labels = agent_labels(agents)
    tracks: dict[str, int] = {}
    path: list[int] = []
    for rank, place in enumerate(choose_lanes(agents, len(agents))):
        del path[place.depth :]
        name = labels[place.agent.agent]
        # Sub-agents come after the tracks of their parent's own calls.
        path.append(writer.track(name, path[-1] if path else None, rank + len(_KINDS)))
        tracks[place.agent.agent] = path[-1]
    return tracks


def _write_calls(connection: duckdb.DuckDBPyConnection, writer: _Writer, tracks: dict[str, int]) -> None:
    """Calls of one kind and agent share a track until they overlap; another one then takes the overlap."""
    for (agent, kind), calls in groupby(stream(connection, "chart/calls", _Call), key=attrgetter("agent", "kind")):
        if agent not in tracks:
            continue
        busy: list[tuple[int, int]] = []
        lanes = 0
        for call in calls:
            if busy and busy[0][0] <= call.start_ns:
                lane = heapq.heappop(busy)[1]
            else:
                lanes += 1
                name = _KINDS[kind] if lanes == 1 else f"{_KINDS[kind]} {lanes}"
                lane = writer.track(name, tracks[agent], list(_KINDS).index(kind))
            writer.slice(lane, call.start_ns, call.stop_ns, call.name, call)
            heapq.heappush(busy, (call.stop_ns, lane))


def _write_levels(connection: duckdb.DuckDBPyConnection, writer: _Writer) -> None:
    blocked = writer.track("agents blocked on tools", None, 0, unit="agents")
    generating = writer.track("agents generating", None, 1, unit="agents")
    for level in stream(connection, "chart/levels", _Level):
        writer.count(blocked, level.at_ns, level.blocked)
        writer.count(generating, level.at_ns, level.generating)
