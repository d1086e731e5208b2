"""A model with its layers replaced by those that stacks are trained with."""

import copy
from collections.abc import Collection, Mapping

from torch import nn

from covey.errors import require
from covey.model.batched import FixedBatchNorm
from covey.model.embedding import WordVectors
from covey.model.frozen import frozen_parts
from covey.model.recurrent_layers import for_stacks
from covey.runtime.stacked.batch_norm import MaskedBatchNorm
from covey.runtime.stacked.convolution import ConvAlgorithm, StackConv2d, convolutions, replace_layers
from covey.runtime.stacked.layer_fusion import fuse
from covey.runtime.stacked.split_linear import split


def stack_module(
    module: nn.Module, algorithms: Mapping[str, ConvAlgorithm], updated: Collection[str] = ()
) -> nn.Module:
    """Return a copy with masked batch norm and, for each convolution, the given algorithm (grouped by default).

    Linear layers whose names are among `updated` are split (`split_linear`).
    Frozen layers are the same for all models: they stay as they are, and batch norm uses its running statistics.
    """
    copied = for_stacks(copy.deepcopy(module))
    layers = convolutions(copied)
    frozen = {layer for part in frozen_parts(copied) for layer in part.modules()}

    def stacked(name: str, layer: nn.Module) -> nn.Module | None:
        if name in layers:
            return StackConv2d(layers[name], algorithms.get(name, "grouped"))
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return FixedBatchNorm(layer) if layer in frozen else MaskedBatchNorm(layer)
        if type(layer) is nn.Embedding and _is_plain(layer):
            layer.__class__ = WordVectors
        require(
            not isinstance(layer, nn.Embedding | nn.EmbeddingBag)
            or (layer.max_norm is None and not layer.scale_grad_by_freq),
            f"The layer {name} is an embedding with max_norm or scale_grad_by_freq, which depend on all samples of a "
            "batch and change weights in a pass, so that a stack of models cannot train it: leave them out, or use the "
            "runtime 'local'.",
        )
        require(
            not isinstance(layer, nn.modules.instancenorm._InstanceNorm) or not layer.track_running_stats,
            f"The layer {name} is an instance norm with running statistics, which a stack of models cannot train: "
            "leave out track_running_stats, or use the runtime 'local'.",
        )
        return None

    replace_layers(copied, stacked)
    if together := [name for name in layers if algorithms.get(name) == "fused"]:
        fuse(copied, together)
    split(copied, updated)
    return copied


def _is_plain(layer: nn.Embedding) -> bool:
    """True if an embedding is a look-up and nothing more; its gradient on a GPU is then made deterministic."""
    return layer.padding_idx is None and layer.max_norm is None and not (layer.scale_grad_by_freq or layer.sparse)
