"""The ``openai`` package against a server with the embedded model."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
import torch

from kvtrace.engine.model import LoadedModel

from .support import Running

MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def client(smollm2_server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{smollm2_server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def expected(smollm2_server: Running) -> str:
    """What transformers itself says, greedy."""
    from transformers import AutoModelForCausalLM

    from kvtrace.engine.model.cache import converted
    from kvtrace.engine.model.embedded import embedded_gguf

    served: LoadedModel = smollm2_server.service.model
    folder = converted(embedded_gguf(), torch.float32, lambda _: None)
    own = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    text = served.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([served.tokenizer.encode(text, add_special_tokens=False)])
    with torch.inference_mode():
        out = own.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
    return str(served.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def test_the_client_gets_the_text_of_transformers(
    client: openai.OpenAI, smollm2_server: Running, expected: str
) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=MESSAGES, max_tokens=16, temperature=0)
    assert answer.choices[0].message.content == expected
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 16
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens is not None
    assert answer.model == smollm2_server.model


def test_the_client_streams_the_same_text(client: openai.OpenAI, expected: str) -> None:
    chunks = list(
        client.chat.completions.create(
            model="smollm2",
            messages=MESSAGES,
            max_tokens=16,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens <= 16


def test_async_clients_ask_side_by_side(smollm2_server: Running, expected: str) -> None:
    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{smollm2_server.url}/v1", api_key="none") as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model="smollm2", messages=MESSAGES, max_tokens=16, temperature=0, user=f"agent-{number}"
                    )
                    for number in range(4)
                )
            )
            return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(ask()) == [expected] * 4


def test_the_client_completes_text_and_lists_models(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="smollm2", prompt="One, two, three,", max_tokens=4, temperature=0)
    assert "four" in answer.choices[0].text
    assert [model.id for model in client.models.list()] == ["SmolLM2-135M-Instruct"]
    assert client.models.retrieve("smollm2").id == "smollm2"


def test_the_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="served here"):
        client.chat.completions.create(model="gpt-7", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="1024") as caught:
        client.completions.create(model="smollm2", prompt="word " * 3000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match="generate text"):
        client.embeddings.create(model="smollm2", input="x")
