"""Random packed steps over a poisoned pool, and what must come of them: shared by all tests of the kernels."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvtrace.engine.attention import ops
from kvtrace.engine.attention.rotated import rotated_attention
from kvtrace.engine.geometry import BLOCK_TOKENS, GPU_BLOCK_TOKENS

LAYERS = 2
LAYER = 1
Attend = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """``sequences``: (queries, keys) each; (1, 0) is a padding row. ``unwritten``: sequences whose KV exists already."""

    sequences: tuple[tuple[int, int], ...]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    window: int = 0
    unwritten: tuple[int, ...] = ()
    extra_tokens: int = 0  # rows past the last sequence, as a step padded to a bucket has them
    block_tokens: int = GPU_BLOCK_TOKENS

    @property
    def decode(self) -> bool:
        return all(queries == 1 for queries, _ in self.sequences) and not self.extra_tokens

    def __str__(self) -> str:
        parts = "+".join(f"{queries}of{keys}" for queries, keys in self.sequences)
        marks = f"-window{self.window}" * bool(self.window) + f"-unwritten{self.unwritten}" * bool(self.unwritten)
        marks += "-extra" * bool(self.extra_tokens)
        marks += f"-blocks{self.block_tokens}" * (self.block_tokens != GPU_BLOCK_TOKENS)
        return f"{parts}-{self.heads}x{self.kv_heads}x{self.head_dim}{marks}"


@dataclass(frozen=True)
class Step:
    """Arguments of the op for one case, and the pool before it."""

    query: Tensor
    key: Tensor
    value: Tensor
    pool: Tensor
    write_slots: Tensor
    query_starts: Tensor
    key_lengths: Tensor
    tables: Tensor
    scale: float

    def run(self, attend: Attend, pool: Tensor, case: Case) -> Tensor:
        """``attend`` has the op's signature."""
        return attend(
            self.query,
            self.key,
            self.value,
            pool,
            LAYER,
            self.write_slots,
            self.query_starts,
            self.key_lengths,
            self.tables,
            self.scale,
            case.decode,
            case.window,
            False,
        )


