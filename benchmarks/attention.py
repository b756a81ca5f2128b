"""How fast paged attention is on this GPU: ``python benchmarks/attention.py [--json] [--sweep]``.

Qwen3-8B's shape (32 heads, 8 KV heads of 128, bfloat16), blocks in random order in a block-major pool. Decoding is timed
in device graphs that hold one call a layer, so that no layer's KV is in the cache when its turn comes; gigabytes a
second are the KV's bytes over the time, beside what a device-to-device copy moves (read + write). Prefill counts
4 · head_dim operations for each (head, query, key) that causality leaves; with "+ 7", seven sequences of 6,400 tokens
decode in the same step, whose operations do not count. Beside ours stands torch's own attention on
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
    prefill_tiles,
)
from kvtrace.engine.geometry import GPU_BLOCK_TOKENS

SCHEMA_VERSION: Final = 1
HEADS, KV_HEADS, HEAD_DIM, BLOCK_TOKENS = 32, 8, 128, GPU_BLOCK_TOKENS
TOKEN_BYTES: Final = 2 * KV_HEADS * HEAD_DIM * 2  # of one layer
BATCHES: Final = ((1, 1000), (8, 1000), (32, 1000), (1, 6900), (8, 6900))
# New positions and all keys of one sequence: a whole prompt, the second half of one, and a turn that comes back.
PREFILLS: Final = ((6912, 6912), (6900, 6900), (3450, 6900), (561, 7461), (100, 7000))
# New positions and all keys of a sequence beside which DECODING others decode.
MIXED: Final = ((57, 3057), (101, 6701), (249, 3249), (505, 3505), (1016, 4016))
DECODING, DECODING_KEYS = 7, 6400
REPEATS: Final = 15

# Contexts as agents have them, of very different lengths.
UNEVEN: Final = (500, 1000, 2000, 3000, 6000, 9000, 14000, 20000)
OTHER_DECODE: Final = ((64, 4, 2, 3), (64, 4, 3, 2), (64, 2, 3, 3), (32, 4, 4, 2))  # keys, warps, stages, programs
OTHER_PREFILL: Final = (
    PrefillTiles(128, 128, 8, 3, join=True),
    PrefillTiles(128, 64, 8, 2, join=True, registers=128),
    PrefillTiles(64, 64, 4, 3, join=True),
)


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


def make_mixed(queries: int, keys: int, layers: int) -> Step:
    """:data:`DECODING` sequences of one new position each, and one of ``queries``."""
    decoding, new = make_step(DECODING, 1, DECODING_KEYS, 1), make_step(1, queries, keys, 1)
    first = DECODING * decoding.tables.shape[1]
    tables = torch.zeros((DECODING + 1, max(decoding.tables.shape[1], new.tables.shape[1])), dtype=torch.int32)
    tables[:DECODING, : decoding.tables.shape[1]] = decoding.tables
    tables[DECODING:, : new.tables.shape[1]] = new.tables + first
    shape = (first + new.tables.shape[1], layers, 2, KV_HEADS, BLOCK_TOKENS, HEAD_DIM)
    query, key, value = (
        torch.cat([getattr(step, name) for step in (decoding, new)]) for name in ("query", "key", "value")
    )
    return Step(
        query=query,
        key=key,
        value=value,
        pool=torch.randn(shape, dtype=torch.bfloat16, device="cuda"),
        write_slots=torch.cat((decoding.write_slots, new.write_slots + first * BLOCK_TOKENS)),
        query_starts=torch.cat((decoding.query_starts, new.query_starts[1:] + DECODING)),
        key_lengths=torch.cat((decoding.key_lengths, new.key_lengths)),
        tables=tables.to("cuda"),
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
        step = make_step(sequences, 1, keys, _layers(sequences * keys))
        yield from _decode_rows(target, sweep, step, f"{sequences} × {keys:,}", sequences * keys)
        yield from _dense_decode(step, sequences, keys)
    step = make_step(len(UNEVEN), 1, max(UNEVEN), _layers(len(UNEVEN) * max(UNEVEN)))
    lengths = torch.tensor(UNEVEN, device="cuda")
    blocks = step.tables.gather(1, (lengths - 1)[:, None] // BLOCK_TOKENS)[:, 0].long()
    slots = blocks * BLOCK_TOKENS + (lengths - 1) % BLOCK_TOKENS
    step = replace(step, key_lengths=lengths.int(), write_slots=slots)
    yield from _decode_rows(target, sweep, step, f"{min(UNEVEN):,} … {max(UNEVEN):,}", sum(UNEVEN))


def _layers(tokens: int) -> int:
    return max(2, min(36, (6 << 30) // (tokens * TOKEN_BYTES)))


def _decode_rows(target: Target, sweep: bool, step: Step, case: str, tokens: int) -> Iterator[Row]:
    sequences, width = step.tables.shape
    chosen = decode_tiles(target, HEAD_DIM, 2, sequences, KV_HEADS, width * BLOCK_TOKENS)
    yield _decode_row(f"kvtrace {_decode_name(chosen)}", case, step, tokens, lambda layer: step.by_op(layer, True))
    others = [
        DecodeTiles(keys, each * target.processors, warps, stages, join=True)
        for keys, warps, stages, each in OTHER_DECODE
    ]
    for other in (*others, replace(chosen, join=False)) if sweep else ():
        yield _decode_row(
            _decode_name(other), case, step, tokens, lambda layer, other=other: decode_by(step, layer, other)
        )


def _decode_row(way: str, case: str, step: Step, tokens: int, call: Callable[[int], object]) -> Row:
    took = timed(lambda: [call(layer) for layer in range(step.layers)]) / step.layers
    return Row(way, case, took, gb_per_s=tokens * TOKEN_BYTES / took / 1000)


def _dense_decode(step: Step, sequences: int, keys: int) -> Iterator[Row]:
    """Torch's own attention over KV of the same shape that lies ready, one copy of it for each layer."""
    gathered = torch.randn((step.layers, 2, sequences, KV_HEADS, keys, HEAD_DIM), dtype=torch.bfloat16, device="cuda")
    query = step.query[:, :, None]

    def call(layer: int) -> Tensor:
        key, value = gathered[layer]
        return scaled_dot_product_attention(query, key, value, enable_gqa=True)

    yield _decode_row("torch, KV gathered before", f"{sequences} × {keys:,}", step, sequences * keys, call)


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

        chosen = prefill_tiles(target, HEAD_DIM, 2, queries, HEADS, KV_HEADS, keys)
        yield row(f"kvtrace {_prefill_name(chosen)}", lambda layer, step=step: step.by_op(layer, False))
        for tiles in OTHER_PREFILL if sweep else ():
            for splits in (1,) if queries > 600 else (1, 2, 4, 8):
                other = replace(tiles, splits=splits)
                yield row(_prefill_name(other), lambda layer, step=step, other=other: prefill_by(step, layer, other))
        yield row("write alone", lambda layer, step=step: _write(step, layer))
        if queries == keys:
            device = step.query.device
            gpu.prepare(HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM**-0.5, torch.bfloat16, device, queries)
            yield row("kvtrace, whole prompt", lambda layer, step=step: step.by_op(layer, False, True))
            for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
                yield from _dense_prefill(step, backend, row)


