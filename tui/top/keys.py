"""Keys of ``kvtrace top``: what each action is called, what it does, and which keys it has unless a person says so.

The names stand in the configuration file; renaming one breaks somebody's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Key:
    """One action: its name, its keys as Textual calls them, what the help says, and how short the bottom line says it."""

    name: str
    keys: str
    help: str
    short: str = ""


KEYS: Final = (
    Key("quit", "q,ctrl+q", "quit", "quit"),
    Key("help", "question_mark,h,f1", "this help", "help"),
    Key("details", "enter", "open the chosen agent", "details"),
    Key("back", "escape", "close what is open; else clear the filter"),
    Key("up", "up,k", "the agent above"),
    Key("down", "down,j", "the agent below"),
    Key("page_up", "pageup", "a page up"),
    Key("page_down", "pagedown", "a page down"),
    Key("first", "home", "the first agent"),
    Key("last", "end", "the last agent"),
    Key("filter", "slash,f", "show only agents whose name, state or tool has these words", "filter"),
    Key("sort", "s", "choose the column to sort by", "sort"),
    Key("sort_next", "full_stop,greater_than_sign", "sort by the next column"),
    Key("sort_previous", "comma,less_than_sign", "sort by the column before"),
    Key("reverse", "r", "the other way round"),
    Key("pause", "space,Z", "stop drawing; what happens is still collected", "pause"),
    Key("faster", "plus,equals_sign", "sample twice as often; a replay goes twice as fast", "+/- rate"),
    Key("slower", "minus,underscore", "sample half as often; a replay goes half as fast"),
    Key("refresh", "f5", "sample now"),
    Key("reset", "R", "begin peaks, graphs and waits anew"),
    Key("follow", "F", "the cursor stays with its agent, or with its line"),
    Key("expand", "e", "more room for the event log, and back"),
    Key("window", "z", "longer or shorter timeline of an agent"),
    Key("export", "E", "write this sample as JSON and this screen as SVG", "export"),
    Key("suspend", "ctrl+z", "to the shell; `fg` comes back"),
)
BY_NAME: Final = {key.name: key for key in KEYS}


def keymap(chosen: Mapping[str, str]) -> dict[str, str]:
    """Keys by action, those a person chose in front of the usual. Raises ``ValueError`` for an action that is none."""
    for name, keys in chosen.items():
        if name not in BY_NAME:
            raise ValueError(f"[top.keys] {name}: there is no such action; there are {', '.join(BY_NAME)}")
        if not keys.strip():
            raise ValueError(f"[top.keys] {name}: give at least one key, like 'p' or 'ctrl+p,f2'")
    taken = {key for keys in chosen.values() for key in keys.replace(" ", "").split(",")}
    usual = {
        # A key that somebody gave to another action is not this one's any more.
        key.name: ",".join(each for each in key.keys.split(",") if each not in taken)
        for key in KEYS
    }
    return usual | {name: keys.replace(" ", "") for name, keys in chosen.items()}


_WORDS: Final = {
    "question_mark": "?",
    "slash": "/",
    "full_stop": ".",
    "comma": ",",
    "greater_than_sign": ">",
    "less_than_sign": "<",
    "plus": "+",
    "minus": "-",
    "equals_sign": "=",
    "underscore": "_",
    "escape": "esc",
    "pageup": "PgUp",
    "pagedown": "PgDn",
}


def key_text(key: str) -> str:
    """A key as people write it: ``question_mark`` → ``?``, ``f1`` → ``F1``."""
    if key in _WORDS:
        return _WORDS[key]
    return key.upper() if len(key) > 1 and key[0] == "f" and key[1:].isdecimal() else key
