"""Small operators of the lean decoder that compiled code would split in two. CPU: plain torch, the reference."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import silu

_SCHEMA: Final = "(Tensor states, Tensor? norm, Tensor rotary, int heads, float eps) -> Tensor"


@torch.library.custom_op("kvtrace::norm_rotate", mutates_args=(), device_types="cpu", schema=_SCHEMA)
def norm_rotate(states: Tensor, norm: Tensor | None, rotary: Tensor, heads: int, eps: float) -> Tensor:
    """Norm each head, where the model does that, and rotate it by its position.

    Args:
        states: ``[tokens, at least heads * head_dim]``; what follows the heads is left alone.
        norm: ``[heads, head_dim]``, the norms' weights; ``None`` where heads are not normed.
        rotary: ``[tokens, 2, head_dim / 2]``, cosine and sine of each token's position.
        heads: how many heads, from the left.
        eps: of the norm.

    Returns:
        ``[tokens, heads, head_dim]``.
    """
    head_dim = 2 * rotary.shape[2]
    chosen = states[:, : heads * head_dim].view(states.shape[0], heads, head_dim)
    if norm is not None:
        chosen = rms_norm(chosen, norm, eps)
    cosine, sine = rotary[:, None].unbind(2)
    first, second = chosen.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


@norm_rotate.register_fake
def _shape_only(states: Tensor, norm: Tensor | None, rotary: Tensor, heads: int, eps: float) -> Tensor:
    return states.new_empty((states.shape[0], heads, 2 * rotary.shape[2]))


@norm_rotate.register_kernel("cuda")
def _on_gpu(states: Tensor, norm: Tensor | None, rotary: Tensor, heads: int, eps: float) -> Tensor:
    # Triton comes with the GPU builds of torch and is not there for the CPU.
    from . import triton_rotary

    return triton_rotary.norm_rotate(states, norm, rotary, heads, eps)


@torch.library.custom_op("kvtrace::silu_mul", mutates_args=(), device_types="cpu", schema="(Tensor gate_up) -> Tensor")
def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``[tokens, 2 * width]``, gate then up: ``[tokens, width]``."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate) * up


@silu_mul.register_fake
def _half_shape(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))


@silu_mul.register_kernel("cuda")
def _silu_mul_on_gpu(gate_up: Tensor) -> Tensor:
    # Triton comes with the GPU builds of torch and is not there for the CPU.
    from . import triton_rotary

    return triton_rotary.silu_mul(gate_up)


def rms_norm(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last axis, computed in float32 and rounded as transformers does."""
    wide = states.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(states.dtype)
