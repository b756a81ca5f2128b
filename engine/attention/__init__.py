"""Attention over the block pool, registered with transformers so that its models use it by name.

The step's :class:`PagedBatch` travels through the model's forward call as the keyword argument ``paged_batch``.
"""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor, nn
from transformers import AttentionInterface

from ..errors import ModelError
from . import ops, rotated  # noqa: F401 - importing defines the operators
from .batch import PagedBatch
from .reference import attend, write_kv

ATTENTION_NAME: Final = "kvtrace_paged"

# Keyword arguments by which a model asks for another kind of attention; each changes the result if ignored.
_OTHER_KINDS: Final = {
    "softcap": "capped attention scores",
    "s_aux": "attention sinks",
    "position_bias": "a position bias",
    "head_mask": "a head mask",
}


def register() -> None:
    """Make :func:`paged_attention` known to transformers as :data:`ATTENTION_NAME`; calling again changes nothing."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged_batch: PagedBatch,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Write this layer's new KV into the pool and attend over everything each sequence has there.

    Args:
        module: the model's attention layer; its ``layer_idx`` picks the layer of the pool.
        query: ``[1, heads, tokens, head_dim]`` of the packed step.
        key: ``[1, kv_heads, tokens, head_dim]``.
        value: ``[1, kv_heads, tokens, head_dim]``.
        attention_mask: none; the batch itself says who may look where.
        paged_batch: the packed step.
        scaling: factor on the scores; ``None`` is ``head_dim ** -0.5``.
        is_causal: whether later positions are hidden.
        sliding_window: how many positions a query sees, itself included; ``None`` for all before it.
        others: further arguments of transformers; those that ask for another kind of attention are refused.

    Returns:
        The attention output ``[1, tokens, heads, head_dim]`` and no weights.

    Raises:
        ModelError: the model asks for another kind of attention than causal attention.
    """
    _refuse_other_kinds(others)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is not None or not causal:
        raise ModelError("the model asks for attention that is not plainly causal; kvtrace serves decoder models only")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    pool, step, window = paged_batch.pool, paged_batch.step, sliding_window or 0
    if step is None:
        write_kv(pool, layer, keys, values, paged_batch.write_slots)
        return attend(pool, layer, paged_batch.groups, queries, scale, window)[None], None
    output = ops.paged_attention(
        queries,
        keys,
        values,
        pool,
        layer,
        step.write_slots,
        step.query_starts,
        step.key_lengths,
        step.tables,
        scale,
        step.decode,
        window,
        step.whole,
    )
    return output[None], None


def _refuse_other_kinds(asked: dict[str, Any]) -> None:
    for name, meaning in _OTHER_KINDS.items():
        if asked.get(name) is not None:
            raise ModelError(
                f"the model asks for {meaning} ({name}), which kvtrace does not compute; choose another model"
            )
