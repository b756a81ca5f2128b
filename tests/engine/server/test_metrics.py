"""What Prometheus sees is what happened, and every metric of the dashboard is there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvtrace.engine.records import EngineEvent, EventKind
from kvtrace.engine.sequence import Usage
from kvtrace.engine.server.metrics.instruments import Metrics, seconds_per_token
from kvtrace.engine.server.records import RequestRecord

from .conftest import tiny_settings
from .support import Running, running

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "kvtrace.json"
Labels = tuple[tuple[str, str], ...]


@pytest.fixture(scope="module")
def server(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    """One of our own, since the counts of a shared one are anybody's."""
    with running(replace(tiny_settings(tiny_folder("llama")), vllm_metrics=True)) as one:
        yield one


def scrape(server: Running, **headers: str) -> dict[tuple[str, Labels], float]:
    response = server.http.get("/metrics", headers=headers)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def moved(before: dict[Any, float], after: dict[Any, float], name: str, **labels: str) -> float:
    key = (name, tuple(sorted(labels.items())))
    return after[key] - before.get(key, 0.0)


def test_a_request_shows_in_every_count(server: Running) -> None:
    before = scrape(server)
    usage = server.complete("hello hello hello hello", max_tokens=5).json()["usage"]
    after = scrape(server)
    assert moved(before, after, "kvtrace_requests_total", endpoint="completions", outcome="length") == 1
    assert moved(before, after, "kvtrace_time_to_first_token_seconds_count") == 1
    assert moved(before, after, "kvtrace_time_per_output_token_seconds_count") == 1
    assert moved(before, after, "kvtrace_request_prompt_tokens_sum") == usage["prompt_tokens"]
    assert moved(before, after, "kvtrace_request_output_tokens_sum") == 5
    assert moved(before, after, "kvtrace_generated_tokens_total") == 5
    first = moved(before, after, "kvtrace_time_to_first_token_seconds_sum")
    assert 0 < first <= moved(before, after, "kvtrace_request_seconds_sum")
    model = {"model_name": server.model}
    assert moved(before, after, "vllm:e2e_request_latency_seconds_count", **model) == 1
    assert moved(before, after, "vllm:request_success_total", finished_reason="length", **model) == 1


def test_a_refused_request_counts_as_such_and_has_no_times(server: Running) -> None:
    before = scrape(server)
    assert server.complete("x" * 2000).status_code == 400
    after = scrape(server)
    assert moved(before, after, "kvtrace_requests_total", endpoint="completions", outcome="refused") == 1
    assert moved(before, after, "kvtrace_request_seconds_count") == 0


def test_memory_and_agents_are_those_of_the_state(server: Running) -> None:
    server.complete("hello", max_tokens=2)
    state = server.http.get("/v1/kv/state").json()
    seen = scrape(server)
    vram, host = state["tiers"]["vram"], state["tiers"]["host"]
    for tier, found, states in (("vram", vram, ("active", "reclaimable", "free")), ("host", host, ("used", "free"))):
        for one in states:
            prefix = "kv_" if tier == "vram" else ""
            key = ("kvtrace_kv_pool_bytes", (("state", one), ("tier", tier)))
            assert seen[key] == found[f"{prefix}{one}_bytes"]
    agents = sum(value for (name, _), value in seen.items() if name == "kvtrace_agents")
    assert agents == len(state["agents"])
    assert seen["kvtrace_ready", ()] == 1


def test_every_metric_of_the_dashboard_exists_on_a_real_scrape(server: Running) -> None:
    """Also every label that it selects or groups by."""
    server.complete("hello", max_tokens=2)
    seen = scrape(server)
    names = {name for name, _ in seen}
    labels = {key for _, pairs in seen for key, _ in pairs} | {"instance", "le"}
    values = {pair for _, pairs in seen for pair in pairs}
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for text in expressions for name in re.findall(r"\b(?:kvtrace|process|vllm)[a-z0-9_:]+", text)}
    assert len(used) > 15
    assert used <= names
    grouped = {key for text in expressions for keys in re.findall(r" by \(([^)]*)\)", text) for key in keys.split(", ")}
    selected = [pair for text in expressions for pair in re.findall(r'(\w+)=~?"([^"$]*)"', text)]
    assert grouped | {key for key, _ in selected} <= labels
    assert {(key, one) for key, value in selected for one in value.split("|")} <= values


def test_the_dashboard_lays_its_panels_out_side_by_side() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_openmetrics_is_spoken_where_it_is_asked_for(server: Running) -> None:
    response = server.http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


def test_other_servers_names_are_there_only_if_wanted(tiny_server: Running) -> None:
    assert not any(name.startswith("vllm:") for name, _ in scrape(tiny_server))


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_before_the_engine_runs_a_scrape_says_so() -> None:
    metrics = Metrics(lambda: None, lambda: 0, vllm=True)
    assert sample(metrics, "kvtrace_ready") == 0
    assert sample(metrics, "kvtrace_generated_tokens_total") is None


def test_events_count_with_their_bytes_and_seconds() -> None:
    metrics = Metrics(lambda: None, lambda: 0)
    for kind, duration_ms in ((EventKind.PARK, 30.0), (EventKind.RESTORE, 20.0), (EventKind.REVIVE, None)):
        metrics.event(EngineEvent(1, "a", kind, "grep", 4096, duration_ms, "why"))
    assert sample(metrics, "kvtrace_kv_events_total", kind="park") == 1
    assert sample(metrics, "kvtrace_kv_event_bytes_total", kind="restore") == 4096
    assert sample(metrics, "kvtrace_kv_copy_seconds_sum", kind="restore") == pytest.approx(0.02)
    assert sample(metrics, "kvtrace_kv_events_total", kind="revive") == 1
    assert sample(metrics, "kvtrace_kv_events_total", kind="drop") == 0


@pytest.mark.parametrize(
    ("tokens", "choices", "seconds"), [(5, 1, 0.25), (10, 2, 0.25), (1, 1, None), (2, 2, None), (0, 1, None)]
)
def test_time_per_token_is_between_tokens_of_one_output(tokens: int, choices: int, seconds: float | None) -> None:
    record = RequestRecord(
        "id", "chat", "a", "m", False, 0, first_token_unix_ns=10**9, last_token_unix_ns=2 * 10**9,
        usage=Usage(output_tokens=tokens), choices=choices,
    )  # fmt: skip
    assert seconds_per_token(record) == seconds
