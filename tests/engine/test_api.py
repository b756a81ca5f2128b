from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvtrace.engine import (
    ConfigError,
    Engine,
    EngineConfig,
    EngineEvent,
    EngineStopped,
    EventKind,
    LoadedModel,
    PolicyMode,
    QueueFull,
    RequestRefused,
    Sampling,
)
from kvtrace.engine.api import SIGNALS_QUEUED
from kvtrace.engine.build import build_core
from kvtrace.engine.model import encode_chat
from kvtrace.tracer import agent, subscribe, traced_tool, unsubscribe
from kvtrace.tracer.signals import ToolEnded, ToolStarted
from kvtrace.tracer.testing import capture

CONFIG = EngineConfig(device_blocks=24, host_blocks=24, slots=2, step_tokens=32, context_tokens=256)
PROMPT = list(range(5, 25))
WAIT_S = 60.0  # far beyond what anything here takes


def _free(count: int) -> Sampling:
    return Sampling(max_tokens=count, ignore_eos=True)


@pytest.fixture
def model(tiny_model: Callable[[str], LoadedModel]) -> LoadedModel:
    return tiny_model("llama")


@pytest.fixture
def engine(model: LoadedModel) -> Iterator[Engine]:
    with Engine.start(model, CONFIG) as running:
        yield running


