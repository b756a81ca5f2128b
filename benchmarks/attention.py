"""How fast paged attention is on this GPU: ``python benchmarks/attention.py [--json] [--sweep]``.

Qwen3-8B's shape (32 heads, 8 KV heads of 128, bfloat16), blocks in random order in a block-major pool. Decoding is timed
in device graphs that hold one call a layer, so that no layer's KV is in the cache when its turn comes; gigabytes a
second are the KV's bytes over the time, beside what a device-to-device copy moves (read + write). Prefill counts
4 · head_dim operations for each (head, query, key) that causality leaves. Beside ours stands torch's own attention on
KV already gathered, without the gathering. ``--sweep`` tries other tiles as well. stdout is a table, or JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch
from machine import describe
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kvtrace.engine.attention import gpu, ops, triton_decode, triton_prefill, triton_write
from kvtrace.engine.attention.tiles import (
    DecodeTiles,
    PrefillTiles,
    Target,
    decode_tiles,
    prefill_splits,
    prefill_tiles,
)

SCHEMA_VERSION: Final = 1
HEADS, KV_HEADS, HEAD_DIM, BLOCK_TOKENS = 32, 8, 128, 16
TOKEN_BYTES: Final = 2 * KV_HEADS * HEAD_DIM * 2  # of one layer
BATCHES: Final = ((1, 1000), (8, 1000), (32, 1000), (1, 6900), (8, 6900))
# New positions and all keys of one sequence: a whole prompt, the second half of one, and a turn that comes back.
PREFILLS: Final = ((6912, 6912), (6900, 6900), (3450, 6900), (561, 7461), (100, 7000))
REPEATS: Final = 15

OTHER_DECODE: Final = (DecodeTiles(64, 0, 4, 5, join=False), DecodeTiles(128, 0, 4, 3, join=True))
OTHER_PREFILL: Final = (PrefillTiles(128, 128, 8, 3), PrefillTiles(64, 64, 4, 5))


@dataclass(frozen=True)
class Row:
    """One measurement."""

    way: str
    case: str
    microseconds: float
    gb_per_s: float | None = None
    tflop_per_s: float | None = None


@dataclass(frozen=True)
class Step:
    """Inputs of one step and a pool of ``layers`` layers."""

    query: Tensor
    key: Tensor
    value: Tensor
    pool: Tensor
    write_slots: Tensor
    query_starts: Tensor
    key_lengths: Tensor
    tables: Tensor

    @property
    def layers(self) -> int:
        """How many the pool has."""
        return self.pool.shape[1]

    def by_op(self, layer: int, decode: bool, whole: bool = False) -> Tensor:
        """The operator, as the engine calls it."""
        return ops.paged_attention(
            self.query,
            self.key,
            self.value,
            self.pool,
            layer,
            self.write_slots,
            self.query_starts,
            self.key_lengths,
            self.tables,
            HEAD_DIM**-0.5,
            decode,
            0,
            whole,
        )


def make_step(sequences: int, queries: int, keys: int, layers: int) -> Step:
    """``sequences`` of ``keys`` keys each, the last ``queries`` of them new."""
    width = -(-keys // BLOCK_TOKENS)
    shape = (sequences * width, layers, 2, KV_HEADS, BLOCK_TOKENS, HEAD_DIM)
    pool = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
    tables = torch.randperm(sequences * width, device="cuda").view(sequences, width)
    positions = torch.arange(keys - queries, keys, device="cuda")
    slots = tables[:, positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
    rows, both = sequences * queries, HEADS + KV_HEADS
    # Laid out as the lean decoder has them: query and key side by side, value within the projection.
    turned = torch.randn((rows, both, HEAD_DIM), dtype=torch.bfloat16, device="cuda")
    states = torch.randn((rows, both + KV_HEADS, HEAD_DIM), dtype=torch.bfloat16, device="cuda")
    return Step(
        query=turned[:, :HEADS],
        key=turned[:, HEADS:],
        value=states[:, both:],
        pool=pool,
        write_slots=slots.reshape(-1),
        query_starts=torch.arange(sequences + 1, dtype=torch.int32, device="cuda") * queries,
        key_lengths=torch.full((sequences,), keys, dtype=torch.int32, device="cuda"),
        tables=tables.int(),
    )


def timed(call: Callable[[], object]) -> float:
    """Median microseconds of ``call`` as a device graph."""
    torch.cuda.synchronize()  # the inputs are there before another stream reads them
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call()
    return median_us(graph.replay)


def median_us(run: Callable[[], object]) -> float:
    """Median microseconds that ``run`` keeps the device busy."""
    taken = []
    for _ in range(REPEATS + 2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) * 1000)
    return statistics.median(taken[2:])


def copy_gb_per_s() -> float:
    """Read and written bytes a second of a device-to-device copy."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.nbytes / median_us(lambda: target.copy_(source)) / 1000


