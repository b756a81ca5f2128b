"""Checks every invariant of the cache's bookkeeping against the live sequences. Slow; tests call it after each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .blocks import Piece
from .placement import Placement
from .sequence import Sequence, SequenceStatus
from .swap.contract import Direction
from .tiers import TieredCache


class IntegrityError(AssertionError):
    """The engine's bookkeeping contradicts itself; the message names the invariant."""


def check(cache: TieredCache, sequences: Iterable[Sequence]) -> None:
    """Check ``cache`` against the sequences that live in the engine.

    Raises:
        IntegrityError: an invariant is broken.
    """
    live = list(sequences)
    _check_device_places(cache.placement)
    _check_host_places(cache.placement)
    _check_references(cache.placement, live)
    _check_index(cache)
    _check_copies(cache.placement)
    _check_sequences(cache, live)
    _check_claims(cache)


def _require(holds: bool, invariant: str) -> None:
    if not holds:
        raise IntegrityError(invariant)


def _check_device_places(placement: Placement) -> None:
    device = placement.device
    referenced = [number for number, block in enumerate(device.blocks) if block.refs]
    places = Counter([*device.free, *device.queue, *device.busy, *referenced])
    for number, block in enumerate(device.blocks):
        _require(places[number] == 1, f"device block {number} is in {places[number]} places, must be in exactly one")
        _require(block.refs >= 0, f"device block {number} has {block.refs} references")
        going = block.demoted or number in device.emptying
        _require(not (block.refs and going), f"device block {number} is in use and about to leave")
    _require(len(places) == len(device.blocks), "a device block that does not exist is in some place")
    for number in device.free:
        block = device.blocks[number]
        clean = block.piece is None and block.copy is None and not (block.demoted or block.stuck)
        _require(clean, f"free device block {number} still holds something: {block}")
    for number in device.queue:
        block = device.blocks[number]
        _require(block.copy is None, f"reclaimable device block {number} is in a copy: {block.copy}")
        _require(block.piece is not None, f"reclaimable device block {number} holds nothing")
    _require(device.emptying <= device.busy, "a device block that no copy touches is about to leave")
    for number in device.busy:
        _require(device.blocks[number].copy is not None, f"busy device block {number} is in no copy")


def _check_host_places(placement: Placement) -> None:
    host = placement.host
    copying = [number for number, slot in enumerate(host.slots) if slot.copy is not None]
    ready = {
        number: piece for number in range(len(host.slots)) if (piece := host.slots[number].piece) and host.ready(number)
    }
    places = Counter([*host.free, *ready, *copying])
    for number in range(len(host.slots)):
        _require(places[number] == 1, f"host slot {number} is in {places[number]} places, must be in exactly one")
    _require(len(places) == len(host.slots), "a host slot that does not exist is in some place")
    for number in host.free:
        _require(host.slots[number].piece is None, f"free host slot {number} still holds a piece")
    eviction, kept = placement.eviction, placement.claims.kept
    eviction.refresh()
    loose = {number for number, piece in ready.items() if not kept(piece)}
    listed = eviction.loose.keys() | eviction.in_use
    _require(loose == listed, f"{loose} can be emptied, {listed} are listed")
    for number in eviction.in_use:
        block = ready[number].device
        used = block is not None and placement.device.blocks[block].refs > 0 and number not in eviction.loose
        _require(used, f"host slot {number} is listed as in use, but no request runs on it")
    redundant = {number for number, piece in ready.items() if piece.device is not None}
    _require(
        redundant == eviction.redundant.keys(), f"{redundant} are on both sides, {list(eviction.redundant)} are listed"
    )


def _check_references(placement: Placement, live: list[Sequence]) -> None:
    expected = Counter(number for sequence in live for number in sequence.table)
    for number, block in enumerate(placement.device.blocks):
        _require(
            block.refs == expected[number],
            f"device block {number} has {block.refs} references, live sequences hold {expected[number]}",
        )


