"""Text in any pieces becomes the same content, reasoning and calls, and nothing of it is lost."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.server.tools.calls import CallLedger, new_call_id
from kvtrace.engine.server.tools.deltas import ContentDelta, Delta, OutputParser, PlainParser, ReasoningDelta
from kvtrace.engine.server.tools.deltas import ToolCallDelta as CallDelta
from kvtrace.engine.server.tools.hermes import HermesParser
from kvtrace.engine.server.tools.llama import LlamaParser
from kvtrace.engine.server.tools.reasoning import ReasoningParser

Parsed = tuple[str, str, list[tuple[str, str]]]
TOOLS = ("grep", "read_file", "f")


def ledger() -> CallLedger:
    numbers = itertools.count()
    return CallLedger(lambda: f"call_{next(numbers)}")


def hermes(*, eager: bool = False, most_calls: int | None = None) -> OutputParser:
    return HermesParser(ledger(), eager=eager, most_calls=most_calls)


def llama(*, eager: bool = False, most_calls: int | None = None) -> OutputParser:
    return LlamaParser(TOOLS, ledger(), eager=eager, most_calls=most_calls)


def thinking(*, opened: bool = False) -> OutputParser:
    return ReasoningParser(hermes(), opened=opened)


MAKERS: dict[str, Callable[[], OutputParser]] = {
    "plain": PlainParser,
    "hermes": hermes,
    "hermes, eager": lambda: hermes(eager=True),
    "llama": llama,
    "llama, eager": lambda: llama(eager=True),
    "reasoning": thinking,
    "reasoning, opened": lambda: thinking(opened=True),
}


def parse(parser: OutputParser, pieces: Iterable[str]) -> Parsed:
    """Content, reasoning and calls, put together as a client puts them together."""
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += parser.feed(piece)
    deltas += parser.finish()
    content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    calls: list[tuple[str, str]] = []
    ids = []
    for delta in deltas:
        if isinstance(delta, CallDelta):
            if delta.id is not None:
                assert delta.index == len(calls), "calls begin in order"
                assert delta.name
                calls.append((delta.name, ""))
                ids.append(delta.id)
            assert delta.index == len(calls) - 1, "only the newest call grows"
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)
    assert parser.calls == dict(zip(ids, (name for name, _ in calls), strict=True))
    assert all(isinstance(d, CallDelta) or d.text for d in deltas), "no empty delta"
    return content, reasoning, calls


def cut(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(place % (len(text) + 1) for place in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


FRAGMENTS = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<|python_tag|>",
        "<tool_",
        '{"name": "grep", "arguments": {"pattern": "a{b"}}',
        '{"name": "f", "parameters": {}}',
        '{"name": "stranger", "parameters": {"x": [1, {"y": null}]}}',
        '{"arguments": {"a": 1.50}, "name": "f"}',
        '[{"name": "f", "arguments": {}}, {"name": "grep", "arguments": "{\\"p\\": 1}"}]',
        '{"name": "f", "arguments": {"t": "</tool_call>\\n\\"<think>\\\\"}}',
        '{"name": "f", "arguments": {"t": "line\nbreak"}}',
        '{"name": "f", "argum',
        '{"key": 1}',
        "{",
        "}",
        '"',
        "\\",
        "\n",
        " ",
        "; ",
        "I will look. ",
        "é✓",
    ]
)
TEXTS = st.lists(FRAGMENTS, max_size=9).map("".join) | st.text(alphabet='<>{}[]"\\/ \ntolcaihnk_|', max_size=40)


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_the_cuts_do_not_matter(maker: Callable[[], OutputParser], text: str, cuts: list[int]) -> None:
    whole = parse(maker(), [text])
    assert parse(maker(), cut(text, cuts)) == whole
    assert parse(maker(), text) == whole, "one character at a time"


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@given(text=TEXTS)
def test_nothing_is_lost(maker: Callable[[], OutputParser], text: str) -> None:
    """Every word of the text is in what came out, in its order, but for marks, brackets and white space."""
    content, reasoning, calls = parse(maker(), [text])
    out = reasoning + content + "".join(name + arguments for name, arguments in calls)
    words = re.compile(r"look|stranger|pattern|✓")
    assert sorted(words.findall(out)) == sorted(words.findall(text))


@pytest.mark.parametrize("name", ["hermes", "llama", "reasoning"])
@given(text=TEXTS)
def test_arguments_are_json_and_ids_are_unique(name: str, text: str) -> None:
    parser = MAKERS[name]()
    _, _, calls = parse(parser, [text])
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)
    assert len(parser.calls) == len(calls)


ARGUMENTS = st.dictionaries(
    st.text(max_size=6),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


@pytest.mark.parametrize("eager", [False, True])
@given(
    wanted=st.lists(st.tuples(st.sampled_from(TOOLS), ARGUMENTS), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 1000), max_size=12),
    style=st.sampled_from(["hermes", "llama"]),
)
def test_calls_come_back_as_they_were_written(
    eager: bool, wanted: list[tuple[str, dict[str, object]]], cuts: list[int], style: str
) -> None:
    """Whatever the arguments hold, and to the letter."""
    key = "arguments" if style == "hermes" else "parameters"
    written = [json.dumps({"name": name, key: arguments}) for name, arguments in wanted]
    if style == "hermes":
        text = "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in written)
        parser = hermes(eager=eager)
    else:
        text = "; ".join(written)
        parser = llama(eager=eager)
    content, _, calls = parse(parser, cut(text, cuts))
    assert content == ""
    assert calls == [(name, json.dumps(arguments)) for name, arguments in wanted]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('Let me see.\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n', "Let me see.", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {}}', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {}}\n</tool', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {}} </tools>', "</tools>", [("f", "{}")]),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
        ('<tool_call>{"function": {"name": "f", "arguments": {"a": 1}}}</tool_call>', "", [("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1.50}}</tool_call>', "", [("f", '{"a": 1.50}')]),
        ('<tool_call>{"name": "f", "arguments": {"a": "1\n2"}}</tool_call>', "", [("f", '{"a": "1\\n2"}')]),
        ('<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', None, []),
        ('<tool_call>{"name": 7, "arguments": {}}</tool_call>', None, []),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', None, []),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}', None, []),
        ("<tool_call>call f please</tool_call>", None, []),
        ("a < b, and <tool_calls> is no mark ", None, []),
        ("<tool_call>", None, []),
        ('<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>', None, []),
        ("<tool_call>" + "[" * 100_000, None, []),
        ("<tool_call>" + "[" * 100_000 + "]" * 100_000, None, []),
    ],
)
def test_hermes_form_by_example(text: str, content: str | None, calls: list[tuple[str, str]]) -> None:
    """Content ``None`` stands for the whole text, unchanged."""
    assert parse(hermes(), [text]) == (text if content is None else content, "", calls)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('<|python_tag|>{"name": "grep", "parameters": {"a": 1}}', "", [("grep", '{"a": 1}')]),
        ('{"type": "function", "name": "grep", "parameters": {"a": 1}}', "", [("grep", '{"a": 1}')]),
        ('I look.<|python_tag|>{"name": "f", "parameters": {}}', "I look.", [("f", "{}")]),
        ('{"name": "stranger", "parameters": {}}', None, []),
        ('{"answer": 42}', None, []),
        ('Here: {"name": "f", "parameters": {}}', None, []),
        ("<|python_tag|>print(1)", None, []),
        ('{"name": "f", "parameters": {}}\nDone.', "Done.", [("f", "{}")]),
        ('  {"name": "f", "para', None, []),
    ],
)
def test_llama_form_by_example(text: str, content: str | None, calls: list[tuple[str, str]]) -> None:
    assert parse(llama(), [text]) == (text if content is None else content, "", calls)


@pytest.mark.parametrize(
    ("opened", "text", "content", "reasoning"),
    [
        (False, "<think>\nHm.\n</think>\n\nYes.", "Yes.", "Hm."),
        (False, "<think>\n\n</think>\n\nYes.", "Yes.", ""),
        (True, "Hm.\nWell.\n</think>\nYes.", "Yes.", "Hm.\nWell."),
        (True, "<think>Hm.</think>Yes.", "Yes.", "Hm."),
        (True, "still thinking", "", "still thinking"),
        (False, "<think>still", "", "still"),
        (False, "The tag <think> begins reasoning.", "The tag <think> begins reasoning.", ""),
        (False, "<think>a</think>b<think>c</think>", "b<think>c</think>", "a"),
        (False, "", "", ""),
    ],
)
def test_reasoning_by_example(opened: bool, text: str, content: str, reasoning: str) -> None:
    assert parse(thinking(opened=opened), [text]) == (content, reasoning, [])


def test_a_call_thought_about_is_not_made() -> None:
    thought = 'Maybe <tool_call>{"name": "f", "arguments": {}}</tool_call>'
    text = f'<think>{thought}</think><tool_call>{{"name": "grep", "arguments": {{}}}}</tool_call>'
    assert parse(thinking(), [text]) == ("", thought, [("grep", "{}")])


def test_with_a_grammar_arguments_stream_as_they_come() -> None:
    parser = hermes(eager=True)
    assert parser.feed('<tool_call>\n{"name": "grep", "arguments": ') == []
    assert parser.feed('{"pat') == [CallDelta(0, id="call_0", name="grep"), CallDelta(0, arguments='{"pat')]
    assert parser.feed('tern": "x"') == [CallDelta(0, arguments='tern": "x"')]
    assert parser.feed("}}\n</tool_call>") == [CallDelta(0, arguments="}")]
    assert parser.finish() == []


def test_without_a_grammar_a_call_is_given_out_when_it_is_certain() -> None:
    parser = hermes()
    assert parser.feed('<tool_call>\n{"name": "grep", "arguments": {"a": 1}') == []
    assert parser.calls == {}
    assert parser.feed("}") == [CallDelta(0, id="call_0", name="grep"), CallDelta(0, arguments='{"a": 1}')]
    assert parser.calls == {"call_0": "grep"}


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("maker", [hermes, llama])
def test_output_is_done_after_the_calls_that_were_wanted(maker: Callable[..., OutputParser], eager: bool) -> None:
    parser = maker(eager=eager, most_calls=1)
    key = "arguments" if maker is hermes else "parameters"
    mark = "<tool_call>" if maker is hermes else ""
    for piece in (mark, '{"name": "f", "', key, '": {"a": ', "1}"):
        parser.feed(piece)
        assert not parser.done
    parser.feed("}")
    assert parser.done


def test_call_ids_do_not_repeat() -> None:
    ids = {new_call_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", one) for one in ids)
