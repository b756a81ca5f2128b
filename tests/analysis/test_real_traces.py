"""Real traces of other people's agents, where they are there, against an independent sweep over the whole trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtrace.analysis import NoDataError, build_report
from kvtrace.analysis.report import Report
from kvtrace.analysis.testing import FixedHost

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is not here")


def report(name: str) -> Report:
    return build_report([TRACES / name], host=FixedHost())


@pytest.mark.parametrize(
    ("name", "tool_calls", "tool_union_s", "generating_s", "blocked_s", "generating_state_s"),
    [
        ("otel-flat/otel_genai_convention_spans.json", 2, 2.0, 2.0, 2.0, 2.0),
        ("otel-flat/smolagents_live_spans.json", 2, 0.791, 3.27, 0.791, 3.27),
        ("otlp/tempo-export-kagent.json", 1, 0.076, 4.611, 0.076, 4.535),
        ("jaeger/kagent-helm.json", 1, 0.057, 4.072, 0.057, 4.072),
        ("langfuse/koog-2025-08-26.json", 2, 1.014, 4.782, 1.014, 4.782),
        ("langfuse/langgraph-python-2025-08-22.json", 1, 0.001, 2.591, 0.001, 2.591),
    ],
)
def test_figures_of_one_agent_are_the_known_ones(
    name: str, tool_calls: int, tool_union_s: float, generating_s: float, blocked_s: float, generating_state_s: float
) -> None:
    pooled = report(name).pooled
    assert (pooled.agents, pooled.tool_calls, pooled.open_calls) == (1, tool_calls, 0)
    assert pooled.tool_union_s == pytest.approx(tool_union_s, abs=0.001)
    assert pooled.generating_s == pytest.approx(generating_s, abs=0.001)
    assert pooled.blocked_s == pytest.approx(blocked_s, abs=0.001)
    assert pooled.generating_state_s == pytest.approx(generating_state_s, abs=0.001)


def test_agents_as_tools_have_timelines_of_their_own() -> None:
    found = report("otel-flat/openai_agents_genai_live_spans.json")
    assert [agent.name for agent in found.agents] == ["coordinator", "research_specialist", "math_specialist"]
    assert found.pooled.tool_calls == 5
    # The known union of 6.816 s is the coordinator's: it waits while its specialists work.
    coordinator = found.agents[0]
    assert coordinator.tool_union_s == coordinator.blocked_s == pytest.approx(6.816, abs=0.001)
    assert coordinator.wall_s == pytest.approx(18.631, abs=0.001)
    assert sum(agent.generating_s for agent in found.agents) == pytest.approx(18.619, abs=0.001)


@pytest.mark.parametrize(
    ("name", "model_calls"),
    [
        ("jaeger/kagent-helm.json", 2),
        ("otlp/tempo-export-kagent.json", 2),
        ("langfuse/koog-2025-08-26.json", 2),
        ("otel-flat/openai_agents_genai_live_spans.json", 8),
    ],
)
def test_model_calls_seen_by_two_instrumentations_count_once(name: str, model_calls: int) -> None:
    assert report(name).pooled.model_calls == model_calls


def test_same_trace_twice_changes_no_figure(tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    copy.write_bytes((TRACES / "jaeger/kagent-helm.json").read_bytes())
    twice = build_report([TRACES / "jaeger", copy], host=FixedHost())
    assert twice.agents == report("jaeger/kagent-helm.json").agents
    assert twice.pooled.anomalies.duplicates == 96


@pytest.mark.parametrize("name", ["duckdb-otlp-nulls.jsonl", "opentelemetry-proto-trace.json"])
def test_traces_without_agents_give_a_sentence(name: str) -> None:
    with pytest.raises(NoDataError, match="no tool call and no model call"):
        report(f"otlp/{name}")


def test_all_readable_traces_together_keep_their_figures() -> None:
    found = build_report([TRACES / "otlp", TRACES / "otel-flat"], host=FixedHost())
    assert found.pooled.agents == 6
    assert found.pooled.tool_calls == 10
    assert [source.kind for source in found.sources] == ["OTLP JSON"] * 3 + ["flat JSON spans"] * 3
