"""The engine's snapshot as metrics, made anew for each scrape. Nothing here has a label per agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ...records import AgentState, Snapshot


class SnapshotCollector(Collector):
    """Reads the engine when Prometheus asks.

    Args:
        snapshot: the engine's state; ``None`` while it is not there.
        dropped_signals: tool signals that found the engine's queue full.
    """

    def __init__(self, snapshot: Callable[[], Snapshot | None], dropped_signals: Callable[[], int]) -> None:
        self._snapshot = snapshot
        self._dropped_signals = dropped_signals

    def collect(self) -> Iterator[Metric]:
        """All families; before the engine runs, only whether it does."""
        state = self._snapshot()
        yield _gauge("kvtrace_ready", "Whether the engine runs (1) or is being loaded (0)", state is not None)
        if state is None:
            return
        yield from _memory(state)
        yield from _agents(state)
        yield from _link(state)
        yield from _totals(state, self._dropped_signals())

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not ask the engine when it is made."""
        return ()


def _memory(state: Snapshot) -> Iterator[Metric]:
    vram, host = state.tiers.vram, state.tiers.host
    info = (state.model, state.device, state.policy, version("kvtrace"))
    yield _labelled(
        GaugeMetricFamily("kvtrace_info", "What runs here", labels=("model", "device", "policy", "version")), {info: 1}
    )
    yield _labelled(
        GaugeMetricFamily(
            "kvtrace_kv_pool_bytes", "KV memory of a tier, by what its blocks are doing", labels=("tier", "state")
        ),
        {
            ("vram", "active"): vram.kv_active_bytes,
            ("vram", "reclaimable"): vram.kv_reclaimable_bytes,
            ("vram", "free"): vram.kv_free_bytes,
            ("host", "used"): host.used_bytes,
            ("host", "free"): host.free_bytes,
        },
    )
    uses = {
        ("total",): vram.total_bytes,
        ("weights",): vram.weights_bytes,
        ("kv_pool",): vram.kv_pool_bytes,
        ("other",): vram.other_bytes,
    }
    yield _labelled(
        GaugeMetricFamily("kvtrace_vram_bytes", "Device memory, by its use", labels=("use",)),
        {use: value for use, value in uses.items() if value is not None},
    )
    yield _gauge("kvtrace_host_pinned_bytes", "Host memory for parked KV that is pinned", host.pinned_bytes)


def _agents(state: Snapshot) -> Iterator[Metric]:
    count = Counter(record.state for record in state.agents)
    kept: Counter[tuple[str, ...]] = Counter()
    seconds: Counter[str] = Counter()
    for record in state.agents:
        kept["vram", record.state.value] += record.vram_bytes
        kept["host", record.state.value] += record.host_bytes
        seconds.update(record.state_seconds)
    yield _labelled(
        GaugeMetricFamily("kvtrace_agents", "Agents, by what their KV is doing", labels=("state",)),
        {(one.value,): count[one] for one in AgentState},
    )
    yield _labelled(
        GaugeMetricFamily(
            "kvtrace_agent_kv_bytes",
            "KV of agents in a tier, by the agents' state; a shared block counts for each agent that holds it",
            labels=("tier", "state"),
        ),
        {(tier, one.value): kept[tier, one.value] for tier in ("vram", "host") for one in AgentState},
    )
    yield _labelled(
        GaugeMetricFamily(
            "kvtrace_agent_state_seconds", "Lives so far of the agents known now, by state", labels=("state",)
        ),
        {(one,): value for one, value in seconds.items()},
    )


def _link(state: Snapshot) -> Iterator[Metric]:
    link = state.link
    yield _labelled(
        CounterMetricFamily("kvtrace_link_bytes", "KV copied between the tiers", labels=("direction",)),
        {("out",): link.out_total_bytes, ("in",): link.in_total_bytes},
    )
    yield _labelled(
        GaugeMetricFamily(
            "kvtrace_link_bytes_per_second", "KV copied between the tiers in the last second", labels=("direction",)
        ),
        {("out",): link.out_bytes_per_s, ("in",): link.in_bytes_per_s},
    )


def _totals(state: Snapshot, dropped_signals: int) -> Iterator[Metric]:
    totals = state.totals
    for name, words, value in (
        ("prefilled_tokens", "Prompt tokens computed", totals.prefilled_tokens),
        ("reprefilled_tokens", "Positions computed again though their KV once existed", totals.reprefilled_tokens),
        ("generated_tokens", "Tokens of output", totals.generated_tokens),
        ("dropped_blocks", "KV blocks lost because no tier had room for them", totals.dropped_blocks),
        ("steps", "Forward steps", totals.steps),
        ("prefill_seconds", "Time of steps, by the share of positions that belonged to prompts", totals.prefill_s),
    ):
        yield CounterMetricFamily(f"kvtrace_{name}", words, value=value)
    yield _labelled(
        CounterMetricFamily("kvtrace_cached_tokens", "Prompt tokens whose KV was there, by tier", labels=("tier",)),
        {("vram",): totals.cached_device_tokens, ("host",): totals.cached_host_tokens},
    )
    yield _labelled(
        CounterMetricFamily(
            "kvtrace_signals", "Tools' starts and ends, by whether they found their agent", labels=("outcome",)
        ),
        {
            ("matched",): totals.matched_signals,
            ("unmatched",): totals.unmatched_signals,
            ("dropped",): dropped_signals,
        },
    )


def vllm_families(state: Snapshot, preemptions: float) -> Iterator[Metric]:
    """The same under vLLM's names, for dashboards that know those."""
    vram, totals = state.tiers.vram, state.totals
    states = Counter(record.state for record in state.agents)
    model, label = (state.model,), ("model_name",)
    used = vram.kv_active_bytes / vram.kv_pool_bytes if vram.kv_pool_bytes else 0.0
    waiting = states[AgentState.QUEUED] + states[AgentState.RESTORING]
    for name, words, value in (
        ("num_requests_running", "Agents with a request that decodes or prefills", states[AgentState.GENERATING]),
        ("num_requests_waiting", "Agents with a request that is queued or restoring", waiting),
        ("kv_cache_usage_perc", "Share of the device's KV pool in use, 0 to 1", used),
    ):
        yield _labelled(GaugeMetricFamily(f"vllm:{name}", words, labels=label), {model: value})
    hits = totals.cached_device_tokens + totals.cached_host_tokens
    for name, words, value in (
        ("num_preemptions", "Running requests that made room", preemptions),
        ("prompt_tokens", "Prompt tokens computed or found", totals.prefilled_tokens + hits),
        ("generation_tokens", "Tokens of output", totals.generated_tokens),
        ("prefix_cache_queries", "Prompt tokens looked for", totals.prefilled_tokens + hits),
        ("prefix_cache_hits", "Prompt tokens found in either tier", hits),
    ):
        yield _labelled(CounterMetricFamily(f"vllm:{name}", words, labels=label), {model: value})


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(name, words, value=float(value))


def _labelled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[tuple[str, ...], float]) -> Metric:
    for labels, value in values.items():
        family.add_metric(labels, float(value))
    return family
