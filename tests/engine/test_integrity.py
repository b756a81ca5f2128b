from __future__ import annotations

from collections.abc import Callable

import pytest

from kvtrace.engine.integrity import IntegrityError
from kvtrace.engine.tiers import TieredCache

from .support import World, tokens


def _lose_a_free_block(cache: TieredCache) -> None:
    cache.placement.device.free.pop()


def _free_a_cached_block(cache: TieredCache) -> None:
    cache.placement.device.free.append(next(iter(cache.placement.device.queue)))


def _free_a_host_slot_twice(cache: TieredCache) -> None:
    cache.placement.host.free.add(next(iter(cache.placement.eviction.redundant)))


def _count_a_reference_too_many(cache: TieredCache) -> None:
    next(block for block in cache.placement.device.blocks if block.refs).refs += 1


def _point_the_index_elsewhere(cache: TieredCache) -> None:
    first, second, *_ = cache.placement.index
    index = cache.placement.index
    index[first], index[second] = index[second], index[first]


def _forget_a_key(cache: TieredCache) -> None:
    cache.placement.index.popitem()


def _miscount_a_claim(cache: TieredCache) -> None:
    next(counts for counts in cache.claims.counted().values() if counts).clear()


def _end_a_copy_in_secret(cache: TieredCache) -> None:
    cache.placement.copies.popitem()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_lose_a_free_block, "in 0 places"),
        (_free_a_cached_block, "in 2 places"),
        (_free_a_host_slot_twice, "host slot .* in 2 places"),
        (_count_a_reference_too_many, "references, live sequences hold"),
        (_point_the_index_elsewhere, "wrong key"),
        (_forget_a_key, "nobody can find"),
        (_miscount_a_claim, "claims are not those"),
        (_end_a_copy_in_secret, "not the copies in flight"),
    ],
)
def test_each_kind_of_damage_is_named(damage: Callable[[TieredCache], None], message: str) -> None:
    world = World(most_delay=50, step_tokens=64)
    world.ask("done", tokens(50))
    world.submit("running", tokens(40, seed=1), max_tokens=30)
    world.step(3)
    damage(world.core.cache)
    with pytest.raises(IntegrityError, match=message):
        world.core.check()
