from __future__ import annotations

import inspect
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kvtrace.tracer as tracer

if TYPE_CHECKING:
    from tests.tracer.conftest import Program

PUBLIC = {
    *("traced_tool", "generation", "agent", "human_wait", "headers", "configure", "flush", "shutdown"),
    *("current_agent", "current_generation", "ToolStarted", "ToolEnded", "Signal", "Sink", "subscribe", "unsubscribe"),
    *("propagate", "PropagatingExecutor", "Agent", "Generation", "Settings", "COUNTS"),
    "KvtraceSpanProcessor",
    *("Receiver", "BadRequest", "event_hook", "instrument_client"),
}


def test_public_names_are_these() -> None:
    assert set(tracer.__all__) == PUBLIC
    assert set(dir(tracer)) >= PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_names_load_and_are_no_modules(name: str) -> None:
    value = getattr(tracer, name)
    assert not isinstance(value, types.ModuleType)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__doc__


def test_no_module_hides_a_public_name() -> None:
    modules = {path.stem for path in Path(inspect.getfile(tracer)).parent.glob("*.py")}
    assert modules & PUBLIC == set()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tracer.nonsense  # noqa: B018


def test_importing_loads_no_sdk_and_no_exporter(program: Program) -> None:
    done = program("""
import sys
import kvtrace.tracer
for name in kvtrace.tracer.__all__:
    if name != "KvtraceSpanProcessor":  # a part of the SDK by its nature
        getattr(kvtrace.tracer, name)
heavy = ("opentelemetry.sdk", "opentelemetry.exporter", "torch", "duckdb", "textual", "platformdirs")
print([name for name in sys.modules if name.startswith(heavy)])
""")
    assert (done.stdout, done.stderr) == ("[]\n", "")
