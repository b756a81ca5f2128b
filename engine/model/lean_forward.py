"""The forward pass of the lean decoder: an embedding, layers, a head.

What lies between two of our own kernels is compiled as a whole: the functions of a layer, not the model, since all
layers run the same code (seconds, where 36 layers at once take a minute), and for every number of rows from two on.
Device graphs take away what the calls in between would cost. A layer leaves the addition of its feed-forward to the
next one, where it fuses with the norm that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from .. import attention  # noqa: F401  (defines torch.ops.kvtrace.paged_attention)
from ..pieces import Pieces, run_pieces
from .lean import LayerWeights, LeanShape, LeanWeights
from .lean_ops import rms_norm
from .skinny_ops import sums_of_squares
from .skinny_tiles import LayerTiling, LayerTilings, Tiling

_PARTS: Final = 256
_LINE: Final = 32  # int32 of a cache line: counters of two layers share none


class TokenTensors(NamedTuple):
    """The tokens of a packed step; see :func:`embed`."""

    ids: Tensor
    source: Tensor
    before: Tensor
    positions: Tensor


class StepTensors(NamedTuple):
    """A packed step as the attention operator takes it; see :mod:`kvtrace.engine.attention.ops`."""

    write_slots: Tensor
    query_starts: Tensor
    key_lengths: Tensor
    tables: Tensor
    decode: bool
    whole: bool


def embed(weights: Tensor, rotary: Tensor, ids: Tensor, source: Tensor, before: Tensor, positions: Tensor) -> Any:
    """Hidden states ``[tokens, hidden]`` and rotary rows ``[tokens, 2, head_dim / 2]``.

    Args:
        weights: the embedding.
        rotary: cosine and sine of every position.
        ids: int32 ``[tokens]``.
        source: int32 ``[tokens]``, the row of ``before`` that holds a token's id; -1 where ``ids`` does.
        before: int64, what the step before sampled.
        positions: int32 ``[tokens]``.
    """
    known = torch.where(source >= 0, before[source.clamp(min=0).long()], ids.long())
    return embedding(known, weights), rotary[positions.long()]


def to_states(
    hidden: Tensor, delta: Tensor, norm: Tensor, qkv: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """A layer up to attention: ``hidden + delta``, both ``[tokens, hidden]``, and its merged q, k and v."""
    hidden = hidden + delta
    return hidden, linear(rms_norm(hidden, norm, eps), qkv, bias)


def from_attended(hidden: Tensor, attended: Tensor, weights: LayerWeights, eps: float) -> tuple[Tensor, Tensor]:
    """A layer from attention's output on: its result ``[tokens, hidden]``, in two parts to be added."""
    # In float32, where compiled code computes it anyhow: else the compiler makes one call of product and addition, which
    # first copies the whole state into its result.
    product = linear(attended, weights.out, weights.out_bias)
    hidden = (hidden.float() + product.float()).to(hidden.dtype)
    both = linear(rms_norm(hidden, weights.mlp_norm, eps), weights.gate_up, weights.gate_up_bias)
    return hidden, linear(torch.ops.kvtrace.silu_mul(both), weights.down, weights.down_bias)


class State(NamedTuple):
    """The hidden state between skinny products: itself, times the next norm's weight, and its squares in parts."""

    hidden: Tensor
    scaled: Tensor
    squares: Tensor


def skinny_embed(
    weights: Tensor,
    rotary: Tensor,
    ids: Tensor,
    source: Tensor,
    before: Tensor,
    positions: Tensor,
    norm: Tensor,
    columns: int,
) -> Any:
    """What :func:`embed` gives, its hidden state as a :class:`State` for bands of ``columns``."""
    hidden, rows = embed(weights, rotary, ids, source, before, positions)
    return State(hidden, hidden * norm, sums_of_squares(hidden, columns)), rows


def skinny_layer(
    state: State,
    weights: LayerWeights,
    next_norm: Tensor,
    rotary: Tensor,
    pool: Tensor,
    step: StepTensors,
    shape: LeanShape,
    window: int,
    tilings: LayerTilings,
) -> Any:
    """One layer of a decoding step by skinny products, which take the norms, gate and additions along."""
    ops, eps = torch.ops.kvtrace, shape.eps
    states = ops.skinny_normed(state.scaled, state.squares, weights.qkv, eps, False, list(tilings.qkv))
    if weights.qkv_bias is not None:
        states = states + weights.qkv_bias
    attended = _attend(states, weights, rotary, pool, step, shape, window)
    state = State(*ops.skinny_adds(attended, weights.out, state.hidden, weights.mlp_norm, list(tilings.out)))
    gated = ops.skinny_normed(state.scaled, state.squares, weights.gate_up, eps, True, list(tilings.gate_up))
    return State(*ops.skinny_adds(gated, weights.down, state.hidden, next_norm, list(tilings.down)))


