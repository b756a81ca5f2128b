"""Which tilings the skinny products use, and where they are used at all. Torch-free and pure.

Measured on an H200 (sm_90) with ``benchmarks/skinny.py``. Elsewhere the library's own products are used: nobody has
measured there, and a wrong tiling costs more than the right one gains.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MOST_ROWS: Final = 32
_PROGRAMS: Final = 128  # bands times splits that keep a card of 132 processors busy
_WIDE: Final = 1 << 15  # columns of a vocabulary, not of a layer


class Tiling(NamedTuple):
    """``columns`` output columns a program, ``stride`` of the depth at a time, the depth divided among ``splits``."""

    columns: int
    stride: int
    splits: int
    warps: int
    stages: int

    def fits(self, width: int, depth: int) -> bool:
        """Whether bands and strides come out even."""
        return width % self.columns == 0 and depth % (self.stride * self.splits) == 0


class LayerTiling(NamedTuple):
    """How one kernel goes through a layer's products: ``programs`` that run at once, each with its band of columns.

    ``ahead``: bytes of the next product's weights that a program asks for before it waits for the others.
    """

    programs: int
    warps: int
    add_stride: int
    add_stages: int
    gate_stride: int
    gate_stages: int
    qkv_stride: int
    qkv_stages: int
    ahead: int

    def fits(self, hidden: int, qkv: int, attended: int, mlp: int) -> bool:
        """Whether bands and strides come out even."""
        bands = all(width % self.programs == 0 for width in (hidden, qkv, mlp))
        adds = attended % self.add_stride == 0 and mlp % self.add_stride == 0
        return bands and adds and hidden % self.gate_stride == 0 and hidden % self.qkv_stride == 0


class LayerTilings(NamedTuple):
    """Tilings of a layer's four products and of the head's; ``whole`` where one kernel does a layer's products."""

    qkv: Tiling
    out: Tiling
    gate_up: Tiling
    down: Tiling
    head: Tiling
    whole: LayerTiling | None = None


def padded_rows(batch: int) -> int:
    """Rows that a program computes for ``batch``: what a matrix unit takes."""
    return max(16, 1 << (batch - 1).bit_length())


def tiling_for(width: int, depth: int, batch: int, *, gated: bool = False, adds: bool = False) -> Tiling | None:
    """The tiling for a product of ``width`` output columns and ``depth``; ``None`` where none comes out even.

    The first of those measured as best that comes out even and keeps the processors busy, else the one that comes
    closest to that.
    """
    few = batch <= 16
    if gated:
        best = [Tiling(64, 128, 1, 4, 3), Tiling(64, 64, 1, 4, 4)] if few else [Tiling(32, 64, 1, 4, 4)]
    elif width >= _WIDE:
        best = [Tiling(128, 128, 1, 8, 4)] if few else [Tiling(64, 128, 1, 4, 3)]
    elif adds:
        best = [Tiling(32, 512, 1, 4, 4)] if few else [Tiling(64, 256, 2, 4, 3)]
    else:
        best = [Tiling(32, 128, 1, 4, 6)] if few else [Tiling(32, 128, 2, 4, 4)]
    columns = best[0].columns if adds else 32
    general = [Tiling(columns, stride, splits, 4, 4) for stride in (128, 64) for splits in (1, 2, 4, 8)]
    fitting = [tiling for tiling in (*best, *general) if tiling.fits(width, depth)]
    enough = (tiling for tiling in fitting if width // tiling.columns * tiling.splits >= _PROGRAMS)
    return next(enough, max(fitting, key=lambda tiling: tiling.splits, default=None))


class ModelSizes(NamedTuple):
    """Widths that decide on tilings: hidden state, merged q, k and v, attention's output, feed-forward, vocabulary."""

    hidden: int
    qkv: int
    attended: int
    mlp: int
    vocabulary: int


def layer_tilings(architecture: str, processors: int, batch: int, sizes: ModelSizes) -> LayerTilings | None:
    """Tilings for a model's layers at a batch size; ``None`` where the library's own products are to be used.

    Args:
        architecture: of the device, like ``sm_90``.
        processors: how many it has.
        batch: rows.
        sizes: of the model.
    """
    if architecture != "sm_90" or batch > MOST_ROWS:
        return None
    hidden, qkv, attended, mlp, vocabulary = sizes
    found = (
        tiling_for(qkv, hidden, batch),
        tiling_for(hidden, attended, batch, adds=True),
        tiling_for(mlp, hidden, batch, gated=True),
        tiling_for(hidden, mlp, batch, adds=True),
        tiling_for(vocabulary, hidden, batch),
    )
    if any(one is None for one in found):
        return None
    tilings = LayerTilings(*found, whole_tiling(processors, batch, sizes))  # type: ignore[arg-type]
    # Both add to the hidden state, and the products that follow take the parts of its squares as one shape.
    return tilings if tilings.out.columns == tilings.down.columns else None


def whole_tiling(processors: int, batch: int, sizes: ModelSizes) -> LayerTiling | None:
    """The tiling of the kernel that does a layer's products; ``None`` where they are to be launched one by one.

    Each program waits for all others, so there may be no more of them than the device has processors.
    """
    tiling = LayerTiling(128, 4, 512, 4, 64, 5, 256, 4, 131_072)
    usable = processors >= tiling.programs and padded_rows(batch) == 16
    return tiling if usable and tiling.fits(sizes.hidden, sizes.qkv, sizes.attended, sizes.mlp) else None