def build(case: Case, seed: int, device: str, dtype: torch.dtype, spare_blocks: int = 3) -> Step:
    """A step whose pool is NaN wherever no sequence has written, with shuffled blocks and strided inputs."""
    source = random.Random(seed)
    torch.manual_seed(seed)
    size = case.block_tokens
    widths = [-(-keys // size) for _, keys in case.sequences]
    total = sum(widths) + spare_blocks
    free = source.sample(range(total), total)
    pool = torch.full((total, LAYERS, 2, case.kv_heads, size, case.head_dim), float("nan"), dtype=dtype)
    # Past a sequence's blocks the table points at poison.
    poison = [free.pop() for _ in range(spare_blocks)]
    tables = torch.tensor([source.choices(poison, k=max(1, *widths) + 1) for _ in case.sequences], dtype=torch.int32)
    slots: list[int] = []
    for index, (queries, keys) in enumerate(case.sequences):
        blocks = [free.pop() for _ in range(widths[index])]
        tables[index, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        known = keys if index in case.unwritten else keys - queries
        for position in range(keys):
            slot = blocks[position // size] * size + position % size
            if position < known:
                row = torch.randn(LAYERS, 2, case.kv_heads, case.head_dim).to(dtype)
                pool[slot // size, :, :, :, slot % size] = row
            if position >= keys - queries:
                slots.append(slot if position >= known else -1)
        slots += [-1] * (queries if keys == 0 else 0)
    slots += [-1] * case.extra_tokens
    starts = torch.tensor([0, *[queries for queries, _ in case.sequences]]).cumsum(0)
    # As a merged projection gives them: heads of q, k and v side by side.
    merged = torch.randn(len(slots), case.heads + 2 * case.kv_heads, case.head_dim).to(dtype).to(device)
    query, key, value = torch.split(merged, [case.heads, case.kv_heads, case.kv_heads], dim=1)
    return Step(
        query=query,
        key=key,
        value=value,
        pool=pool.to(device),
        write_slots=torch.tensor(slots, dtype=torch.int64, device=device),
        query_starts=starts.to(device=device, dtype=torch.int32),
        key_lengths=torch.tensor([keys for _, keys in case.sequences], dtype=torch.int32, device=device),
        tables=tables.to(device),
        scale=case.head_dim**-0.5,
    )


def check(case: Case, step: Step, attend: Attend, tolerance: float) -> None:
    """``attend`` gives what the reference gives, writes the same bytes, and nothing else.

    Raises:
        AssertionError: it does not.
    """
    pool, expected_pool = step.pool.clone(), step.pool.cpu().clone()
    found = step.run(attend, pool, case)
    expected = expect(case, step, expected_pool)
    assert found.is_contiguous()
    torch.testing.assert_close(found.float().cpu(), expected, rtol=tolerance, atol=tolerance)
    same = pool.cpu().view(torch.uint8) == expected_pool.view(torch.uint8)
    assert same.all(), "the pool differs from the reference's"


def check_rotated(case: Case, step: Step, normed: bool, attend: Attend, tolerance: float) -> None:
    """``attend``, called as :func:`rotated_attention` is, does what norm, rotation and plain attention do in turn.

    Raises:
        AssertionError: it does not.
    """
    generator = torch.Generator().manual_seed(1)
    both = case.heads + case.kv_heads
    states = torch.cat((step.query, step.key, step.value), 1).flatten(1)
    rotary = torch.randn(len(states), 2, case.head_dim // 2, generator=generator).to(states)
    norm = torch.randn(both, case.head_dim, generator=generator).to(states) if normed else None
    sequences = (step.query_starts, step.key_lengths, step.tables)
    places = (LAYER, step.write_slots, *sequences, case.heads, step.scale, 1e-6, case.decode, case.window)
    pool, expected_pool = step.pool.clone(), step.pool.cpu().float()
    found = attend(states, norm, rotary, pool, *places)
    at_home = [place.cpu() if isinstance(place, Tensor) else place for place in places]
    exact_norm = None if norm is None else norm.cpu().float()
    expected = rotated_attention(states.cpu().float(), exact_norm, rotary.cpu().float(), expected_pool, *at_home)
    torch.testing.assert_close(found.float().cpu(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(pool.float().cpu(), expected_pool, rtol=tolerance, atol=tolerance, equal_nan=True)


def expect(case: Case, step: Step, pool: Tensor) -> Tensor:
    """The reference's result in float32 on the CPU; ``pool`` is written as the op would write it."""
    values = {name: getattr(step, name).cpu() for name in ("query", "key", "value")}
    places: dict[str, Any] = {
        name: getattr(step, name).cpu() for name in ("write_slots", "query_starts", "key_lengths", "tables")
    }
    ops.paged_attention(*values.values(), pool, LAYER, *places.values(), step.scale, case.decode, case.window)
    exact = [value.float() for value in values.values()]
    expected: Tensor = ops.paged_attention(
        *exact, pool.float(), LAYER, *places.values(), step.scale, case.decode, case.window
    )
    return expected


def decode_cases() -> Iterator[Case]:
    lengths = (1, 15, 16, 17, 127, 129, 300)
    odd = tuple((1, keys) for keys in lengths)
    for heads, kv_heads in ((2, 2), (3, 1), (8, 2), (8, 1)):
        yield Case(odd, heads, kv_heads, 64)
    yield Case(((1, 33), (1, 0), (1, 70), (1, 0)), 4, 2, 128)
    yield Case(((1, 40), (1, 17)), 4, 4, 256)
    yield Case(((1, 20), (1, 48), (1, 65)), 4, 2, 64, unwritten=(0, 2))
    yield Case(((1, 5), (1, 40), (1, 200)), 4, 2, 64, window=33)
    yield Case(((1, 64), (1, 65), (1, 66)), 4, 1, 80)
    yield Case(((1, 50),), 20, 1, 64)
    yield Case(odd, 8, 2, 64, block_tokens=BLOCK_TOKENS)
    yield Case(odd, 8, 2, 64, block_tokens=128)


def rotated_cases() -> Iterator[tuple[Case, bool]]:
    """Cases of attention from the raw projection, and whether heads are normed."""
    sequences = ((1, 33), (1, 0), (1, 70), (1, 20), (1, 1))
    yield Case(sequences, 8, 2, 128, unwritten=(3,)), True
    yield Case(sequences, 3, 1, 64, window=20), False
    yield Case(sequences, 4, 2, 80), True
    mixed = ((5, 40), (1, 130), (1, 0), (2, 2), (20, 60))
    yield Case(mixed, 8, 2, 64, extra_tokens=3), True
    yield Case(mixed, 3, 1, 80, window=20, unwritten=(0,)), False


def prefill_cases() -> Iterator[Case]:
    for heads, kv_heads in ((2, 2), (3, 1), (8, 2), (8, 1)):
        yield Case(((15, 15), (17, 33), (1, 127), (40, 129)), heads, kv_heads, 64)
    yield Case(((1, 1), (16, 16), (129, 300), (1, 17)), 4, 2, 128)
    yield Case(((20, 50), (1, 16)), 2, 1, 256)
    yield Case(((3, 30), (1, 0), (31, 31), (1, 0)), 4, 2, 64, extra_tokens=5)
    yield Case(((7, 40), (64, 64)), 4, 2, 64, unwritten=(0,))
    yield Case(((70, 100), (1, 90), (12, 12)), 4, 2, 64, window=19)
    yield Case(((40, 60), (1, 5)), 4, 1, 80)
    yield Case(((9, 30),), 40, 1, 64)
    yield Case(((15, 15), (17, 33), (1, 127), (40, 129)), 8, 2, 64, block_tokens=BLOCK_TOKENS)
    yield Case(((15, 15), (17, 33), (1, 127), (40, 129)), 8, 2, 64, block_tokens=128)
    yield Case(tuple((1 + index % 3, 4 + index) for index in range(67)), 1, 1, 64)


def beside_cases() -> Iterator[Case]:
    """Steps of prefill with sequences that decode in them, first, last and in between."""
    yield Case(((5, 40), (1, 130), (1, 0), (2, 2), (1, 17)), 8, 2, 64, extra_tokens=3)
    yield Case(((1, 90), (9, 30)), 4, 2, 64, window=19)
    yield Case(((1, 5), (20, 40)), 4, 1, 80)
