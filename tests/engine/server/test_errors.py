from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from .support import Running, chat_body, text_body


def _error(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in response.text
    return error


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(tiny_server: Running) -> None:
    error = _error(tiny_server.complete([9] * 300), 400)
    assert "prompt is too long" in error["message"]  # the words by which litellm knows
    assert "300 tokens" in error["message"]
    assert "256" in error["message"]
    assert error["code"] == "context_length_exceeded"
    error = _error(tiny_server.complete([9] * 200, max_tokens=100), 400)
    assert "200 prompt tokens and max_tokens 100 make 300, the context is 256" in error["message"]
    assert "the prompt is too long by 44" in error["message"]
    few = _error(tiny_server.complete([9] * 20, max_tokens=1000), 400)
    assert few["message"].endswith(": lower max_tokens")
    # A stream is refused with the same status, before it begins.
    _error(tiny_server.complete([9] * 200, max_tokens=100, stream=True), 400)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -7}, None),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, None),
        ({"logprobs": 21}, "logprobs"),
        ({"stop": ["a"] * 20}, "stop"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 4}, "best_of"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [True, False]}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": [5, 99999]}, None),
        ({"prompt": [5, -1]}, None),
        ({"prompt": [[5], [9] * 300]}, None),
        ({"prompt": [[5]] * 50, "n": 3}, "n"),
        ({"prompt": [[5]] * 129}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
    ],
)
def test_completions_that_cannot_be_are_refused(
    tiny_server: Running, fields: dict[str, Any], param: str | None
) -> None:
    error = _error(tiny_server.http.post("/v1/completions", json=text_body(tiny_server.model, [5, 6]) | fields), 400)
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"functions": [{}]}, "send tools"),
        ({"modalities": ["text", "audio"]}, "only text"),
        ({"top_logprobs": 3}, "needs logprobs"),
    ],
)
def test_chats_that_cannot_be_are_refused(tiny_server: Running, fields: dict[str, Any], words: str) -> None:
    body = chat_body(tiny_server.model, "hello") | fields
    assert words in _error(tiny_server.http.post("/v1/chat/completions", json=body), 400)["message"]


def test_bodies_that_are_no_json_are_refused(tiny_server: Running) -> None:
    for content, content_type in ((b"{", "application/json"), (b"[1]", "application/json"), (b"a=b", "text/plain")):
        response = tiny_server.http.post("/v1/completions", content=content, headers={"Content-Type": content_type})
        assert "JSON object" in _error(response, 400)["message"] or "valid" in response.text
    _error(tiny_server.http.post("/v1/embeddings", content=b" " * (33 << 20)), 413)
    unsaid = tiny_server.http.post("/v1/completions", content=iter([b" " * (1 << 20)] * 33))
    assert "cannot fit" in _error(unsaid, 400)["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_a_compressed_body_is_told_to_come_plain(tiny_server: Running, path: str) -> None:
    body, headers = gzip.compress(b"{}"), {"Content-Encoding": "gzip"}
    error = _error(tiny_server.http.post(path, content=body, headers=headers), 415)
    assert "'gzip'" in error["message"]
    assert "plain JSON" in error["message"]
    plain = json.dumps(text_body(tiny_server.model, "hello")).encode()
    assert tiny_server.http.post("/v1/completions", content=plain, headers={"Content-Encoding": "identity"}).is_success


def test_a_body_that_could_not_fit_however_it_is_written_is_not_even_parsed(tiny_server: Running) -> None:
    no_json = b" " * ((2 << 20) + 64 * 256)
    for path in ("/v1/chat/completions", "/v1/responses"):
        _error(tiny_server.http.post(path, content=no_json, headers={"Content-Type": "application/json"}), 400)
        for body in (no_json + b" ", iter([no_json, b" "])):
            response = tiny_server.http.post(path, content=body, headers={"Content-Type": "application/json"})
            error = _error(response, 400)
            assert "cannot fit into the context: the prompt is too long" in error["message"]
            assert error["code"] == "context_length_exceeded"
    # A hundred prompts may each be as long as the context.
    many = tiny_server.http.post(
        "/v1/completions", content=no_json + b" ", headers={"Content-Type": "application/json"}
    )
    assert "no JSON" in _error(many, 400)["message"]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [([], "at least 1 item"), ([[]], "at least 1 item"), ([1.5], "valid integer"), ({}, "valid string")],
)
def test_what_is_wrong_within_the_kind_that_was_sent_is_told(tiny_server: Running, prompt: Any, words: str) -> None:
    error = _error(tiny_server.complete(prompt), 400)
    assert (error["param"], words in error["message"]) == ("prompt", True), error["message"]


def test_other_models_and_paths_are_not_found(tiny_server: Running) -> None:
    error = _error(tiny_server.chat("hello", model="gpt-7"), 404)
    assert error["code"] == "model_not_found"
    assert tiny_server.model in error["message"]
    assert "base URL is" in _error(tiny_server.http.get("/v1/nothing"), 404)["message"]
    assert "send POST" in _error(tiny_server.http.get("/v1/chat/completions"), 405)["message"]
    _error(tiny_server.http.get("/v1/models/gpt-7"), 404)


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "models"])
def test_a_base_url_without_v1_is_told(tiny_server: Running, path: str) -> None:
    error = _error(tiny_server.http.post(f"/{path}", json={}), 404)
    assert f"there is no /{path} here, but /v1/{path}: the client's base URL ends in /v1" in error["message"]
    assert tiny_server.http.get(f"/v1/{path}").status_code != 404


