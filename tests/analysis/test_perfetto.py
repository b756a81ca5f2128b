"""The Perfetto trace, read back with Perfetto's own message types."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from kvtrace.analysis import open_study, write_perfetto
from kvtrace.analysis.sample import sample_spans
from kvtrace.analysis.testing import FixedHost, at_ns, otlp_span, write_otlp
from kvtrace.tracer import attributes as names


class Read:
    """Tracks by id, and per track the slices as (name, start, stop) in order of their beginning."""

    def __init__(self, data: bytes) -> None:
        trace = Trace()
        trace.ParseFromString(data)
        self.packets = trace.packet
        self.tracks = {
            p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")
        }
        self.slices: defaultdict[int, list[tuple[str, int, int]]] = defaultdict(list)
        self.counts: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        events = [packet for packet in trace.packet if packet.HasField("track_event")]
        open_slices: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        for packet in sorted(events, key=lambda packet: packet.timestamp):
            event = packet.track_event
            if event.type == TrackEvent.Type.TYPE_SLICE_BEGIN:
                open_slices[event.track_uuid].append((event.name, packet.timestamp))
            elif event.type == TrackEvent.Type.TYPE_SLICE_END:
                name, start = open_slices[event.track_uuid].pop()
                self.slices[event.track_uuid].append((name, start, packet.timestamp))
            else:
                self.counts[self.tracks[event.track_uuid].name].append((packet.timestamp, event.counter_value))
        assert not any(open_slices.values())

    def path(self, uuid: int) -> str:
        track = self.tracks[uuid]
        return f"{self.path(track.parent_uuid)}/{track.name}" if track.HasField("parent_uuid") else track.name

    def by_path(self) -> dict[str, list[tuple[str, int, int]]]:
        return {self.path(uuid): slices for uuid, slices in self.slices.items()}


def written(tmp_path: Path, spans: Iterable[dict[str, Any]]) -> Read:
    out = io.BytesIO()
    with open_study([write_otlp(tmp_path / "spans.jsonl", spans)], host=FixedHost()) as study:
        write_perfetto(study, out)
    return Read(out.getvalue())


def at(*instants_s: float) -> tuple[int, ...]:
    return tuple(at_ns(instant) for instant in instants_s)


def family() -> list[dict[str, Any]]:
    boss, kid = {names.GEN_AI_AGENT_NAME: "boss"}, {names.GEN_AI_AGENT_NAME: "kid"}
    return [
        otlp_span("invoke_agent", 0, 20, span=1, agent="boss", attributes=boss),
        otlp_span("chat", 0, 2, span=2, parent=1, agent="boss"),
        otlp_span(
            "execute_tool", 2, 8, span=3, parent=1, agent="boss", attributes={names.GEN_AI_TOOL_NAME: "delegate"}
        ),
        otlp_span("execute_tool", 3, None, span=4, parent=1, agent="boss", attributes={names.GEN_AI_TOOL_NAME: "hang"}),
        otlp_span("invoke_agent", 3, 7, span=5, parent=3, agent="kid", attributes=kid),
        otlp_span("chat", 3, 6, span=6, parent=5, agent="kid", attributes={names.ERROR_TYPE: "TimeoutError"}),
    ]


def test_states_and_calls_have_tracks_of_their_own(tmp_path: Path) -> None:
    tracks = written(tmp_path, family()).by_path()
    assert tracks["boss"] == [("generating", *at(0, 2)), ("blocked on a tool", *at(2, 20))]
    assert tracks["boss/model calls"] == [("chat", *at(0, 2))]
    assert tracks["boss/tool calls"] == [("delegate", *at(2, 8))]
    assert tracks["boss/tool calls 2"] == [("hang", *at(3, 20))]
    assert tracks["boss/kid"] == [("generating", *at(3, 6)), ("overhead", *at(6, 7))]


def test_agent_that_called_nothing_has_no_track(tmp_path: Path) -> None:
    tracks = written(tmp_path, [*family(), otlp_span("invoke_agent", 0, 3, span=1, trace=9, agent="idle")]).by_path()
    assert {path.split("/")[0] for path in tracks} == {"boss"}


def test_arrow_leads_from_the_call_to_the_run_it_started(tmp_path: Path) -> None:
    events = [packet.track_event for packet in written(tmp_path, family()).packets]
    starts = {flow: event.name for event in events for flow in event.flow_ids}
    ends = {flow for event in events for flow in event.terminating_flow_ids}
    assert list(starts.values()) == ["delegate"]
    assert set(starts) == ends


def test_errors_and_open_calls_are_annotated(tmp_path: Path) -> None:
    events = [packet.track_event for packet in written(tmp_path, family()).packets]
    notes = {
        (event.name, note.name): note.string_value or note.bool_value
        for event in events
        for note in event.debug_annotations
    }
    assert notes == {("hang", "never ended"): True, ("chat", "error"): "TimeoutError"}


def test_counters_say_how_many_agents_are_blocked(tmp_path: Path) -> None:
    counts = written(tmp_path, family()).counts
    assert counts["agents generating"] == [(at_ns(s), n) for s, n in ((0, 1), (2, 0), (3, 1), (6, 0), (7, 0), (20, 0))]
    assert counts["agents blocked on tools"][-3:] == [(at_ns(6), 1), (at_ns(7), 1), (at_ns(20), 0)]


def test_slices_of_a_track_never_overlap(tmp_path: Path) -> None:
    read = written(tmp_path, sample_spans(5, 40, seed=3))
    kinds = Counter(path.split("/")[-1].rstrip(" 0123456789") for path in read.by_path())
    assert kinds["tool calls"] > 5
    for slices in read.slices.values():
        for (_, _, before), (_, after, _) in pairwise(slices):
            assert before <= after
    assert sum(len(s) for p, s in read.by_path().items() if p.endswith("model calls")) == 5 * 40
