"""Matrix products of a few rows, as decoding makes them: a Triton kernel that streams the weights and does what is around.

With 1 to 32 rows a product only reads its weights, and what is left to gain is to read them without a pause: each
program takes a band of output columns, and a band may be divided along the depth (split-K), so that every processor
has several loads under way. Around the product the kernel also does what would be kernels of their own:

- *normed*: the input is ``state * norm weight``, and the product is scaled by the root mean square of each row, whose
  squares the producer of the state has summed up in parts;
- *gated*: gate and up columns in one program, which stores ``silu(gate) * up``;
- *adds*: the residual is added, and the next norm is prepared: the sum is stored as it is, times the norm's weight,
  and as partial sums of squares.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["batch"])
def linear_kernel(
    state: tl.tensor,
    weight: tl.tensor,
    squares: tl.tensor,
    residual: tl.tensor,
    norm: tl.tensor,
    output: tl.tensor,
    scaled: tl.tensor,
    next_squares: tl.tensor,
    partial: tl.tensor,
    counters: tl.tensor,
    eps: tl.tensor,
    batch: tl.tensor,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_PADDED: tl.constexpr,
    NORMED: tl.constexpr,
    GATED: tl.constexpr,
    ADDS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRIDE: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """One band of ``COLUMNS`` columns, one of ``SPLITS`` parts of the depth; grid ``(WIDTH / COLUMNS, SPLITS)``.

    ``state`` ``[batch, DEPTH]``, ``weight`` ``[WIDTH or 2 * WIDTH, DEPTH]``, ``output``, ``residual``, ``scaled``
    ``[batch, WIDTH]``, ``norm`` ``[WIDTH]``, ``squares`` ``[PARTS, batch]``, ``next_squares`` ``[bands, batch]``.
    """
    band = tl.program_id(0)
    split = tl.program_id(1)
    rows = tl.arange(0, ROWS)
    columns = band * COLUMNS + tl.arange(0, COLUMNS)
    steps = tl.arange(0, STRIDE)
    real = rows < batch
    first = split * (DEPTH // SPLITS)
    weights = weight + columns.to(tl.int64)[:, None] * DEPTH + (first + steps)[None, :]
    states = state + rows[None, :] * DEPTH + (first + steps)[:, None]
    # Weights are the rows of the product, since there are at least as many of them as a matrix unit wants.
    sums = tl.zeros([COLUMNS, ROWS], tl.float32)
    ups = tl.zeros([COLUMNS, ROWS], tl.float32)
    for step in tl.range(0, DEPTH // SPLITS, STRIDE, num_stages=STAGES):
        values = tl.load(states + step, mask=real[None, :], other=0.0)
        ours = tl.load(weights + step, eviction_policy="evict_first")
        sums = tl.dot(ours, values, sums)
        if GATED:
            others = tl.load(weights + WIDTH * DEPTH + step, eviction_policy="evict_first")
            ups = tl.dot(others, values, ups)
    if SPLITS == 1:
        _finish(
            sums,
            ups,
            band,
            columns,
            rows,
            real,
            squares,
            residual,
            norm,
            output,
            scaled,
            next_squares,
            eps,
            batch,
            WIDTH,
            DEPTH,
            PARTS,
            PARTS_PADDED,
            NORMED,
            GATED,
            ADDS,
        )
    else:
        cells = tl.arange(0, COLUMNS)[:, None] * ROWS + rows[None, :]
        each = COLUMNS * ROWS * (2 if GATED else 1)
        mine = partial + (band * SPLITS + split) * each
        tl.store(mine + cells, sums)
        if GATED:
            tl.store(mine + COLUMNS * ROWS + cells, ups)
        # Every thread's stores come before the one thread's releasing count, by the barrier.
        tl.debug_barrier()
        done = tl.atomic_add(counters + band, 1, sem="acq_rel")
        if done == SPLITS - 1:
            tl.store(counters + band, 0)
            # In the order of the splits, whoever comes last: the same batch always gives the same bits.
            total = tl.zeros([COLUMNS, ROWS], tl.float32)
            total_ups = tl.zeros([COLUMNS, ROWS], tl.float32)
            for other in range(SPLITS):
                theirs = partial + (band * SPLITS + other) * each
                total += tl.load(theirs + cells, cache_modifier=".cg")
                if GATED:
                    total_ups += tl.load(theirs + COLUMNS * ROWS + cells, cache_modifier=".cg")
            _finish(
                total,
                total_ups,
                band,
                columns,
                rows,
                real,
                squares,
                residual,
                norm,
                output,
                scaled,
                next_squares,
                eps,
                batch,
                WIDTH,
                DEPTH,
                PARTS,
                PARTS_PADDED,
                NORMED,
                GATED,
                ADDS,
            )


@triton.jit
def _finish(
    sums: tl.tensor,
    ups: tl.tensor,
    band: tl.tensor,
    columns: tl.tensor,
    rows: tl.tensor,
    real: tl.tensor,
    squares: tl.tensor,
    residual: tl.tensor,
    norm: tl.tensor,
    output: tl.tensor,
    scaled: tl.tensor,
    next_squares: tl.tensor,
    eps: tl.tensor,
    batch: tl.tensor,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_PADDED: tl.constexpr,
    NORMED: tl.constexpr,
    GATED: tl.constexpr,
    ADDS: tl.constexpr,
) -> None:
    """What follows the product of one band, and its stores."""
    kind = output.dtype.element_ty
    cells = columns[:, None] + rows[None, :] * WIDTH
    mask = real[None, :] & (columns >= 0)[:, None]
    if NORMED:
        parts = tl.arange(0, PARTS_PADDED)
        found = tl.load(
            squares + parts[:, None] * batch + rows[None, :], mask=(parts < PARTS)[:, None] & real[None, :], other=0.0
        )
        factor = tl.rsqrt(tl.sum(found, 0) / DEPTH + eps)
        sums = sums * factor[None, :]
        ups = ups * factor[None, :]
    if GATED:
        gate = sums.to(kind).to(tl.float32)
        sums = gate * tl.sigmoid(gate) * ups.to(kind).to(tl.float32)
    if ADDS:
        before = tl.load(residual + cells, mask=mask, other=0.0)
        summed = (before.to(tl.float32) + sums.to(kind).to(tl.float32)).to(kind)
        tl.store(output + cells, summed, mask=mask)
        wide = summed.to(tl.float32)
        factor_next = tl.load(norm + columns).to(tl.float32)
        tl.store(scaled + cells, (wide * factor_next[:, None]).to(kind), mask=mask)
        tl.store(next_squares + band * batch + rows, tl.sum(wide * wide, 0), mask=real)
    else:
        tl.store(output + cells, sums.to(kind), mask=mask)
