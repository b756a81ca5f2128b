"""Triton kernel that copies a few words, one side of which may be pinned host memory."""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_WORDS: Final = 1024  # of one program: eight loads a thread, all of them under way at once
_compiled: dict[int, Any] = {}  # by device


# Nothing is specialised, so that a device has one variant, for any address.
@triton.jit(do_not_specialize=["source", "target", "words"])
def words_kernel(source: tl.tensor, target: tl.tensor, words: tl.tensor, WORDS: tl.constexpr) -> None:
    """``target[:words] = source[:words]``, ``WORDS`` of them a program."""
    places = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    there = places < words
    # The host writes the same place again and again: what a cache has of it is of an earlier step.
    tl.store(target + places, tl.load(source + places, mask=there, volatile=True), mask=there)


def copy_words(target: Tensor, source: Tensor) -> None:
    """Copy int32 ``source`` to ``target``, both flat and of one length, on the current stream of the current device."""
    words = source.numel()
    grid = (triton.cdiv(words, _WORDS), 1, 1)
    device = torch.cuda.current_device() if source.is_cuda or target.is_cuda else None
    compiled = None if device is None else _compiled.get(device)
    if compiled is not None:
        # Finding the compiled kernel again would take most of the call, twice a step.
        compiled[grid](source, target, words, _WORDS)
        return
    compiled = words_kernel[grid](source, target, words, WORDS=_WORDS, num_warps=4, enable_fp_fusion=True)
    if device is not None:
        _compiled[device] = compiled
