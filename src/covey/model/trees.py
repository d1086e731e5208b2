"""Trees: one tensor for each parameter of a model, by name."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Tree = dict[str, Tensor]
"""Name of a parameter → tensor."""


def map_tree(function: Callable[..., Tensor], *trees: Mapping[str, Tensor]) -> Tree:
    """Apply a function to the tensors of each parameter: `map_tree(lambda g, c: g + c, gradient, correction)`."""
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


def zeros_like(tree: Mapping[str, Tensor]) -> Tree:
    """Return a tree of zeros."""
    return map_tree(torch.zeros_like, tree)


def tree_norm(tree: Mapping[str, Tensor]) -> Tensor:
    """Return the Euclidean norm over all tensors of a tree."""
    return torch.stack([value.square().sum() for value in tree.values()]).sum().sqrt()