def decode_rows(target: Target, sweep: bool) -> Iterator[Row]:
    """Decoding, by batch and length."""
    for sequences, keys in BATCHES:
        layers = max(2, min(36, (6 << 30) // (sequences * keys * TOKEN_BYTES)))
        step = make_step(sequences, 1, keys, layers)
        moved = sequences * keys * TOKEN_BYTES
        chosen = decode_tiles(target, HEAD_DIM, 2, sequences, KV_HEADS, step.tables.shape[1] * BLOCK_TOKENS)
        case = f"{sequences} × {keys:,}"

        def row(
            way: str, call: Callable[[int], object], case: str = case, moved: int = moved, layers: int = layers
        ) -> Row:
            took = timed(lambda: [call(layer) for layer in range(layers)]) / layers
            return Row(way, case, took, gb_per_s=moved / took / 1000)

        yield row(f"kvtrace {_decode_name(chosen)}", lambda layer, step=step: step.by_op(layer, True))
        if sweep:
            for other in (
                *(replace(tiles, splits=chosen.splits) for tiles in OTHER_DECODE),
                *(replace(chosen, splits=splits) for splits in (1, 2, 4, 8, 16, 32) if _near(splits, chosen.splits)),
            ):
                yield row(_decode_name(other), lambda layer, step=step, other=other: decode_by(step, layer, other))
        yield from _dense_decode(step, sequences, keys, row)


def _near(splits: int, chosen: int) -> bool:
    return splits != chosen and chosen // 4 <= splits <= chosen * 4


def _dense_decode(step: Step, sequences: int, keys: int, row: Callable[..., Row]) -> Iterator[Row]:
    """Torch's own attention over KV of the same shape that lies ready, one copy of it for each layer."""
    gathered = torch.randn((step.layers, 2, sequences, KV_HEADS, keys, HEAD_DIM), dtype=torch.bfloat16, device="cuda")
    query = step.query[:, :, None]

    def call(layer: int) -> Tensor:
        key, value = gathered[layer]
        return scaled_dot_product_attention(query, key, value, enable_gqa=True)

    yield row("torch, KV gathered before", call)


def decode_by(step: Step, layer: int, tiles: DecodeTiles) -> Tensor:
    """The decode kernel with other tiles than the table's."""
    return triton_decode.decode(
        step.query,
        step.key,
        step.value,
        step.pool,
        layer,
        step.write_slots,
        step.key_lengths,
        step.tables,
        HEAD_DIM**-0.5,
        0,
        tiles,
    )


def prefill_rows(target: Target, sweep: bool) -> Iterator[Row]:
    """Prefill of one sequence, by new positions and keys."""
    for queries, keys in PREFILLS:
        step = make_step(1, queries, keys, 4)
        operations = 4 * HEAD_DIM * HEADS * (queries * keys - queries * (queries - 1) / 2)
        case = f"{queries:,} of {keys:,}"

        def row(way: str, call: Callable[[int], object], case: str = case, operations: float = operations) -> Row:
            took = timed(lambda: [call(layer) for layer in range(4)]) / 4
            return Row(way, case, took, tflop_per_s=operations / took / 1e6)

        chosen = prefill_tiles(target, HEAD_DIM, 2)
        splits = prefill_splits(target, chosen, queries, HEADS, KV_HEADS, keys)
        yield row(
            f"kvtrace {_prefill_name(chosen)}, {splits} splits", lambda layer, step=step: step.by_op(layer, False)
        )
        for tiles in OTHER_PREFILL if sweep else ():
            for splits in (1,) if queries > 600 else (1, 2, 4, 8):
                yield row(
                    f"{_prefill_name(tiles)}, {splits} splits",
                    lambda layer, step=step, tiles=tiles, splits=splits: prefill_by(step, layer, tiles, splits),
                )
        yield row("write alone", lambda layer, step=step: _write(step, layer))
        if queries == keys:
            device = step.query.device
            gpu.prepare(HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM**-0.5, torch.bfloat16, device, queries)
            yield row("kvtrace, whole prompt", lambda layer, step=step: step.by_op(layer, False, True))
            for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
                yield from _dense_prefill(step, backend, row)


def _dense_prefill(step: Step, backend: SDPBackend, row: Callable[..., Row]) -> Iterator[Row]:
    query, key, value = (states.transpose(0, 1)[None] for states in (step.query, step.key, step.value))

    def call(layer: int) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    try:
        yield row(f"torch {backend.name.lower()}", call)
    except RuntimeError as error:
        print(f"torch {backend.name.lower()}: {error}", file=sys.stderr)


def prefill_by(step: Step, layer: int, tiles: PrefillTiles, splits: int) -> Tensor:
    """The kernels that write and prefill, with other tiles than the table's."""
    _write(step, layer)
    return triton_prefill.prefill(
        step.query,
        step.pool,
        layer,
        step.query_starts,
        step.key_lengths,
        step.tables,
        HEAD_DIM**-0.5,
        0,
        tiles,
        splits,
    )


def _write(step: Step, layer: int) -> None:
    triton_write.write_kv(step.key, step.value, step.pool, layer, step.write_slots)


def _decode_name(tiles: DecodeTiles) -> str:
    joined = "joined" if tiles.join else "combined"
    return f"{tiles.keys} keys, {tiles.splits} splits, {tiles.warps} warps, {tiles.stages} stages, {joined}"


def _prefill_name(tiles: PrefillTiles) -> str:
    return f"{tiles.rows} × {tiles.keys}, {tiles.warps} warps, {tiles.stages} stages"


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="Paged attention on this GPU.")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--sweep", action="store_true", help="try other tiles as well")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no GPU that torch can use", file=sys.stderr)
        return 5
    torch.manual_seed(0)
    target = gpu.target_of(torch.device("cuda", torch.cuda.current_device()))
    copy = copy_gb_per_s()
    rows = []
    for row in (*decode_rows(target, asked.sweep), *prefill_rows(target, asked.sweep)):
        rows.append(row)
        if not asked.json:
            print(_line(row, copy), flush=True)
    if asked.json:
        json.dump(_report(rows, copy), sys.stdout, indent=1, ensure_ascii=False)
    else:
        print(f"device copy, read + write: {copy:,.0f} GB/s")
    return 0


def _line(row: Row, copy: float) -> str:
    rate = (
        f"{row.gb_per_s:7,.0f} GB/s {row.gb_per_s / copy:5.2f}" if row.gb_per_s else f"{row.tflop_per_s:7,.0f} TFLOP/s"
    )
    return f"{row.case:14} {row.microseconds:9,.1f} µs {rate:22} {row.way}"


def _report(rows: list[Row], copy: float) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "machine": describe("torch", "triton") | {"gpu": torch.cuda.get_device_name()},
        "shape": {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "dtype": "bfloat16"},
        "device_copy_gb_per_s": copy,
        "rows": [asdict(row) for row in rows],
    }


if __name__ == "__main__":
    raise SystemExit(main())
