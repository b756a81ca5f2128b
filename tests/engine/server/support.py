"""A real server on a real port, in a thread of the test's process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from kvtrace.engine.server.launch import Launched
from kvtrace.engine.server.loading import Started
from kvtrace.engine.server.records import RequestRecord
from kvtrace.engine.server.service import Service
from kvtrace.engine.server.settings import ServerSettings

WAIT_S = 60.0  # far beyond what anything here takes


@dataclass
class Running:
    """A server that answers, and what it said of its start and of each request."""

    url: str
    service: Service
    http: httpx.Client
    started: Started
    launched: Launched
    phases: list[str]
    records: list[RequestRecord] = field(default_factory=list)

    @property
    def model(self) -> str:
        return self.service.model.model_id

    def chat(self, text: str = "hello", /, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=chat_body(self.model, text, **fields))

    def complete(self, prompt: Any, /, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json=text_body(self.model, prompt, **fields))


def chat_body(model: str, text: str, /, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0} | fields


def text_body(model: str, prompt: Any, /, **fields: Any) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True} | fields


@contextmanager
def running(settings: ServerSettings, headers: dict[str, str] | None = None) -> Iterator[Running]:
    """Start, wait until it answers, and stop in the end."""
    ready = threading.Event()
    started: list[Started] = []
    phases: list[str] = []

    def on_ready(what: Started) -> None:
        started.append(what)
        ready.set()

    launched = Launched(settings, lambda phase, _seconds: phases.append(phase), on_ready)
    thread = threading.Thread(target=launched.run)
    thread.start()
    try:
        assert ready.wait(WAIT_S), launched.error
        with httpx.Client(base_url=launched.url, timeout=WAIT_S, headers=headers) as http:
            server = Running(launched.url, launched.service, http, started[0], launched, phases)
            launched.service.on_request(server.records.append)
            yield server
    finally:
        launched.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The data of server-sent events, up to ``[DONE]``."""
    for line in lines:
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield json.loads(line[6:])


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


@contextmanager
def held(server: Running) -> Iterator[Gate]:
    """Every step of the engine waits at the gate until the block ends or opens it."""
    gate = Gate()
    hook = server.service.model.model.lm_head.register_forward_pre_hook(gate)
    gate.open.clear()
    try:
        yield gate
    finally:
        gate.open.set()
        hook.remove()


@contextmanager
def slowed(server: Running, step_s: float) -> Iterator[None]:
    """Every step of the engine takes so much longer."""
    hook = server.service.model.model.lm_head.register_forward_pre_hook(lambda *_: time.sleep(step_s))
    try:
        yield
    finally:
        hook.remove()
