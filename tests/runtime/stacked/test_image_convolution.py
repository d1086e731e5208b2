"""The stacked convolution operator computes the same as PyTorch's, under vmap, grad and compile."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from covey.model import build_model
from covey.runtime.stacked.convolution_kernels import forward_by_triton, gradients_by_triton
from covey.runtime.stacked.image_convolution import image_convolution
from covey.runtime.stacked.triton_support import available
from tests.runtime.stacked.triton_interpreter import needs_interpreter, run_interpreted

Pair = tuple[int, int]
Case = tuple[int, int, int, int, int, int, Pair, Pair, Pair, bool]

TRITON_CASES: list[Case] = [
    # lanes, batch, channels, height, width, filters, kernel, stride, padding, with bias
    (2, 3, 3, 16, 16, 6, (5, 5), (1, 1), (0, 0), True),
    (2, 2, 1, 8, 8, 32, (5, 5), (1, 1), (2, 2), True),
    (1, 2, 3, 8, 8, 64, (3, 3), (1, 1), (1, 1), False),
    (2, 2, 3, 9, 11, 6, (5, 3), (2, 2), (1, 2), True),
    (2, 3, 2, 7, 9, 7, (1, 1), (1, 1), (0, 0), True),
    (1, 2, 3, 11, 9, 5, (7, 7), (2, 1), (3, 3), True),
    (1, 1, 6, 8, 8, 16, (5, 5), (1, 1), (0, 0), True),
    (1, 1, 5, 5, 6, 130, (3, 3), (1, 2), (1, 0), True),
]


def stack(lanes, batch, channels, height, width, filters, kernel, with_bias, dtype=torch.float64):
    generator = torch.Generator().manual_seed(lanes + filters)
    x = torch.randn(lanes, batch, channels, height, width, generator=generator).to(dtype)
    weight = torch.randn(lanes, filters, channels, *kernel, generator=generator).to(dtype)
    bias = torch.randn(lanes, filters, generator=generator).to(dtype) if with_bias else None
    return x, weight, bias


def lane_by_lane(x, weight, bias, stride, padding):
    biases = [None] * len(x) if bias is None else bias
    return torch.stack([F.conv2d(*one, stride, padding) for one in zip(x, weight, biases, strict=True)])


def step_of(convolve):
    """Return a function for losses and gradients of every lane, as in the stacked runtime."""

    def loss_of(parameters, x):
        y = F.relu(F.max_pool2d(convolve(x, parameters["weight"], parameters["bias"]), 2))
        return (y**2).sum(), {"mean": y.mean()}

    return vmap(grad_and_value(loss_of, has_aux=True))


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(7, 11), st.integers(7, 11)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.booleans(),
)
def test_a_stack_is_convolved_lane_by_lane(
    sizes: tuple[int, int, int], image: Pair, kernel: Pair, stride: Pair, padding: Pair, with_bias: bool
) -> None:
    x, weight, bias = stack(*sizes, *image, 5, kernel, with_bias)
    expected = lane_by_lane(x, weight, bias, stride, padding)
    torch.testing.assert_close(image_convolution(x, weight, bias, stride, padding), expected)

    def convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return image_convolution(x, weight, bias, stride, padding)

    lanes = vmap(convolved, in_dims=(0, 0, 0 if with_bias else None))
    torch.testing.assert_close(lanes(x, weight, bias), expected)


def test_gradients_are_those_of_autograd():
    x, weight, bias = (tensor.requires_grad_() for tensor in stack(2, 3, 2, 9, 8, 4, (3, 4), True))
    leaves = (x, weight, bias)
    expected = torch.autograd.grad(lane_by_lane(*leaves, (1, 1), (1, 2)).square().sum(), leaves)
    ours = torch.autograd.grad(image_convolution(*leaves, (1, 1), (1, 2)).square().sum(), leaves)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_the_image_has_no_gradient_through_a_stride():
    x, weight, _ = stack(1, 2, 2, 9, 9, 4, (3, 3), False)
    y = image_convolution(x[0].requires_grad_(), weight[0], None, (2, 2))
    with pytest.raises(NotImplementedError, match="stride 1 only"):
        y.sum().backward()


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("size", [3, 4])
def test_padding_by_name_is_that_of_torch(size):
    x, weight, bias = (tensor[0] for tensor in stack(1, 2, 2, 9, 8, 4, (size, size), True))
    for padding in ("same", "valid"):
        expected = F.conv2d(x, weight, bias, padding=padding)
        torch.testing.assert_close(image_convolution(x, weight, bias, padding=padding), expected)


def test_lanes_may_share_images_or_kernels():
    x, weight, bias = stack(3, 2, 2, 8, 8, 4, (3, 3), True)
    shared_images = vmap(image_convolution, in_dims=(None, 0, 0))(x[0], weight, bias)
    torch.testing.assert_close(shared_images, lane_by_lane(x[:1].expand_as(x), weight, bias, (1, 1), (0, 0)))
    shared_kernels = vmap(image_convolution, in_dims=(0, None, None))(x, weight[0], bias[0])
    expected = lane_by_lane(x, weight[:1].expand_as(weight), bias[:1].expand_as(bias), (1, 1), (0, 0))
    torch.testing.assert_close(shared_kernels, expected)


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_vmapped_gradients_agree_also_when_compiled(backend):
    x, weight, bias = stack(3, 4, 3, 12, 12, 6, (5, 5), True)
    parameters = {"weight": weight, "bias": bias}
    gradients, (losses, aux) = step_of(F.conv2d)(parameters, x)
    step = step_of(image_convolution)
    if backend:
        # fullgraph refuses a graph break; a lost backward pass shows as wrong numbers.
        step = torch.compile(step, fullgraph=True, dynamic=False, backend=backend)
    ours, (our_losses, our_aux) = step(parameters, x)
    torch.testing.assert_close(ours, gradients)
    torch.testing.assert_close((our_losses, our_aux), (losses, aux))


def test_a_whole_model_has_the_same_gradients_with_it():
    class Layer(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.weight, self.bias, self.stride, self.padding = layer.weight, layer.bias, layer.stride, layer.padding

        def forward(self, x):
            return image_convolution(x, self.weight, self.bias, self.stride, self.padding)

    plain = build_model("tutorial-cnn", {}, (3, 16, 16), 10, 0).double()
    ours = copy.deepcopy(plain)
    ours.conv1 = Layer(ours.conv1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, 16, 16, generator=generator, dtype=torch.float64)
    y = torch.from_numpy(np.arange(10).reshape(2, 5))
    parameters = {name: torch.stack([value, 0.5 * value]).detach() for name, value in plain.named_parameters()}

    def gradients(module):
        def loss_of(parameters, x, y):
            return F.cross_entropy(functional_call(module, parameters, (x,)), y)

        return vmap(grad_and_value(loss_of))(parameters, x, y)

    torch.testing.assert_close(gradients(ours), gradients(plain))


def test_double_precision_is_left_to_torch():
    assert not available(torch.zeros(1, dtype=torch.float64))


@needs_interpreter
def test_triton_kernels_agree_with_torch():
    run_interpreted("tests.runtime.stacked.test_image_convolution")


def check_triton(case: Case, dtype: torch.dtype) -> None:
    lanes, batch, channels, height, width, filters, kernel, stride, padding, with_bias = case
    x, weight, bias = stack(lanes, batch, channels, height, width, filters, kernel, with_bias, dtype=dtype)
    exact_weight = weight.double().requires_grad_()
    exact_bias = None if bias is None else bias.double()
    expected = lane_by_lane(x.double(), exact_weight, exact_bias, stride, padding)
    gradient = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    of_kernels = torch.autograd.grad(expected, exact_weight, gradient.double())[0]
    assert_near(forward_by_triton(x, weight, bias, stride, padding), expected)
    ours, of_biases = gradients_by_triton(gradient, x, kernel, stride, padding, with_bias)
    assert_near(ours, of_kernels)
    if with_bias:
        assert_near(of_biases, gradient.double().sum((1, 3, 4)))


def assert_near(ours, exact):
    """Assert equality up to the rounding of sums and of the result."""
    largest = exact.abs().max()
    limit = 2e-6 if ours.dtype == torch.float32 else 1e-3
    torch.testing.assert_close(ours / largest, exact / largest, rtol=0.0, atol=limit, check_dtype=False)


def check_triton_through_the_operator():
    x, weight, bias = stack(2, 3, 3, 12, 12, 6, (5, 5), True, dtype=torch.float32)
    assert available(x)
    parameters = {"weight": weight, "bias": bias}
    ours, (our_losses, _) = step_of(image_convolution)(parameters, x)
    gradients, (losses, _) = step_of(F.conv2d)(parameters, x)
    torch.testing.assert_close(our_losses, losses)
    torch.testing.assert_close(ours, gradients, rtol=1e-4, atol=1e-3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in TRITON_CASES:
        check_triton(case, torch.float32)
    check_triton(TRITON_CASES[0], torch.float16)
    check_triton_through_the_operator()
