"""Skinny products as torch operators, so that they stand inside ``torch.compile`` and device graphs.

CPU: plain torch, the reference. CUDA and ROCm: the Triton kernel of :mod:`.triton_skinny`.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from .skinny_tiles import LayerTiling, Tiling, padded_rows

_NORMED: Final = "(Tensor scaled, Tensor squares, Tensor weight, float eps, bool gated, int[] tiling) -> Tensor"
_ADDS: Final = "(Tensor state, Tensor weight, Tensor residual, Tensor norm, int[] tiling) -> (Tensor, Tensor, Tensor)"
_LAYER: Final = (
    "(Tensor attended, Tensor residual, Tensor out, Tensor mlp_norm, Tensor gate_up, Tensor down, Tensor next_norm, "
    "Tensor? next_qkv, Tensor(a!) barriers, float eps, int[] tiling) -> (Tensor, Tensor, Tensor, Tensor)"
)
_MOST_BANDS: Final = 1 << 14
# By device: how many splits of each band are done. Never freed, since captured graphs hold the address.
_counters: dict[torch.device, Tensor] = {}


@torch.library.custom_op("kvtrace::skinny_normed", mutates_args=(), device_types="cpu", schema=_NORMED)
def skinny_normed(
    scaled: Tensor, squares: Tensor, weight: Tensor, eps: float, gated: bool, tiling: list[int]
) -> Tensor:
    """``norm(state) @ weight.T``, or ``silu(gate) * up`` of its two halves.

    Args:
        scaled: ``[rows, depth]``, the state times the norm's weight, not yet divided by its root mean square.
        squares: float32 ``[parts, rows]``, sums of squares of parts of each row of the state.
        weight: ``[width, depth]``; ``[2 * width, depth]``, gate then up, where ``gated``.
        eps: of the norm.
        gated: whether ``weight`` is gate and up.
        tiling: fields of a :class:`~.skinny_tiles.Tiling`.

    Returns:
        ``[rows, width]``.
    """
    factor = torch.rsqrt(squares.sum(0) / scaled.shape[1] + eps)
    product = (linear(scaled, weight).float() * factor[:, None]).to(scaled.dtype)
    if not gated:
        return product
    gate, up = product.chunk(2, dim=-1)
    return silu(gate) * up


@skinny_normed.register_fake
def _normed_shape(
    scaled: Tensor, squares: Tensor, weight: Tensor, eps: float, gated: bool, tiling: list[int]
) -> Tensor:
    return scaled.new_empty((scaled.shape[0], weight.shape[0] // (2 if gated else 1)))


@skinny_normed.register_kernel("cuda")
def _normed_on_gpu(
    scaled: Tensor, squares: Tensor, weight: Tensor, eps: float, gated: bool, tiling: list[int]
) -> Tensor:
    return launch(scaled, weight, Tiling(*tiling), squares=squares, eps=eps, gated=gated)[0]


@torch.library.custom_op("kvtrace::skinny_adds", mutates_args=(), device_types="cpu", schema=_ADDS)
def skinny_adds(
    state: Tensor, weight: Tensor, residual: Tensor, norm: Tensor, tiling: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """``residual + state @ weight.T``, prepared for the norm that follows.

    Args:
        state: ``[rows, depth]``.
        weight: ``[width, depth]``.
        residual: ``[rows, width]``.
        norm: ``[width]``, the next norm's weight.
        tiling: fields of a :class:`~.skinny_tiles.Tiling`.

    Returns:
        The sum ``[rows, width]``, the sum times ``norm``, and its sums of squares by band, float32 ``[bands, rows]``.
    """
    hidden = residual + linear(state, weight)
    return hidden, hidden * norm, sums_of_squares(hidden, Tiling(*tiling).columns)


@skinny_adds.register_fake
def _adds_shape(
    state: Tensor, weight: Tensor, residual: Tensor, norm: Tensor, tiling: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = residual.shape
    squares = residual.new_empty((width // Tiling(*tiling).columns, rows), dtype=torch.float32)
    return residual.new_empty((rows, width)), residual.new_empty((rows, width)), squares


@skinny_adds.register_kernel("cuda")
def _adds_on_gpu(
    state: Tensor, weight: Tensor, residual: Tensor, norm: Tensor, tiling: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    hidden, scaled, squares = launch(state, weight, Tiling(*tiling), residual=residual, norm=norm)
    return hidden, scaled, squares


@torch.library.custom_op("kvtrace::skinny_layer", mutates_args={"barriers"}, device_types="cpu", schema=_LAYER)
def skinny_layer(
    attended: Tensor,
    residual: Tensor,
    out: Tensor,
    mlp_norm: Tensor,
    gate_up: Tensor,
    down: Tensor,
    next_norm: Tensor,
    next_qkv: Tensor | None,
    barriers: Tensor,
    eps: float,
    tiling: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four products between two attentions.

    Args:
        attended: ``[rows, heads * head_dim]``, what attention gave.
        residual: ``[rows, hidden]``, the state before it.
        out: attention's output projection.
        mlp_norm: weight of the norm before the feed-forward.
        gate_up: gate, then up.
        down: the feed-forward's output projection.
        next_norm: weight of the norm that follows the layer.
        next_qkv: merged q, k and v of the next layer; ``None`` after the last one.
        barriers: int32 ``[3]``, zero before the call and spent after it.
        eps: of the norms.
        tiling: fields of a :class:`~.skinny_tiles.LayerTiling`.

    Returns:
        The state ``[rows, hidden]``, the same times ``next_norm``, its sums of squares ``[programs, rows]``, and the
        next layer's q, k and v (``[rows, 0]`` after the last one).
    """
    tiles = LayerTiling(*tiling)
    band = [residual.shape[1] // tiles.programs, *[0] * 4]
    hidden, scaled, squares = skinny_adds(attended, out, residual, mlp_norm, band)
    gated = skinny_normed(scaled, squares, gate_up, eps, True, band)
    hidden, scaled, squares = skinny_adds(gated, down, hidden, next_norm, band)
    if next_qkv is None:
        return hidden, scaled, squares, hidden.new_empty((len(hidden), 0))
    return hidden, scaled, squares, skinny_normed(scaled, squares, next_qkv, eps, False, band)


@skinny_layer.register_fake
def _layer_shapes(
    attended: Tensor,
    residual: Tensor,
    out: Tensor,
    mlp_norm: Tensor,
    gate_up: Tensor,
    down: Tensor,
    next_norm: Tensor,
    next_qkv: Tensor | None,
    barriers: Tensor,
    eps: float,
    tiling: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = len(residual)
    squares = residual.new_empty((LayerTiling(*tiling).programs, rows), dtype=torch.float32)
    states = residual.new_empty((rows, 0 if next_qkv is None else len(next_qkv)))
    return torch.empty_like(residual), torch.empty_like(residual), squares, states


@skinny_layer.register_kernel("cuda")
def _layer_on_gpu(
    attended: Tensor,
    residual: Tensor,
    out: Tensor,
    mlp_norm: Tensor,
    gate_up: Tensor,
    down: Tensor,
    next_norm: Tensor,
    next_qkv: Tensor | None,
    barriers: Tensor,
    eps: float,
    tiling: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Triton comes with the GPU builds of torch and is not there for the CPU.
    from . import triton_layer

    tiles = LayerTiling(*tiling)
    return triton_layer.layer(
        attended, residual, out, mlp_norm, gate_up, down, next_norm, next_qkv, barriers, eps, tiles
    )


def sums_of_squares(states: Tensor, columns: int) -> Tensor:
    """Float32 ``[bands, rows]`` of ``states`` ``[rows, width]``, each over a band of ``columns``."""
    rows, width = states.shape
    return states.view(rows, width // columns, columns).float().square().sum(-1).T.contiguous()


def arguments(
    state: Tensor,
    weight: Tensor,
    tiling: Tiling,
    *,
    squares: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
    norm: Tensor | None = None,
) -> tuple[tuple[int, int], tuple[Any, ...], dict[str, Any], tuple[Tensor, ...]]:
    """Grid, arguments and constants of one launch, and the tensors that it fills.

    Those are ``(output,)``, or ``(output, scaled, squares)`` where a residual is added.

    Raises:
        ValueError: the tiling does not divide the product.
    """
    batch, depth = state.shape
    width = weight.shape[0] // (2 if gated else 1)
    if not tiling.fits(width, depth):
        raise ValueError(f"{tiling} does not divide a product of {width} columns and depth {depth}")
    bands, rows = width // tiling.columns, padded_rows(batch)
    output = state.new_empty((batch, width))
    scaled, sums, filled = output, output, (output,)
    if residual is not None:
        scaled = state.new_empty((batch, width))
        sums = torch.empty((bands, batch), dtype=torch.float32, device=state.device)
        filled = (output, scaled, sums)  # type: ignore[assignment]
    partial, counters = output, output
    if tiling.splits > 1:
        size = bands * tiling.splits * tiling.columns * rows * (2 if gated else 1)
        partial = torch.empty(size, dtype=torch.float32, device=state.device)
        counters = counters_of(state.device)
    parts = 1 if squares is None else squares.shape[0]
    given = (
        state,
        weight,
        output if squares is None else squares,
        output if residual is None else residual,
        output if norm is None else norm,
        output,
        scaled,
        sums,
        partial,
        counters,
        eps,
        batch,
    )
    constants = {
        "WIDTH": width,
        "DEPTH": depth,
        "PARTS": parts,
        "PARTS_PADDED": 1 << (parts - 1).bit_length(),
        "NORMED": squares is not None,
        "GATED": gated,
        "ADDS": residual is not None,
        "ROWS": rows,
        "COLUMNS": tiling.columns,
        "STRIDE": tiling.stride,
        "SPLITS": tiling.splits,
        "STAGES": tiling.stages,
        "num_warps": tiling.warps,
        "num_stages": tiling.stages,
    }
    return (bands, tiling.splits), given, constants, filled


def launch(state: Tensor, weight: Tensor, tiling: Tiling, **options: Any) -> tuple[Tensor, ...]:
    """Run the kernel; see :func:`arguments`. Launches on one device must follow each other: they share counters."""
    # Triton comes with the GPU builds of torch and is not there for the CPU.
    from .triton_skinny import linear_kernel

    grid, given, constants, filled = arguments(state, weight, tiling, **options)
    linear_kernel[grid](*given, **constants)
    return filled


def counters_of(device: torch.device) -> Tensor:
    """Counters at zero, shared by all launches on ``device``.

    Raises:
        RuntimeError: they do not exist yet, and a graph is being captured: the zeroing would be captured with it.
    """
    if device not in _counters:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("the counters of the split products must exist before a graph is captured")
        _counters[device] = torch.zeros(_MOST_BANDS, dtype=torch.int32, device=device)
    return _counters[device]
