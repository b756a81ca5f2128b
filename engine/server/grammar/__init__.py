"""Output held to a JSON schema or to well-formed tool calls."""

from __future__ import annotations

from .compiler import CompiledGrammar, GrammarState, compile_grammar, grammar_installed, special_marks
from .errors import FieldRefused
from .lark import HERMES_FORM, LLAMA_FORM, CallForm, ThinkForm, Wanted
from .limits import checked_schema

__all__ = [
    "HERMES_FORM",
    "LLAMA_FORM",
    "CallForm",
    "CompiledGrammar",
    "FieldRefused",
    "GrammarState",
    "ThinkForm",
    "Wanted",
    "checked_schema",
    "compile_grammar",
    "grammar_installed",
    "special_marks",
]
