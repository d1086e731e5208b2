"""Algorithms of the stacked convolution: all compute a convolution, and the right ones are tried."""

import pytest
import torch

from covey.model import build_model
from covey.runtime.stacked.convolution import StackConv2d, candidate_algorithms


@pytest.mark.parametrize("algorithm", ["windows", "slices"])
@pytest.mark.parametrize(
    ("channels", "out", "kernel", "stride", "padding", "groups"),
    [
        (3, 6, 5, 1, 0, 1),
        (6, 16, 5, 1, 2, 1),
        (3, 8, 3, 2, 1, 1),
        (4, 5, 1, 1, 0, 1),
        (2, 3, (3, 5), (1, 2), (0, 1), 1),
        (2, 3, 3, 1, "same", 1),
        (4, 4, 3, 1, 1, 4),
        (5, 5, (3, 5), (2, 1), "valid", 5),
        (3, 3, 4, 1, "same", 3),
    ],
)
def test_convolution_by_patches_is_convolution(channels, out, kernel, stride, padding, groups, algorithm):
    check(torch.nn.Conv2d(channels, out, kernel, stride, padding, groups=groups).double(), algorithm)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("padding", [0, (2, 1), "same", "valid"])
def test_convolution_by_tiles_is_convolution(padding):
    check(torch.nn.Conv2d(8, 5, 4, padding=padding).double(), "tiles")


def check(layer, algorithm):
    x = torch.randn(3, layer.in_channels, 9, 11, dtype=torch.float64, requires_grad=True)
    expected = layer(x)
    patches = StackConv2d(layer, algorithm)(x)
    assert torch.allclose(patches, expected, atol=1e-12)
    weight = torch.randn_like(expected)
    assert layer.bias is not None
    wanted = torch.autograd.grad((expected * weight).sum(), [x, layer.weight, layer.bias])
    gotten = torch.autograd.grad((patches * weight).sum(), [x, layer.weight, layer.bias])
    assert all(torch.allclose(one, other, atol=1e-11) for one, other in zip(wanted, gotten, strict=True))


def test_candidate_algorithms_name_every_layer():
    module = build_model("tutorial-cnn", {}, (3, 32, 32), 10, 0)
    candidates = candidate_algorithms(module)
    assert all(set(one) == {"conv1", "conv2"} for one in candidates)
    assert {one["conv1"] for one in candidates} == {"windows", "grouped"}
    for kernels in (False, True):
        assert any("grouped" in one.values() for one in candidate_algorithms(module, kernels))
        exact = candidate_algorithms(module, kernels, exact=True)
        assert exact and not any("grouped" in one.values() for one in exact)
    (deep,) = candidate_algorithms(build_model("vgg11", {}, (3, 32, 32), 10, 0), kernels=True)
    assert list(deep.values()) == ["kernel", *["slices"] * 7]
    (mobile,) = candidate_algorithms(build_model("mobilenetv2", {}, (3, 32, 32), 10, 0), kernels=True)
    assert list(mobile.values()) == ["kernel", *["slices"] * 52]
    conv1 = module.get_submodule("conv1")
    assert isinstance(conv1, torch.nn.Conv2d)
    layer = StackConv2d(conv1, "windows")
    assert {name for name, _ in layer.named_parameters()} == {"weight", "bias"}
