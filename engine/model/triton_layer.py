"""Triton kernel for the four products between two attentions, in one launch.

Apart, each product pays some microseconds in which memory stands still: the launch, the first loads, the last
program's end. Here one program per processor goes through all four, meets the others at a barrier after each, and asks
for its first weights of the next product before it waits there. Which columns a program has is fixed by its number, so
all have the same work and none waits for a straggler.

Every program must be on the device at the same time, or the barrier would never open: the launch takes no more programs
than there are processors, and every other kernel ends by itself.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .skinny_tiles import LayerTiling, padded_rows


@triton.jit(do_not_specialize=["batch"])
def layer_kernel(
    attended: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    mlp_norm: tl.tensor,
    gate_up: tl.tensor,
    down: tl.tensor,
    next_norm: tl.tensor,
    next_qkv: tl.tensor,
    middle: tl.tensor,
    middle_scaled: tl.tensor,
    middle_squares: tl.tensor,
    gated: tl.tensor,
    hidden: tl.tensor,
    scaled: tl.tensor,
    squares: tl.tensor,
    states: tl.tensor,
    barriers: tl.tensor,
    eps: tl.tensor,
    batch: tl.tensor,
    HIDDEN: tl.constexpr,
    ATTENDED: tl.constexpr,
    MLP: tl.constexpr,
    QKV: tl.constexpr,
    PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr,
    HIDDEN_BAND: tl.constexpr,
    MLP_BAND: tl.constexpr,
    QKV_BAND: tl.constexpr,
    ADD_STRIDE: tl.constexpr,
    ADD_STAGES: tl.constexpr,
    GATE_STRIDE: tl.constexpr,
    GATE_STAGES: tl.constexpr,
    QKV_STRIDE: tl.constexpr,
    QKV_STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    PHASE: tl.constexpr,
) -> None:
    """``out`` and residual, gate and up, ``down`` and residual, the next layer's q, k and v; grid ``(PROGRAMS,)``.

    ``*_BAND`` is a program's share of columns, padded to a power of two. ``PHASE`` -1 is all of it; 0 … 3 is one of
    the four alone, without barriers, for interpreters, which run one program after the other.
    """
    program = tl.program_id(0)
    rows = tl.arange(0, ROWS)
    real = rows < batch
    kind = states.dtype.element_ty

    # What the end of a product needs is loaded before it, and the next weights are asked for as soon as it is done: at
    # the end nothing is left to wait for but the other programs.
    columns, inside = _band(program, HIDDEN // PROGRAMS, HIDDEN_BAND)
    mlp_columns, mlp_inside = _band(program, MLP // PROGRAMS, MLP_BAND)
    if PHASE == -1 or PHASE == 0:
        before, weights = _before(residual, mlp_norm, columns, inside, rows, real, HIDDEN)
        sums = _product(attended, out, columns, inside, rows, real, ATTENDED, ADD_STRIDE, ADD_STAGES)
        if PHASE == -1:
            _fetch(gate_up, mlp_columns, mlp_inside, HIDDEN, AHEAD // 2)
            _fetch(gate_up + MLP * HIDDEN, mlp_columns, mlp_inside, HIDDEN, AHEAD // 2)
        _add(
            sums, before, weights, middle, middle_scaled, middle_squares, program, columns, inside, rows, real, batch,
            HIDDEN,
        )  # fmt: skip
    if PHASE == -1:
        _meet(barriers, PROGRAMS)
    if PHASE == -1 or PHASE == 1:
        found = _squares(middle_squares, rows, real, batch, PROGRAMS)
        gates, ups = _two_products(
            middle_scaled, gate_up, MLP * HIDDEN, mlp_columns, mlp_inside, rows, real, HIDDEN, GATE_STRIDE, GATE_STAGES
        )
        if PHASE == -1:
            _fetch(down, columns, inside, MLP, AHEAD)
        factor = tl.rsqrt(tl.sum(found, 0) / HIDDEN + eps)
        gates = (gates * factor[None, :]).to(kind).to(tl.float32)
        ups = (ups * factor[None, :]).to(kind).to(tl.float32)
        cells = mlp_columns[:, None] + rows[None, :] * MLP
        tl.store(gated + cells, (gates * tl.sigmoid(gates) * ups).to(kind), mask=mlp_inside[:, None] & real[None, :])
    if PHASE == -1:
        _meet(barriers + 1, PROGRAMS)
    if PHASE == -1 or PHASE == 2:
        before, weights = _before(middle, next_norm, columns, inside, rows, real, HIDDEN)
        sums = _product(gated, down, columns, inside, rows, real, MLP, ADD_STRIDE, ADD_STAGES)
        if PHASE == -1 and QKV > 0:
            qkv_columns, qkv_inside = _band(program, QKV // PROGRAMS, QKV_BAND)
            _fetch(next_qkv, qkv_columns, qkv_inside, HIDDEN, AHEAD)
        _add(
            sums, before, weights, hidden, scaled, squares, program, columns, inside, rows, real, batch, HIDDEN
        )  # fmt: skip
    if QKV > 0:
        if PHASE == -1:
            _meet(barriers + 2, PROGRAMS)
        if PHASE == -1 or PHASE == 3:
            columns, inside = _band(program, QKV // PROGRAMS, QKV_BAND)
            found = _squares(squares, rows, real, batch, PROGRAMS)
            sums = _product(scaled, next_qkv, columns, inside, rows, real, HIDDEN, QKV_STRIDE, QKV_STAGES)
            factor = tl.rsqrt(tl.sum(found, 0) / HIDDEN + eps)
            cells = columns[:, None] + rows[None, :] * QKV
            tl.store(states + cells, (sums * factor[None, :]).to(kind), mask=inside[:, None] & real[None, :])


@triton.jit
def _band(program: tl.tensor, WIDTH: tl.constexpr, PADDED: tl.constexpr) -> tl.tensor:
    """A program's columns, and which of them are its own."""
    own = tl.arange(0, PADDED)
    return program * WIDTH + own, own < WIDTH