def test_embeddings_are_refused_clearly(tiny_server: Running) -> None:
    error = _error(tiny_server.http.post("/v1/embeddings", json={"input": "x", "model": tiny_server.model}), 404)
    assert "generate text" in error["message"]


def test_models_name_the_one_that_is_served(tiny_server: Running) -> None:
    (model,) = tiny_server.http.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == (tiny_server.model, 256)
    assert tiny_server.http.get(f"/v1/models/{tiny_server.model}").json() == model


@pytest.mark.parametrize(
    "body",
    [
        rb'{"model": "%s", "messages": [{"role": "user", "content": "\ud800"}]}',
        rb'{"model": "%s", "messages": [{"role": "user", "content": "x", "\udfff": 1}]}',
        rb'{"model": "%s", "messages": [{"role": "user", "content": "x"}], "user": "\ud800"}',
        rb'{"model": "\ud800", "messages": [{"role": "user", "content": "x"}]}',
        rb'{"model": "%s", "messages": [{"role": "user", "content": NaN}]}',
        rb'{"model": "%s", "messages": [{"role": 7, "content": "x"}]}',
        rb'{"model": "%s", "messages": [{"role": ["user"], "content": "x"}]}',
        rb'{"model": "%s", "messages": [{"role": {}, "content": "x"}]}',
        rb'{"model": "%s", "messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"tokenizer": 1}}',
        rb'{"model": "%s", "messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"self": 1}}',
        b'{"model": "%s", "messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 4300 + b"}",
        rb'{"model": "%s", "messages": [{"content": "x"}]}',
        rb'{"model": "%s", "messages": [{"role": "user", "content": "x"}], "seed": 1e400}',
        rb'{"model": "%s", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"model": "%s", "messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"model": "%s", "messages": [{"role": "user", "content": "\xff"}]}',
        rb'{"model": "%s", "messages": [{"role": "user", "content": "x"}], "stop": ["\ud800"]}',
    ],
)
def test_odd_values_are_refused_without_a_fault(tiny_server: Running, body: bytes) -> None:
    content = body.replace(b"%s", tiny_server.model.encode())
    response = tiny_server.http.post(
        "/v1/chat/completions", content=content, headers={"Content-Type": "application/json"}
    )
    _error(response, 400)


def test_any_text_can_be_a_prompt(tiny_server: Running) -> None:
    for prompt in ("\x00", "\U0010ffff", "<|im_end|>", " ", "\N{REPLACEMENT CHARACTER}", "e\u0301"):
        assert tiny_server.complete(prompt, max_tokens=2).status_code == 200
        assert tiny_server.chat(prompt, max_tokens=2).status_code == 200


@pytest.mark.parametrize("role", [["user"], {}, 7, None])
def test_odd_roles_of_responses_are_refused_without_a_fault(tiny_server: Running, role: Any) -> None:
    body = {"model": tiny_server.model, "input": [{"role": role, "content": "x"}] * 2}
    assert "role is" in _error(tiny_server.http.post("/v1/responses", json=body), 400)["message"]


@pytest.mark.parametrize("fields", [{"top_k": 2**63}, {"top_k": 10**30}, {"seed": 2**127}, {"seed": -(2**63)}])
def test_numbers_of_any_size_fail_nobodys_step(tiny_server: Running, fields: dict[str, Any]) -> None:
    response = tiny_server.complete([5, 6], temperature=1.0, n=2, **fields)
    assert response.status_code == 200, response.text


def test_an_error_quotes_no_more_than_the_beginning_of_what_was_sent(tiny_server: Running) -> None:
    for response, words in (
        (tiny_server.chat("hello", model="x" * 100_000), "the model 'xxx"),
        (tiny_server.chat(messages=[{"role": "x" * 100_000, "content": ""}]), "it must be one of"),
        (tiny_server.chat("hello", response_format={"type": "x" * 100_000}), "it must be"),
    ):
        assert words in response.json()["error"]["message"]
        assert len(response.content) < 3000


def test_a_text_that_cannot_fit_is_refused_before_it_is_cut_into_tokens(
    tiny_server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tiny_server.service.model.tokenizer, "encode", lambda *_, **__: pytest.fail("a long text was cut into tokens")
    )
    assert "300 messages" in _error(tiny_server.chat(messages=[{"role": "user", "content": ""}] * 300), 400)["message"]
    text = "a" * 1_000_000
    for response in (
        tiny_server.chat(text),
        tiny_server.complete(text),
        tiny_server.complete(["a", text]),
        tiny_server.http.post("/v1/responses", json={"model": tiny_server.model, "input": text}),
    ):
        error = _error(response, 400)
        assert error["code"] == "context_length_exceeded"
        assert "prompt is too long" in error["message"]
        assert "characters" in error["message"]
