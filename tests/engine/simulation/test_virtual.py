"""Copies and steps of the simulated card: what a step waits for, to the microsecond."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtrace.engine.batch import Chunk
from kvtrace.engine.sequence import Sampling
from kvtrace.engine.simulation.agents import QWEN3_8B
from kvtrace.engine.simulation.machine import H200, Machine
from kvtrace.engine.simulation.virtual import VirtualClock, VirtualMover, VirtualRunner
from kvtrace.engine.swap.contract import Copy, Direction

PARTS = len(QWEN3_8B.parts)
BLOCK_S = QWEN3_8B.block_bytes / H200.link_bytes_per_s
RETURN_S = H200.step_s([Chunk(0, (0,) * 100, 0, (), 0, True, Sampling(), 0, 0)])
CARD = replace(H200, copy_host_us=0.0)
STAGED = replace(CARD, batched=False)


class Card:
    def __init__(self, machine: Machine = CARD) -> None:
        self.clock = VirtualClock()
        self.runner = VirtualRunner(machine, self.clock, PARTS)
        self.mover = VirtualMover(machine, self.clock, self.runner, QWEN3_8B)
        self.copies = 0

    def bring(self, blocks: int) -> range:
        """Start copies in; their ids."""
        ids = range(self.copies, self.copies + blocks)
        self.copies += blocks
        self.mover.submit([Copy(number, Direction.IN, number, number) for number in ids])
        return ids

    def until_fence(self, ids: range) -> float:
        """Let time pass until they can be waited for on the device; when that is."""
        while (fence := self.mover.fence(ids)) is None:
            self.clock.now_s += BLOCK_S
        self.fence = fence
        return self.clock.now_s

    def step_ends(self, tokens: int) -> float:
        """Launch a step that waits for them; when it is over."""
        self.runner.launch([Chunk(0, (0,) * tokens, 0, (), 0, True, Sampling(), 0, 0)], [self.fence])
        return self.runner.busy_until_s


def test_prompt_after_a_whole_restore_ends_a_part_after_its_last_byte() -> None:
    card = Card()
    there_s = 425 * BLOCK_S
    assert card.until_fence(card.bring(425)) < there_s - 160 * BLOCK_S
    assert there_s + RETURN_S / PARTS <= card.step_ends(100) < there_s + 1.3 * RETURN_S / PARTS


def test_decoding_waits_for_all_of_a_restore() -> None:
    card = Card()
    card.until_fence(card.bring(425))
    decode_s = (H200.decode_ms + H200.decode_each_ms) / 1e3
    assert card.step_ends(1) == pytest.approx(425 * BLOCK_S + decode_s)


@pytest.mark.parametrize("blocks", [1, 40])
def test_few_blocks_cross_whole(blocks: int) -> None:
    card = Card()
    assert card.until_fence(card.bring(blocks)) == 0.0
    assert card.step_ends(100) == pytest.approx(blocks * BLOCK_S + RETURN_S)


@pytest.mark.parametrize("blocks", [100, 120, 150])
def test_part_of_a_context_is_hidden_but_for_its_first_part_or_the_steps_last(blocks: int) -> None:
    card = Card()
    assert card.until_fence(card.bring(blocks)) == 0.0
    hidden_s = max(blocks * BLOCK_S / PARTS + RETURN_S, blocks * BLOCK_S + RETURN_S / PARTS)
    assert card.step_ends(100) == pytest.approx(hidden_s)


def test_staged_copies_are_waited_for_whole() -> None:
    card = Card(STAGED)
    card.until_fence(card.bring(425))
    assert card.step_ends(100) == pytest.approx(425 * BLOCK_S + RETURN_S)


def test_restore_that_another_waits_behind_crosses_whole_and_late() -> None:
    card = Card()
    first = card.bring(425)
    card.clock.now_s += BLOCK_S
    second = card.bring(425)
    assert card.until_fence(first) > (425 - 40) * BLOCK_S
    assert card.step_ends(100) == pytest.approx(425 * BLOCK_S + RETURN_S)
    card.until_fence(second)
    assert 850 * BLOCK_S < card.step_ends(100) < 850 * BLOCK_S + 1.3 * RETURN_S / PARTS


def test_copy_out_begins_after_the_compute_before_it() -> None:
    card = Card()
    card.runner.launch([Chunk(0, (0,) * 100, 0, (), 0, True, Sampling(), 0, 0)])
    card.mover.submit([Copy(0, Direction.OUT, 0, 0)])
    card.clock.now_s = RETURN_S
    assert card.mover.poll() == []
    card.clock.now_s = RETURN_S + BLOCK_S * 1.001
    assert [done.copy.id for done in card.mover.poll()] == [0]


def test_whoever_submits_copies_in_spends_time_on_each_and_the_first_one_leaves_at_once() -> None:
    card, each_s = Card(H200), H200.copy_host_us / 1e6
    card.mover.submit([Copy(number, Direction.OUT, number, number) for number in range(1000, 1100)])
    assert card.clock.now_s == 0.0
    ids = card.bring(425)
    assert card.clock.now_s == pytest.approx(425 * each_s)
    # The link takes longer for a block than whoever submits it does, so it never waits for the next one.
    card.until_fence(ids)
    assert card.fence.ends_s[-1] == pytest.approx(each_s + 425 * BLOCK_S)


def test_copies_of_two_calls_at_one_instant_cross_in_one_go() -> None:
    once, twice = Card(H200), Card(H200)
    once.until_fence(once.bring(425))
    twice.bring(64)
    twice.bring(361)
    twice.until_fence(range(425))
    assert twice.fence.ends_s == pytest.approx(once.fence.ends_s)
