"""Which tiling of the skinny products suits a card: every product of a layer at some batch sizes, many tilings each.

    python benchmarks/skinny.py [--batch 8 --batch 32] [--tilings 24] [--seconds 60] [--json FILE]

Prints the fastest tilings of each product beside the library's own matrix product, and a chain of layers. Weights are
many times the size of the cache and are read in turn, as decoding reads them.
Needs a GPU. What wins goes into ``engine/model/skinny_tiles.py`` by hand.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from kvtrace.engine.model.skinny_ops import arguments, launch
from kvtrace.engine.model.skinny_tiles import LayerTiling, Tiling, padded_rows

HIDDEN, MLP, QKV, VOCABULARY = 4096, 12_288, 6144, 151_936  # Qwen3-8B
SHARED_BYTES = 220_000
COLD_BYTES = 600_000_000
COMPILERS = 12


class Product(NamedTuple):
    """One product of a layer: columns (of the output), depth, and what the kernel does around it."""

    name: str
    width: int
    depth: int
    kind: str  # plain, normed, gated, adds

    @property
    def weight_rows(self) -> int:
        """Rows of the weight: twice the columns where it is gate and up."""
        return self.width * (2 if self.kind == "gated" else 1)

    @property
    def bytes(self) -> int:
        """Of the weight."""
        return self.weight_rows * self.depth * 2


PRODUCTS = (
    Product("qkv", QKV, HIDDEN, "normed"),
    Product("out", HIDDEN, HIDDEN, "adds"),
    Product("gate_up", MLP, HIDDEN, "gated"),
    Product("down", HIDDEN, MLP, "adds"),
    Product("head", VOCABULARY, HIDDEN, "normed"),
)


def candidates(product: Product, batch: int, most: int) -> list[Tiling]:
    """Tilings with enough loads under way and no more shared memory than there is; a sample of at most ``most``."""
    found = []
    double = 2 if product.kind == "gated" else 1
    for columns in (16, 32, 64, 128):
        for stride in (64, 128, 256, 512):
            for splits in (1, 2, 4, 8):
                for stages in (2, 3, 4, 6):
                    tiling = Tiling(columns, stride, splits, 8 if columns == 128 else 4, stages)
                    programs = product.width // columns * splits
                    shared = stages * (columns * double + padded_rows(batch)) * stride * 2
                    flying = (stages - 1) * columns * double * stride * 2
                    resident = min(SHARED_BYTES // shared, -(-programs // 132)) if shared <= SHARED_BYTES else 0
                    if not tiling.fits(product.width, product.depth) or programs < 128 or resident * flying < 32_000:
                        continue
                    if splits > 1 and programs > 1100:
                        continue
                    found.append(tiling)
    random.Random(0).shuffle(found)
    return found[:most]


def options(product: Product, batch: int, device: str) -> dict[str, Any]:
    """The tensors besides state and weight that ``product`` takes."""
    if product.kind in ("normed", "gated"):
        squares = torch.ones((128, batch), device=device)
        return {"squares": squares, "eps": 1e-6, "gated": product.kind == "gated"}
    return {
        "residual": torch.zeros((batch, product.width), dtype=torch.bfloat16, device=device),
        "norm": torch.ones(product.width, dtype=torch.bfloat16, device=device),
    }


def compile_one(job: tuple[Product, int, Tiling]) -> str | None:
    """Compile one kernel into the cache, in a process of its own; what went wrong, if anything."""
    from kvtrace.engine.model.triton_skinny import linear_kernel

    product, batch, tiling = job
    state = torch.empty((batch, product.depth), dtype=torch.bfloat16, device="meta")
    weight = torch.empty((product.weight_rows, product.depth), dtype=torch.bfloat16, device="meta")
    grid, given, constants, _ = arguments(state, weight, tiling, **options(product, batch, "meta"))
    given = tuple(one.dtype if isinstance(one, Tensor) else one for one in given)
    try:
        linear_kernel.warmup(*given, grid=grid, **constants)
    except Exception as error:  # a tiling that does not compile is a result too
        return f"{type(error).__name__}: {str(error)[:100]}"
    return None


def microseconds(call: Any, count: int) -> float:
    """Median time of one of ``count`` calls ``call(0) … call(count - 1)``, replayed in one graph."""
    for index in range(2):
        call(index)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(count):
            call(index)
    times = []
    for _ in range(7):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / count)
    return statistics.median(times[2:])


def weights_of(product: Product) -> list[Tensor]:
    """Enough weights that none is in the cache when its turn comes again."""
    copies = max(2, -(-COLD_BYTES // product.bytes))
    return [
        torch.empty((product.weight_rows, product.depth), dtype=torch.bfloat16, device="cuda").normal_(std=0.02)
        for _ in range(copies)
    ]


def correct(product: Product, state: Tensor, weight: Tensor, tiling: Tiling) -> bool:
    """Whether the kernel gives what torch does."""
    extra = options(product, len(state), "cuda")
    found = launch(state, weight, tiling, **extra)[0].float()
    wide = linear(state.float(), weight.float())
    if product.kind in ("normed", "gated"):
        wide = wide * torch.rsqrt(extra["squares"].sum(0) / product.depth + 1e-6)[:, None]
    if product.kind == "gated":
        gate, up = wide.chunk(2, -1)
        wide = torch.nn.functional.silu(gate) * up
    return bool((found - wide).abs().max() <= 0.02 * wide.abs().max())


def sweep(product: Product, batch: int, tilings: list[Tiling], until: float) -> dict[str, Any]:
    """Times of the library and of every tiling for one product."""
    weights = weights_of(product)
    count = max(len(weights), 12)
    state = torch.randn((batch, product.depth), dtype=torch.bfloat16, device="cuda")
    extra = options(product, batch, "cuda")
    library = microseconds(lambda index: linear(state, weights[index % len(weights)]), count)
    rows = []
    for tiling in tilings:
        if time.monotonic() > until:
            break
        try:
            right = correct(product, state, weights[0], tiling)
            took = microseconds(lambda index, t=tiling: launch(state, weights[index % len(weights)], t, **extra), count)
        except Exception as error:
            rows.append({"tiling": str(tiling), "error": f"{type(error).__name__}: {str(error)[:80]}"})
            torch.cuda.synchronize()
            continue
        rows.append({"tiling": tiling, "us": took, "right": right, "gb_per_s": product.bytes / took / 1e3})
    rows.sort(key=lambda row: row.get("us", 1e9))
    return {"library_us": library, "library_gb_per_s": product.bytes / library / 1e3, "rows": rows}


def chain(batch: int, best: dict[str, Tiling]) -> float:
    """Microseconds of one layer's four products in a chain of layers."""
    layers = 8
    sets = {p.name: [weights_of(p)[0] for _ in range(layers)] for p in PRODUCTS[:4]}
    states = {p.name: torch.randn((batch, p.depth), dtype=torch.bfloat16, device="cuda") for p in PRODUCTS[:4]}
    extras = {p.name: options(p, batch, "cuda") for p in PRODUCTS[:4]}

    def layer(index: int) -> None:
        for p in PRODUCTS[:4]:
            launch(states[p.name], sets[p.name][index % layers], best[p.name], **extras[p.name])

    return microseconds(layer, layers * 2)


