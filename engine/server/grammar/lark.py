"""Grammars as text, in the Lark dialect of llguidance: answers that are JSON, and answers that call tools. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_ANY_TEXT: Final = r"/(.|\n)*/"
_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model writes a tool call.

    Attributes:
        before: stands before the JSON object of each call.
        after: stands after it.
        between: stands between two calls.
        arguments_key: the object's key for the arguments; ``name`` comes first.
        trigger: what in running text begins a call; ``None`` where only a whole answer can be calls.
    """

    before: str
    after: str
    between: str
    arguments_key: str
    trigger: str | None


HERMES_FORM: Final = CallForm("<tool_call>\n", "\n</tool_call>", "\n", "arguments", "<tool_call>")
LLAMA_FORM: Final = CallForm("", "", "; ", "parameters", None)


@dataclass(frozen=True, slots=True)
class ThinkForm:
    """Reasoning before the answer: its marks, and whether the prompt has opened it already."""

    open: str = "<think>"
    close: str = "</think>"
    opened: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the answer may be.

    Attributes:
        form: how calls are written.
        tools: schema of the arguments by tool; empty where the answer may not call.
        text: whether it may be, or begin with, plain text.
        answer: schema that an answer without calls keeps to; excludes ``text``.
        several: whether there may be more than one call.
        lenient: whether keywords of ``answer`` that the library does not know are passed over, as those of tools are.
        think: the reasoning that may come first; ``None`` where the model writes none.
    """

    form: CallForm = HERMES_FORM
    tools: Mapping[str, Mapping[str, Any]] | None = None
    text: bool = False
    answer: Mapping[str, Any] | None = None
    several: bool = True
    lenient: bool = True
    think: ThinkForm | None = None


def grammar_of(wanted: Wanted, special: Mapping[str, int]) -> str:
    """The grammar's text.

    Args:
        wanted: what the answer may be.
        special: id by text of the tokenizer's special tokens, which no text can stand for.
    """
    rules = _Rules(special)
    answers = []
    if wanted.tools:
        answers.append(rules.calls(wanted))
    if wanted.answer is not None:
        answers.append(rules.json(wanted.answer, lenient=wanted.lenient))
    elif wanted.text:
        answers.append(rules.text(wanted.form))
    body = " | ".join(answers)
    if wanted.think is None:
        return rules.grammar(body)
    return rules.grammar(f"{rules.thought(wanted.think)} ({body})")


class _Rules:
    """Collects rules while expressions are built."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        self._lines: list[str] = []

    def grammar(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._lines, ""])

    def calls(self, wanted: Wanted) -> str:
        """One call or several, after text where text is allowed."""
        form, tools = wanted.form, wanted.tools or {}
        single = " | ".join(self._call(form, name, schema) for name, schema in tools.items())
        self._rule("call", single)
        before, between, after = self._literal(form.before), self._literal(form.between), self._literal(form.after)
        more = f" ({between} {before} call {after})*" if wanted.several else ""
        lead = before
        if wanted.text and form.trigger is not None:
            lead = self._upto("lead", form.trigger) + " " + self._literal(form.before.removeprefix(form.trigger))
        return f"{lead} call {after}{more}"

    def json(self, schema: Mapping[str, Any], *, lenient: bool) -> str:
        # Separators as json.dumps and chat templates write them, and no other white space: a small model may
        # otherwise never stop to indent.
        options = {
            "whitespace_flexible": False,
            "item_separator": ", ",
            "key_separator": ": ",
            "lenient": lenient,
        }
        return f"%json {json.dumps({**schema, 'x-guidance': options})}"

    def text(self, form: CallForm) -> str:
        """Text in which no call begins."""
        if form.trigger is None:
            self._rule("TEXT", r"/(\s*[^\s{](.|\n)*)?/")
        elif form.trigger in self._special:
            self._rule("TEXT", _ANY_TEXT)
        else:
            self._rule("TEXT", rf"{_ANY_TEXT} & ~/(.|\n)*{_escaped(form.trigger)}(.|\n)*/")
        return "TEXT"

    def thought(self, think: ThinkForm) -> str:
        closing = self._upto("thought", think.close)
        space = r"/\s*/"
        return f"{closing} {space}" if think.opened else f"({self._literal(think.open)} {closing} {space})?"

    def _call(self, form: CallForm, name: str, schema: Mapping[str, Any]) -> str:
        head = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{form.arguments_key}": '
        return f"{self._literal(head)} {self.json(schema or _ANY_OBJECT, lenient=True)} {self._literal('}')}"

    def _upto(self, rule: str, mark: str) -> str:
        """Text that ends with the first ``mark``."""
        if mark in self._special:
            self._rule(rule.upper(), _ANY_TEXT)
            return f"{rule.upper()} <[{self._special[mark]}]>"
        self._rule(f"{rule}[lazy]", f"{_ANY_TEXT} {self._literal(mark)}")
        return rule

    def _literal(self, text: str) -> str:
        """``text`` as an expression; a special token in it only its id can stand for."""
        if not text:
            return '""'
        for mark, number in self._special.items():
            if mark in text:
                before, _, after = text.partition(mark)
                parts = [
                    self._literal(before) if before else "",
                    f"<[{number}]>",
                    self._literal(after) if after else "",
                ]
                return " ".join(part for part in parts if part)
        return json.dumps(text, ensure_ascii=False)

    def _rule(self, name: str, body: str) -> None:
        self._lines.append(f"{name}: {body}")


def _escaped(text: str) -> str:
    """``text`` inside a regular expression between slashes."""
    return "".join(one if one.isalnum() or one == "_" else f"\\x{{{ord(one):x}}}" for one in text)
