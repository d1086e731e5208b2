"""Layers that are faster on a CPU compute what PyTorch's compute."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.client.batches import channels_last
from covey.model import cpu_layers
from covey.model.cpu_layers import Linear, MaxPool2d, adopt_cpu_layers, relu_of_pool

needs_onednn = pytest.mark.skipif(cpu_layers._product is None, reason="linear layers are PyTorch's on this processor")


def images(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return images with many equal values, channels innermost."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return channels_last((2 * drawn).round().to(dtype)).requires_grad_()


def gradient_of(y: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return torch.autograd.grad(y, inputs, weights)


def nodes(y: Tensor) -> set[str]:
    """Return the names of the steps that computed a tensor."""
    waiting, found = [y.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None:
            found.add(node.name())
            waiting += [before for before, _ in node.next_functions]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_pool_of_few_channels_gives_the_same_to_the_bit_with_equal_values_too(dtype: torch.dtype) -> None:
    x = images(40, 6, 28, 28, dtype=dtype)
    mine, theirs = relu_of_pool(x), F.relu(F.max_pool2d(x, 2))
    assert "_MaxPoolBackward" in nodes(mine) and "_MaxPoolBackward" not in nodes(theirs)
    assert torch.equal(mine, theirs) and mine.stride() == theirs.stride()
    (found,), (expected,) = gradient_of(mine, x), gradient_of(theirs, x)
    assert torch.equal(found, expected) and found.stride() == expected.stride()


@pytest.mark.parametrize("shape", [(40, 6, 29, 28), (40, 6, 28, 29), (40, 32, 28, 28), (40, 1, 28, 28), (2, 6, 28, 28)])
def test_pytorch_computes_pools_that_would_not_gain(shape: tuple[int, ...]) -> None:
    x = images(*shape)
    mine, theirs = relu_of_pool(x), F.relu(F.max_pool2d(x, 2))
    assert "_MaxPoolBackward" not in nodes(mine)
    assert torch.equal(mine, theirs)
    assert torch.equal(gradient_of(mine, x)[0], gradient_of(theirs, x)[0])


def test_relu_gets_a_gradient_in_the_layout_of_its_input() -> None:
    x = images(10, 32, 14, 14)
    y = relu_of_pool(x)
    assert y.grad_fn is not None
    layouts = []
    y.grad_fn.register_prehook(lambda given: layouts.append(given[0].stride()))
    (found,) = gradient_of(y.flatten(1), x)
    assert layouts == [y.stride()]
    assert torch.equal(found, gradient_of(F.relu(F.max_pool2d(x, 2)).flatten(1), x)[0])


def test_a_pool_has_a_second_derivative() -> None:
    x = images(4, 2, 100, 100, dtype=torch.float64)
    second = []
    for pool in (relu_of_pool, lambda x: F.relu(F.max_pool2d(x, 2))):
        (first,) = torch.autograd.grad(pool(x).pow(3).sum(), x, create_graph=True)
        second.append(torch.autograd.grad(first.pow(2).sum(), x)[0])
    assert torch.equal(*second) and second[0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("channels", "filters", "size", "padding"), [(3, 6, 5, 0), (8, 8, 3, 1), (3, 4, 5, (2, 2))])
def test_a_convolution_with_few_filters_gives_the_same_to_the_bit(
    channels: int, filters: int, size: int, padding: int | tuple[int, int], dtype: torch.dtype
) -> None:
    theirs = nn.Conv2d(channels, filters, size, padding=padding)
    mine = copy.deepcopy(theirs)
    adopt_cpu_layers(nn.Sequential(mine))
    x = images(60, channels, 32, 32)
    results = []
    for layer in (mine, theirs):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            y = layer(x)
        assert ("_ConvolutionBackward" in nodes(y)) == (layer is mine)
        inputs = [*layer.parameters(), *([x] if dtype == torch.float32 else [])]
        results.append((y, *gradient_of(y, *inputs)))
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected) and found.dtype == expected.dtype
    assert results[0][0].stride() == results[1][0].stride()


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 16, 3),
        nn.Conv2d(3, 6, 5, stride=2),
        nn.Conv2d(3, 6, 5, dilation=2),
        nn.Conv2d(4, 4, 5, groups=2),
        nn.Conv2d(3, 6, 5, padding="same"),
        nn.Conv2d(3, 6, 5, padding=2, padding_mode="circular"),
    ],
)
def test_other_convolutions_stay_pytorchs(layer: nn.Conv2d) -> None:
    adopt_cpu_layers(nn.Sequential(layer))
    assert type(layer) is nn.Conv2d


@pytest.mark.parametrize(("shape", "dtype"), [((60, 3, 32, 31), torch.float32), ((60, 3, 32, 32), torch.float64)])
def test_pytorch_computes_convolutions_of_odd_width_and_in_float64(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    theirs = nn.Conv2d(3, 6, 5, dtype=dtype)
    mine = copy.deepcopy(theirs)
    adopt_cpu_layers(nn.Sequential(mine))
    x = images(*shape, dtype=dtype)
    assert torch.equal(mine(x), theirs(x))
    assert "_ConvolutionBackward" not in nodes(mine(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_convolution_with_few_inputs_has_gradients_as_accurate(dtype: torch.dtype) -> None:
    theirs = nn.Conv2d(6, 16, 5).to(dtype)
    mine = copy.deepcopy(theirs)
    adopt_cpu_layers(nn.Sequential(mine))
    exact = copy.deepcopy(theirs).double()
    results = []
    for layer in (mine, theirs, exact):
        x = images(100, 6, 14, 14, dtype=dtype).to(layer.weight.dtype)
        results.append((y := layer(x), *gradient_of(y, x, *layer.parameters())))
    assert "_ConvolutionBackward" in nodes(results[0][0])
    for number, (found, expected, truth) in enumerate(zip(*results, strict=True)):
        if number == 1 and dtype == torch.bfloat16:
            errors = [(one.double() - truth).abs().mean() for one in (found, expected)]
            assert errors[0] <= 1.01 * errors[1] and found.stride() == expected.stride()
        else:
            assert torch.equal(found, expected)


def test_a_convolution_has_a_second_derivative() -> None:
    theirs = nn.Conv2d(3, 6, 5)
    mine = copy.deepcopy(theirs)
    adopt_cpu_layers(nn.Sequential(mine))
    x, second = images(60, 3, 32, 32), []
    for layer in (mine, theirs):
        (first,) = torch.autograd.grad(layer(x).pow(2).mean(), layer.weight, create_graph=True)
        second.append(torch.autograd.grad(first.pow(2).sum(), layer.weight)[0])
    torch.testing.assert_close(*second)


def test_pools_and_large_linear_layers_of_a_model_are_adopted() -> None:
    layers = nn.Sequential(nn.MaxPool2d(2), nn.MaxPool2d(3, 2), nn.Flatten(), nn.Linear(400, 120), nn.Linear(120, 10))
    adopt_cpu_layers(layers)
    assert type(layers[0]) is MaxPool2d and type(layers[1]) is nn.MaxPool2d and type(layers[4]) is nn.Linear
    x = images(40, 6, 28, 28)
    mine = layers[0](x)
    assert "_MaxPoolBackward" in nodes(mine) and torch.equal(mine, F.max_pool2d(x, 2))
    assert (type(layers[3]) is Linear) == (cpu_layers._product is not None)


@needs_onednn
@pytest.mark.parametrize(("batch", "inputs", "outputs"), [(10, 12_544, 128), (10, 3_136, 512), (400, 400, 120)])
def test_a_linear_layer_gives_the_same(batch: int, inputs: int, outputs: int) -> None:
    theirs = nn.Linear(inputs, outputs)
    mine = copy.deepcopy(theirs)
    adopt_cpu_layers(nn.Sequential(mine))
    x = torch.randn(batch, inputs, requires_grad=True)
    assert "_LinearBackward" in nodes(mine(x))
    assert torch.equal(mine(x), theirs(x))
    for found, expected in zip(
        gradient_of(mine(x), x, *mine.parameters()), gradient_of(theirs(x), x, *theirs.parameters()), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@needs_onednn
def test_gradients_of_single_samples_come_from_pytorch() -> None:
    layer = nn.Linear(3_136, 512)
    adopt_cpu_layers(nn.Sequential(layer))
    x = torch.randn(10, 3_136)

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        total: Tensor = torch.func.functional_call(layer, {"weight": weight}, (x[None],)).sum()
        return total

    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(layer.weight.detach(), x)
    torch.testing.assert_close(each, x[:, None].expand(10, 512, 3_136))
