"""What a person set for ``kvtrace top`` in ``kvtrace.toml``: read once, checked, plain data."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .keys import keymap
from .view import Sort

LEAST_INTERVAL_S: Final = 0.25
MOST_INTERVAL_S: Final = 60.0
DEFAULT_INTERVAL_S: Final = 1.0
THEMES: Final = ("kvtrace-dark", "kvtrace-light")


class SettingsError(ValueError):
    """A setting that cannot be used: which, and what would do."""


@dataclass(frozen=True, slots=True)
class TopSettings:
    """Settings with their defaults. ``keys`` are those of every action."""

    interval_s: float = DEFAULT_INTERVAL_S
    theme: str = THEMES[0]
    ascii_only: bool | None = None
    sort: Sort = Sort.AGENT
    keys: Mapping[str, str] = field(default_factory=lambda: keymap({}))


def config_path() -> Path:
    """Where settings are looked for: ``kvtrace.toml`` in the user's configuration folder (XDG)."""
    from platformdirs import user_config_path

    return user_config_path("kvtrace", appauthor=False) / "kvtrace.toml"


def read_settings(path: Path) -> TopSettings:
    """Settings from the table ``[top]`` of a file; the defaults where there is none. Raises :class:`SettingsError`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return TopSettings()
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    try:
        return _settings(_table(document, "top"))
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error


def _settings(top: Mapping[str, Any]) -> TopSettings:
    known = {"interval_s", "theme", "ascii", "sort", "keys"}
    if unknown := sorted(set(top) - known):
        raise ValueError(f"[top] {unknown[0]}: there is no such setting; there are {', '.join(sorted(known))}")
    interval_s, theme, ascii_only = (
        top.get("interval_s", DEFAULT_INTERVAL_S),
        top.get("theme", THEMES[0]),
        top.get("ascii"),
    )
    if (
        not isinstance(interval_s, int | float)
        or not math.isfinite(interval_s)
        or not LEAST_INTERVAL_S <= interval_s <= MOST_INTERVAL_S
    ):
        raise ValueError(
            f"[top] interval_s = {interval_s!r}: give seconds from {LEAST_INTERVAL_S} to {MOST_INTERVAL_S:.0f}"
        )
    if not isinstance(theme, str):
        raise ValueError(f"[top] theme = {theme!r}: give the name of a theme, like {THEMES[0]!r}")
    if ascii_only is not None and not isinstance(ascii_only, bool):
        raise ValueError(f"[top] ascii = {ascii_only!r}: give true or false")
    sort = top.get("sort", Sort.AGENT)
    if sort not in list(Sort):
        raise ValueError(f"[top] sort = {sort!r}: give one of {', '.join(Sort)}")
    keys = _table(top, "keys")
    if wrong := next((name for name, value in keys.items() if not isinstance(value, str)), None):
        raise ValueError(f"[top.keys] {wrong} = {keys[wrong]!r}: give keys as text, like 'p' or 'ctrl+p,f2'")
    return TopSettings(float(interval_s), theme, ascii_only, Sort(sort), keymap(keys))


def _table(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = parent.get(name, {})
    if not isinstance(value, Mapping):
        raise ValueError(f"[{name}] is no table")
    return value