class Gate:
    """Holds the model's forward call while closed, and makes it fail on request."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        self.error: Exception | None = None

    def __call__(self, *_: Any) -> None:
        self.reached.set()
        assert self.open.wait(WAIT_S)
        error, self.error = self.error, None
        if error is not None:
            raise error


@pytest.fixture
def gate(model: LoadedModel) -> Iterator[Gate]:
    gate = Gate()
    hook = model.model.lm_head.register_forward_pre_hook(gate)
    yield gate
    gate.open.set()
    hook.remove()


@contextmanager
def _held(gate: Gate) -> Iterator[None]:
    gate.reached.clear()
    gate.open.clear()
    try:
        yield
    finally:
        gate.open.set()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def _tool(kind: type[ToolStarted] | type[ToolEnded], agent: str, span: int = 1) -> ToolStarted | ToolEnded:
    return kind("a" * 32, f"{span:016x}", time.time_ns(), "grep", agent)


def test_tokens_stream_and_equal_the_result(
    engine: Engine, model: LoadedModel, own_model: Callable[[str], Any]
) -> None:
    stream = engine.submit("a", PROMPT, _free(20))
    tokens = list(stream)
    done = stream.result(WAIT_S)
    assert done.tokens == tuple(tokens)
    assert done.text == model.tokenizer.decode(tokens, skip_special_tokens=True)
    assert done.finish_reason == "length"
    assert (done.usage.prompt_tokens, done.usage.output_tokens, done.usage.prefilled_tokens) == (20, 20, 20)
    ids = torch.tensor([PROMPT])
    expected = own_model("llama").generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, eos_token_id=None
    )
    assert tokens == expected[0, 20:].tolist()


def test_tokens_arrive_before_the_end(engine: Engine, gate: Gate) -> None:
    stream = engine.submit("a", PROMPT, _free(8))
    tokens = iter(stream)
    first = next(tokens)
    assert [first, *tokens] == list(stream.result(WAIT_S).tokens)
    with _held(gate):
        slow = engine.submit("a", PROMPT, _free(8))
        assert gate.reached.wait(WAIT_S)
        with pytest.raises(TimeoutError, match="agent a's request has not ended"):
            slow.result(0.001)
        assert not slow.done
    assert len(slow.result(WAIT_S).tokens) == 8


def test_messages_are_rendered_by_the_template(engine: Engine, model: LoadedModel) -> None:
    messages = [{"role": "user", "content": "hello"}]
    by_text = engine.submit("a", messages, _free(6)).result(WAIT_S)
    by_ids = engine.submit("b", encode_chat(model.tokenizer, messages), _free(6)).result(WAIT_S)
    assert by_text.tokens == by_ids.tokens
    assert by_ids.usage.cached_device_tokens > 0


def test_stop_ids_end_the_output_unless_ignored(engine: Engine, model: LoadedModel) -> None:
    free = engine.submit("a", PROMPT, _free(12)).result(WAIT_S).tokens
    stop = free[5]
    at = free.index(stop)
    stopped = engine.submit("a", PROMPT, Sampling(max_tokens=12, stop_ids=(stop,))).result(WAIT_S)
    assert (stopped.tokens, stopped.finish_reason) == (free[:at], "stop")
    ignoring = Sampling(max_tokens=12, stop_ids=(stop,), ignore_eos=True)
    assert engine.submit("a", PROMPT, ignoring).result(WAIT_S).tokens == free
    # The model's own end ids stop as well, without being named.
    with Engine.start(replace(model, stop_ids=(stop,)), CONFIG) as other:
        assert other.submit("a", PROMPT, Sampling(max_tokens=12)).result(WAIT_S).tokens == free[:at]


def test_seeded_requests_repeat(engine: Engine) -> None:
    hot = Sampling(max_tokens=16, temperature=1.0, seed=3, ignore_eos=True)
    first, again, other = (
        engine.submit(agent, PROMPT, sampling).result(WAIT_S).tokens
        for agent, sampling in (("a", hot), ("b", hot), ("c", replace(hot, seed=4)))
    )
    assert first == again != other


def test_requests_that_can_never_run_are_refused(engine: Engine) -> None:
    with pytest.raises(RequestRefused, match="the context is 256"):
        engine.submit("a", PROMPT, _free(1000)).result(WAIT_S)
    with pytest.raises(RequestRefused, match="at least 1 of each"):
        list(engine.submit("a", [], _free(5)))
    with pytest.raises(RequestRefused, match="token id 999 is outside"):
        engine.submit("a", [5, 999])
    assert engine.submit("a", PROMPT, _free(2)).result(WAIT_S).finish_reason == "length"


@pytest.mark.parametrize(
    "setting", [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_k": -2}, {"seed": 10**4299}]
)
def test_sampling_settings_out_of_range_are_refused(engine: Engine, setting: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused, match=next(iter(setting))):
        engine.submit("a", PROMPT, replace(_free(2), **setting))


def test_a_full_queue_refuses_one_more(model: LoadedModel, gate: Gate) -> None:
    with Engine.start(model, replace(CONFIG, queue_requests=1, slots=1)) as engine, _held(gate):
        running = engine.submit("a", PROMPT, _free(4))
        assert gate.reached.wait(WAIT_S)
        waiting = engine.submit("b", PROMPT, _free(4))
        refused = engine.submit("c", PROMPT, _free(4))
        gate.open.set()
        with pytest.raises(QueueFull):
            refused.result(WAIT_S)
        assert [len(stream.result(WAIT_S).tokens) for stream in (running, waiting)] == [4, 4]


def test_cancelling_keeps_the_tokens_so_far(engine: Engine) -> None:
    stream = engine.submit("a", PROMPT, _free(200))
    tokens = iter(stream)
    seen = [next(tokens), next(tokens)]
    stream.cancel()
    done = stream.result(WAIT_S)
    assert done.finish_reason == "cancelled"
    assert list(done.tokens[:2]) == seen
    assert list(stream) == list(done.tokens)
    stream.cancel()
    assert engine.submit("a", PROMPT, _free(3)).result(WAIT_S).finish_reason == "length"


def test_closing_fails_what_is_open(model: LoadedModel, gate: Gate) -> None:
    engine = Engine.start(model, CONFIG)
    with _held(gate):
        streams = [engine.submit(agent, PROMPT, _free(100)) for agent in "abc"]
        assert gate.reached.wait(WAIT_S)
        closer = threading.Thread(target=engine.close)
        closer.start()
        _until(lambda: engine._closing)
    closer.join(WAIT_S)
    for stream in streams:
        with pytest.raises(EngineStopped, match="closed before"):
            stream.result(WAIT_S)
    with pytest.raises(EngineStopped, match="closed"):
        engine.submit("a", PROMPT)
    engine.signal(_tool(ToolStarted, "a"))
    engine.close()


def test_a_failed_step_fails_its_requests_alone(engine: Engine, gate: Gate) -> None:
    gate.error = RuntimeError("device on fire")
    with pytest.raises(EngineStopped, match="RuntimeError: device on fire"):
        engine.submit("a", PROMPT, _free(5)).result(WAIT_S)
    assert len(engine.submit("a", PROMPT, _free(5)).result(WAIT_S).tokens) == 5


def test_an_error_of_the_core_ends_everything_clearly(
    model: LoadedModel, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.start(model, CONFIG)
    with _held(gate):
        stream = engine.submit("a", PROMPT, _free(50))
        assert gate.reached.wait(WAIT_S)

        def broken() -> None:
            raise KeyError("lost block")

        monkeypatch.setattr(engine._core, "step", broken)
    with pytest.raises(EngineStopped, match="lost block"):
        stream.result(WAIT_S)
    with pytest.raises(EngineStopped, match="lost block"):
        engine.submit("b", PROMPT)
    engine.drain(WAIT_S)
    engine.close()


def test_listeners_hear_parking_and_may_fail(engine: Engine) -> None:
    heard: list[EngineEvent] = []
    threads: set[str] = set()

    def bad(event: EngineEvent) -> None:
        raise ValueError(event.kind)

    def good(event: EngineEvent) -> None:
        heard.append(event)
        threads.add(threading.current_thread().name)

    engine.on_event(bad)
    engine.on_event(good)
    engine.submit("a", PROMPT, _free(20)).result(WAIT_S)
    engine.signal(_tool(ToolStarted, "a"))
    _until(lambda: bool(heard))
    assert [event.agent for event in heard] == ["a"] * len(heard)
    assert threads == {"kvtrace-engine"}
    engine.signal(_tool(ToolEnded, "a"))
    assert len(engine.submit("a", PROMPT, _free(3)).result(WAIT_S).tokens) == 3


def test_a_traced_tool_parks_its_agent_and_brings_it_back(engine: Engine) -> None:
    heard: list[EngineEvent] = []
    engine.on_event(heard.append)

    @traced_tool
    def grep() -> str:
        _until(lambda: any(event.kind is EventKind.PARK for event in heard))
        _until(lambda: engine.state().agents[0].tool == "grep")
        return "done"

    with capture(), agent("searcher", id="s"):
        subscribe(engine.signal)
        try:
            first = engine.submit("s", PROMPT, _free(20)).result(WAIT_S)
            assert grep() == "done"
            _until(lambda: engine.state().agents[0].tool is None)
            second = engine.submit("s", [*PROMPT, *first.tokens, 9, 9], _free(4)).result(WAIT_S)
        finally:
            unsubscribe(engine.signal)
    assert [(event.agent, event.tool) for event in heard if event.kind is EventKind.PARK] == [("s", "grep")]
    assert second.usage.cached_device_tokens == len(PROMPT) + 19
    assert second.usage.reprefilled_tokens == 0


def test_signals_beyond_the_queue_are_dropped_and_counted(model: LoadedModel, gate: Gate) -> None:
    with Engine.start(model, CONFIG) as engine:
        with _held(gate):
            stream = engine.submit("a", PROMPT, _free(2))
            assert gate.reached.wait(WAIT_S)
            for _ in range(SIGNALS_QUEUED + 7):
                engine.signal(_tool(ToolStarted, "nobody"))
            assert engine.dropped_signals == 7
        stream.result(WAIT_S)
        _until(lambda: engine.state().totals.unmatched_signals == SIGNALS_QUEUED)


def test_state_shows_a_request_when_its_result_is_there(engine: Engine) -> None:
    for number in range(1, 6):
        engine.submit("a", [number + 10] * 20, _free(3)).result(WAIT_S)
        state = engine.state()
        assert state.totals.generated_tokens == 3 * number
        assert [record.agent for record in state.agents] == ["a"]
    assert state.model == engine._model.model_id
    assert state.tiers.vram.kv_pool_bytes == 24 * engine._model.geometry.block_bytes
    assert state.tiers.vram.weights_bytes == engine._model.weights_bytes


def test_a_turn_that_ended_in_calls_blocks_its_agent(engine: Engine) -> None:
    engine.submit("a", PROMPT, _free(4)).result(WAIT_S)
    engine.turn_ended("a", ["call_1"])
    _until(lambda: engine.state().agents[0].state in ("blocked_resident", "parking", "parked"))
    engine.submit("a", PROMPT, _free(4)).result(WAIT_S)
    engine.turn_ended("a")
    _until(lambda: engine.state().agents[0].state == "human")


def test_an_idle_engine_sleeps(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.submit("a", PROMPT, _free(4)).result(WAIT_S)
    steps: list[None] = []
    step = engine._core.step

    def counted() -> Any:
        steps.append(None)
        return step()

    monkeypatch.setattr(engine._core, "step", counted)
    time.sleep(0.5)
    assert len(steps) < 30  # a busy loop takes thousands


def test_drain_waits_for_open_requests(engine: Engine, gate: Gate) -> None:
    engine.drain(WAIT_S)
    with _held(gate):
        stream = engine.submit("a", PROMPT, _free(4))
        with pytest.raises(TimeoutError, match=r"open after .* 1 request;"):
            engine.drain(0.01)
    engine.drain(WAIT_S)
    assert stream.done


def test_many_threads_share_one_engine(engine: Engine) -> None:
    results: dict[int, tuple[int, ...]] = {}

    def ask(number: int) -> None:
        results[number] = engine.submit(f"a{number}", [number + 5] * 10, _free(6)).result(WAIT_S).tokens

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    alone = [engine.submit("x", [number + 5] * 10, _free(6)).result(WAIT_S).tokens for number in range(12)]
    assert [results[number] for number in range(12)] == alone


def test_sizes_beyond_the_model_are_refused(model: LoadedModel) -> None:
    with pytest.raises(ConfigError, match="trained for 512"):
        Engine.start(model, replace(CONFIG, context_tokens=513))
    with pytest.raises(ConfigError, match="runs on cpu or cuda"):
        build_core(replace(model, device=torch.device("meta")), CONFIG)


def test_modes_without_host_tier_allocate_none(model: LoadedModel) -> None:
    parts = build_core(model, replace(CONFIG, policy=PolicyMode.KEEP))
    assert parts.storage.host_blocks == 0
    parts.mover.close()
