"""The engine's thread while a device computes: it takes what comes in, and hands tokens on first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvtrace.engine import (
    Engine,
    EngineConfig,
    EngineEvent,
    EngineStopped,
    EventKind,
    LoadedModel,
    PolicyMode,
    Sampling,
)
from kvtrace.engine.batch import Chunk, Pending
from kvtrace.engine.swap.contract import Fence
from kvtrace.tracer.signals import ToolStarted

CONFIG = EngineConfig(
    device_blocks=24,
    host_blocks=24,
    slots=2,
    step_tokens=32,
    context_tokens=256,
    policy=PolicyMode.EAGER,
    pipelined=True,
)
PROMPT = list(range(5, 25))
WAIT_S = 60.0  # far beyond what anything here takes


class SlowSteps:
    """A real runner whose steps are over only while its gate is open, as a device's are some time after their launch."""

    def __init__(self, engine: Engine) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.waits = 0
        self._forward = engine._core._forward
        self._runner, self._forward._runner = self._forward._runner, self

    def launch(self, chunks: Sequence[Chunk], arrivals: Sequence[Fence] = ()) -> SlowStep:
        return SlowStep(self, self._runner.launch(chunks, arrivals))

    def run(self, chunks: Sequence[Chunk]) -> dict[int, int]:
        return self.launch(chunks).tokens()


class SlowStep:
    def __init__(self, steps: SlowSteps, pending: Pending) -> None:
        self._steps, self._pending = steps, pending

    def done(self) -> bool:
        self._steps.waits += not self._steps.gate.is_set()
        return self._steps.gate.is_set()

    def tokens(self) -> dict[int, int]:
        assert self._steps.gate.wait(WAIT_S)
        return self._pending.tokens()


def _free(count: int) -> Sampling:
    return Sampling(max_tokens=count, ignore_eos=True)


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def _held(engine: Engine) -> tuple[SlowSteps, Any]:
    """An engine in the middle of a step of agent a's request."""
    steps = SlowSteps(engine)
    stream = engine.submit("a", PROMPT, _free(30))
    next(iter(stream))
    steps.gate.clear()
    _until(lambda: steps.waits > 2)
    return steps, stream


def test_requests_tools_and_ends_are_taken_while_a_step_runs(tiny_model: Callable[[str], LoadedModel]) -> None:
    events: list[EngineEvent] = []
    with Engine.start(tiny_model("llama"), CONFIG) as engine:
        engine.on_event(events.append)
        engine.submit("b", PROMPT[::-1], _free(3)).result(WAIT_S)
        engine.drain(WAIT_S, copies=True)
        steps, stream = _held(engine)
        other = engine.submit("c", PROMPT, _free(4))
        _until(lambda: other.progress(0).accepted)
        engine.signal(ToolStarted("a" * 32, f"{1:016x}", time.time_ns(), "grep", "b"))
        _until(lambda: any(event.kind is EventKind.PARK and event.agent == "b" for event in events) or _leaving(engine))
        doomed = engine.submit("d", PROMPT, _free(4))
        doomed.cancel()
        assert doomed.result(WAIT_S).finish_reason == "cancelled"
        assert not steps.gate.is_set()
        steps.gate.set()
        assert len(stream.result(WAIT_S).tokens) == 30
        assert len(other.result(WAIT_S).tokens) == 4


def _leaving(engine: Engine) -> bool:
    return engine._parts.mover.in_flight() > 0


def test_a_token_is_handed_on_before_the_books_of_its_step_are_kept(
    tiny_model: Callable[[str], LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.start(tiny_model("llama"), CONFIG) as engine:
        forward = engine._core._forward
        enter, had = forward._enter, []

        def noted(sequence: Any, chunk: Chunk) -> None:
            had.append(len(engine._streams[sequence.id].progress(0).tokens) - len(sequence.output_tokens))
            enter(sequence, chunk)

        monkeypatch.setattr(forward, "_enter", noted)
        assert len(engine.submit("a", PROMPT, _free(5)).result(WAIT_S).tokens) == 5
        assert had == [1] * 5


def test_closing_waits_for_the_step_alone(tiny_model: Callable[[str], LoadedModel]) -> None:
    engine = Engine.start(tiny_model("llama"), CONFIG)
    steps, stream = _held(engine)
    closer = threading.Thread(target=engine.close)
    closer.start()
    _until(lambda: engine._closing)
    steps.gate.set()
    closer.join(WAIT_S)
    assert not closer.is_alive()
    with pytest.raises(EngineStopped, match="closed before"):
        stream.result(WAIT_S)
