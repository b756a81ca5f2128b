"""The cache over both tiers, as sequences and agents see it: find, take, grow, give back, park, bring back.

Torch-free. All metadata of both tiers changes here and in the :class:`.placement.Placement` below it, nowhere
else. Nothing is copied by these methods: the copies they decide on wait in ``placement.outbox``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from .blocks import Owner, Piece
from .claims import Phase
from .findings import Hits, Match, Residency, leading
from .placement import FLUSH_COPIES, Placement
from .prefix import common_prefix, extend_keys
from .sequence import Sequence
from .swap.contract import CopyDone, Direction

_NOWHERE: Final = Residency(0, 0, 0, 0)


class TieredCache:
    """Content-addressed KV blocks in device memory, with a host tier behind (``host_slots`` 0: none)."""

    def __init__(self, device_blocks: int, host_slots: int, block_tokens: int) -> None:
        self.placement = Placement(device_blocks, host_slots)
        self.claims = self.placement.claims
        self.block_tokens = block_tokens

    # What a request needs

    def match(self, sequence: Sequence) -> Match:
        """The longest chain of full blocks that either tier has, then the agent's tail; changes nothing."""
        pieces = leading(map(self.placement.index.get, sequence.keys))
        parent = sequence.keys[len(pieces) - 1] if pieces else sequence.root
        start = len(pieces) * self.block_tokens
        for owner in ((sequence.agent, sequence.id), sequence.agent):
            tail = self._tail(owner)
            if tail is not None and tail.parent == parent:
                rows = common_prefix(tail.tokens, sequence.tokens[start : start + self.block_tokens])
                if rows:
                    return Match(tuple(pieces), rows, tail)
        return Match(tuple(pieces))

    def knows(self, sequence: Sequence) -> bool:
        """Whether its agent has been here before."""
        claims = self.claims
        return claims.of(sequence.agent) is not None or claims.of((sequence.agent, sequence.id)) is not None

    def demand(self, sequence: Sequence, blocks: int) -> int:
        """How many available blocks :meth:`acquire` with a table of ``blocks`` would use up; changes nothing."""
        queue, emptying = self.placement.device.queue, self.placement.device.emptying
        resident = [piece.device for piece in self.match(sequence).found if piece.device is not None]
        cached = sum([number in queue for number in resident])
        if emptying:
            cached += len(emptying.intersection(resident))
        return blocks - len(resident) + cached

    def acquire(self, sequence: Sequence, blocks: int) -> Hits | None:
        """Give ``sequence`` a table of ``blocks`` blocks, filled as far as the cache can fill it.

        Copies in start for what only the host has; ``sequence.waits`` names the copies that must end before the
        sequence may run. ``None``, and no change but blocks on their way to being emptied, while space is short.
        """
        match = self.match(sequence)
        resident = [piece.device for piece in match.found if piece.device is not None]
        self.placement.device.take(resident)
        # The host's only copies of what is about to come in must not be evicted to make room for it.
        spare = {piece.host for piece in match.found if piece.device is None and piece.host is not None}
        fresh = self.placement.allocate(blocks - len(resident), spare, patient=True)
        if fresh is None:
            self.placement.device.drop(reversed(resident), unused=True)
            self.placement.eviction.given_back(match.found)
            return None
        hits = self._fill(sequence, match, fresh)
        self._forget_own(sequence)
        sequence.committed_blocks = len(match.pieces)
        self._advance(sequence, len(match.pieces) * self.block_tokens + match.tail_rows)
        return hits

    def yields(self, sequence: Sequence) -> int:
        """How many blocks nobody else references, so that :meth:`release` would make them available."""
        return sum(self.placement.device.blocks[number].refs == 1 for number in sequence.table)

    def grow(self, sequence: Sequence) -> bool:
        """Append one block to the table; ``False`` while space is short."""
        fresh = self.placement.allocate(1)
        sequence.table.extend(fresh or ())
        return fresh is not None

    def rematch(self, sequence: Sequence) -> Hits:
        """Take over full blocks that appeared since :meth:`acquire`, instead of computing them again.

        Somebody with the same prefix may have computed them, or they lie behind a hole that is filled now. A block
        that the sequence began to fill itself gives way to the whole one.
        """
        device = host = 0
        copies: list[int] = []
        while (piece := self._next_piece(sequence)) is not None:
            at, row = divmod(sequence.computed, self.block_tokens)
            if piece.device is None:
                # Its own steps wrote there, and perhaps a later one of somebody who was aborted and had the block before.
                block = self.placement.device.blocks[sequence.table[at]]
                block.used = max(block.used, sequence.last_launch)
                copies += self.placement.start_in([piece], [sequence.table[at]], urgent=True)
            else:
                self.placement.device.take([piece.device])
                self.placement.device.drop([sequence.table[at]])
                sequence.table[at] = piece.device
            if self.placement.device.blocks[sequence.table[at]].loading:
                host += self.block_tokens - row
            else:
                device += self.block_tokens - row
            self._await(sequence, sequence.table[at], writes=False)
            sequence.committed_blocks = at + 1
            self._advance(sequence, (at + 1) * self.block_tokens)
        return Hits(device, host, tuple(copies))

    def commit(self, sequence: Sequence) -> list[Piece]:
        """Enter the blocks that became full into the index; the pieces that the device has now and had not before."""
        full = sequence.kv_tokens // self.block_tokens
        extend_keys(sequence.keys, sequence.tokens, self.block_tokens, sequence.root)
        adopted = [self._adopt(sequence, at) for at in range(sequence.committed_blocks, full)]
        sequence.committed_blocks = full
        return [piece for piece in adopted if piece is not None]

    def release(self, sequence: Sequence, phase: Phase, *, preempted: bool = False) -> None:
        """Take back the table. What has KV stays cached as what the agent holds: full blocks by key, the rest as tail.

        A preempted request holds its own, so that no other request of the agent can replace it.
        """
        full, rows = divmod(sequence.kv_tokens, self.block_tokens)
        extend_keys(sequence.keys, sequence.tokens, self.block_tokens, sequence.root)
        # A block that was a duplicate while it ran may be the only one left now.
        for at, piece in enumerate(map(self.placement.index.get, sequence.keys[:full])):
            if piece is None or piece.device is None:
                self._adopt(sequence, at)
        if sequence.kv_tokens:
            owner: Owner = (sequence.agent, sequence.id) if preempted else sequence.agent
            self._replace_tail(owner, None)
            tail = self._new_tail(sequence, full, rows) if rows else None
            if tail is not None and preempted:
                tail.request = sequence.id
            self.claims.hold(owner, tuple(sequence.keys[:full]), tail, phase)
        self.claims.set_phase(sequence.agent, phase)
        device = self.placement.device
        device.drop(reversed(sequence.table), last=sequence.last_launch)
        self.placement.eviction.given_back(device.blocks[number].piece for number in sequence.table)
        sequence.table = []
        sequence.computed = sequence.launched = sequence.write_from = sequence.committed_blocks = 0
        sequence.unread = 0
        sequence.waits.clear()

    def give_up(self, sequence: Sequence, phase: Phase, *, alone: bool) -> None:
        """End a request that holds no table; what it held while preempted goes to its agent, if it was ``alone``."""
        own = self.claims.of((sequence.agent, sequence.id))
        if own is not None and alone:
            self._replace_tail(sequence.agent, None)
            tail, own.tail = own.tail, None
            if tail is not None:
                tail.request = None
            self.claims.hold(sequence.agent, own.keys, tail, phase)
        self._forget_own(sequence)
        self.claims.set_phase(sequence.agent, phase)

    # What an agent's waiting means for its blocks

    def mirror(self, pieces: Iterable[Piece]) -> None:
        """Copy early: start copies out of ``pieces`` as far as the host has room for more than it needs."""
        for piece in pieces:
            self.placement.start_out(piece, must=False)

    def park(self, agent: str) -> list[int]:
        """Copy out what the host lacks of ``agent``'s context, tail included; the ids of its copies out in flight.

        While the host grows, only as far as it has room: its slots will come, and a copy pushed out now is made again.
        """
        self.claims.set_phase(agent, Phase.WAITING)  # first, or what the host has of it could go for what it lacks
        for piece in [piece for piece in self.pieces(agent) if piece.host is None]:
            self.placement.start_out(piece, must=not self.placement.host_grows)
        return self.copies_out(agent)

    def park_again(self) -> None:
        """The host has more room: copy out what it lacked room for of those who wait."""
        for owner, holding in self.claims.holdings.items():
            if holding.phase is Phase.WAITING:
                residency = self.residency(owner)
                if residency.host_blocks < residency.blocks and isinstance(owner, str):
                    self.park(owner)

    def copies_out(self, agent: str) -> list[int]:
        """Ids of the copies out of ``agent``'s context that are in flight."""
        blocks = self.placement.device.blocks
        copies = [blocks[piece.device].copy for piece in self.pieces(agent) if piece.device is not None]
        return [copy.id for copy in copies if copy is not None and copy.direction is Direction.OUT]

    def demote(self, agent: str) -> None:
        """Make ``agent``'s blocks the next to be reclaimed, the end of its context first.

        Blocks that an agent which does not wait holds as well are left alone.
        """
        self.claims.set_phase(agent, Phase.WAITING)
        self.placement.device.demote([piece.device for piece in self._cold(agent) if piece.device is not None])

    def offer(self, agent: str, *, must: bool = True) -> None:
        """Make the blocks of ``agent``, which rests, the next to be reclaimed, the end of its context first.

        Blocks that an agent in the middle of its work holds as well are left alone. What the host lacks is copied out,
        so that somebody who needs the space at once can have it; unless it ``must`` be, only where the host has room.
        """
        device, offered = self.placement.device, []
        for piece in self.pieces(agent):
            if piece.device is not None and not self.claims.kept(piece):
                block = device.blocks[piece.device]
                if not block.refs and piece.host is None and self.placement.start_out(piece, must=must) is not None:
                    device.emptying.add(piece.device)
                offered.append(piece.device)
        device.demote(offered)

    def evict(self, agent: str) -> None:
        """Empty ``agent``'s device blocks: at once where the host has them, else when the copy out is done."""
        self.demote(agent)
        device = self.placement.device
        for piece in self._cold(agent):
            if piece.device is None or device.blocks[piece.device].refs:
                continue
            if self.placement.mirrored(piece) and not device.blocks[piece.device].loading:
                self.placement.leave_device(piece)
            elif piece.host is not None or self.placement.start_out(piece, must=True) is not None:
                device.emptying.add(piece.device)

    def promote(self, agent: str) -> None:
        """Make ``agent``'s cached blocks the last to be reclaimed, the start of its context last of all."""
        self.claims.set_phase(agent, Phase.ACTIVE)
        if self.claims.device_blocks(agent):
            there = [piece.device for piece in self.pieces(agent) if piece.device is not None]
            self.placement.device.promote(reversed(there))

    def hold(self, agent: str) -> None:
        """Leave ``agent``'s blocks where they are, as those of an agent that is needed soon."""
        self.claims.set_phase(agent, Phase.ACTIVE)

    def rest(self, agent: str) -> None:
        """Leave ``agent``'s blocks where they are, for whoever needs the space longest after their last use."""
        self.claims.set_phase(agent, Phase.RESTING)

    def prefetch(
        self,
        agent: str,
        *,
        urgent: bool = False,
        most: int | None = None,
        needed: bool = False,
        make_room: Callable[[], None] = lambda: None,
    ) -> list[int]:
        """Copy ``agent``'s context in as far as blocks are free or cheap to empty, up to ``most``; the ids of the copies.

        ``needed``: blocks of agents which come back later are taken too. ``make_room`` is called once the first are on their way.
        """
        away = [piece for piece in self.pieces(agent) if piece.device is None][:most]
        started = self._fetch(away[:FLUSH_COPIES], urgent=urgent, needed=needed)
        if len(started) < len(away):
            if started:
                self.placement.flush()  # the link is busy while room for the rest is found, which follows as one batch
            make_room()  # which may take a place on the host from what was to come
            rest = [piece for piece in away[len(started) :] if piece.host is not None]
            started += self._fetch(rest, urgent=urgent, needed=needed, begun=bool(started))
        return started

    def forget(self, agent: str) -> None:
        """Drop what ``agent`` holds: its tail goes, its full blocks stay cached for whoever matches them."""
        self._replace_tail(agent, None)
        self.claims.drop(agent)
        if self.claims.much_stale:
            self.placement.eviction.refresh()

    def complete(self, done: Iterable[CopyDone]) -> None:
        """Take note that copies ended."""
        self.placement.complete(done)

    def pieces(self, owner: Owner) -> list[Piece]:
        """The pieces of ``owner``'s last context that either tier still has, in order."""
        holding = self.claims.of(owner)
        if holding is None:
            return []
        found = [piece for piece in map(self.placement.index.get, holding.keys) if piece is not None]
        return [*found, holding.tail] if holding.tail is not None and holding.tail.alive else found

    def context_tokens(self, owner: Owner) -> int:
        """Length of ``owner``'s last context, as far as it had KV."""
        holding = self.claims.of(owner)
        if holding is None:
            return 0
        return len(holding.keys) * self.block_tokens + (len(holding.tail.tokens) if holding.tail else 0)

    def residency(self, owner: Owner) -> Residency:
        """Where ``owner``'s last context is; kept up by what moves, since everybody asks often."""
        holding = self.claims.of(owner)
        return _NOWHERE if holding is None else holding.residency(self.block_tokens)

    def count(self, owner: Owner) -> Residency:
        """The same, counted anew."""
        holding = self.claims.of(owner)
        total = 0 if holding is None else len(holding.keys) + (holding.tail is not None)
        return Residency.of(self.pieces(owner), total, self.block_tokens)

    def _fill(self, sequence: Sequence, match: Match, fresh: list[int]) -> Hits:
        found, table, size = match.found, sequence.table, self.block_tokens
        away = [piece for piece in found if piece.device is None]
        copies = self.placement.start_in(away, fresh[: len(away)], urgent=True)
        blocks, tail, loading = self.placement.device.blocks, match.tail, 0
        own = set(copies)
        for piece in found:
            at = piece.device
            assert at is not None
            table.append(at)
            copy = blocks[at].copy
            if copy is not None:
                if copy.id not in own:
                    self._await(sequence, at, writes=piece is tail)
                if copy.direction is Direction.IN:
                    loading += match.tail_rows if piece is tail else size
        sequence.waits |= own
        table += fresh[len(away) :]
        if tail is not None:
            # The sequence goes on writing into the block, so the piece that described it is no more.
            self._replace_tail(tail.owner, None)
        return Hits(len(match.pieces) * size + match.tail_rows - loading, loading, tuple(copies))

    def _await(self, sequence: Sequence, block: int, *, writes: bool) -> None:
        """Make the sequence wait for a copy that still fills ``block`` or, if it will write there, reads it."""
        state = self.placement.device.blocks[block]
        if state.copy is not None and (writes or state.loading):
            sequence.waits.add(state.copy.id)
            self.placement.outbox.hurry(state.copy.id)

    def _advance(self, sequence: Sequence, kv_tokens: int) -> None:
        sequence.write_from = kv_tokens
        sequence.computed = sequence.launched = min(kv_tokens, len(sequence.tokens) - 1)

    def _next_piece(self, sequence: Sequence) -> Piece | None:
        at = sequence.computed // self.block_tokens
        if at >= len(sequence.keys) or sequence.write_from > sequence.computed:
            return None
        return self.placement.index.get(sequence.keys[at])

    def _adopt(self, sequence: Sequence, at: int) -> Piece | None:
        key, block = sequence.keys[at], sequence.table[at]
        piece = self.placement.index.get(key)
        if piece is not None and piece.device is not None:
            return None
        piece = piece or Piece(sequence.agent, key)
        self.placement.enter(piece, block)
        return piece

    def _new_tail(self, sequence: Sequence, full: int, rows: int) -> Piece:
        start = full * self.block_tokens
        parent = sequence.keys[full - 1] if full else sequence.root
        tail = Piece(sequence.agent, None, parent, tuple(sequence.tokens[start : start + rows]))
        self.placement.enter(tail, sequence.table[full])
        return tail

    def _forget_own(self, sequence: Sequence) -> None:
        owner = (sequence.agent, sequence.id)
        if self.claims.of(owner) is not None:
            self._replace_tail(owner, None)
            self.claims.drop(owner)

    def _tail(self, owner: Owner) -> Piece | None:
        holding = self.claims.of(owner)
        return holding.tail if holding is not None and holding.tail is not None and holding.tail.alive else None

    def _replace_tail(self, owner: Owner, tail: Piece | None) -> None:
        holding = self.claims.of(owner)
        if holding is not None:
            if holding.tail is not None:
                self.placement.dissolve(holding.tail)
            holding.tail = tail
            self.claims.version += 1

    def _cold(self, agent: str) -> list[Piece]:
        """The pieces of ``agent``, which waits, that nobody holds who does not."""
        holding, index = self.claims.of(agent), self.placement.index
        if holding is None:
            return []
        found = [piece for piece in map(index.get, self.claims.cold(holding.keys)) if piece is not None]
        return [*found, holding.tail] if holding.tail is not None and holding.tail.alive else found

    def _fetch(self, pieces: list[Piece], *, urgent: bool, needed: bool, begun: bool = False) -> list[int]:
        """Copy in as many of ``pieces`` as there are blocks for; the ids of the copies."""
        most, device = len(pieces), self.placement.device
        # Blocks that are free, or that the host has and, unless they are ``needed``, nobody else needs soon.
        self.placement.empty_heads(most - len(device.free), cheap=not needed)
        if needed and len(device.free) < most:
            self.placement.empty_mirrored(most - len(device.free))
        blocks = device.take_free(min(most, len(device.free)))
        started = self.placement.start_in(pieces[: len(blocks)], blocks, urgent=urgent, begun=begun)
        device.drop(blocks, unused=True)
        return started
