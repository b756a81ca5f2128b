"""Whole prompts by torch's own attention (cuDNN's), where that is faster than the paged kernel and its plans are ready.

cuDNN makes a plan for every length it meets: 45 ms each and 0.9 s for the first on an H200, kept for each thread by
itself, against 0.3 ms that a layer of 6,900 tokens gains. So lengths are rounded up to multiples of 256, their plans are
made before anybody waits (:func:`prepare`), and a length without one goes to the paged kernel.
"""

from __future__ import annotations

import threading
from typing import Final

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .tiles import Target

_STEP: Final = 256
_FEWEST: Final = 2048  # below, attention is too small a part of a step to matter
_Plan = tuple[object, ...]


class _Plans(threading.local):
    def __init__(self) -> None:
        self.ready: set[_Plan] = set()


_plans = _Plans()


def wins(target: Target, dtype: torch.dtype) -> bool:
    """Whether torch's own attention is the faster one for a whole prompt: measured on sm_90 alone."""
    return target.architecture == "sm_90" and dtype in (torch.bfloat16, torch.float16)


def prepare(
    heads: int, kv_heads: int, head_dim: int, scale: float, dtype: torch.dtype, device: torch.device, most_tokens: int
) -> None:
    """Make the plans for whole prompts of up to ``most_tokens``; to be called by the thread that will run them.

    Where torch cannot run one of them, prompts of that length go to the paged kernel as before.
    """
    both = heads + kv_heads
    for tokens in range(_FEWEST, most_tokens + _STEP, _STEP):
        turned = torch.zeros((tokens, both, head_dim), dtype=dtype, device=device)
        states = torch.zeros((tokens, both + kv_heads, head_dim), dtype=dtype, device=device)
        query, key, value = turned[:, :heads], turned[:, heads:], states[:, both:]
        try:
            attend(query, key, value, scale)
        except RuntimeError:
            return
        _plans.ready.add(_plan(query, key, value))


def ready(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether this thread has the plan that a prompt of this shape and layout needs."""
    return _plan(query, key, value) in _plans.ready


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal attention of one sequence's first positions over themselves; shapes as in :func:`.ops.paged_attention`."""
    tokens = query.shape[0]
    by_head = [_padded(states).transpose(0, 1)[None] for states in (query, key, value)]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        output = scaled_dot_product_attention(
            by_head[0], by_head[1], by_head[2], is_causal=True, scale=scale, enable_gqa=True
        )
    # Its memory has the order of the query's, so this is a view and no copy.
    return output[0].transpose(0, 1)[:tokens].contiguous()


def _padded(states: Tensor) -> Tensor:
    """``states`` at a length that has a plan: themselves, or a copy of the same layout with zeros at its end.

    What lies there must not be NaN, though nobody looks at it.
    """
    tokens = states.shape[0]
    rounded = _rounded(tokens)
    if tokens == rounded:
        return states
    result = states.new_empty(rounded * states.stride(0)).as_strided((rounded, *states.shape[1:]), states.stride())
    result[:tokens] = states
    result[tokens:] = 0
    return result


def _rounded(tokens: int) -> int:
    return -(-tokens // _STEP) * _STEP


def _plan(query: Tensor, key: Tensor, value: Tensor) -> _Plan:
    layouts = tuple((*states.shape[1:], *states.stride()) for states in (query, key, value))
    return _rounded(query.shape[0]), layouts, query.dtype, query.device
