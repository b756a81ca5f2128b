"""``kvtrace serve`` as a process: what it says, how it stops, how it exits."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from kvtrace.tui.cli import cli
from kvtrace.tui.commands.serve import _key_header

WAIT_S = 120.0
SMALL = ("--kv-vram", "100MiB", "--kv-host", "100MiB", "--context", "1024", "--device", "cpu", "--port", "0")


class Served:
    """The process, its URL and what it said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def said(self, words: str) -> str:
        """Wait for a line with these words."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            found = [line for line in list(self.lines) if words in line]
            if found:
                return found[0]
            assert self.process.poll() is None, self.lines
            time.sleep(0.02)
        raise AssertionError(f"{words!r} is not in {self.lines}")

    def ended(self) -> int:
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return code


@contextmanager
def serve(*options: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "kvtrace.tui", "serve", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield Served(process)
        finally:
            process.kill()


def _ask(url: str, results: list[int], **fields: object) -> threading.Thread:
    body = {"model": "smollm2", "prompt": "Once upon a time", "ignore_eos": True, "temperature": 0, **fields}

    def ask() -> None:
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=WAIT_S)
        done = answer.status_code == 200
        results.append(answer.json()["usage"]["completion_tokens"] if done else answer.status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def _answer_to(curl: list[str]) -> str:
    """Run the command as it was printed; without curl, send what it would."""
    if shutil.which("curl"):
        return subprocess.run(curl, capture_output=True, text=True, check=True, timeout=WAIT_S).stdout
    _, url, _, header, _, body = curl
    name, value = header.split(": ")
    return httpx.post(url, headers={name: value}, content=body, timeout=WAIT_S).text


def _read_stream(url: str, body: dict[str, object]) -> None:
    with suppress(httpx.TransportError):
        httpx.post(f"{url}/v1/completions", json=body, timeout=WAIT_S)


def _url(server: Served) -> str:
    return server.said("listening on").split()[2].rstrip(";")


def _until_open(url: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not any(one["state"] == "generating" for one in httpx.get(f"{url}/v1/kv/state").json()["agents"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_says_what_runs_and_a_signal_lets_requests_end() -> None:
    with serve(*SMALL, "--alias", "any") as server:
        url = _url(server)
        health = httpx.get(f"{url}/health", timeout=WAIT_S)
        assert health.status_code in (200, 503)
        curl = server.said("curl ")
        for words in ("URL", "SmolLM2-135M-Instruct", "KV in RAM", "KV on the host", "importing torch"):
            server.said(words)
        assert '"finish_reason"' in _answer_to(shlex.split(curl))
        results: list[int] = []
        asking = _ask(url, results, max_tokens=24, model="any")
        _until_open(url)
        server.process.send_signal(signal.SIGTERM)
        asking.join(WAIT_S)
        assert results == [24]
        assert server.ended() == 0
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""


@pytest.mark.parametrize(("signals", "code"), [(1, 0), (2, 130)])
def test_a_stop_while_the_model_loads_ends_at_once_and_cleanly(signals: int, code: int) -> None:
    with serve(*SMALL) as server:
        health = httpx.get(f"{_url(server)}/health", timeout=WAIT_S)
        assert (health.status_code, health.json()["phase"]) == (503, "importing torch and transformers")
        for _ in range(signals):
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        assert server.ended() == code
        assert [line.strip() for line in server.lines[1:]] == ["stopped while the model was loading"]


def test_a_second_signal_does_not_wait() -> None:
    with serve(*SMALL) as server:
        url = _url(server)
        server.said("ready after")
        results: list[int] = []
        asking = _ask(url, results, max_tokens=1000)
        stream = {"model": "smollm2", "prompt": "There was", "max_tokens": 1000, "stream": True}
        streaming = threading.Thread(target=_read_stream, args=(url, stream))
        streaming.start()
        _until_open(url)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert server.ended() == 130
        asking.join(WAIT_S)
        streaming.join(WAIT_S)
        assert results == [503]
        assert not [line for line in server.lines if "Traceback" in line], "".join(server.lines)


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (["--kv-vram", "lots"], "'--kv-vram': 'lots' is not a size", 2),
        (["--device", "tpu"], "'tpu' is none of auto, cpu, cuda", 2),
        (["--policy", "hope"], "hope", 2),
        (["--block-tokens", "20"], "'20' is not one of '16', '32', '64', '128'", 2),
        (["--api-key-file", "/nowhere"], "does not exist", 2),
    ],
)
def test_wrong_options_are_refused(options: list[str], words: str, code: int) -> None:
    done = CliRunner().invoke(cli, ["serve", *options])
    assert (done.exit_code, words in done.output) == (code, True)


@pytest.mark.parametrize(("options", "size"), [([], None), (["--block-tokens", "64"], 64)])
def test_the_size_of_blocks_is_what_was_asked_for(options: list[str], size: int | None) -> None:
    from kvtrace.tui.commands.serve import _settings, command

    context = command.make_context("serve", ["smollm2", *options])
    assert _settings("smollm2", context.params).block_tokens == size


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "step_tokens is 4 but slots is 8: raise step_tokens to at least 8",
            "--step-tokens is 4 but --slots is 8: raise --step-tokens to at least 8",
        ),
        ("context_tokens is 9; give at least 10", "--context is 9; give at least 10"),
        ("all 8 slots are taken", "all 8 slots are taken"),
    ],
)
def test_settings_of_the_engine_are_called_as_their_options(said: str, shown: str) -> None:
    from kvtrace.tui.commands.serve import _in_options

    assert _in_options(said) == shown


def test_an_empty_key_opens_no_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    key.write_text("\n")
    done = CliRunner().invoke(cli, ["serve", "--api-key-file", str(key)])
    assert "is empty" in str(done.exception)
    monkeypatch.setenv("KVTRACE_API_KEY", " ")
    assert "KVTRACE_API_KEY is empty" in str(CliRunner().invoke(cli, ["serve"]).exception)


def test_a_forecast_that_is_none_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    forecast = tmp_path / "forecast.json"
    for text in ("{", '{"tools": 7}'):
        forecast.write_text(text)
        done = CliRunner().invoke(cli, ["serve", "--forecast", str(forecast)])
        assert done.exit_code == 2
        assert "kvtrace report --forecast FILE" in done.output


@pytest.mark.parametrize("name", ["key", "my key", "it's"])
def test_the_printed_curl_takes_the_key_from_where_the_server_has_it(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("from-the-file\n")
    for source, told in ((file, "from-the-file"), (None, "from-the-environment")):
        done = subprocess.run(
            ["sh", "-c", f"printf '%s|'{_key_header(source)}"],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"KVTRACE_API_KEY": "from-the-environment"},
        )
        assert done.stdout == f"-H|Authorization: Bearer {told}|"


def test_an_occupied_port_is_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = CliRunner().invoke(cli, ["serve", "--port", str(port)])
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in str(done.exception)
