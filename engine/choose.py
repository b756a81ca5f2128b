"""Which runner a model gets: the lean decoder on a GPU where it computes the model, else the transformers model itself."""

from __future__ import annotations

import logging

from .batch import Runner
from .lean_runner import LeanRunner, Limits, Tilings, compiling
from .model import LoadedModel
from .model.lean import LeanWeights, lean_weights, why_not_lean
from .model.skinny_tiles import ModelSizes, layer_tilings
from .runner import TorchRunner
from .storage import Storage

_log = logging.getLogger(__name__)


def make_runner(model: LoadedModel, storage: Storage, limits: Limits) -> Runner:
    """The runner for ``model`` over ``storage``'s pool, compiled and ready.

    Device graphs are captured here, so nothing else should use the device meanwhile. On the CPU transformers' own
    code runs: compiling costs a minute there and gains little.
    """
    if model.device.type == "cpu":
        return TorchRunner(model.model, storage)
    reason = why_not_lean(model.model)
    if reason is not None:
        _log.warning("%s does not use the lean decoder, so it is slower: %s", model.model_id, reason)
        return TorchRunner(model.model, storage)
    weights = lean_weights(model.model, limits.context_tokens)
    runner = LeanRunner(weights, storage, limits, compiling(), tilings=skinny_tilings(weights))
    runner.warm_up()
    return runner


def skinny_tilings(weights: LeanWeights) -> Tilings:
    """By batch size, the tilings of the skinny products for this model on its device; ``None`` where they do not serve."""
    from .attention.gpu import target_of

    layer = weights.layers[0]
    if weights.dtype.itemsize > 2:  # who asks for float32 wants no products in TF32, which they would be
        return lambda batch: None
    if any(bias is not None for bias in (layer.out_bias, layer.gate_up_bias, layer.down_bias)):
        return lambda batch: None
    target = target_of(weights.embedding.device)
    vocabulary, hidden = weights.head.shape
    sizes = ModelSizes(hidden, layer.qkv.shape[0], layer.out.shape[1], layer.down.shape[1], vocabulary)
    return lambda batch: layer_tilings(target.architecture, target.processors, batch, sizes)
