from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtrace.engine.server.schemas import ChatResponse, CompletionResponse

from .support import Running, events, text_body

PROMPT = list(range(5, 25))


def _stream(server: Running, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with server.http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(events(response.iter_lines()))


def _text(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["text"] for choice in choices if choice["index"] == index)


@pytest.fixture
def free(tiny_server: Running) -> str:
    """What the model says to PROMPT in 24 tokens."""
    text: str = tiny_server.complete(PROMPT, max_tokens=24).json()["choices"][0]["text"]
    return text


def test_greedy_tokens_are_those_of_transformers(tiny_server: Running, own_model: Callable[[str], Any]) -> None:
    ids = torch.tensor([PROMPT])
    expected = own_model("llama").generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, eos_token_id=None
    )
    answer = tiny_server.complete(PROMPT, max_tokens=20, return_token_ids=True).json()
    CompletionResponse.model_validate(answer)
    assert answer["choices"][0]["token_ids"] == expected[0, 20:].tolist()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["completion_tokens"] == 20
    chunks = _stream(
        tiny_server, "/v1/completions", text_body(tiny_server.model, PROMPT, max_tokens=20, return_token_ids=True)
    )
    assert _text(chunks) == answer["choices"][0]["text"]
    assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == expected[0, 20:].tolist()
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"


def test_prompts_may_be_texts_or_ids_or_several_of_either(tiny_server: Running) -> None:
    tokenizer = tiny_server.service.model.tokenizer
    one = tiny_server.complete("abc cd").json()["choices"]
    ids = tokenizer.encode("abc cd")
    assert tiny_server.complete(ids).json()["choices"] == one
    several = tiny_server.complete(["abc cd", "zz"], n=2).json()
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]
    assert several["choices"][0]["text"] == several["choices"][1]["text"] == one[0]["text"]
    assert several["usage"]["prompt_tokens"] == len(ids) + len(tokenizer.encode("zz"))
    assert several["usage"]["completion_tokens"] == 4 * 8
    by_ids = tiny_server.complete([ids, tokenizer.encode("zz")]).json()["choices"]
    assert [choice["text"] for choice in by_ids] == [several["choices"][at]["text"] for at in (0, 2)]


