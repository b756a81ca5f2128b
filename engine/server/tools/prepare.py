"""From a chat request to what the engine needs: token ids, parsers for the output, grammars that constrain it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...grammar import Grammar
from ..grammar import (
    HERMES_FORM,
    LLAMA_FORM,
    CompiledGrammar,
    FieldRefused,
    ThinkForm,
    Wanted,
    checked_schema,
    compile_grammar,
    grammar_installed,
    special_marks,
)
from .choice import Mode, ToolPlan, read_plan
from .deltas import OutputParser, PlainParser
from .hermes import HermesParser
from .llama import LlamaParser
from .reasoning import ReasoningParser
from .render import render_chat
from .template import Abilities, Style, abilities_of

if TYPE_CHECKING:
    from ...model import LoadedModel

_FORMS: Final = {Style.HERMES: HERMES_FORM, Style.LLAMA: LLAMA_FORM}


@dataclass(frozen=True, slots=True)
class ChatPart:
    """The part of a chat request that decides about prompt and output's form, as plain JSON values."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A prompt, and makers of what each choice of the answer needs one of."""

    tokens: list[int]
    new_parser: Callable[[], OutputParser]
    new_grammar: Callable[[], Grammar | None]


def prepare_chat(
    model: LoadedModel, body: ChatPart, check_text: Callable[[int], None] = lambda characters: None
) -> PreparedChat:
    """Render the messages, and choose how the output is constrained and read.

    Takes milliseconds of CPU; a grammar that is new, up to half a second. ``check_text`` is told how many characters
    the prompt has before it is cut into tokens, and may raise.

    Raises:
        FieldRefused: a field of the request is malformed or asks for the impossible.
        ModelError: the model's chat template refuses the messages.
        NotInstalled: the request needs a grammar, and the extra is missing.
    """
    tokenizer = model.tokenizer
    plan = read_plan(body.tools, body.tool_choice, body.parallel_tool_calls)
    abilities = abilities_of(tokenizer)
    text = render_chat(tokenizer, abilities, body.messages, plan, _options(body))
    check_text(len(text))
    # The template wrote the special tokens already.
    tokens = [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]
    think = ThinkForm(opened=text.rstrip().endswith("<think>")) if abilities.reasoning else None
    compiled = _compiled(model, plan, abilities.style, body, think)
    new_parser = partial(_parser, plan, abilities, think, compiled is not None, bool(special_marks(tokenizer)))
    return PreparedChat(tokens, new_parser, compiled.state if compiled is not None else lambda: None)


def _compiled(
    model: LoadedModel, plan: ToolPlan, style: Style, body: ChatPart, think: ThinkForm | None
) -> CompiledGrammar | None:
    """The grammar of the answer, where one is called for.

    A tool that does not ask to be strict is held to its schema as well, but its schema may be one that no grammar can
    follow: then any object will do for its arguments.
    """
    for exact in (True, False):
        try:
            wanted = wanted_answer(plan, style, body.response_format, think, exact=exact)
            return None if wanted is None else compile_grammar(model, wanted, _cause(plan, body))
        except FieldRefused:
            if not exact or all(tool.strict for tool in plan.callable_tools):
                raise
    return None


def wanted_answer(
    plan: ToolPlan,
    style: Style,
    response_format: dict[str, Any] | None,
    think: ThinkForm | None,
    *,
    exact: bool = True,
) -> Wanted | None:
    """What a grammar must hold the answer to; ``None`` where it may be anything.

    Args:
        plan: the tools.
        style: how calls are written.
        response_format: the request's field.
        think: the reasoning that may come first.
        exact: hold tools to their schemas that do not ask to be strict, too.

    Raises:
        FieldRefused: a schema is malformed or too large.
    """
    answer, lenient = _answer_schema(response_format)
    held = plan.forced or plan.strict or answer is not None
    # Where the prompt shows tools that must not be called, a grammar that forbids it is a help, not a need.
    silent = bool(plan.tools) and plan.mode is Mode.NONE and style is Style.HERMES and grammar_installed()
    if not held and not silent:
        return None
    return Wanted(
        form=_FORMS[style],
        tools={
            tool.name: checked_schema(tool.parameters, tool.param) if exact or tool.strict else {}
            for tool in plan.callable_tools
        },
        text=not plan.forced and answer is None,
        answer=None if plan.forced else answer,
        several=plan.most_calls is None,
        lenient=lenient,
        think=think,
    )


def _answer_schema(response_format: dict[str, Any] | None) -> tuple[dict[str, Any] | None, bool]:
    """The schema of a JSON answer, and whether unknown keywords in it are passed over."""
    if response_format is None:
        return None, True
    match response_format.get("type"):
        case "text":
            return None, True
        case "json_object":
            return {"type": "object"}, True
        case "json_schema":
            wrapped = response_format.get("json_schema")
            if not isinstance(wrapped, dict) or "schema" not in wrapped:
                raise FieldRefused("response_format.json_schema.schema is missing", "response_format.json_schema")
            schema = checked_schema(wrapped["schema"], "response_format.json_schema.schema")
            return schema, wrapped.get("strict") is not True
        case other:
            raise FieldRefused(
                f"response_format.type is {other!r}; it must be 'text', 'json_object' or 'json_schema'",
                "response_format.type",
            )


def _options(body: ChatPart) -> dict[str, Any]:
    """Variables of the chat template. Models name the effort of reasoning differently."""
    options = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        options.setdefault("reasoning_effort", body.reasoning_effort)
        if body.reasoning_effort == "none":
            options.setdefault("enable_thinking", False)
    return options


def _cause(plan: ToolPlan, body: ChatPart) -> str:
    """The field that a refused grammar is reported for."""
    return "tools" if plan.callable_tools else "response_format" if body.response_format else "tool_choice"


def _parser(plan: ToolPlan, abilities: Abilities, think: ThinkForm | None, held: bool, special: bool) -> OutputParser:
    parser: OutputParser
    names = {tool.name for tool in plan.callable_tools}
    if not names:
        parser = PlainParser()
    elif abilities.style is Style.LLAMA:
        parser = LlamaParser(names, eager=held, most_calls=plan.most_calls)
    else:
        parser = HermesParser(eager=held, most_calls=plan.most_calls, keeps_special=special)
    if think is not None:
        parser = ReasoningParser(parser, opened=think.opened, keeps_special=special)
    return parser