# Strides and stages of the additions, the gate, and q, k and v, by the rows that a program pads a batch to.
WHOLE = {
    16: ((512, 4, 64, 5, 256, 4), (512, 3, 64, 4, 256, 3), (256, 6, 64, 6, 128, 6), (512, 4, 32, 8, 256, 4)),
    32: ((256, 4, 64, 4, 128, 5), (128, 6, 64, 5, 128, 6), (256, 5, 32, 7, 256, 4)),
}


def whole_tilings(batch: int) -> list[LayerTiling]:
    """What to try for the kernel of whole layers."""
    return [
        LayerTiling(128, warps, *shape, ahead)
        for shape in WHOLE[padded_rows(batch)]
        for warps in (4, 8)
        for ahead in (0, 65_536, 131_072)
    ]


class Layer(NamedTuple):
    """One layer's weights, and what goes in."""

    attended: Tensor
    residual: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    next_norm: Tensor
    next_qkv: Tensor
    barriers: Tensor


def layer_of(batch: int, device: str) -> Layer:
    """A random layer."""

    def drawn(*shape: int) -> Tensor:
        empty = torch.empty(shape, dtype=torch.bfloat16, device=device)
        return empty if device == "meta" else empty.normal_(std=0.02)

    return Layer(
        drawn(batch, HIDDEN),
        drawn(batch, HIDDEN),
        drawn(HIDDEN, HIDDEN),
        drawn(HIDDEN),
        drawn(2 * MLP, HIDDEN),
        drawn(HIDDEN, MLP),
        drawn(HIDDEN),
        drawn(QKV, HIDDEN),
        torch.zeros(32, dtype=torch.int32, device=device),
    )


