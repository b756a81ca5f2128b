"""Event listeners run in the engine's own thread, whatever they do there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from kvtrace.engine import Engine, EngineConfig, EngineEvent, EngineStopped, LoadedModel, Sampling
from kvtrace.tracer.signals import ToolStarted

CONFIG = EngineConfig(device_blocks=24, host_blocks=24, slots=2, step_tokens=32, context_tokens=256)
PROMPT = list(range(5, 25))
WAIT_S = 60.0  # far beyond what anything here takes


@pytest.fixture
def model(tiny_model: Callable[[str], LoadedModel]) -> LoadedModel:
    return tiny_model("llama")


def _started(agent: str) -> ToolStarted:
    return ToolStarted("a" * 32, "1" * 16, time.time_ns(), "grep", agent)


def test_listeners_that_exit_or_wait_for_the_engine_end_nothing(model: LoadedModel) -> None:
    waited = threading.Event()

    def leaves(_: EngineEvent) -> None:
        raise SystemExit(3)

    def waits(_: EngineEvent) -> None:
        with pytest.raises(RuntimeError, match="cannot wait"):
            engine.drain()
        waited.set()

    with Engine.start(model, CONFIG) as engine:
        engine.on_event(leaves)
        engine.on_event(waits)
        engine.submit("a", PROMPT, Sampling(max_tokens=20, ignore_eos=True)).result(WAIT_S)
        engine.signal(_started("a"))
        assert waited.wait(WAIT_S)
        again = engine.submit("a", PROMPT, Sampling(max_tokens=3, ignore_eos=True)).result(WAIT_S)
    assert len(again.tokens) == 3


def test_a_listener_may_close_the_engine(model: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine.start(model, CONFIG)
    engine.on_event(lambda _: engine.close())
    engine.submit("a", PROMPT, Sampling(max_tokens=20, ignore_eos=True)).result(WAIT_S)
    engine.signal(_started("a"))
    engine._thread.join(WAIT_S)
    assert not engine._thread.is_alive()
    assert not caplog.records
    with pytest.raises(EngineStopped, match="closed"):
        engine.submit("a", PROMPT)
