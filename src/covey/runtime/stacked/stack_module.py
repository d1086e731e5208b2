"""A model with its layers replaced by those that stacks are trained with."""

import copy
from collections.abc import Mapping

from torch import nn

from covey.runtime.stacked.batch_norm import MaskedBatchNorm
from covey.runtime.stacked.convolution import ConvAlgorithm, StackConv2d, convolutions, replace_layers


def stack_module(module: nn.Module, algorithms: Mapping[str, ConvAlgorithm]) -> nn.Module:
    """Return a copy with masked batch norm and, for each convolution, the given algorithm (grouped by default)."""
    copied = copy.deepcopy(module)
    layers = convolutions(copied)

    def stacked(name: str, layer: nn.Module) -> nn.Module | None:
        if name in layers:
            return StackConv2d(layers[name], algorithms.get(name, "grouped"))
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return MaskedBatchNorm(layer)
        return None

    replace_layers(copied, stacked)
    return copied