@triton.jit
def _product(
    state: tl.tensor,
    weight: tl.tensor,
    columns: tl.tensor,
    inside: tl.tensor,
    rows: tl.tensor,
    real: tl.tensor,
    DEPTH: tl.constexpr,
    STRIDE: tl.constexpr,
    STAGES: tl.constexpr,
) -> tl.tensor:
    """``weight[columns] @ state.T``: ``[columns, rows]`` in float32."""
    steps = tl.arange(0, STRIDE)
    weights = weight + columns.to(tl.int64)[:, None] * DEPTH + steps[None, :]
    states = state + rows[None, :] * DEPTH + steps[:, None]
    sums = tl.zeros([columns.shape[0], rows.shape[0]], tl.float32)
    for step in tl.range(0, DEPTH, STRIDE, num_stages=STAGES):
        values = tl.load(states + step, mask=real[None, :], other=0.0)
        ours = tl.load(weights + step, mask=inside[:, None], other=0.0, eviction_policy="evict_first")
        sums = tl.dot(ours, values, sums)
    return sums


@triton.jit
def _two_products(
    state: tl.tensor,
    weight: tl.tensor,
    second: tl.constexpr,
    columns: tl.tensor,
    inside: tl.tensor,
    rows: tl.tensor,
    real: tl.tensor,
    DEPTH: tl.constexpr,
    STRIDE: tl.constexpr,
    STAGES: tl.constexpr,
) -> tl.tensor:
    """The same for two weights, the other ``second`` elements behind the first."""
    steps = tl.arange(0, STRIDE)
    weights = weight + columns.to(tl.int64)[:, None] * DEPTH + steps[None, :]
    states = state + rows[None, :] * DEPTH + steps[:, None]
    sums = tl.zeros([columns.shape[0], rows.shape[0]], tl.float32)
    others = tl.zeros([columns.shape[0], rows.shape[0]], tl.float32)
    for step in tl.range(0, DEPTH, STRIDE, num_stages=STAGES):
        values = tl.load(states + step, mask=real[None, :], other=0.0)
        ours = tl.load(weights + step, mask=inside[:, None], other=0.0, eviction_policy="evict_first")
        theirs = tl.load(weights + second + step, mask=inside[:, None], other=0.0, eviction_policy="evict_first")
        sums = tl.dot(ours, values, sums)
        others = tl.dot(theirs, values, others)
    return sums, others


