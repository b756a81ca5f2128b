from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from .conftest import tiny_settings
from .support import Running, running

KEY = "correct horse"
PAGE = "http://localhost:3000"
PATHS = ["/v1/models", "/v1/kv/state", "/metrics", "/openapi.json", "/nothing"]


@pytest.fixture(scope="module")
def locked(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    settings = replace(
        tiny_settings(tiny_folder("llama")), api_key=KEY, allowed_origins=(PAGE,), allowed_hosts=("box.lan",)
    )
    with running(settings, headers={"Authorization": f"Bearer {KEY}"}) as server:
        yield server


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer", f"Basic {KEY}", KEY, "Bearer schlüssel".encode()])
def test_without_the_key_nothing_is_answered(locked: Running, given: str | bytes | None) -> None:
    headers = {} if given is None else {"Authorization": given}
    with httpx.Client(base_url=locked.url, headers=headers) as http:  # type: ignore[arg-type]
        for path in PATHS:
            response = http.get(path)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        assert http.post("/v1/traces", content=b"").status_code == 401
        assert http.get("/health").status_code == 200


def test_with_the_key_requests_are_answered(locked: Running) -> None:
    assert locked.http.get("/v1/models").status_code == 200
    assert locked.http.get("/v1/models", headers={"Authorization": f"bearer {KEY}"}).status_code == 200
    assert locked.complete([5, 6]).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8177", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_names_that_were_pointed_here_are_refused(locked: Running, host: str) -> None:
    response = locked.http.get("/v1/models", headers={"Host": host})
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:99", "127.0.0.1:8177", "[::1]:8177", "10.0.0.7", "box.lan", "a.localhost"]
)
def test_addresses_loopback_and_allowed_names_are_taken(locked: Running, host: str) -> None:
    assert locked.http.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3001"},
        {"Origin": "file://"},
        {"Origin": "http://[bad"},
        {"Origin": "null", "Host": ""},
        {"Origin": "", "Host": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_web_pages_are_refused(locked: Running, headers: dict[str, str]) -> None:
    for response in (
        locked.http.get("/v1/models", headers=headers),
        locked.http.post("/v1/completions", headers=headers | {"Content-Type": "text/plain"}, content=b"{}"),
        locked.http.options("/v1/completions", headers=headers),
    ):
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers


def test_an_allowed_page_may_ask(locked: Running) -> None:
    preflight = httpx.options(
        f"{locked.url}/v1/chat/completions", headers={"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    )
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert locked.http.get("/v1/models", headers={"Origin": PAGE}).headers["access-control-allow-origin"] == PAGE
    # Allowed is the page, not its visitors: the key is still needed.
    assert httpx.get(f"{locked.url}/v1/models", headers={"Origin": PAGE}).status_code == 401


def test_the_servers_own_pages_may_ask(locked: Running) -> None:
    assert locked.http.get("/openapi.json", headers={"Origin": locked.url}).status_code == 200


def test_a_key_may_end_in_any_character(tiny_folder: Callable[[str], Path]) -> None:
    key = "voil\u00e0"  # whose last byte is a white space of Latin-1
    with running(replace(tiny_settings(tiny_folder("llama")), api_key=key)) as server:
        response = server.http.get("/v1/models", headers={b"Authorization": f"Bearer {key}".encode()})
    assert response.status_code == 200