def _check_index(cache: TieredCache) -> None:
    placement = cache.placement
    known = {id(piece) for piece in placement.index.values()}
    for key, piece in placement.index.items():
        _require(piece.key == key, f"the index lists a piece under the wrong key {key.hex()}")
        _require(piece.alive, f"the index lists a piece that is nowhere: {key.hex()}")
        _check_piece(placement, piece)
    for owner, holding in cache.claims.holdings.items():
        tail = holding.tail
        if tail is not None and tail.alive:
            _require(tail.owner == owner and tail.key is None, f"the tail of {owner} belongs to somebody else")
            _require(0 < len(tail.tokens) < cache.block_tokens, f"the tail of {owner} has {len(tail.tokens)} tokens")
            _check_piece(placement, tail)
            known.add(id(tail))
    resident = [block.piece for block in placement.device.blocks] + [slot.piece for slot in placement.host.slots]
    for piece_or_none in resident:
        found = piece_or_none is None or id(piece_or_none) in known
        _require(found, f"a block or slot holds a piece that nobody can find: {piece_or_none}")


def _check_piece(placement: Placement, piece: Piece) -> None:
    if piece.device is not None:
        back = placement.device.blocks[piece.device].piece
        _require(back is piece, f"device block {piece.device} does not hold the piece that names it")
    if piece.host is not None:
        back = placement.host.slots[piece.host].piece
        _require(back is piece, f"host slot {piece.host} does not hold the piece that names it")


def _check_copies(placement: Placement) -> None:
    blocks = {copy.id: copy for block in placement.device.blocks if (copy := block.copy) is not None}
    slots = {copy.id: copy for slot in placement.host.slots if (copy := slot.copy) is not None}
    _require(blocks == placement.copies, "the copies at device blocks are not the copies in flight")
    _require(slots == placement.copies, "the copies at host slots are not the copies in flight")
    for copy in placement.copies.values():
        right = placement.device.blocks[copy.device_block].copy is copy
        right = right and placement.host.slots[copy.host_slot].copy is copy
        _require(right, f"copy {copy.id} is noted at another block or slot than its own")


def _check_sequences(cache: TieredCache, live: list[Sequence]) -> None:
    placement = cache.placement
    for sequence in live:
        name = f"sequence {sequence.id}"
        loading = {
            copy.id
            for number in sequence.table
            if (copy := placement.device.blocks[number].copy) is not None and copy.direction is Direction.IN
        }
        _require(loading <= sequence.waits, f"{name} does not wait for copies into its own table")
        _require(sequence.waits <= placement.copies.keys(), f"{name} waits for a copy that is over")
        _require(len(set(sequence.table)) == len(sequence.table), f"{name} names a block twice in its table")
        _require(
            (sequence.status is SequenceStatus.WAITING) == (not sequence.table),
            f"{name} is {sequence.status} with {len(sequence.table)} blocks",
        )
        if sequence.status is SequenceStatus.RUNNING:
            early = sequence.in_flight  # the device waits for them before that step
            _require(not sequence.waits or early, f"{name} runs while copies it needs are in flight")
        _require(sequence.kv_tokens <= len(sequence.table) * cache.block_tokens, f"{name} has KV outside its table")
        for number in sequence.table[sequence.kv_tokens // cache.block_tokens :]:
            block = placement.device.blocks[number]
            private = block.refs == 1 and block.piece is None
            _require(private, f"{name} would write into block {number}, which is not its own alone")


def _check_claims(cache: TieredCache) -> None:
    for owner in cache.claims.holdings:
        counted, true_residency = cache.residency(owner), cache.count(owner)
        _require(counted == true_residency, f"{owner} holds {true_residency}, but {counted} is what is told")
    kept, true = cache.claims.counted(), cache.claims.recount()
    for phase, counts in true.items():
        _require(kept[phase] == counts, f"the counts of {phase} claims are not those of the holdings")