@triton.jit
def _before(
    residual: tl.tensor,
    norm: tl.tensor,
    columns: tl.tensor,
    inside: tl.tensor,
    rows: tl.tensor,
    real: tl.tensor,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """The residual that a product is added to, and the weights of the norm that follows."""
    cells = columns[:, None] + rows[None, :] * WIDTH
    before = tl.load(residual + cells, mask=inside[:, None] & real[None, :], other=0.0)
    return before, tl.load(norm + columns, mask=inside, other=0.0)


@triton.jit
def _add(
    sums: tl.tensor,
    before: tl.tensor,
    weights: tl.tensor,
    output: tl.tensor,
    scaled: tl.tensor,
    squares: tl.tensor,
    program: tl.tensor,
    columns: tl.tensor,
    inside: tl.tensor,
    rows: tl.tensor,
    real: tl.tensor,
    batch: tl.tensor,
    WIDTH: tl.constexpr,
) -> None:
    """Add the residual; store the sum, the sum times the next norm's weight, and its squares."""
    kind = output.dtype.element_ty
    cells = columns[:, None] + rows[None, :] * WIDTH
    mask = inside[:, None] & real[None, :]
    summed = (before.to(tl.float32) + sums.to(kind).to(tl.float32)).to(kind)
    wide = summed.to(tl.float32)
    tl.store(output + cells, summed, mask=mask)
    tl.store(scaled + cells, (wide * weights.to(tl.float32)[:, None]).to(kind), mask=mask)
    tl.store(squares + program * batch + rows, tl.sum(wide * wide, 0), mask=real)


@triton.jit
def _squares(
    squares: tl.tensor, rows: tl.tensor, real: tl.tensor, batch: tl.tensor, PROGRAMS: tl.constexpr
) -> tl.tensor:
    """All programs' sums of squares, ``[PROGRAMS, rows]``."""
    parts = tl.arange(0, PROGRAMS)
    return tl.load(
        squares + parts[:, None] * batch + rows[None, :], mask=(parts >= 0)[:, None] & real[None, :], other=0.0
    )


@triton.jit
def _fetch(weight: tl.tensor, columns: tl.tensor, inside: tl.tensor, DEPTH: tl.constexpr, AHEAD: tl.constexpr) -> None:
    """Ask for about ``AHEAD`` bytes of the program's first weights to be in the second-level cache; NVIDIA alone."""
    if AHEAD > 0:
        lines = tl.arange(0, AHEAD // (128 * columns.shape[0]))
        # Rows that only pad the band repeat its first one.
        own = tl.where(inside, columns, tl.min(columns, 0)).to(tl.int64)
        places = weight + own[:, None] * DEPTH + (lines * 64)[None, :]
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [places.to(tl.int64, bitcast=True)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def _meet(barrier: tl.tensor, PROGRAMS: tl.constexpr) -> None:
    """Wait until all programs have come here, and see what they stored before."""
    # Every thread's stores come before the one thread's releasing count, by the barrier.
    tl.debug_barrier()
    come = tl.atomic_add(barrier, 1, sem="acq_rel") + 1
    while come < PROGRAMS:
        come = tl.atomic_add(barrier, 0, sem="acquire")
    tl.debug_barrier()


def layer(
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
    tiling: LayerTiling,
    phases: tuple[int, ...] = (-1,),
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Launch the kernel; arguments as in :func:`.skinny_ops.skinny_layer`. ``phases`` other than -1 are for interpreters.

    Raises:
        ValueError: the tiling does not divide the products.
    """
    batch, hidden_width = residual.shape
    attended_width, mlp_width = attended.shape[1], down.shape[1]
    qkv_width = 0 if next_qkv is None else next_qkv.shape[0]
    if not tiling.fits(hidden_width, qkv_width, attended_width, mlp_width):
        raise ValueError(f"{tiling} does not divide {hidden_width}, {qkv_width}, {attended_width} and {mlp_width}")
    middle, middle_scaled, hidden, scaled = (torch.empty_like(residual) for _ in range(4))
    gated, states = residual.new_empty((batch, mlp_width)), residual.new_empty((batch, qkv_width))
    middle_squares, squares = (
        torch.empty((tiling.programs, batch), dtype=torch.float32, device=residual.device) for _ in range(2)
    )
    for phase in phases:
        layer_kernel[(tiling.programs,)](
            attended,
            residual,
            out,
            mlp_norm,
            gate_up,
            down,
            next_norm,
            down if next_qkv is None else next_qkv,
            middle,
            middle_scaled,
            middle_squares,
            gated,
            hidden,
            scaled,
            squares,
            states if qkv_width else hidden,
            barriers,
            eps,
            batch,
            HIDDEN=hidden_width,
            ATTENDED=attended_width,
            MLP=mlp_width,
            QKV=qkv_width,
            PROGRAMS=tiling.programs,
            ROWS=padded_rows(batch),
            HIDDEN_BAND=_padded(hidden_width // tiling.programs),
            MLP_BAND=_padded(mlp_width // tiling.programs),
            QKV_BAND=_padded(qkv_width // tiling.programs),
            ADD_STRIDE=tiling.add_stride,
            ADD_STAGES=tiling.add_stages,
            GATE_STRIDE=tiling.gate_stride,
            GATE_STAGES=tiling.gate_stages,
            QKV_STRIDE=tiling.qkv_stride,
            QKV_STAGES=tiling.qkv_stages,
            AHEAD=tiling.ahead,
            PHASE=phase,
            num_warps=tiling.warps,
        )
    return hidden, scaled, squares, states


def _padded(band: int) -> int:
    """A band's columns as a matrix unit takes them."""
    return max(16, int(triton.next_power_of_2(band)))
