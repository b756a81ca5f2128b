"""Norm and rotation of heads as the projection gives them, within kernels that go on to use them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def turned(
    states: tl.tensor,
    rows: tl.tensor,
    head_norm: tl.tensor,
    norm_rows: tl.tensor,
    turns: tl.tensor,
    real: tl.tensor,
    eps: tl.tensor,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    NORMED: tl.constexpr,
) -> tl.tensor:
    """Heads at ``states + rows``, normed where the model does that, and rotated; rounded where transformers rounds.

    Each element needs the one half a head away: it is loaded a second time rather than moved between threads.
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    dims = tl.arange(0, DIMS)
    other = (dims + HALF) % HEAD_DIM
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    kind = states.dtype.element_ty
    own_part = tl.load(states + rows[:, None] + dims[None, :], mask=inside, other=0.0).to(tl.float32)
    other_part = tl.load(states + rows[:, None] + other[None, :], mask=inside, other=0.0).to(tl.float32)
    # All loads come before the first sum, so that they wait for memory together.
    if NORMED:
        weights = head_norm + norm_rows[:, None] * HEAD_DIM
        own_weights = tl.load(weights + dims[None, :], mask=inside, other=0.0).to(tl.float32)
        other_weights = tl.load(weights + other[None, :], mask=inside, other=0.0).to(tl.float32)
    cosine = tl.load(turns + dims % HALF, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
    sine = tl.load(turns + HALF + dims % HALF, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
    if NORMED:
        factor = tl.rsqrt(tl.sum(own_part * own_part, 1) / HEAD_DIM + eps)[:, None]
        own_part = (own_part * factor).to(kind).to(tl.float32) * own_weights
        other_part = (other_part * factor).to(kind).to(tl.float32) * other_weights
    sine = tl.where(dims < HALF, -sine, sine)
    return (own_part * cosine[None, :] + other_part * sine[None, :]).to(kind)
