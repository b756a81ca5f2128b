from __future__ import annotations

from collections.abc import Callable
from copy import copy

import pytest

from kvtrace.engine.errors import ModelError
from kvtrace.engine.model import LoadedModel, continue_chat, encode_chat

QUESTION = {"role": "user", "content": "Look at the file."}
RESULT = {"role": "tool", "content": "total 4\n-rw-r--r-- 1 me"}


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("message", [RESULT, {"role": "user", "content": "And now?"}])
def test_continuing_equals_rendering_the_whole_conversation(
    smollm2: LoadedModel, message: dict[str, str], ended: bool
) -> None:
    tokenizer = smollm2.tokenizer
    prompt = encode_chat(tokenizer, [QUESTION])
    answer = tokenizer.encode("I will read it.", add_special_tokens=False)
    tokens = [*prompt, *answer, *([tokenizer.convert_tokens_to_ids("<|im_end|>")] if ended else [])]
    continued = continue_chat(tokenizer, tokens, message)
    assert continued == encode_chat(tokenizer, [QUESTION, {"role": "assistant", "content": "I will read it."}, message])


def test_continuing_keeps_the_tokens_as_they_are(tiny_model: Callable[[str], LoadedModel]) -> None:
    """Also ids that no text would be encoded to."""
    tokenizer = tiny_model("llama").tokenizer
    tokens = [*encode_chat(tokenizer, [QUESTION]), 2, 2, 200, 0]
    for turn in range(3):
        longer = continue_chat(tokenizer, tokens, {"role": "tool", "content": str(turn)})
        assert longer[: len(tokens)] == tokens
        assert tokenizer.decode(longer[len(tokens) :]) == (
            f"<|im_end|>\n<|im_start|>tool\n{turn}<|im_end|>\n<|im_start|>assistant\n"
        )
        tokens = longer


def test_the_prompt_opens_the_assistant_s_turn(smollm2: LoadedModel) -> None:
    text = smollm2.tokenizer.decode(encode_chat(smollm2.tokenizer, [QUESTION]))
    assert text.endswith("<|im_start|>user\nLook at the file.<|im_end|>\n<|im_start|>assistant\n")


def test_a_tokenizer_without_template_is_refused(tiny_model: Callable[[str], LoadedModel]) -> None:
    tokenizer = copy(tiny_model("llama").tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(ModelError, match="no chat template"):
        encode_chat(tokenizer, [QUESTION])
    with pytest.raises(ModelError, match="no chat template"):
        continue_chat(tokenizer, [1], RESULT)


def test_a_template_that_refuses_a_role_is_named(tiny_model: Callable[[str], LoadedModel]) -> None:
    tokenizer = copy(tiny_model("llama").tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    with pytest.raises(ModelError, match="roles user, assistant, tool: no tools here"):
        continue_chat(tokenizer, [5], RESULT)


def test_a_template_that_drops_answers_is_refused(tiny_model: Callable[[str], LoadedModel]) -> None:
    tokenizer = copy(tiny_model("llama").tokenizer)
    tokenizer.chat_template = "{{ messages[-1].content }}"
    with pytest.raises(ModelError, match="drops or alters"):
        continue_chat(tokenizer, [5], RESULT)
