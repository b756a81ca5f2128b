"""Prompts with tools: by templates that know them, and by us where a template does not."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvtrace.engine.errors import ModelError, NotInstalled
from kvtrace.engine.model import LoadedModel
from kvtrace.engine.server.grammar import FieldRefused
from kvtrace.engine.server.tools import ChatPart, PreparedChat, prepare_chat
from kvtrace.engine.server.tools.hermes import HermesParser
from kvtrace.engine.server.tools.llama import LlamaParser
from kvtrace.engine.server.tools.reasoning import ReasoningParser
from kvtrace.engine.server.tools.template import Style, abilities_of

from ...conftest import tiny_tokenizer

OPENING = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
HERMES = (
    "{% if tools %}<|im_start|>tools {% for tool in tools %}{{ tool | tojson }}{% endfor %} as <tool_call>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}" + OPENING
)
LLAMA = (
    HERMES.replace("<tool_call>\n", "<|python_tag|>").replace("\n</tool_call>", "").replace('arguments"', 'parameters"')
)
FORGETS_CALLS = HERMES.replace("message.tool_calls or []", "[]")
OTHER_STYLE = HERMES.replace("as <tool_call>", "as <tool_call><function=name>")
NO_SYSTEM = (
    "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}" + OPENING
)
THINKS = HERMES.replace(
    OPENING, OPENING.replace("{% endif %}", "{% if enable_thinking is not false %}<think>\n{% endif %}{% endif %}")
)

GREP: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "grep",
        "description": "Search",
        "parameters": {"type": "object", "properties": {"pattern": {"type": "string"}}, "required": ["pattern"]},
    },
}
STRICT: dict[str, Any] = {"type": "function", "function": GREP["function"] | {"strict": True}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "grep", "arguments": '{"pattern":  "x"}'}}
HISTORY: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Find "}, {"type": "text", "text": "x"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL | {"id": "call_2"}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "a.py"},
    {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "b.py"}]},
]


def with_template(template: str) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture
def prepare(tiny_model: Callable[[str], LoadedModel]) -> Callable[..., tuple[str, PreparedChat]]:
    """``prepare(template, messages, …)``: the prompt as text, and everything else."""

    def run(template: str, messages: list[dict[str, Any]], **rest: Any) -> tuple[str, PreparedChat]:
        model = replace(tiny_model("llama"), tokenizer=with_template(template))
        prepared = prepare_chat(model, ChatPart(messages, **rest))
        return model.tokenizer.decode(prepared.tokens), prepared

    return run


@pytest.mark.parametrize(
    ("template", "style", "tools", "system", "reasoning"),
    [
        (HERMES, Style.HERMES, True, True, False),
        (LLAMA, Style.LLAMA, True, True, False),
        (FORGETS_CALLS, Style.HERMES, False, True, False),
        (OTHER_STYLE, Style.HERMES, False, True, False),
        (NO_SYSTEM, Style.HERMES, False, False, False),
        (THINKS, Style.HERMES, True, True, True),
    ],
)
def test_what_a_template_does_is_found_out(
    template: str, style: Style, tools: bool, system: bool, reasoning: bool
) -> None:
    found = abilities_of(with_template(template))
    assert (found.style, found.tools, found.system, found.reasoning) == (style, tools, system, reasoning)


def test_the_embedded_models_template_ignores_tools(smollm2: LoadedModel) -> None:
    """Rendering with tools and without gives the same text there: a model would never know of them."""
    render = smollm2.tokenizer.apply_chat_template
    messages = [{"role": "user", "content": "-"}]
    assert render(messages, tokenize=False) == render(messages, tools=[GREP], tokenize=False)
    assert not abilities_of(smollm2.tokenizer).tools


Prepare = Callable[..., tuple[str, PreparedChat]]


def test_a_template_that_knows_tools_is_used(prepare: Prepare) -> None:
    text, prepared = prepare(HERMES, HISTORY, tools=[GREP])
    assert text.startswith(f"<|im_start|>tools {json.dumps(GREP)} as <tool_call>\n<|im_start|>system\nBe brief.")
    # Arguments reach it as an object, or it would quote them twice; content that is None as no text.
    assert 'assistant\n<tool_call>\n{"name": "grep", "arguments": {"pattern": "x"}}\n</tool_call>' in text
    assert "<|im_start|>tool\nb.py<|im_end|>" in text
    assert "You can call functions" not in text
    assert isinstance(prepared.new_parser(), HermesParser)


def test_where_a_template_knows_none_we_write_them(prepare: Prepare) -> None:
    text, prepared = prepare(NO_SYSTEM.replace("{{ raise_exception('no system role') }}", ""), HISTORY, tools=[GREP])
    system, user, assistant, results, opening = text.split("<|im_start|>")[1:]
    assert system.startswith("system\nBe brief.\n\n")
    assert json.dumps(GREP) in system
    assert user == "user\nFind x<|im_end|>\n"
    call = '<tool_call>\n{"name": "grep", "arguments": {"pattern":  "x"}}\n</tool_call>'
    assert assistant == f"assistant\n{call}\n{call}<|im_end|>\n", "the arguments stay as the model wrote them"
    responses = "<tool_response>\na.py\n</tool_response>\n<tool_response>\nb.py\n</tool_response>"
    assert results == f"user\n{responses}<|im_end|>\n"
    assert opening == "assistant\n"
    assert isinstance(prepared.new_parser(), HermesParser)


def test_a_template_without_a_place_for_the_system_gets_it_with_the_user(prepare: Prepare) -> None:
    text, _ = prepare(NO_SYSTEM, HISTORY, tools=[GREP])
    assert text.startswith("<|im_start|>user\nBe brief.\n\nYou can call functions")
    assert "\n\nFind x<|im_end|>" in text


def test_a_system_message_alone_still_reaches_the_model(prepare: Prepare) -> None:
    text, _ = prepare(NO_SYSTEM, [{"role": "system", "content": "Hello"}])
    assert "user\nHello<|im_end|>" in text


def test_our_own_rendering_continues_what_the_model_wrote(smollm2: LoadedModel) -> None:
    """A call under a grammar, sent back by the client, becomes the same tokens: its KV is used again."""
    first = prepare_chat(smollm2, ChatPart([{"role": "user", "content": "Find x"}], tools=[GREP]))
    written = '<tool_call>\n{"name": "grep", "arguments": {"pattern": "x"}}\n</tool_call>'
    parser = first.new_parser()
    parser.feed(written)
    (call_id,) = parser.calls
    call = {"id": call_id, "type": "function", "function": {"name": "grep", "arguments": '{"pattern": "x"}'}}
    second = prepare_chat(
        smollm2,
        ChatPart(
            [
                {"role": "user", "content": "Find x"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call_id, "content": "a.py"},
            ],
            tools=[GREP],
        ),
    )
    before = [*first.tokens, *smollm2.tokenizer.encode(written, add_special_tokens=False)]
    assert second.tokens[: len(before)] == before


@pytest.mark.parametrize("choice", ["none", "auto", {"type": "function", "function": {"name": "grep"}}])
def test_the_prompt_does_not_depend_on_tool_choice(prepare: Prepare, choice: Any) -> None:
    assert prepare(HERMES, HISTORY, tools=[GREP], tool_choice=choice)[0] == prepare(HERMES, HISTORY, tools=[GREP])[0]


def test_tools_that_must_not_be_called_are_not_looked_for(prepare: Prepare) -> None:
    _, prepared = prepare(HERMES, HISTORY, tools=[GREP], tool_choice="none")
    parser = prepared.new_parser()
    parser.feed('<tool_call>{"name": "grep", "arguments": {}}</tool_call>')
    assert parser.calls == {}


@pytest.mark.parametrize(
    ("request_fields", "constrained"),
    [
        ({}, False),
        ({"tools": [GREP]}, False),
        ({"tools": [STRICT]}, True),
        ({"tools": [STRICT], "tool_choice": "none"}, True),
        ({"tools": [GREP], "tool_choice": "required"}, True),
        ({"tools": [GREP], "tool_choice": {"type": "function", "function": {"name": "grep"}}}, True),
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": {"type": "json_object"}}, True),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}},
            True,
        ),
    ],
)
def test_when_a_grammar_holds_the_output(prepare: Prepare, request_fields: dict[str, Any], constrained: bool) -> None:
    pytest.importorskip("llguidance")
    _, prepared = prepare(HERMES, HISTORY, **request_fields)
    first, second = prepared.new_grammar(), prepared.new_grammar()
    assert (first is not None) == constrained
    assert first is None or first is not second, "each choice has its own"


def test_a_tool_that_is_not_strict_may_have_a_schema_that_no_grammar_follows(prepare: Prepare) -> None:
    pytest.importorskip("llguidance")
    odd = {"type": "object", "properties": {"a": {"$ref": "https://example.org/a.json"}}}
    loose = {"type": "function", "function": {"name": "odd", "parameters": odd}}
    strict = {"type": "function", "function": {"name": "odd", "parameters": odd, "strict": True}}
    assert prepare(HERMES, HISTORY, tools=[loose], tool_choice="required")[1].new_grammar() is not None
    assert prepare(HERMES, HISTORY, tools=[loose, STRICT])[1].new_grammar() is not None
    with pytest.raises(FieldRefused, match=r"tools\[0\].function.parameters: .* points outside"):
        prepare(HERMES, HISTORY, tools=[strict])


def test_each_style_has_its_parser(prepare: Prepare) -> None:
    assert isinstance(prepare(LLAMA, HISTORY, tools=[GREP])[1].new_parser(), LlamaParser)
    text, prepared = prepare(THINKS, HISTORY)
    assert text.endswith("<think>\n")
    parser = prepared.new_parser()
    assert isinstance(parser, ReasoningParser)
    deltas = [*parser.feed("Hm.</think>Yes."), *parser.finish()]
    assert [type(delta).__name__ for delta in deltas] == ["ReasoningDelta", "ContentDelta"]


def test_template_options_and_the_effort_of_reasoning_reach_the_template(prepare: Prepare) -> None:
    assert not prepare(THINKS, HISTORY, reasoning_effort="none")[0].endswith("<think>\n")
    assert not prepare(THINKS, HISTORY, chat_template_kwargs={"enable_thinking": False})[0].endswith("<think>\n")
    assert prepare(THINKS, HISTORY, reasoning_effort="high")[0].endswith("<think>\n")


@pytest.mark.parametrize("calls", [1, None])
def test_one_call_is_enough_where_calls_may_not_be_parallel(prepare: Prepare, calls: int | None) -> None:
    _, prepared = prepare(HERMES, HISTORY, tools=[GREP], parallel_tool_calls=calls is None)
    parser = prepared.new_parser()
    parser.feed('<tool_call>{"name": "grep", "arguments": {}}</tool_call>')
    assert parser.done == (calls == 1)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function.name"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]}, "tools[0].function.parameters"),
    ({"tools": [GREP, GREP]}, "tools"),
    ({"tools": [GREP], "tool_choice": "maybe"}, "tool_choice"),
    ({"tools": [GREP], "tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[param for _, param in WRONG])
def test_what_is_wrong_is_refused_by_field(prepare: Prepare, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldRefused) as refusal:
        prepare(HERMES, **({"messages": HISTORY} | fields))
    assert refusal.value.param == param


def test_a_template_that_fails_is_an_error_that_says_so(prepare: Prepare) -> None:
    with pytest.raises(ModelError, match="refuses messages of the roles user: no"):
        prepare("{{ raise_exception('no') }}", [{"role": "user", "content": "-"}])
    with pytest.raises(ModelError, match="/v1/completions"):
        prepare("", [{"role": "user", "content": "-"}])


def test_without_the_extra_the_error_names_it(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setitem(sys.modules, "llguidance.hf", None)
    with pytest.raises(NotInstalled, match=r"pip install 'kvtrace\[grammar\]'"):
        prepare(HERMES, HISTORY, tools=[GREP], tool_choice="required")
    prepare(HERMES, HISTORY, tools=[GREP])
