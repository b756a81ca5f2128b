"""What holdings say after any sequence of changes is what counting everything again says."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.engine.blocks import Piece
from kvtrace.engine.claims import Claims, Phase
from kvtrace.engine.findings import Residency

OWNERS = ("a", "b", ("a", 7))


def chain(branch: int, length: int) -> tuple[bytes, ...]:
    """The keys of a context: chains of different branches agree in their first two blocks."""
    return tuple(bytes([0 if at < 2 else branch, at]) for at in range(length))


class Model:
    """Claims over an index, and the same by brute force."""

    def __init__(self) -> None:
        self.index: dict[bytes, Piece] = {}
        self.claims = Claims(self.index)
        self.told: dict[bytes, bool] = {}

    def appear(self, key: bytes) -> None:
        if key not in self.index:
            self.told[key] = self.kept(key)  # who enters a piece asks for it
            self.index[key] = piece = Piece("a", key)
            self.claims.lives(key, 1)
            piece.device = 1
            self.claims.moved([piece], 1)

    def move(self, key: bytes) -> None:
        """From the device to the host, then away."""
        piece = self.index.get(key)
        if piece is not None and piece.device is not None:
            piece.device, piece.host = None, 1
            self.claims.moved([piece], -1)
            self.claims.moved_on_host(piece, 1)
        elif piece is not None:
            piece.host = None
            self.claims.moved_on_host(piece, -1)
            del self.index[key]
            self.claims.lives(key, -1)

    def kept(self, key: bytes) -> bool:
        held = [holding for holding in self.claims.holdings.values() if key in holding.keys]
        return any(holding.phase is not Phase.RESTING for holding in held)

    def check(self) -> None:
        assert self.claims.counted() == self.claims.recount()
        for holding in self.claims.holdings.values():
            pieces = [self.index[key] for key in holding.keys if key in self.index]
            assert holding.residency(16) == Residency.of(pieces, len(holding.keys), 16)
        for key, piece in self.index.items():
            held = [holding for holding in self.claims.holdings.values() if key in holding.keys]
            assert self.claims.hot(piece) == any(holding.phase is not Phase.WAITING for holding in held)
            assert self.claims.kept(piece) == self.kept(key)
            assert (self.claims.cold([key]) == []) == self.claims.hot(piece)

    def listen(self) -> None:
        """Hear which pieces may be kept, or not, otherwise than before."""
        stale = {piece.key for piece in self.claims.take_stale()}
        for key in self.index:
            if key in stale:
                self.told[key] = self.kept(key)
            assert self.told.get(key, False) == self.kept(key), "nobody said that a piece is kept, or is not any more"


KEYS = st.builds(lambda branch, at: chain(branch, 5)[at], st.integers(1, 2), st.integers(0, 4))
PHASES = st.sampled_from(Phase)
Change = Callable[[Model], None]
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(
        lambda owner, branch, length, phase: lambda model: model.claims.hold(owner, chain(branch, length), None, phase),
        st.sampled_from(OWNERS),
        st.integers(1, 2),
        st.integers(0, 5),
        PHASES,
    ),
    st.builds(lambda owner, phase: lambda model: model.claims.set_phase(owner, phase), st.sampled_from(OWNERS), PHASES),
    st.builds(lambda owner: lambda model: model.claims.drop(owner), st.sampled_from(OWNERS)),
    st.builds(lambda key: lambda model: model.appear(key), KEYS),
    st.builds(lambda key: lambda model: model.move(key), KEYS),
    st.just(Model.listen),
)


@settings(max_examples=300)
@given(st.lists(CHANGES, min_size=3, max_size=40), st.booleans())
def test_holdings_are_kept_up_whatever_changes(changes: list[Change], attentive: bool) -> None:
    model = Model()
    for branch in (1, 2):
        for key in chain(branch, 5):
            model.appear(key)
    for change in changes:
        change(model)
        model.check()
        if attentive:
            model.listen()
    model.listen()


def test_what_nobody_holds_any_more_does_not_heap_up() -> None:
    claims = Claims({})
    for at in range(200):
        assert not claims.much_stale
        claims.hold("a", chain(at % 200 + 1, 9), None, Phase.ACTIVE)
        if claims.much_stale:
            break
    assert list(claims.take_stale()) == []
    assert not claims.much_stale
