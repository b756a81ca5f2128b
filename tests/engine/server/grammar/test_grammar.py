"""What a grammar lets through is what was asked for, whatever the model would rather say."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtrace.engine.model import LoadedModel
from kvtrace.engine.server.grammar import (
    HERMES_FORM,
    LLAMA_FORM,
    CompiledGrammar,
    FieldRefused,
    GrammarState,
    ThinkForm,
    Wanted,
    checked_schema,
    compile_grammar,
    special_marks,
)
from kvtrace.engine.server.tools.calls import read_calls

from ...conftest import tiny_tokenizer

pytest.importorskip("llguidance")

GREP: dict[str, Any] = {
    "type": "object",
    "properties": {"pattern": {"type": "string", "maxLength": 8}, "count": {"type": "integer", "minimum": 0}},
    "required": ["pattern"],
    "additionalProperties": False,
}
READ: dict[str, Any] = {"type": "object", "properties": {"path": {"enum": ["a.py", "b.py"]}}, "required": ["path"]}
TOOLS: dict[str, dict[str, Any]] = {"grep": GREP, "read": READ | {"additionalProperties": False}}


@pytest.fixture(scope="module")
def model(tiny_model: Callable[[str], LoadedModel]) -> LoadedModel:
    return tiny_model("llama")


def write(model: LoadedModel, state: GrammarState, seed: int, most: int = 400) -> tuple[str, bool]:
    """What a model that babbles writes under ``state``, and whether it came to an end of its own."""
    source = random.Random(seed)
    rows = model.model.get_input_embeddings().num_embeddings
    tokens: list[int] = []
    while len(tokens) < most:
        row = torch.tensor([source.random() for _ in range(rows)])
        state.mask(row)
        assert row.isfinite().any(), "something is always allowed"
        token = int(row.argmax())
        state.accept(token)
        assert state.error is None
        if token in model.stop_ids:
            return model.tokenizer.decode(tokens), True
        tokens.append(token)
    return model.tokenizer.decode(tokens), False


def allows(model: LoadedModel, state: GrammarState, text: str) -> bool:
    """Whether a model may answer exactly ``text``."""
    rows = model.model.get_input_embeddings().num_embeddings
    for token in [*model.tokenizer.encode(text, add_special_tokens=False), model.stop_ids[0]]:
        row = torch.zeros(rows)
        state.mask(row)
        if not row[token].isfinite():
            return False
        state.accept(token)
    return True


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), several=st.booleans(), form=st.sampled_from([HERMES_FORM, LLAMA_FORM]))
def test_a_call_that_must_be_made_is_well_formed(model: LoadedModel, seed: int, several: bool, form: Any) -> None:
    compiled = compile_grammar(model, Wanted(form=form, tools=TOOLS, several=several), "tools")
    text, ended = write(model, compiled.state(), seed)
    assert text.startswith(form.before + '{"name": "')
    if not ended:
        return
    bodies = text.removeprefix(form.before).removesuffix(form.after).split(form.after + form.between + form.before)
    assert several or len(bodies) == 1
    for body in bodies:
        calls = read_calls(body)
        assert calls is not None
        assert len(calls) == 1
        jsonschema.validate(json.loads(calls[0].arguments), TOOLS[calls[0].name])


SCHEMAS: dict[str, dict[str, Any]] = {
    "numbers": {"type": "array", "items": {"type": "number", "minimum": 1, "maximum": 9}, "maxItems": 3},
    "choice": {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"const": {"a": [1, 2]}}]},
    "recursive": {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"leaf": {"type": "boolean"}, "next": {"$ref": "#/$defs/tree"}},
                "required": ["leaf"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
    "annotated": {
        "title": "T",
        "description": "d",
        "type": "object",
        "properties": {"description": {"type": "string", "maxLength": 3, "title": "x"}},
        "required": ["description"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize("name", SCHEMAS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_json_answer_keeps_to_its_schema(model: LoadedModel, name: str, seed: int) -> None:
    schema = SCHEMAS[name]
    compiled = compile_grammar(model, Wanted(answer=checked_schema(schema, "schema")), "response_format")
    text, ended = write(model, compiled.state(), seed)
    if ended:
        jsonschema.validate(json.loads(text), schema)


def hermes(name: str, arguments: object) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


GOOD = hermes("grep", {"pattern": "x"})
BAD = hermes("grep", {"pattern": 7})


@pytest.mark.parametrize(
    ("wanted", "yes", "no"),
    [
        (Wanted(tools=TOOLS), [GOOD, GOOD + "\n" + GOOD], [BAD, "", "Well.", hermes("rm", {}), GOOD + GOOD]),
        (Wanted(tools=TOOLS, several=False), [GOOD], [GOOD + "\n" + GOOD]),
        (
            Wanted(tools=TOOLS, text=True),
            ["", "Well.", GOOD, "I look.\n" + GOOD],
            [BAD, "I look." + BAD, "<tool_call>x"],
        ),
        (Wanted(text=True), ["Well {", "a <tool b"], [GOOD, "a<tool_call>"]),
        (Wanted(tools=TOOLS, answer={"type": "object"}), [GOOD, '{"a": 1}', "{}"], ["Well.", BAD]),
        (Wanted(answer={"type": "object"}), ['{"a": [1, 2]}'], ["[]", GOOD, '{\n"a": 1}']),
        (
            Wanted(form=LLAMA_FORM, tools=TOOLS, text=True),
            ["Well.", "", '{"name": "read", "parameters": {"path": "a.py"}}'],
            ['{"name": "read", "parameters": {"path": "c.py"}}', " {"],
        ),
        (
            Wanted(tools=TOOLS, think=ThinkForm()),
            [GOOD, "<think>Hm. <tool_call></think>\n\n" + GOOD],
            ["<think>Hm.", "<think></think>Well."],
        ),
        (Wanted(answer={"const": 1}, think=ThinkForm(opened=True)), ["Hm.</think>\n1", "</think>1"], ["1", "Hm."]),
    ],
)
def test_what_an_answer_may_be(model: LoadedModel, wanted: Wanted, yes: list[str], no: list[str]) -> None:
    compiled = compile_grammar(model, wanted, "tools")
    for text in yes:
        assert allows(model, compiled.state(), text), text
    for text in no:
        assert not allows(model, compiled.state(), text), text


def test_after_its_end_only_the_end_is_allowed(model: LoadedModel) -> None:
    state = compile_grammar(model, Wanted(answer={"const": 1}), "response_format").state()
    rows = model.model.get_input_embeddings().num_embeddings
    for text in ("1", "", ""):
        row = torch.zeros(rows + 3)  # padded beyond the vocabulary
        state.mask(row)
        if text:
            state.accept(model.tokenizer.encode(text, add_special_tokens=False)[0])
        else:
            assert [int(one) for one in row.isfinite().nonzero().flatten()] == list(model.stop_ids)
            state.accept(model.stop_ids[0])
    assert state.error is None


def test_a_token_against_the_grammar_is_an_error_and_ends_the_output(model: LoadedModel) -> None:
    state = compile_grammar(model, Wanted(answer={"const": 1}), "response_format").state()
    state.accept(model.tokenizer.encode("x", add_special_tokens=False)[0])
    assert state.error is not None
    row = torch.zeros(model.model.get_input_embeddings().num_embeddings)
    state.mask(row)
    assert [int(one) for one in row.isfinite().nonzero().flatten()] == list(model.stop_ids)


def test_outputs_of_one_grammar_do_not_share_their_state(model: LoadedModel) -> None:
    compiled = compile_grammar(model, Wanted(answer={"enum": ["ab", "cd"]}), "response_format")
    first, second = compiled.state(), compiled.state()
    assert allows(model, first, '"ab"')
    assert allows(model, second, '"cd"')


def test_equal_requests_share_one_compilation(model: LoadedModel) -> None:
    assert compile_grammar(model, Wanted(tools=TOOLS), "tools") is compile_grammar(model, Wanted(tools=TOOLS), "tools")


def compiled_from(model: LoadedModel, schema: Any, *, lenient: bool = True) -> CompiledGrammar:
    checked = checked_schema(schema, "response_format")
    return compile_grammar(model, Wanted(answer=checked, lenient=lenient), "response_format")


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


HOSTILE: dict[str, Any] = {
    "too deep": nested(40),
    "too many values": {"enum": list(range(30_000))},
    "too many properties": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1001)}},
    "elsewhere": {"$ref": "https://example.org/schema.json"},
    "a file": {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
    "no schema": [1],
    "unknown type": {"type": "strin"},
    "nothing fits": {"type": "string", "minLength": 5, "maxLength": 3},
    "product": {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(8)]} for i in range(8)]},
    "broken pattern": {"type": "string", "pattern": "("},
    "unknown keyword, strictly": {"not": {"type": "string"}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_by_field(model: LoadedModel, name: str) -> None:
    with pytest.raises(FieldRefused, match="response_format") as refusal:
        compiled_from(model, HOSTILE[name], lenient=False)
    assert len(str(refusal.value)) < 400, "the schema is not sent back"


COSTLY: dict[str, Any] = {
    "catastrophic backtracking": {"type": "string", "pattern": "^(a+)+$"},
    "counted": {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"},
    "states without end": {"type": "string", "pattern": "^(.*a.{200})+$"},
    "references that double": {
        "$defs": {
            **{f"d{n}": {"items": [{"$ref": f"#/$defs/d{n + 1}"}] * 2, "type": "array"} for n in range(30)},
            "d30": {"type": "integer"},
        },
        "$ref": "#/$defs/d0",
    },
    "a loop": {"$ref": "#"},
    "many at once": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(2500)}},
    "far counts": {"type": "array", "minItems": 10**6, "items": {"type": "string", "maxLength": 10**6}},
}


@pytest.mark.parametrize("name", COSTLY)
def test_costly_schemas_are_refused_or_served_but_never_break_a_step(model: LoadedModel, name: str) -> None:
    """Either outcome will do; what may not happen is an exception while sampling, or a row without a way out."""
    try:
        state = compiled_from(model, COSTLY[name]).state()
    except FieldRefused:
        return
    source = random.Random(5)
    for _ in range(60):
        row = torch.tensor([source.random() for _ in range(model.model.get_input_embeddings().num_embeddings)])
        state.mask(row)
        assert row.isfinite().any()
        token = int(row.argmax())
        state.accept(token)
        if token in model.stop_ids:
            break


def test_names_and_values_are_not_taken_for_annotations() -> None:
    schema = {
        "description": "of the tool",
        "properties": {"description": {"type": "string", "description": "of the argument"}, "default": {"enum": ["x"]}},
        "default": {},
        "enum": [{"title": "kept"}],
    }
    assert checked_schema(schema, "p") == {
        "properties": {"description": {"type": "string"}, "default": {"enum": ["x"]}},
        "enum": [{"title": "kept"}],
        "additionalProperties": False,
    }


ROAD = {"properties": {"km": {"type": "integer"}}}
CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({}, {}),
        ({"type": "object"}, {"type": "object"}),
        (ROAD, ROAD | CLOSED),
        (ROAD | {"additionalProperties": {"type": "null"}}, ROAD | {"additionalProperties": {"type": "null"}}),
        ({"items": ROAD}, {"items": ROAD | CLOSED}),
        ({"anyOf": [ROAD, {"type": "null"}]}, {"anyOf": [ROAD | CLOSED, {"type": "null"}]}),
        ({"allOf": [ROAD]}, {"allOf": [ROAD | CLOSED]}),
        ({"allOf": [ROAD, ROAD]}, {"allOf": [ROAD, ROAD]}),
        (ROAD | {"anyOf": [ROAD]}, ROAD | {"anyOf": [ROAD]}),
        ({"$defs": {"properties": ROAD}}, {"$defs": {"properties": ROAD | CLOSED}}),
    ],
)
def test_objects_have_no_properties_but_those_they_list(schema: dict[str, Any], closed: dict[str, Any]) -> None:
    assert checked_schema(schema, "p") == closed


@pytest.fixture(scope="module")
def marked(model: LoadedModel) -> LoadedModel:
    """A model whose marks are special tokens, as conversions from GGUF may make them."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<tool_call>", "</tool_call>", "<think>", "</think>"]})
    wider = copy.deepcopy(model.model)
    wider.resize_token_embeddings(len(tokenizer))
    return replace(model, model=wider, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("wanted", "yes", "no"),
    [
        (Wanted(tools=TOOLS), [GOOD, GOOD + "\n" + GOOD], [BAD, "Well."]),
        (Wanted(tools=TOOLS, text=True), ["Well.", GOOD, "I look.\n" + GOOD], [BAD, "Well.<tool_call>x"]),
        (Wanted(text=True), ["Well."], [GOOD]),
        (Wanted(tools=TOOLS, think=ThinkForm()), ["<think>Hm.</think>\n\n" + GOOD, GOOD], ["<think>" + GOOD]),
    ],
)
def test_marks_may_be_special_tokens(marked: LoadedModel, wanted: Wanted, yes: list[str], no: list[str]) -> None:
    special = special_marks(marked.tokenizer)
    assert len(special) == 4
    compiled = compile_grammar(marked, wanted, "tools")
    for text in yes:
        assert allows(marked, compiled.state(), text), text
    for text in no:
        assert not allows(marked, compiled.state(), text), text