def compile_whole(job: tuple[int, LayerTiling]) -> str | None:
    """Compile the kernel of whole layers into the cache; what went wrong, if anything."""
    from kvtrace.engine.model import triton_layer

    class Warm:
        def __getitem__(self, grid: Any) -> Any:
            def call(*given: Any, **constants: Any) -> None:
                types = (one.dtype if isinstance(one, Tensor) else one for one in given)
                real.warmup(*types, grid=grid, **constants)

            return call

    real, triton_layer.layer_kernel = triton_layer.layer_kernel, Warm()
    try:
        triton_layer.layer(*layer_of(job[0], "meta"), 1e-6, job[1])
    except Exception as error:  # a tiling that does not compile is a result too
        return f"{type(error).__name__}: {str(error)[:100]}"
    finally:
        triton_layer.layer_kernel = real
    return None


def sweep_whole(batch: int, tilings: list[LayerTiling]) -> list[tuple[float, LayerTiling]]:
    """Microseconds of a layer's four products by one kernel, in a chain of layers."""
    from kvtrace.engine.model import triton_layer

    layers = [layer_of(batch, "cuda") for _ in range(8)]
    rows = []
    for tiling in tilings:

        def call(index: int, tiling: LayerTiling = tiling) -> None:
            if index % 8 == 0:
                for one in layers:
                    one.barriers.zero_()
            triton_layer.layer(*layers[index % 8], 1e-6, tiling)

        try:
            rows.append((microseconds(call, 16), tiling))
        except Exception as error:
            print("   ", tiling, type(error).__name__, str(error)[:80])
    return sorted(rows, key=lambda row: row[0])


def whole(batches: list[int]) -> None:
    """Sweep the kernel that does a layer's products in one launch."""
    started = time.monotonic()
    jobs = [(batch, tiling) for batch in batches for tiling in whole_tilings(batch)]
    with ProcessPoolExecutor(COMPILERS, mp_context=get_context("spawn")) as pool:
        failures = list(pool.map(compile_whole, jobs, chunksize=1))
    print(f"{len(jobs)} kernels compiled in {time.monotonic() - started:.0f} s; {[f for f in failures if f][:2]}")
    for batch in batches:
        usable = [tiling for (b, tiling), failure in zip(jobs, failures, strict=True) if b == batch and failure is None]
        for took, tiling in sweep_whole(batch, usable):
            print(f"batch {batch}: {took:6.1f} us a layer  {tiling}", flush=True)


def main() -> None:
    """Run the sweep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--tilings", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--whole", action="store_true", help="the kernel of whole layers instead of single products")
    asked = parser.parse_args()
    if asked.whole:
        whole(asked.batch or [8])
        return
    started = time.monotonic()
    batches = asked.batch or [8, 32]
    jobs = [(p, b, t) for b in batches for p in PRODUCTS for t in candidates(p, b, asked.tilings)]
    with ProcessPoolExecutor(COMPILERS, mp_context=get_context("spawn")) as pool:
        failures = list(pool.map(compile_one, jobs, chunksize=1))
    print(
        f"{len(jobs)} kernels compiled in {time.monotonic() - started:.0f} s; {sum(f is not None for f in failures)} not"
    )
    for failure in sorted({failure for failure in failures if failure})[:3]:
        print("  ", failure)
    usable = [job for job, failure in zip(jobs, failures, strict=True) if failure is None]
    results: dict[str, Any] = {}
    for batch in batches:
        best = {}
        for product in PRODUCTS:
            tilings = [t for p, b, t in usable if p is product and b == batch]
            found = sweep(product, batch, tilings, started + asked.seconds)
            results[f"{product.name} x {batch}"] = found
            print(
                f"{product.name:8} batch {batch:2}: library {found['library_us']:6.1f} us {found['library_gb_per_s']:5.0f} GB/s"
            )
            for row in found["rows"][:4]:
                print("   ", row)
            best[product.name] = next((row["tiling"] for row in found["rows"] if row.get("right")), None)
            torch.cuda.empty_cache()
        if all(best.values()):
            print(f"layer of four products, batch {batch}: {chain(batch, best):.1f} us")
    if asked.json:
        asked.json.write_text(json.dumps(results, default=str, indent=1))


if __name__ == "__main__":
    main()
