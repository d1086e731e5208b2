"""The operator for convolutions with many channels: the same as PyTorch's, under vmap, grad and compile."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.func import grad_and_value, vmap

from covey.runtime.stacked import tiled_convolution_kernels
from covey.runtime.stacked.tiled_convolution import tiled_convolution
from covey.runtime.stacked.tiled_convolution_kernels import filters_by_triton, images_by_triton, output_by_triton
from covey.runtime.stacked.tiled_convolution_plan import TUNED, Tiling, fits, image_plan, output_plan, tuned
from covey.runtime.stacked.triton_support import available
from tests.runtime.stacked.triton_interpreter import multiply_bf16, needs_interpreter, run_interpreted

Pair = tuple[int, int]
Case = tuple[int, int, int, int, int, int, Pair, Pair, Pair, bool]

TRITON_CASES: list[Case] = [
    # lanes, batch, channels, height, width, filters, kernel, stride, padding, with bias
    (3, 3, 8, 9, 11, 16, (3, 3), (1, 1), (1, 1), True),
    (1, 2, 33, 7, 8, 32, (5, 5), (1, 1), (2, 2), True),
    (3, 1, 32, 7, 6, 64, (3, 3), (1, 1), (0, 0), False),
    (1, 2, 64, 6, 5, 33, (1, 1), (1, 1), (0, 0), True),
    (1, 2, 16, 6, 5, 40, (1, 1), (1, 1), (1, 2), False),
    (1, 5, 64, 2, 2, 130, (3, 3), (1, 1), (1, 1), True),
    (2, 2, 16, 9, 8, 12, (3, 3), (2, 2), (1, 1), True),
    (1, 2, 9, 9, 8, 12, (3, 2), (2, 1), (2, 0), False),
]


def stack(case: Case, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor | None]:
    lanes, batch, channels, height, width, filters, kernel, _, _, with_bias = case
    generator = torch.Generator().manual_seed(filters)
    x = torch.randn(lanes, batch, channels, height, width, generator=generator).to(dtype)
    weight = torch.randn(lanes, filters, channels, *kernel, generator=generator).to(dtype)
    return x, weight, torch.randn(lanes, filters, generator=generator).to(dtype) if with_bias else None


def lane_by_lane(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    biases = [None] * len(x) if bias is None else bias
    return torch.stack([F.conv2d(*one, stride, padding) for one in zip(x, weight, biases, strict=True)])


def step_of(convolve: Callable[..., Tensor]) -> Any:
    """Return a function for losses and gradients of every lane, through two layers, as in the stacked runtime."""

    def loss_of(parameters: dict[str, Tensor], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        below = F.relu(F.max_pool2d(convolve(x, parameters["weight"], parameters["bias"]), 2))
        y = convolve(below, parameters["second"], None)
        return (y**2).sum(), {"mean": y.mean()}

    return vmap(grad_and_value(loss_of, has_aux=True))


def two_layers(dtype: torch.dtype = torch.float64) -> tuple[dict[str, Tensor], Tensor]:
    x, weight, bias = stack((3, 2, 8, 9, 10, 16, (3, 3), (1, 1), (0, 0), True), dtype)
    second = torch.randn(3, 5, 16, 2, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert bias is not None
    return {"weight": weight, "bias": bias, "second": second}, x


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9)),
    st.tuples(st.integers(6, 10), st.integers(6, 10)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.booleans(),
)
def test_a_stack_is_convolved_lane_by_lane(
    sizes: tuple[int, int, int], image: Pair, kernel: Pair, stride: Pair, padding: Pair, with_bias: bool
) -> None:
    given = stack((*sizes, *image, 5, kernel, stride, padding, with_bias))
    leaves = [one.requires_grad_() for one in given if one is not None]
    expected = lane_by_lane(*given, stride, padding)
    upstream = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves, upstream)
    found = tiled_convolution(*given, stride, padding)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, leaves, upstream), wanted)

    def convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return tiled_convolution(x, weight, bias, stride, padding)

    lanes = vmap(convolved, in_dims=(0, 0, 0 if with_bias else None))(*given)
    torch.testing.assert_close(lanes, expected)
    torch.testing.assert_close(torch.autograd.grad(lanes, leaves, upstream), wanted)


def test_one_model_is_convolved_without_lanes() -> None:
    x, weight, bias = (one[0].requires_grad_() for one in stack(TRITON_CASES[6]) if one is not None)
    expected = F.conv2d(x, weight, bias, 2, 1)
    found = tiled_convolution(x, weight, bias, (2, 2), (1, 1))
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(expected.square().sum(), (x, weight, bias))
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), (x, weight, bias)), wanted)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("size", [3, 4])
def test_padding_by_name_is_that_of_torch(size: int) -> None:
    x, weight, bias = (
        one[0] for one in stack((1, 2, 8, 9, 8, 4, (size, size), (1, 1), (0, 0), True)) if one is not None
    )
    for padding in ("same", "valid"):
        expected = F.conv2d(x, weight, bias, padding=padding)
        torch.testing.assert_close(tiled_convolution(x, weight, bias, padding=padding), expected)


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_vmapped_gradients_agree_also_when_compiled(backend: str | None) -> None:
    given = two_layers()
    step = step_of(tiled_convolution)
    if backend:
        # fullgraph refuses a graph break; a lost backward pass shows as wrong numbers.
        step = torch.compile(step, fullgraph=True, dynamic=False, backend=backend)
    torch.testing.assert_close(step(*given), step_of(F.conv2d)(*given))


def test_the_compiler_sees_one_tensor_of_what_forward_and_backward_pass_read() -> None:
    seen: list[torch.fx.Graph] = []

    def kept(module: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(module.graph)
        return module.forward

    backend = aot_autograd(fw_compiler=kept)
    torch.compile(step_of(tiled_convolution), fullgraph=True, dynamic=False, backend=backend)(*two_layers())
    ops = torch.ops.covey
    (graph,) = seen
    outputs = [node for node in graph.nodes if node.target == ops.tiled_convolution.default]
    gradients = [node for node in graph.nodes if node.target == ops.tiled_convolution_gradients.default]
    assert len(outputs) == len(gradients) == 2
    for forward, backward in zip(outputs, reversed(gradients), strict=True):
        read = [*forward.args[:2], *backward.args[1:3]]
        # Views of one tensor, which the compiler keeps.
        assert all(one.target == torch.ops.aten.as_strided.default for one in read)
        assert [one.args[0] for one in read[:2]] == [one.args[0] for one in read[2:]]
    # The images and the first filters are arranged, and nothing else that an operator wrote.
    assert all("tiled" not in str(node.args[0]) for node in graph.nodes if node.target == torch.ops.aten.clone.default)


def test_a_vmap_within_a_vmap_has_the_gradient_of_every_sample() -> None:
    x, weight, bias = stack((2, 3, 8, 6, 6, 4, (3, 3), (1, 1), (1, 1), True))
    assert bias is not None

    def norms(layer: Callable[..., Tensor], bias: Tensor) -> Any:
        def loss_of(weight: Tensor, bias: Tensor, one: Tensor) -> Tensor:
            return layer(one[None], weight, bias, (1, 1), (1, 1)).square().sum()

        return vmap(vmap(torch.func.grad(loss_of, argnums=(0, 1)), in_dims=(None, None, 0)))(weight, bias, x)

    torch.testing.assert_close(norms(tiled_convolution, bias), norms(F.conv2d, bias))


def test_lanes_may_share_images_or_filters() -> None:
    x, weight, bias = stack((3, 2, 8, 8, 8, 4, (3, 3), (1, 1), (0, 0), True))
    assert bias is not None
    shared = vmap(tiled_convolution, in_dims=(None, 0, 0))(x[0], weight, bias)
    torch.testing.assert_close(shared, lane_by_lane(x[:1].expand_as(x), weight, bias, (1, 1), (0, 0)))
    shared = vmap(tiled_convolution, in_dims=(0, None, None))(x, weight[0], bias[0])
    expected = lane_by_lane(x, weight[:1].expand_as(weight), bias[:1].expand_as(bias), (1, 1), (0, 0))
    torch.testing.assert_close(shared, expected)


def test_tiles_are_as_large_as_the_work_and_no_larger() -> None:
    x = torch.empty(1, 10, 30, 30, 32, dtype=torch.bfloat16)
    plan = output_plan(x, 64, (3, 3), (1, 1), (0, 0), TUNED["forward"])
    assert (plan.tile_pixels, plan.tile_filters, plan.tile_elements) == (128, 64, 64)
    assert (plan.out_h, plan.elements, plan.padded, plan.whole) == (28, 288, False, False)
    gradient = torch.empty(1, 10, 28, 28, 64, dtype=torch.bfloat16)
    plan = image_plan(gradient, 32, (3, 3), (30, 30), (1, 1), (0, 0), TUNED["images"])
    assert (plan.tile_filters, plan.out_h, plan.pad_h, plan.padded, plan.whole) == (32, 30, 2, True, True)
    small = output_plan(torch.empty(1, 1, 2, 2, 9), 8, (1, 1), (1, 1), (0, 0), TUNED["forward"])
    assert (small.tile_pixels, small.tile_filters, small.tile_elements) == (16, 16, 16)


def test_tilings_are_put_back() -> None:
    before = dict(TUNED)
    with tuned(forward=Tiling(pixels=64), filters=Tiling(programs=8)):
        assert TUNED["forward"].pixels == 64 and TUNED["filters"].programs == 8
        assert TUNED["images"] == before["images"]
    assert before == TUNED


def test_offsets_within_a_lane_have_32_bits() -> None:
    assert fits((10, 30, 30, 32), 64, (3, 3), (0, 0))
    assert not fits((1 << 17, 30, 30, 32), 64, (3, 3), (0, 0))
    assert not fits((1, 2, 2, 32), 64, (3, 3), (0, 0))


def test_double_precision_is_left_to_torch() -> None:
    assert not available(torch.zeros(1, dtype=torch.float64))


@needs_interpreter
def test_triton_kernels_agree_with_torch() -> None:
    run_interpreted("tests.runtime.stacked.test_tiled_convolution")


def check_triton(case: Case, dtype: torch.dtype) -> None:
    """Compare each kernel with float64 on the same numbers, and the gradient of filters with itself."""
    *_, kernel, stride, padding, _ = case
    x, weight, bias = stack(case, dtype)
    exact = [one.double().requires_grad_() for one in (x, weight)]
    expected = lane_by_lane(exact[0], exact[1], None if bias is None else bias.double(), stride, padding)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    wanted = torch.autograd.grad(expected, exact, upstream.double())
    given, filters, gradient = (one.movedim(-3, -1).contiguous() for one in (x, weight, upstream))
    assert_near(output_by_triton(given, filters, bias, stride, padding), expected)
    assert_near(images_by_triton(gradient, filters, x.shape[-2:], stride, padding), wanted[0])
    found = filters_by_triton(gradient, given, kernel, stride, padding)
    assert_near(found, wanted[1])
    assert torch.equal(filters_by_triton(gradient, given, kernel, stride, padding), found)


def assert_near(found: Tensor, exact: Tensor) -> None:
    """Assert equality up to the rounding of sums and of the result."""
    exact = exact.detach().movedim(-3, -1)
    largest = exact.abs().max()
    limit = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[found.dtype]
    torch.testing.assert_close(found.double() / largest, exact / largest, rtol=0.0, atol=limit)


def check_through_the_operator() -> None:
    given = two_layers(torch.float32)
    assert available(given[1])
    found, _ = step_of(tiled_convolution)(*given)
    expected, _ = step_of(F.conv2d)(*two_layers())
    for name, exact in expected.items():
        torch.testing.assert_close(
            found[name] / exact.abs().max(), exact / exact.abs().max(), rtol=0.0, atol=2e-6, check_dtype=False
        )


def check_lanes_that_share() -> None:
    """A lane's tensors may be those of all: then their distance in memory is zero."""
    x, weight, bias = stack(TRITON_CASES[0], torch.float32)
    assert bias is not None
    shared = vmap(tiled_convolution, in_dims=(None, 0, None))(x[0], weight, bias[0])
    expected = lane_by_lane(x[:1].expand_as(x), weight, bias[:1].expand_as(bias), (1, 1), (0, 0))
    torch.testing.assert_close(shared, expected, rtol=1e-4, atol=1e-4)


