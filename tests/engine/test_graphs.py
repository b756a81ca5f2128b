from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.errors import ConfigError
from kvtrace.engine.graphs import (
    ENV_GRAPHS,
    MOST_TOKENS,
    buckets,
    faster_products,
    graphs_wanted,
    lt_wins,
    prefill_sizes,
    self_test,
)


@given(st.integers(1, 300))
def test_every_batch_has_a_bucket_that_is_not_much_larger(most: int) -> None:
    sizes = buckets(most)
    assert sizes[-1] == most
    assert list(sizes) == sorted(set(sizes))
    for batch in range(1, most + 1):
        bucket = next(size for size in sizes if size >= batch)
        assert bucket < max(2 * batch, batch + 8)


@given(st.integers(1, 5000))
def test_every_step_of_prefill_finds_a_size_that_is_not_much_larger(step_tokens: int) -> None:
    sizes = prefill_sizes(step_tokens)
    assert list(sizes) == sorted(set(sizes))
    assert all(size % 16 == 0 for size in sizes)
    assert min(step_tokens, MOST_TOKENS) <= sizes[-1] < min(step_tokens, MOST_TOKENS) + 16
    assert len(sizes) <= 15  # each takes a fraction of a second at the start
    for tokens in range(1, min(step_tokens, MOST_TOKENS) + 1):
        size = next(size for size in sizes if size >= tokens)
        assert size < max(1.5 * tokens, 33)


class Preferred:
    """What torch keeps of the preferred library; a build without CUDA refuses to set it."""

    def __init__(self) -> None:
        self.now = "default"

    def __call__(self, library: str | None = None) -> str:
        self.now = library or self.now
        return self.now


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch) -> Preferred:
    preferred = Preferred()
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", preferred)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)
    return preferred


@pytest.mark.parametrize(
    ("tokens", "by_lt"), [(16, False), (112, True), (128, False), (192, True), (256, False), (512, False)]
)
def test_a_step_is_captured_with_the_faster_library_and_the_setting_is_put_back(
    preferred: Preferred, tokens: int, by_lt: bool
) -> None:
    assert lt_wins(tokens) == by_lt
    with faster_products(tokens):
        assert preferred.now == ("cublaslt" if by_lt else "default")
    assert preferred.now == "default"


def test_the_setting_is_put_back_when_the_capture_fails(preferred: Preferred) -> None:
    with pytest.raises(ZeroDivisionError), faster_products(192):
        raise ZeroDivisionError
    assert preferred.now == "default"


@pytest.mark.parametrize(("hip", "available"), [("7.1", True), (None, False)])
def test_no_library_is_preferred_on_rocm_or_without_a_gpu(
    preferred: Preferred, monkeypatch: pytest.MonkeyPatch, hip: str | None, available: bool
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    with faster_products(192):
        assert preferred.now == "default"


def test_graphs_are_for_cuda_unless_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.delenv(ENV_GRAPHS, raising=False)
    assert not graphs_wanted(torch.device("cpu"))
    assert graphs_wanted(torch.device("cuda"))
    monkeypatch.setenv(ENV_GRAPHS, "0")
    assert not graphs_wanted(torch.device("cuda"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the self-test would succeed")
def test_rocm_needs_a_request_and_a_self_test_that_succeeds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.delenv(ENV_GRAPHS, raising=False)
    assert not graphs_wanted(torch.device("cuda"))
    assert not caplog.messages
    monkeypatch.setenv(ENV_GRAPHS, "1")
    # The child finds no GPU here: what it says is passed on, and decoding goes without graphs.
    assert not graphs_wanted(torch.device("cuda"))
    assert "the self-test in a child process ended with 1" in caplog.text


def test_a_self_test_that_hangs_is_given_up() -> None:
    assert self_test(timeout_s=0.01) == "did not end within 0 s"


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_GRAPHS, "yes")
    with pytest.raises(ConfigError, match="KVTRACE_DEVICE_GRAPHS is 'yes'; give 1"):
        graphs_wanted(torch.device("cuda"))
