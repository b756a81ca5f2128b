"""Signals to an engine behind TLS, over a real certificate."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvtrace.tracer.engine_address import EngineAddress
from kvtrace.tracer.engine_link import EngineLink
from kvtrace.tracer.receive_server import SignalServer
from kvtrace.tracer.signals import Signal, ToolEnded, ToolStarted

START = ToolStarted(f"{1:032x}", f"{1:016x}", 100, "tool", agent="a")
END = ToolEnded(f"{1:032x}", f"{1:016x}", 200, "tool", agent="a")


@contextmanager
def linked(url: str) -> Iterator[EngineLink]:
    link = EngineLink(EngineAddress.parse(url), "test")
    try:
        yield link
    finally:
        link.close(0.2)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody signed, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    paths = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-out", str(paths[0]), "-keyout", str(paths[1])], check=True, capture_output=True)
    return paths


@contextmanager
def secure_server(certificate: tuple[Path, Path], arrived: list[Signal]) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server = SignalServer(arrived.append)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    with server:
        yield f"https://127.0.0.1:{server.server_port}"


def test_engine_behind_https_is_signalled(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    arrived: list[Signal] = []
    with secure_server(certificate, arrived) as url, linked(url) as link:
        link(START)
        assert link.flush(5)
        link(END)
        assert link.flush(5)
    assert [type(signal) for signal in arrived] == [ToolStarted, ToolEnded]


def test_engine_with_a_certificate_that_nobody_vouches_for_gets_nothing(
    certificate: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    arrived: list[Signal] = []
    with secure_server(certificate, arrived) as url, linked(url) as link:
        link(START)
        assert not link.flush(5)
    assert arrived == []
    assert "does not take signals" in caplog.text
    assert "certificate" in caplog.text.lower()
