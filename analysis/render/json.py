"""The report as JSON text."""

from __future__ import annotations

import json

from ..comparison import Comparison
from ..report import Report


def render_json(report: Report | Comparison) -> str:
    """Indented JSON without a trailing newline; unknown figures are null, never NaN."""
    return json.dumps(report.as_json(), indent=2, ensure_ascii=False, allow_nan=False)
