"""Finds convolutions that a max pool of 2 x 2 and ReLU follow, in either order, and leaves all three to the first.

A GPU times steps with these layers as one operator (`pooled_convolution`) beside others, and takes them where they are
faster and `pooled_check` finds them right. With the variable COVEY_FUSED=0 it does not try.
"""

import copy
import os
from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, GraphModule, Node, Tracer

from covey.model.frozen import frozen_parts
from covey.runtime.stacked.convolution import StackConv2d, convolutions

SETTING = "COVEY_FUSED"
"""Environment variable: with 0, no GPU tries convolution, pool and ReLU as one operator."""

MOST_LINES = 31
"""Input channels times height of the filters that the kernels take at most."""


def wanted() -> bool:
    """True if fused layers are to be tried."""
    return os.environ.get(SETTING) != "0"


def fusible(module: nn.Module) -> list[str]:
    """Return the names of convolutions that can compute the pool and the ReLU after them too."""
    module = copy.deepcopy(module)
    graph = _graph(module)
    if graph is None:
        return []
    layers = {name: layer for name, layer in convolutions(module).items() if _is_small(layer)}
    return [name for name in layers if _followers(graph, name, module)]


def fuse(module: nn.Module, names: Collection[str]) -> None:
    """Have a module leave out the pools and ReLUs after these convolutions; its layers stay what they are."""
    graph = _graph(module)
    assert graph is not None
    for name in names:
        for node in reversed(_followers(graph, name, module)):
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)
    kind = type(module)
    forward = type(GraphModule(module, graph)).forward
    module.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


class _Tracer(Tracer):
    """Traces containers alone: every layer stays one node."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, StackConv2d) or super().is_leaf_module(m, module_qualified_name) or not any(m.children())


def _graph(module: nn.Module) -> Graph | None:
    """Return the graph of a forward pass in training; None if it depends on values, or part of the model is frozen."""
    if frozen_parts(module):
        return None
    training = module.training
    try:
        return _Tracer().trace(module.train())
    except Exception:
        # A model of somebody's own may do anything here; it is trained without fused layers.
        return None
    finally:
        module.train(training)


def _is_small(layer: nn.Conv2d) -> bool:
    plain = layer.groups == 1 and layer.stride == (1, 1) and not isinstance(layer.padding, str)
    return plain and layer.in_channels * layer.kernel_size[0] <= MOST_LINES


def _followers(graph: Graph, name: str, module: nn.Module) -> list[Node]:
    """Return the pool and the ReLU after a convolution that is called once, in their order; else nothing."""
    calls = [node for node in graph.nodes if node.op == "call_module" and node.target == name]
    if len(calls) != 1:
        return []
    first = _only_user(calls[0])
    second = _only_user(first)
    if first is None or second is None:
        return []
    orders = ((_is_pool, _is_relu), (_is_relu, _is_pool))
    return [first, second] if any(one(first, module) and other(second, module) for one, other in orders) else []


def _only_user(node: Node | None) -> Node | None:
    users = [] if node is None else list(node.users)
    return users[0] if len(users) == 1 and users[0].all_input_nodes == [node] else None


def _is_relu(node: Node, module: nn.Module) -> bool:
    if node.op == "call_module":
        return type(module.get_submodule(str(node.target))) is nn.ReLU
    if node.op == "call_method":
        return node.target == "relu"
    return node.op == "call_function" and node.target in (F.relu, torch.relu)


def _is_pool(node: Node, module: nn.Module) -> bool:
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        return type(layer) is nn.MaxPool2d and _is_plain_pool(**{name: getattr(layer, name) for name in _POOL})
    if node.op != "call_function" or node.target not in (F.max_pool2d, torch.max_pool2d):
        return False
    return _is_plain_pool(**dict(zip(_POOL, node.args[1:], strict=False)), **node.kwargs)


_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


def _is_plain_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: Any = False,
    return_indices: Any = False,
    **others: Any,
) -> bool:
    """True for squares of 2 x 2 side by side."""

    def both(value: Any, wanted: int) -> bool:
        return value == wanted or (isinstance(value, tuple | list) and list(value) == [wanted, wanted])

    apart = stride is None or stride == () or both(stride, 2)
    return (
        both(kernel_size, 2) and apart and both(padding, 0) and both(dilation, 1) and not (ceil_mode or return_indices)
    )
