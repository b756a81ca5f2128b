"""A step's own bytes over the link: which way they take, and the kernel by Triton's interpreter and compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine import small_copies
from kvtrace.engine.small_copies import Sender, by_copy_engine, kernels_reach_host, small_copy

ROOT = Path(__file__).parents[2]
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PROGRAM = """
import torch
from kvtrace.engine.triton_words import copy_words
for words in (1, 100, 1024, 1025, 5000):
    source = torch.arange(1, words + 1, dtype=torch.int32)
    target = torch.zeros(words + 3, dtype=torch.int32)
    copy_words(target[:words], source)
    assert torch.equal(target[:words], source), words
    assert target[words:].tolist() == [0, 0, 0], words
"""


def test_kernels_reach_the_host_on_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    assert kernels_reach_host(torch.device("cuda"))
    assert not kernels_reach_host(torch.device("cpu"))
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert not kernels_reach_host(torch.device("cuda"))


def test_other_devices_copy_by_their_engines() -> None:
    assert small_copy(torch.device("cpu")) is by_copy_engine
    target, source = torch.zeros(5, dtype=torch.int64), torch.arange(5)
    by_copy_engine(target, source)
    assert torch.equal(target, source)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel would reach the host")
def test_where_the_kernel_fails_the_copy_engine_serves_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(small_copies, "kernels_reach_host", lambda device: True)
    assert small_copy(torch.device("cuda")) is by_copy_engine
    assert "steps' inputs go through the copy engine" in caplog.text


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@given(
    st.lists(
        st.lists(st.integers(0, 1 << 62), min_size=1, max_size=40)
        | st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e9)), min_size=1, max_size=600),
        min_size=1,
        max_size=40,
    )
)
@settings(max_examples=20, deadline=None)
def test_numbers_arrive_whatever_is_sent_after_them(device: str, lists: list[list[Any]]) -> None:
    place = torch.device(device)
    send = Sender(place, small_copy(place))
    kinds = [torch.int64 if isinstance(one[0], int) else torch.float64 for one in lists]
    there = [send(one, place, None if kind is torch.int64 else kind) for one, kind in zip(lists, kinds, strict=True)]
    for one, kind, found in zip(lists, kinds, there, strict=True):
        assert torch.equal(found.cpu(), torch.tensor(one, dtype=kind))


@NEEDS_GPU
def test_words_arrive_on_a_gpu_and_come_back() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    copy = small_copy(device)
    assert (copy is by_copy_engine) == (torch.version.hip is not None)
    for count in (1, 8, 1023, 30_000):
        sent = torch.randint(1 << 60, (count,), pin_memory=True)
        there, back = torch.zeros(count, dtype=torch.int64, device=device), torch.zeros(count).long().pin_memory()
        for _ in range(3):  # what the host wrote since the last time must arrive
            sent += 1
            copy(there, sent)
            copy(back, there)
            torch.cuda.synchronize()
            assert torch.equal(back, sent)


def test_the_interpreted_kernel_copies_every_word_and_no_other() -> None:
    pytest.importorskip("triton", reason="Triton is there for Linux alone")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("card", ["sm_90", "gfx942", "gfx1201"])
def test_the_kernel_compiles(card: str) -> None:
    pytest.importorskip("triton", reason="Triton is there for Linux alone")
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kvtrace.engine.triton_words import words_kernel

    target = GPUTarget("cuda", 90, 32) if card == "sm_90" else GPUTarget("hip", card, 64 if card == "gfx942" else 32)
    kinds = {"source": "*i32", "target": "*i32", "words": "i32", "WORDS": "constexpr"}
    source = ASTSource(words_kernel, kinds, {"WORDS": 1024})
    compiled = compile_kernel(source, target=target, options={"num_warps": 4, "enable_fp_fusion": True})
    assert len(compiled.asm["ptx" if card == "sm_90" else "hsaco"]) > 0
    if card == "sm_90":
        assert "ld.volatile.global" in compiled.asm["ptx"]
