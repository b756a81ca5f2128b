"""What has to be counted as it happens: requests and the engine's events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from ...records import EngineEvent, EventKind, Snapshot
from ..records import RequestRecord
from .collector import SnapshotCollector, vllm_families

_LATENCY: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_PER_TOKEN: Final = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)
_COPY: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 5)
_TOKENS: Final = (16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_VLLM_REASONS: Final = ("stop", "length", "abort")


class Metrics:
    """One server's metrics. :meth:`request` and :meth:`event` may be called from any thread and are quick.

    Args:
        snapshot: the engine's state; ``None`` while it is not there.
        dropped_signals: tool signals that found the engine's queue full.
        vllm: whether vLLM's names are there too.
    """

    def __init__(
        self, snapshot: Callable[[], Snapshot | None], dropped_signals: Callable[[], int], *, vllm: bool = False
    ) -> None:
        self.registry = CollectorRegistry()
        self._preempted = 0
        ProcessCollector(registry=self.registry)
        self.registry.register(SnapshotCollector(snapshot, dropped_signals))
        self._requests = Counter(
            "kvtrace_requests", "Requests that are over", ("endpoint", "outcome"), registry=self.registry
        )
        self._events = Counter("kvtrace_kv_events", "What happened to agents' KV", ("kind",), registry=self.registry)
        self._event_bytes = Counter(
            "kvtrace_kv_event_bytes", "KV that it happened to", ("kind",), registry=self.registry
        )
        for kind in EventKind:
            self._events.labels(kind.value)
            self._event_bytes.labels(kind.value)
        histogram = self._histogram
        self._copies = Histogram(
            "kvtrace_kv_copy_seconds",
            "From the first copy's start to the last one's end",
            ("kind",),
            buckets=_COPY,
            registry=self.registry,
        )
        for kind in (EventKind.PARK, EventKind.RESTORE):
            self._copies.labels(kind.value)
        self._first = histogram("kvtrace_time_to_first_token_seconds", "From a request to its first token", _LATENCY)
        self._each = histogram(
            "kvtrace_time_per_output_token_seconds", "Between an output's tokens, its first left out", _PER_TOKEN
        )
        self._duration = histogram("kvtrace_request_seconds", "From a request to its end", _LATENCY)
        self._queued = histogram("kvtrace_request_queue_seconds", "A request's time without a slot", _LATENCY)
        self._restoring = histogram(
            "kvtrace_request_restore_seconds", "A request's time of waiting for its KV", _LATENCY
        )
        self._prompt = histogram("kvtrace_request_prompt_tokens", "Tokens of a request's prompt", _TOKENS)
        self._output = histogram("kvtrace_request_output_tokens", "Tokens of a request's output", _TOKENS)
        self._vllm = _VllmMetrics(self.registry, snapshot, lambda: self._preempted) if vllm else None

    def request(self, record: RequestRecord) -> None:
        """Count a request that is over."""
        self._requests.labels(record.endpoint, record.outcome).inc()
        if record.first_token_unix_ns is None:
            return
        first_s = (record.first_token_unix_ns - record.arrived_unix_ns) / 1e9
        whole_s = (record.ended_unix_ns - record.arrived_unix_ns) / 1e9
        each_s = seconds_per_token(record)
        self._first.observe(first_s)
        self._duration.observe(whole_s)
        self._queued.observe(record.queued_s)
        self._restoring.observe(record.restoring_s or 0.0)
        self._prompt.observe(record.usage.prompt_tokens)
        self._output.observe(record.usage.output_tokens)
        if each_s is not None:
            self._each.observe(each_s)
        if self._vllm is not None:
            self._vllm.request(record, first_s, whole_s, each_s)

    def event(self, event: EngineEvent) -> None:
        """Count what happened to an agent's KV."""
        self._events.labels(event.kind.value).inc()
        self._event_bytes.labels(event.kind.value).inc(event.bytes)
        self._preempted += event.kind is EventKind.PREEMPT
        if event.duration_ms is not None and event.kind in (EventKind.PARK, EventKind.RESTORE):
            self._copies.labels(event.kind.value).observe(event.duration_ms / 1e3)

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, words, buckets=buckets, registry=self.registry)


class _VllmMetrics(Collector):
    """Requests under vLLM's names, and the snapshot's families under them."""

    def __init__(
        self, registry: CollectorRegistry, snapshot: Callable[[], Snapshot | None], preemptions: Callable[[], int]
    ) -> None:
        self._snapshot = snapshot
        self._preemptions = preemptions

        def histogram(name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"vllm:{name}", words, ("model_name",), buckets=buckets, registry=registry)

        self._first = histogram("time_to_first_token_seconds", "From a request to its first token", _LATENCY)
        self._each = histogram("inter_token_latency_seconds", "Between an output's tokens", _PER_TOKEN)
        self._whole = histogram("e2e_request_latency_seconds", "From a request to its end", _LATENCY)
        self._queued = histogram("request_queue_time_seconds", "A request's time without a slot", _LATENCY)
        self._success = Counter(
            "vllm:request_success", "Requests that are over", ("model_name", "finished_reason"), registry=registry
        )
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The snapshot's families."""
        state = self._snapshot()
        return iter(()) if state is None else vllm_families(state, self._preemptions())

    def describe(self) -> Iterator[Metric]:
        """Nothing: the registry need not ask the engine when it is made."""
        return iter(())

    def request(self, record: RequestRecord, first_s: float, whole_s: float, each_s: float | None) -> None:
        """Count a request that had output."""
        model = self._model(record)
        self._first.labels(model).observe(first_s)
        self._whole.labels(model).observe(whole_s)
        self._queued.labels(model).observe(record.queued_s)
        if each_s is not None:
            self._each.labels(model).observe(each_s)
        reason = {"tool_calls": "stop", "cancelled": "abort"}.get(record.outcome, record.outcome)
        if reason in _VLLM_REASONS:
            self._success.labels(model, reason).inc()

    def _model(self, record: RequestRecord) -> str:
        # The client may have asked by another name; labels of strangers' making would grow without bound.
        state = self._snapshot()
        return record.model if state is None else state.model


def seconds_per_token(record: RequestRecord) -> float | None:
    """Mean time between the tokens of one output; ``None`` where none has two."""
    first, last = record.first_token_unix_ns, record.last_token_unix_ns
    gaps = record.usage.output_tokens / record.choices - 1 if record.choices else 0.0
    if first is None or last is None or gaps < 1:
        return None
    return (last - first) / 1e9 / gaps
