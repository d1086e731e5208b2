"""Masked batch norm computes the same as torch's without the padding, under vmap, grad and compile."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from covey.runtime.stacked.batch_norm import MaskedBatchNorm, SampleWeights
from covey.runtime.stacked.triton_support import available
from tests.runtime.stacked.triton_interpreter import needs_interpreter, run_interpreted

CASES = [
    # samples of each lane (the first has the most), channels, shape of a channel
    ((5, 3, 1), 4, (3, 2)),
    ((6, 2), 3, ()),
    ((3, 1, 2), 2, ()),
    ((2, 0), 7, (5, 8)),
    ((40, 17), 2, (6, 6)),
]

ORDERS = ("", "channels first", "channels last")


def stack(samples, channels, shape, dtype=torch.float64):
    """Return batches padded to the largest, with weights, parameters and running statistics of every lane."""
    generator = torch.Generator().manual_seed(channels)
    lanes, batch = len(samples), samples[0]

    def drawn(*size):
        return torch.randn(lanes, *size, generator=generator).double()

    x = 3 + 2 * drawn(batch, channels, *shape)
    weights = torch.zeros(lanes, batch, dtype=torch.float64)
    for lane, count in enumerate(samples):
        weights[lane, :count] = 1 / max(count, 1)
    parameters = {"weight": drawn(channels), "bias": drawn(channels)}
    buffers = {"running_mean": drawn(channels), "running_var": drawn(channels).abs() + 0.5}
    slopes = drawn(batch, channels, *shape) * (weights > 0).view(lanes, batch, *(1,) * (1 + len(shape)))
    wide = (weights, buffers)
    weights, buffers = (weights.float(), {n: b.float() for n, b in buffers.items()}) if dtype != torch.float64 else wide
    return x.to(dtype), {n: p.to(dtype) for n, p in parameters.items()}, buffers, weights, slopes.to(dtype)


def layer_of(channels, shape):
    return (nn.BatchNorm2d if shape else nn.BatchNorm1d)(channels)


def step_of(module):
    """Return a function for output, gradients and statistics of every lane, as in the stacked runtime."""

    def loss_of(parameters, x, buffers, weight, slopes):
        fresh = {name: buffer.clone() for name, buffer in buffers.items()}
        with SampleWeights(module, weight):
            y = functional_call(module, (parameters, fresh), (x,))
        return (y * slopes).sum(), (y, fresh)

    def of_all(parameters, x, buffers, weight, slopes):
        def loss(given, *rest):
            return loss_of({name: given[name] for name in parameters}, given["x"], *rest)

        return vmap(grad_and_value(loss, has_aux=True))({**parameters, "x": x}, buffers, weight, slopes)

    return of_all


def torchs(samples, channels, shape, given):
    """Return torch's results, lane by lane and without padding; a single value is normalised by running statistics."""
    x, parameters, buffers, _, slopes = (
        {n: v.double() for n, v in one.items()} if isinstance(one, dict) else one.double() for one in given
    )
    outcome = []
    for lane, count in enumerate(samples):
        layer = layer_of(channels, shape).double()
        state = {n: v[lane] for n, v in (parameters | buffers).items()}
        layer.load_state_dict({**layer.state_dict(), **state})
        layer.train(count * torch.Size(shape).numel() > 1)
        mine = x[lane, :count].clone().requires_grad_()
        y = layer(mine)
        gradients = torch.autograd.grad((y * slopes[lane, :count]).sum(), [mine, layer.weight, layer.bias])
        outcome.append((y.detach(), *gradients, layer.running_mean, layer.running_var))
    return outcome


def laid_out(x, order):
    """Return the same numbers in another memory layout."""
    if order == "channels first":
        # As a matrix product leaves them: before the samples.
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    return x.movedim(2, -1).contiguous().movedim(-1, 2) if order == "channels last" else x


def check(samples, channels, shape, step, dtype=torch.float64, limit=1e-12, order=""):
    given = stack(samples, channels, shape, dtype)
    x, parameters, buffers, weights, slopes = given
    gradients, (_, (y, fresh)) = step(parameters, laid_out(x, order), buffers, weights, slopes)
    for lane, (count, expected) in enumerate(zip(samples, torchs(samples, channels, shape, given), strict=True)):
        if count == 0:
            # An idle lane: results are finite and gradients are zero.
            assert all(torch.isfinite(value[lane]).all() for value in (y, *gradients.values()))
            assert all(not gradients[name][lane].any() for name in ("x", "weight", "bias"))
            continue
        ours = (
            y[lane, :count],
            gradients["x"][lane, :count],
            gradients["weight"][lane],
            gradients["bias"][lane],
            fresh["running_mean"][lane],
            fresh["running_var"][lane],
        )
        for mine, exact in zip(ours, expected, strict=True):
            scale = 1 + exact.abs().max()
            torch.testing.assert_close(mine.double() / scale, exact / scale, rtol=0, atol=limit)
        assert not gradients["x"][lane, count:].any(), "padding has no gradient"


@pytest.mark.parametrize(("samples", "channels", "shape"), CASES)
@pytest.mark.parametrize("order", ORDERS)
def test_it_is_torchs_without_the_padding(samples, channels, shape, order):
    check(samples, channels, shape, step_of(MaskedBatchNorm(layer_of(channels, shape))), order=order)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_is_the_same_when_compiled(backend):
    samples, channels, shape = CASES[0]
    step = step_of(MaskedBatchNorm(layer_of(channels, shape)))
    # fullgraph refuses a graph break; a lost backward pass shows as wrong numbers.
    check(samples, channels, shape, torch.compile(step, fullgraph=True, dynamic=False, backend=backend))


def test_padding_may_hold_anything_finite():
    samples, channels, shape = CASES[0]
    step = step_of(MaskedBatchNorm(layer_of(channels, shape)))
    x, *rest = stack(samples, channels, shape)
    other = x.clone()
    for lane, count in enumerate(samples):
        other[lane, count:] = 1e6
    one, two = (step(rest[0], images, *rest[1:]) for images in (x, other))
    for name in ("weight", "bias", "x"):
        torch.testing.assert_close(one[0][name], two[0][name])
    torch.testing.assert_close(one[1][1][1], two[1][1][1])


def test_a_layer_without_parameters_only_normalises():
    layer = nn.BatchNorm2d(3, affine=False)
    module = MaskedBatchNorm(layer)
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    with SampleWeights(module, torch.full((4,), 0.25)):
        torch.testing.assert_close(module(x), nn.BatchNorm2d(3, affine=False)(x))


@needs_interpreter
def test_triton_kernels_agree_with_torch():
    run_interpreted("tests.runtime.stacked.test_batch_norm")


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert available(torch.zeros(1))
    for case in CASES:
        for order in ORDERS:
            check(*case, step_of(MaskedBatchNorm(layer_of(*case[1:]))), torch.float32, 3e-6, order)
    check(*CASES[0], step_of(MaskedBatchNorm(layer_of(*CASES[0][1:]))), torch.float16, 2e-3)
