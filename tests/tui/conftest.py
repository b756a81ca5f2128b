"""Fixtures of the command-line tests."""

from __future__ import annotations

import pytest

from kvtrace.tracer import attributes as names


@pytest.fixture
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a report caches out of the user's folder. Not for tests that load a model: it is cached there too."""
    monkeypatch.setenv(names.ENV_CACHE, str(tmp_path_factory.mktemp("cache")))