def test_chat_renders_the_template_and_streams_the_same(tiny_server: Running) -> None:
    answer = tiny_server.chat("hello", ignore_eos=True).json()
    ChatResponse.model_validate(answer)
    body = {"model": tiny_server.model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    options = {"temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}
    chunks = _stream(tiny_server, "/v1/chat/completions", {**body, **options})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    assert said == answer["choices"][0]["message"]["content"]
    assert chunks[-2]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    tokens = tiny_server.service.model.tokenizer.apply_chat_template(
        body["messages"], add_generation_prompt=True, tokenize=False
    )
    assert tiny_server.complete(tokens).json()["choices"][0]["text"] == said


def test_what_was_computed_before_is_not_computed_again(tiny_server: Running) -> None:
    prompt = [7, 9] * 40
    first = tiny_server.complete(prompt, user="cached").json()["usage"]
    again = tiny_server.complete([*prompt, 11, 12], user="cached").json()["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["prompt_tokens_details"]["cached_tokens"] >= 80 - 1
    assert again["kvtrace"]["agent"] == "cached"
    assert again["kvtrace"]["cached_device_tokens"] + again["kvtrace"]["cached_host_tokens"] >= 80 - 1
    assert again["kvtrace"]["queued_s"] >= 0
    salted = tiny_server.complete([*prompt, 11, 12], cache_salt="mine", user="other").json()["usage"]
    assert salted["prompt_tokens_details"]["cached_tokens"] == 0


def test_seeds_repeat_and_choices_differ(tiny_server: Running) -> None:
    hot = {"temperature": 1.5, "n": 3, "max_tokens": 12}
    first, again, other = (
        [choice["text"] for choice in tiny_server.complete(PROMPT, seed=seed, **hot).json()["choices"]]
        for seed in (5, 5, 900)
    )
    assert first == again != other
    assert len(set(first)) == 3
    unseeded = {tiny_server.complete(PROMPT, **(hot | {"n": 1})).json()["choices"][0]["text"] for _ in range(3)}
    assert len(unseeded) > 1


@given(start=st.integers(0, 20), length=st.integers(1, 6), decoy=st.text("xyz", max_size=3))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_ends_before_a_stop_string(tiny_server: Running, free: str, start: int, length: int, decoy: str) -> None:
    stop = free[start % len(free) :][:length]
    expected = free[: free.find(stop)]
    for stream in (False, True):
        body = text_body(tiny_server.model, PROMPT, max_tokens=24, stop=[stop, *([decoy] if decoy else [])])
        if stream:
            chunks = _stream(tiny_server, "/v1/completions", body)
            said, reason = _text(chunks), chunks[-1]["choices"][0]["finish_reason"]
        else:
            choice = tiny_server.http.post("/v1/completions", json=body).json()["choices"][0]
            said, reason = choice["text"], choice["finish_reason"]
        if not decoy or decoy not in free[: len(expected) + len(stop)]:
            assert (said, reason) == (expected, "stop")


def test_log_probabilities_are_the_models_own(tiny_server: Running, own_model: Callable[[str], Any]) -> None:
    answer = tiny_server.complete(PROMPT, max_tokens=3, logprobs=4, return_token_ids=True).json()["choices"][0]
    ids = [*PROMPT, *answer["token_ids"]]
    with torch.inference_mode():
        logits = own_model("llama")(torch.tensor([ids])).logits[0, len(PROMPT) - 1 : -1].float().log_softmax(-1)
    found = answer["logprobs"]
    assert found["token_logprobs"] == pytest.approx(
        [float(row[i]) for row, i in zip(logits, answer["token_ids"], strict=True)], abs=1e-4
    )
    assert [len(top) for top in found["top_logprobs"]] == [4, 4, 4] or any(
        "\N{REPLACEMENT CHARACTER}" in top for top in found["top_logprobs"]
    )
    assert found["text_offset"][0] == 0
    chat = tiny_server.chat("hello", logprobs=True, top_logprobs=2, max_tokens=3, ignore_eos=True).json()["choices"][0]
    content = chat["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2, 2]
    # Greedy: the likeliest token is the one that was taken.
    assert all(entry["token"] == entry["top_logprobs"][0]["token"] for entry in content)


def test_a_biased_token_is_all_the_model_says(tiny_server: Running) -> None:
    answer = tiny_server.complete(PROMPT, logit_bias={"40": 100}, return_token_ids=True).json()["choices"][0]
    assert answer["token_ids"] == [40] * 8


def test_ends_that_the_model_chooses_are_stops_unless_ignored(tiny_server: Running) -> None:
    (end,) = tiny_server.service.model.stop_ids
    bias = {str(end): 100}
    stopped = tiny_server.complete(PROMPT, logit_bias=bias, ignore_eos=False, return_token_ids=True).json()["choices"][
        0
    ]
    assert (stopped["token_ids"], stopped["finish_reason"]) == ([], "stop")
    ignored = tiny_server.complete(PROMPT, logit_bias=bias, return_token_ids=True).json()["choices"][0]
    assert (ignored["token_ids"], ignored["finish_reason"]) == ([end] * 8, "length")


def test_token_ids_of_the_request_are_stops(tiny_server: Running) -> None:
    free = tiny_server.complete(PROMPT, max_tokens=24, return_token_ids=True).json()["choices"][0]["token_ids"]
    response = tiny_server.complete(
        PROMPT, max_tokens=24, stop_token_ids=[free[7]], ignore_eos=False, return_token_ids=True
    )
    answer = response.json()
    assert answer["choices"][0]["token_ids"] == free[: free.index(free[7])]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert response.headers["x-request-id"] == answer["id"]


def test_records_tell_what_became_of_requests(tiny_server: Running) -> None:
    before = len(tiny_server.records)
    tiny_server.complete(PROMPT, user="recorded", max_tokens=3)
    tiny_server.chat("x" * 500, user="recorded")
    good, refused = tiny_server.records[before:]
    assert (good.agent, good.endpoint, good.outcome, good.usage.output_tokens) == (
        "recorded",
        "completions",
        "length",
        3,
    )
    assert (
        good.arrived_unix_ns <= (good.first_token_unix_ns or 0) <= (good.last_token_unix_ns or 0) <= good.ended_unix_ns
    )
    assert (refused.endpoint, refused.outcome) == ("chat", "refused")
    assert "the context holds 256" in (refused.error or "")
