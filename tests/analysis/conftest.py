"""Tests of reports remember what they read in a folder of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtrace.analysis import cache
from kvtrace.tracer.attributes import ENV_CACHE


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # Given back after each module: the engine's tests find their converted model through the same variable.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_CACHE, str(tmp_path_factory.mktemp("cache")))
        # Tests read what they wrote a moment ago, which would otherwise be read twice.
        patch.setattr(cache, "_TICK_NS", 0)
        yield


@pytest.fixture
def cache_folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"
