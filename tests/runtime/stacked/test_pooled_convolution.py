"""Convolution, pool and ReLU in one operator: the same as PyTorch's three, under vmap, grad and compile."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad_and_value, vmap

from covey.runtime.stacked.pooled_convolution import pooled_convolution
from covey.runtime.stacked.pooled_convolution_kernels import DEAD, filter_gradients_by_triton, forward_by_triton
from covey.runtime.stacked.pooled_convolution_tiles import fits
from covey.runtime.stacked.pooled_image_kernels import image_gradient_by_triton
from covey.runtime.stacked.triton_support import available
from tests.runtime.stacked.triton_interpreter import multiply_bf16, needs_interpreter, run_interpreted

Pair = tuple[int, int]
Case = tuple[int, int, int, int, int, int, Pair, Pair, bool]

TRITON_CASES: list[Case] = [
    # lanes, batch, channels, height, width, filters, kernel, padding, with bias
    (2, 3, 3, 16, 16, 6, (5, 5), (0, 0), True),
    (1, 2, 6, 14, 14, 16, (5, 5), (0, 0), True),
    (2, 2, 1, 9, 11, 5, (5, 3), (2, 1), False),
    (2, 2, 2, 9, 8, 40, (4, 4), (1, 2), True),
    (1, 2, 3, 8, 9, 3, (1, 1), (0, 0), True),
    (1, 1, 1, 7, 7, 130, (2, 7), (1, 3), True),
]


def separately(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair = (0, 0)) -> Tensor:
    """Compute one lane by PyTorch's operators."""
    return F.relu(F.max_pool2d(F.conv2d(x, weight, bias, 1, padding), 2))


def relu_first(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair = (0, 0)) -> Tensor:
    return F.max_pool2d(F.relu(F.conv2d(x, weight, bias, 1, padding)), 2)


def stack(case: Case, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor | None]:
    lanes, batch, channels, height, width, filters, kernel, _, with_bias = case
    generator = torch.Generator().manual_seed(filters)
    x = torch.randn(lanes, batch, channels, height, width, generator=generator).to(dtype)
    weight = torch.randn(lanes, filters, channels, *kernel, generator=generator).to(dtype)
    return x, weight, torch.randn(lanes, filters, generator=generator).to(dtype) if with_bias else None


def computed(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair = (0, 0)) -> Tensor:
    """Compute lanes, or one, by our operator."""
    return pooled_convolution(x, weight, bias, padding)


def lane_by_lane(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Pair) -> Tensor:
    biases = [None] * len(x) if bias is None else bias
    return torch.stack([separately(*one, padding) for one in zip(x, weight, biases, strict=True)])


