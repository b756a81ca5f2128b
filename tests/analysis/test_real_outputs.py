"""Every real trace that has a figure also becomes a page and a Perfetto trace."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from kvtrace.analysis import NoDataError, open_study, render_html, write_csv, write_perfetto

TRACES = Path(__file__).parents[3] / "shared" / "traces"
FILES = sorted(path for path in TRACES.rglob("*.json*") if path.is_file())


@pytest.mark.skipif(not FILES, reason="the real traces lie beside the repository, not in it")
def test_real_traces_are_drawn_and_exported(subtests: pytest.Subtests) -> None:
    drawn = 0
    for path in FILES:
        with subtests.test(path.name):
            try:
                with open_study([path]) as study:
                    page, trace, table = render_html(study), io.BytesIO(), io.StringIO()
                    write_perfetto(study, trace)
                    write_csv(study, "windows", table)
            except NoDataError:
                continue
            drawn += 1
            assert page.count('<g class="lane"') == len(study.report.agents)
            assert len(Trace.FromString(trace.getvalue()).packet) > 3
            assert table.getvalue().count("\r\n") == 1 + study.report.pooled.windows.count
    assert drawn >= 12