def mixed_rows() -> Iterator[Row]:
    """Prefill of one sequence with others that decode in the same step, KV write included."""
    for queries, keys in MIXED:
        step = make_mixed(queries, keys, 8)
        took = timed(lambda step=step: [step.by_op(layer, False) for layer in range(step.layers)]) / step.layers
        operations = 4 * HEAD_DIM * HEADS * (queries * keys - queries * (queries - 1) / 2)
        case = f"{queries:,} of {keys:,} + {DECODING}"
        yield Row("kvtrace", case, took, tflop_per_s=operations / took / 1e6)


def _dense_prefill(step: Step, backend: SDPBackend, row: Callable[..., Row]) -> Iterator[Row]:
    query, key, value = (states.transpose(0, 1)[None] for states in (step.query, step.key, step.value))

    def call(layer: int) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    try:
        yield row(f"torch {backend.name.lower()}", call)
    except RuntimeError as error:
        print(f"torch {backend.name.lower()}: {error}", file=sys.stderr)


def prefill_by(step: Step, layer: int, tiles: PrefillTiles) -> Tensor:
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
    )


def _write(step: Step, layer: int) -> None:
    triton_write.write_kv(step.key, step.value, step.pool, layer, step.write_slots)


def _decode_name(tiles: DecodeTiles) -> str:
    joined = "joined" if tiles.join else "combined"
    return f"{tiles.keys} keys, {tiles.programs} programs, {tiles.warps} warps, {tiles.stages} stages, {joined}"


def _prefill_name(tiles: PrefillTiles) -> str:
    limit = f", {tiles.registers} registers" * (tiles.registers > 0)
    return f"{tiles.rows} × {tiles.keys}, {tiles.warps} warps, {tiles.stages} stages, {tiles.splits} splits{limit}"


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
    for row in (*decode_rows(target, asked.sweep), *prefill_rows(target, asked.sweep), *mixed_rows()):
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
    return f"{row.case:18} {row.microseconds:9,.1f} µs {rate:22} {row.way}"


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