def step_of(layer: Any) -> Any:
    """Return a function for losses and gradients of every lane, through two layers, as in the stacked runtime."""

    def loss_of(parameters: dict[str, Tensor], x: Tensor, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        below = layer(x, parameters["weight"], parameters["bias"])
        y = layer(below, parameters["second"], None)
        return ((y**2).sum((1, 2, 3)) * weight).sum(), {"mean": y.mean()}

    return vmap(grad_and_value(loss_of, has_aux=True))


def two_layers(dtype: torch.dtype = torch.float64) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Parameters, images and weights of the samples of three lanes; the last samples of a lane are padding."""
    x, weight, bias = stack((3, 4, 3, 17, 16, 6, (5, 5), (0, 0), True), dtype)
    second = torch.randn(3, 4, 6, 3, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert bias is not None
    weights = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    return {"weight": weight, "bias": bias, "second": second}, x, weights.to(dtype)


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(6, 11), st.integers(6, 11)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.booleans(),
)
def test_a_stack_is_computed_lane_by_lane(
    sizes: tuple[int, int, int], image: Pair, kernel: Pair, padding: Pair, with_bias: bool
) -> None:
    x, weight, bias = stack((*sizes, *image, 5, kernel, padding, with_bias))
    expected = lane_by_lane(x, weight, bias, padding)
    torch.testing.assert_close(pooled_convolution(x, weight, bias, padding), expected)
    lanes = vmap(partial(computed, padding=padding), in_dims=(0, 0, 0 if with_bias else None))
    torch.testing.assert_close(lanes(x, weight, bias), expected)


@pytest.mark.parametrize("case", TRITON_CASES, ids=str)
def test_gradients_are_those_of_autograd_in_either_order(case: Case) -> None:
    x, weight, bias = stack(case)
    leaves = [one.requires_grad_() for one in (x, weight, bias) if one is not None]
    padding = case[-2]
    expected = lane_by_lane(x, weight, bias, padding)
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves, upstream)
    found = torch.autograd.grad(pooled_convolution(x, weight, bias, padding), leaves, upstream)
    torch.testing.assert_close(found, wanted)
    biases = [None] * len(x) if bias is None else bias
    first = torch.stack([relu_first(*one, padding) for one in zip(x, weight, biases, strict=True)])
    torch.testing.assert_close(found, torch.autograd.grad(first, leaves, upstream))


def test_gradients_are_those_of_finite_differences() -> None:
    x, weight, bias = stack((1, 2, 2, 7, 8, 3, (3, 2), (1, 0), True))
    assert bias is not None
    leaves = [one[0].requires_grad_() for one in (x, weight, bias)]
    assert torch.autograd.gradcheck(partial(computed, padding=(1, 0)), leaves)


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_vmapped_gradients_agree_also_when_compiled(backend: str | None) -> None:
    given = two_layers()
    step = step_of(pooled_convolution)
    if backend:
        # fullgraph refuses a graph break; a lost backward pass shows as wrong numbers.
        step = torch.compile(step, fullgraph=True, dynamic=False, backend=backend)
    torch.testing.assert_close(step(*given), step_of(separately)(*given))


def test_samples_of_weight_zero_change_nothing() -> None:
    parameters, x, weights = two_layers()
    gradients, _ = step_of(pooled_convolution)(parameters, x, weights)
    alone = {name: one[2:] for name, one in parameters.items()}
    expected, _ = step_of(pooled_convolution)(alone, x[2:, :1], weights[2:, :1])
    torch.testing.assert_close({name: one[2:] for name, one in gradients.items()}, expected)


def test_a_vmap_within_a_vmap_has_the_gradient_of_every_sample() -> None:
    x, weight, bias = stack((2, 3, 2, 8, 8, 4, (3, 3), (1, 1), True))
    assert bias is not None

    def norms(layer: Any, bias: Tensor) -> Any:
        def loss_of(weight: Tensor, bias: Tensor, one: Tensor) -> Tensor:
            norm: Tensor = layer(one[None], weight, bias, (1, 1)).square().sum()
            return norm

        return vmap(vmap(torch.func.grad(loss_of, argnums=(0, 1)), in_dims=(None, None, 0)))(weight, bias, x)

    torch.testing.assert_close(norms(pooled_convolution, bias), norms(separately, bias))


def test_lanes_may_share_images_or_filters() -> None:
    x, weight, bias = stack((3, 2, 2, 8, 8, 4, (3, 3), (0, 0), True))
    shared = vmap(pooled_convolution, in_dims=(None, 0, 0))(x[0], weight, bias)
    torch.testing.assert_close(shared, lane_by_lane(x[:1].expand_as(x), weight, bias, (0, 0)))


def test_of_equal_values_the_first_is_chosen_and_what_is_not_a_number_stays() -> None:
    check_ties(torch.float64)


def test_layers_with_many_channels_are_not_for_the_kernels() -> None:
    assert fits((400, 3, 32, 32), 6, (5, 5), (0, 0)) and fits((400, 6, 14, 14), 16, (5, 5), (0, 0))
    assert not fits((400, 32, 14, 14), 64, (5, 5), (2, 2))
    assert not fits((400, 3, 4, 4), 6, (5, 5), (0, 0))
    # Offsets within a lane have 32 bits.
    assert not fits((1 << 20, 3, 32, 32), 6, (5, 5), (0, 0))


def test_double_precision_is_left_to_torch() -> None:
    assert not available(torch.zeros(1, dtype=torch.float64))


@needs_interpreter
def test_triton_kernels_agree_with_torch() -> None:
    run_interpreted("tests.runtime.stacked.test_pooled_convolution")


def check_ties(dtype: torch.dtype) -> None:
    """Sums of equal images and of whole numbers are exact, so that places can be compared."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, (1, 4, 2, 11, 9), generator=generator).to(dtype)
    x[0, 0] = 1.0
    x[0, 1] = 0.0
    weight = torch.randint(-1, 2, (1, 5, 2, 3, 3), generator=generator).to(dtype)
    bias = torch.tensor([[0.0, 1.0, -1.0, 2.0, -40.0]]).to(dtype)
    y, chosen = torch.ops.covey.pooled_convolution(x, weight, bias, [1, 1])
    convolved = F.conv2d(x[0].double(), weight[0].double(), bias[0].double(), 1, 1)
    expected, places = F.max_pool2d(convolved, 2, return_indices=True)
    width = convolved.shape[-1]
    codes = places // width % 2 * 2 + places % width % 2
    assert torch.equal(y[0].double(), expected.relu())
    assert torch.equal(chosen[0].long(), torch.where(expected <= 0, DEAD, codes))
    assert bool((chosen[0, 0] == 0).any()) and bool((chosen[:, :, 4] == DEAD).all())
    x[0, 2, 0, 4, 4] = torch.nan
    y, chosen = torch.ops.covey.pooled_convolution(x, weight, bias, [1, 1])
    expected = separately(x[0], weight[0], bias[0], (1, 1))
    assert torch.equal(y[0].isnan(), expected.isnan()) and bool(y.isnan().any())
    assert bool((chosen[y.isnan()] < DEAD).all())


def check_triton(case: Case, dtype: torch.dtype) -> None:
    """Compare each kernel with float64 on the same numbers, and its gradients with those of the same choices."""
    *_, kernel, padding, with_bias = case
    x, weight, bias = stack(case, dtype)
    y, chosen = forward_by_triton(x, weight, bias, padding)
    exact = [one.double().requires_grad_() for one in (x, weight, bias) if one is not None]
    exact_bias = exact[2] if with_bias else None
    biases = [None] * len(x) if exact_bias is None else exact_bias
    convolved = torch.stack(
        [F.conv2d(*one, stride=1, padding=padding) for one in zip(exact[0], exact[1], biases, strict=True)]
    )
    expected = lane_by_lane(exact[0], exact[1], exact_bias, padding)
    assert_near(y, expected)
    # The value at each place that was chosen is the largest, up to rounding.
    rows, columns = (2 * size for size in y.shape[-2:])
    squares = convolved[..., :rows, :columns].unflatten(-2, (-1, 2)).unflatten(-1, (-1, 2)).transpose(-3, -2)
    four = squares.flatten(-2)
    at_place = four.gather(-1, chosen.long().clamp(max=3)[..., None])[..., 0]
    assert_near(torch.where(chosen == DEAD, 0.0, at_place).to(dtype), expected)
    assert bool((chosen <= DEAD).all())
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    picked = torch.where(chosen == DEAD, 0.0, at_place)
    wanted = torch.autograd.grad(picked, exact, upstream.double())
    of_filters, of_biases = filter_gradients_by_triton(upstream, chosen, x, kernel, padding, with_bias)
    assert_near(of_filters, wanted[1])
    if with_bias:
        assert_near(of_biases, wanted[2])
    assert_near(image_gradient_by_triton(upstream, chosen, weight, x.shape[-2:], padding), wanted[0])
    again = filter_gradients_by_triton(upstream, chosen, x, kernel, padding, with_bias)
    assert torch.equal(again[0], of_filters) and torch.equal(again[1], of_biases)


def assert_near(found: Tensor, exact: Tensor) -> None:
    """Assert equality up to the rounding of sums and of the result."""
    exact = exact.detach()
    largest = exact.abs().max()
    limit = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[found.dtype]
    torch.testing.assert_close(
        found.detach().double() / largest, exact / largest, rtol=0.0, atol=limit, check_dtype=False
    )


def check_through_the_operator() -> None:
    given = two_layers(torch.float32)
    assert available(given[1])
    found, expected = step_of(pooled_convolution)(*given), step_of(separately)(*given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in TRITON_CASES:
        check_triton(case, torch.float32)
    check_triton(TRITON_CASES[0], torch.float16)
    multiply_bf16()
    for case in TRITON_CASES[:3]:
        check_triton(case, torch.bfloat16)
    check_ties(torch.float32)
    check_through_the_operator()
