from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.context import attach, get_current

if TYPE_CHECKING:
    from tests.conformance.adapter import Adapter, Span


def _load(location: str) -> Any:
    path, _, name = location.rpartition(":")
    spec = importlib.util.spec_from_file_location(f"conformance_{Path(path).stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def _adapters() -> tuple[Any, ...]:
    named = os.environ.get("CONFORMANCE_ADAPTER")
    if named is not None:
        return (_load(named),)
    own: tuple[Any, ...] = _load(f"{Path(__file__).with_name('adapter.py')}:OWN")
    return own


@pytest.fixture(params=_adapters(), ids=lambda kind: kind.__name__)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    made: Adapter = request.param()
    return made


@pytest.fixture
def spans(adapter: Adapter, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[Span]]]:
    """The finished spans so far. A case that leaves a log line or a current span behind fails."""
    before = adapter.current_span_id()
    token = attach(get_current())
    try:
        with adapter.recording() as finished:
            yield finished
            gc.collect()
            assert adapter.current_span_id() == before
    finally:
        # What one case leaks must not fail the next.
        token.var.reset(token)
    assert [record.getMessage() for record in caplog.records] == []