def whole_layer(
    states: Tensor,
    residual: Tensor,
    weights: LayerWeights,
    next_norm: Tensor,
    next_qkv: Tensor | None,
    rotary: Tensor,
    pool: Tensor,
    step: StepTensors,
    shape: LeanShape,
    window: int,
    barriers: Tensor,
    tiling: LayerTiling,
) -> tuple[State, Tensor]:
    """A layer's attention, then in one kernel all up to and with the next layer's q, k and v (empty after the last)."""
    if weights.qkv_bias is not None:
        states = states + weights.qkv_bias
    attended = _attend(states, weights, rotary, pool, step, shape, window)
    products = (weights.out, weights.mlp_norm, weights.gate_up, weights.down, next_norm, next_qkv)
    hidden, scaled, squares, states = torch.ops.kvtrace.skinny_layer(
        attended, residual, *products, barriers, shape.eps, list(tiling)
    )
    return State(hidden, scaled, squares), states


def skinny_states(state: State, weights: Tensor, eps: float, tiling: Tiling) -> Tensor:
    """The first layer's merged q, k and v."""
    states: Tensor = torch.ops.kvtrace.skinny_normed(state.scaled, state.squares, weights, eps, False, list(tiling))
    return states


def skinny_head(scaled: Tensor, squares: Tensor, weights: Tensor, eps: float, tiling: Tiling) -> tuple[Tensor, Tensor]:
    """Logits ``[rows, vocabulary]`` of a :class:`State`, and the most likely token of each row."""
    logits = torch.ops.kvtrace.skinny_normed(scaled, squares, weights, eps, False, list(tiling))
    return logits, _most_likely(logits)


