"""Measures b, the share of wall clock that agents are blocked on tools, and what follows from it.

Spans of any source become one normal form (``sources/``), SQL files answer one question each (``sql/``), and pure
arithmetic turns measured nanoseconds into figures. Names are loaded when first used, so that importing this package
does not import the database.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .build import build_report
    from .errors import AnalysisError, NoDataError, SourceNotFoundError
    from .options import ReportOptions
    from .render.json import render_json
    from .render.terminal import render_terminal
    from .report import Report

__all__ = [
    "AnalysisError",
    "NoDataError",
    "Report",
    "ReportOptions",
    "SourceNotFoundError",
    "build_report",
    "render_json",
    "render_terminal",
]

_HOMES: Final = {
    "AnalysisError": ".errors",
    "NoDataError": ".errors",
    "Report": ".report",
    "ReportOptions": ".options",
    "SourceNotFoundError": ".errors",
    "build_report": ".build",
    "render_json": ".render.json",
    "render_terminal": ".render.terminal",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home, __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
