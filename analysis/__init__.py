"""Measures b, the share of wall clock that agents are blocked on tools, and what follows from it.

Spans of any source become one normal form (``sources/``), SQL files answer one question each (``sql/``), and pure
arithmetic turns measured nanoseconds into figures. Names are loaded when first used, so that importing this package
does not import the database.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .build import build_report, open_study
    from .comparison import compare
    from .errors import AnalysisError, NoDataError, SourceNotFoundError, UnreachableError
    from .forecast import render_forecast
    from .intake import ReadOptions
    from .options import ReportOptions
    from .render.compare import render_comparison
    from .render.csv import write_csv
    from .render.html import render_html
    from .render.json import render_json
    from .render.perfetto import write_perfetto
    from .render.terminal import render_terminal
    from .report import Report
    from .study import Study

__all__ = [
    "AnalysisError",
    "NoDataError",
    "ReadOptions",
    "Report",
    "ReportOptions",
    "SourceNotFoundError",
    "Study",
    "UnreachableError",
    "build_report",
    "compare",
    "open_study",
    "render_comparison",
    "render_forecast",
    "render_html",
    "render_json",
    "render_terminal",
    "write_csv",
    "write_perfetto",
]

_HOMES: Final = {
    "AnalysisError": ".errors",
    "NoDataError": ".errors",
    "ReadOptions": ".intake",
    "Report": ".report",
    "ReportOptions": ".options",
    "SourceNotFoundError": ".errors",
    "Study": ".study",
    "UnreachableError": ".errors",
    "build_report": ".build",
    "compare": ".comparison",
    "open_study": ".build",
    "render_comparison": ".render.compare",
    "render_forecast": ".forecast",
    "render_html": ".render.html",
    "render_json": ".render.json",
    "render_terminal": ".render.terminal",
    "write_csv": ".render.csv",
    "write_perfetto": ".render.perfetto",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home, __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