def head(hidden: Tensor, delta: Tensor, norm: Tensor, weights: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Logits ``[rows, vocabulary]`` of ``hidden + delta``, and the most likely token of each row."""
    logits = linear(rms_norm(hidden + delta, norm, eps), weights)
    return logits, _most_likely(logits)


def _attend(
    states: Tensor,
    weights: LayerWeights,
    rotary: Tensor,
    pool: Tensor,
    step: StepTensors,
    shape: LeanShape,
    window: int,
) -> Tensor:
    """Attention of merged q, k and v ``[tokens, (heads + 2 kv_heads) * head_dim]``: ``[tokens, heads * head_dim]``."""
    attended: Tensor = torch.ops.kvtrace.rotated_attention(
        states,
        weights.head_norm,
        rotary,
        pool,
        0,
        step.write_slots,
        step.query_starts,
        step.key_lengths,
        step.tables,
        shape.heads,
        shape.scale,
        shape.eps,
        step.decode,
        window,
        step.whole,
    )
    return attended.flatten(1)


def _most_likely(logits: Tensor) -> Tensor:
    """``argmax`` over the vocabulary in two stages, since one row at a time keeps a GPU's other cores idle."""
    rows, vocabulary = logits.shape
    parts = next(parts for parts in range(_PARTS, 0, -1) if vocabulary % parts == 0)
    best, places = logits.view(rows, parts, vocabulary // parts).max(dim=-1)
    part = best.argmax(dim=-1, keepdim=True)
    return (part * (vocabulary // parts) + places.gather(1, part))[:, 0]


def _any_length(*tensors: Tensor, dim: int = 0) -> None:
    """Have compiled code serve every length of this dimension but 1, which the compiler always makes a case of its own."""
    for tensor in tensors:
        if tensor.shape[dim] > 1:
            torch._dynamo.mark_dynamic(tensor, dim)


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class LeanDecoder:
    """Runs the lean forward pass over ``weights`` and ``pool``; ``wrap`` compiles its functions, or leaves them as they are.

    ``cuts`` are the layers before which :meth:`forward` can be interrupted.
    """

    def __init__(
        self,
        weights: LeanWeights,
        pool: Tensor,
        wrap: Wrap = lambda function: function,
        cuts: Collection[int] = (),
    ) -> None:
        self.weights = weights
        self._cuts = frozenset(cuts)
        self._pools = tuple(pool[:, index : index + 1] for index in range(len(weights.layers)))
        self._embed, self._head = wrap(embed), wrap(head)
        self._to_states, self._from_attended = wrap(to_states), wrap(from_attended)
        # Between these two there are only kernels of our own, and nothing to compile.
        self._skinny_embed, self._skinny_head = wrap(skinny_embed), wrap(skinny_head)
        self._barriers = torch.zeros((len(self._pools), _LINE), dtype=torch.int32, device=pool.device)

    def decode(self, inputs: TokenTensors, step: StepTensors, tilings: LayerTilings | None) -> tuple[Tensor, Tensor]:
        """A decoding step: logits of each row and the most likely token; by skinny products where ``tilings`` are given."""
        if tilings is None:
            return self.logits(*run_pieces(self.forward(inputs, step)))
        weights = self.weights
        norm = weights.layers[0].norm
        _any_length(weights.rotary, inputs.ids, inputs.source, inputs.positions)
        state, rotary = self._skinny_embed(weights.embedding, weights.rotary, *inputs, norm, tilings.down.columns)
        if tilings.whole is None:
            state = self._one_by_one(state, rotary, step, tilings)
        else:
            state = self._whole(state, rotary, step, tilings.qkv, tilings.whole)
        _any_length(state.scaled)
        _any_length(state.squares, dim=1)
        args = (state.scaled, state.squares, weights.head, weights.shape.eps, tilings.head)
        result: tuple[Tensor, Tensor] = self._skinny_head(*args)
        return result

    def _one_by_one(self, state: State, rotary: Tensor, step: StepTensors, tilings: LayerTilings) -> State:
        """All layers, each product a kernel."""
        shape = self.weights.shape
        for index, (one, pool) in enumerate(zip(self.weights.layers, self._pools, strict=True)):
            window = shape.windows[index]
            state = skinny_layer(state, one, self._norm_after(index), rotary, pool, step, shape, window, tilings)
        return state

    def _whole(self, state: State, rotary: Tensor, step: StepTensors, first: Tiling, tiling: LayerTiling) -> State:
        """All layers, each one's products one kernel, which does the next one's first product too."""
        layers, shape = self.weights.layers, self.weights.shape
        self._barriers.zero_()
        states = skinny_states(state, layers[0].qkv, shape.eps, first)
        for index, (one, pool) in enumerate(zip(layers, self._pools, strict=True)):
            following = layers[index + 1].qkv if index + 1 < len(layers) else None
            state, states = whole_layer(
                states,
                state.hidden,
                one,
                self._norm_after(index),
                following,
                rotary,
                pool,
                step,
                shape,
                shape.windows[index],
                self._barriers[index],
                tiling,
            )
        return state

    def _norm_after(self, index: int) -> Tensor:
        layers = self.weights.layers
        return layers[index + 1].norm if index + 1 < len(layers) else self.weights.norm

    def forward(
        self, inputs: TokenTensors, step: StepTensors, rows: Tensor | None = None
    ) -> Pieces[tuple[Tensor, Tensor]]:
        """Write the step's KV; the last layer's result, ``[tokens, hidden]`` in two parts to be added.

        ``rows`` picks the tokens whose result anybody wants: after the last layer only those that sample. A piece touches
        the pool for its own layers alone: before it runs, neither what it reads there nor where it writes need be ready.
        """
        weights, shape = self.weights, self.weights.shape
        _any_length(weights.rotary, inputs.ids, inputs.source, inputs.positions)
        hidden, rotary = self._embed(weights.embedding, weights.rotary, *inputs)
        delta = torch.zeros_like(hidden)
        for index, (one, pool) in enumerate(zip(weights.layers, self._pools, strict=True)):
            if index in self._cuts:
                yield
            _any_length(hidden, delta)
            hidden, states = self._to_states(hidden, delta, one.norm, one.qkv, one.qkv_bias, shape.eps)
            attended = _attend(states, one, rotary, pool, step, shape, shape.windows[index])
            if rows is not None and index == len(weights.layers) - 1:
                hidden, attended = hidden[rows], attended[rows]
            _any_length(hidden, attended)
            hidden, delta = self._from_attended(hidden, attended, one, shape.eps)
        return hidden, delta

    def logits(self, hidden: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of those rows, and the most likely token of each."""
        weights = self.weights
        _any_length(hidden, delta)
        result: tuple[Tensor, Tensor] = self._head(hidden, delta, weights.norm, weights.head, weights.shape.eps)
        return result
