"""Tests of reports remember what they read in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtrace.tracer.attributes import ENV_CACHE


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.MonkeyPatch().setenv(ENV_CACHE, str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def cache_folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"
