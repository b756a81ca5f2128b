"""Triton kernels for what compiled code does in two passes or slowly: norm and rotation of heads, and the gate."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_HEADS = 8  # heads of one program: enough bytes to stream, and enough programs where a step has few tokens
_COLUMNS = 2048


@triton.jit
def rotary_kernel(
    states: tl.tensor,
    norm: tl.tensor,
    rotary: tl.tensor,
    output: tl.tensor,
    eps: tl.tensor,
    state_stride: tl.tensor,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    NORMED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """``BLOCK`` heads of one token; grid ``(tokens, ceil(HEADS / BLOCK))``."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dims = tl.arange(0, HALF_PADDED)
    mask = (heads < HEADS)[:, None] & (dims < HALF)[None, :]
    cells = heads[:, None] * (2 * HALF) + dims[None, :]
    kind = output.dtype.element_ty
    first = tl.load(states + token * state_stride + cells, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(states + token * state_stride + cells + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORMED:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        factor = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
        # Rounded where transformers rounds.
        first = (first * factor).to(kind).to(tl.float32) * tl.load(norm + cells, mask=mask, other=0.0).to(tl.float32)
        second = (second * factor).to(kind).to(tl.float32)
        second = second * tl.load(norm + cells + HALF, mask=mask, other=0.0).to(tl.float32)
    turns = rotary + token * (2 * HALF) + dims
    cosine = tl.load(turns, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    sine = tl.load(turns + HALF, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    target = output + token * (HEADS * 2 * HALF) + cells
    tl.store(target, (first * cosine - second * sine).to(kind), mask=mask)
    tl.store(target + HALF, (second * cosine + first * sine).to(kind), mask=mask)


def norm_rotate(states: Tensor, norm: Tensor | None, rotary: Tensor, heads: int, eps: float) -> Tensor:
    """``[tokens, heads, head_dim]`` from the first ``heads`` of each row of ``states``; see :mod:`.lean_ops`."""
    tokens, half = states.shape[0], rotary.shape[2]
    output = states.new_empty((tokens, heads, 2 * half))
    rotary_kernel[(tokens, triton.cdiv(heads, _HEADS))](
        states,
        states if norm is None else norm,
        rotary,
        output,
        eps,
        states.stride(0),
        HEADS=heads,
        HALF=half,
        HALF_PADDED=triton.next_power_of_2(half),
        NORMED=norm is not None,
        BLOCK=_HEADS,
        num_warps=4,
    )
    return output


@triton.jit
def silu_mul_kernel(gate_up: tl.tensor, output: tl.tensor, WIDTH: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """``BLOCK`` columns of one token; grid ``(tokens, ceil(WIDTH / BLOCK))``."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    kind = output.dtype.element_ty
    gate = tl.load(gate_up + token * (2 * WIDTH) + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * (2 * WIDTH) + WIDTH + columns, mask=mask, other=0.0).to(tl.float32)
    # Rounded where transformers rounds.
    opened = (gate * tl.sigmoid(gate)).to(kind).to(tl.float32)
    tl.store(output + token * WIDTH + columns, (opened * up).to(kind), mask=mask)


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``; see :mod:`.lean_ops`."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    output = gate_up.new_empty((tokens, width))
    block = min(_COLUMNS, triton.next_power_of_2(width))
    silu_mul_kernel[(tokens, triton.cdiv(width, block))](
        gate_up.contiguous(), output, WIDTH=width, BLOCK=block, num_warps=4
    )
    return output
