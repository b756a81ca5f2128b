from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.tracer.conftest import Program

SOURCE = """
from kvtrace.tracer import generation, traced_tool
tool = traced_tool(lambda fail: 1 / 0 if fail else None, name="search")
tool(False)  # before there is anybody to tell
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider(metric_readers=[reader], shutdown_on_exit=False))
tool(False)
try:
    tool(True)
except ZeroDivisionError:
    pass
with generation("m", provider="p") as call:
    call.response_model("m-1")
found = {}
for resource in reader.get_metrics_data().resource_metrics:
    for scope in resource.scope_metrics:
        for metric in scope.metrics:
            assert metric.unit == "s"
            found[metric.name] = metric.data.data_points
tools = found["gen_ai.execute_tool.duration"]
assert [(point.count, point.attributes.get("error.type")) for point in tools] == [(1, None), (1, "ZeroDivisionError")]
assert tools[0].attributes["gen_ai.tool.name"] == "search"
assert tools[0].explicit_bounds[0] == 0.01 and tools[0].explicit_bounds[-1] == 81.92
assert 0 <= tools[0].sum < 5
(chat,) = found["gen_ai.client.inference.duration"]
assert dict(chat.attributes) == {
    "gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.provider.name": "p",
    "gen_ai.response.model": "m-1",
}
"""


def test_durations_reach_the_meter_provider_of_the_program(program: Program) -> None:
    done = program(SOURCE)
    assert done.returncode == 0, done.stderr


def test_program_without_a_meter_provider_loads_no_sdk(program: Program) -> None:
    done = program("""
import sys
from kvtrace.tracer import traced_tool
traced_tool(lambda: None)()
assert "opentelemetry.sdk" not in sys.modules
""")
    assert done.returncode == 0, done.stderr