def check_parts() -> None:
    """The gradient of filters is the same in parts, up to rounding: more multiprocessors make more parts."""
    case = (1, 7, 8, 6, 6, 16, (3, 3), (1, 1), (1, 1), False)
    check_triton(case, torch.float32)
    x, _, _ = stack(case, torch.float32)
    gradient = torch.randn(1, 7, 6, 6, 16)
    given = gradient, x.movedim(-3, -1).contiguous(), (3, 3), (1, 1), (1, 1)
    found = []
    for processors in (1, 2, 40):
        vars(tiled_convolution_kernels)["processors"] = lambda x, number=processors: number
        found.append(filters_by_triton(*given))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in TRITON_CASES:
        check_triton(case, torch.float32)
    check_through_the_operator()
    check_lanes_that_share()
    check_parts()
    check_triton(TRITON_CASES[0], torch.float16)
    multiply_bf16()
    for case in TRITON_CASES[:4]:
        check_triton(case, torch.bfloat16)
    with tuned(**dict.fromkeys(TUNED, Tiling(pixels=16, filters=16, elements=16))):
        check_triton(TRITON_CASES[6], torch.bfloat16)
    # Tensor cores' tiles, which full precision does not take.
    torch.backends.cuda.matmul.allow_tf32 = True
    check_triton(TRITON_CASES[0], torch.float32)
