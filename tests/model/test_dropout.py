"""Dropout: its masks are a function of key, layer and position, alone and in a stack of models."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call, grad, vmap

from covey import randomness
from covey.errors import Refusal
from covey.model import Dropout, build_model, dropout_layers, set_dropout_key
from covey.model.layout import Layout
from covey.registries import models
from tests.model.test_models import CIFAR, MNIST, SMALL, images


def dropped(layer: Dropout, key: int, *shape: int) -> Tensor:
    set_dropout_key(layer, key)
    return layer.forward(torch.ones(shape))


@pytest.mark.parametrize("p", [0.1, 0.2, 0.25, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(p):
    count = 400_000
    masked = dropped(Dropout(p), randomness.key(5), 40, 10_000)
    rate = float((masked == 0).float().mean())
    assert abs(rate - p) < 5 * (p * (1 - p) / count) ** 0.5
    assert sorted(set(masked.flatten().tolist())) == pytest.approx([0, 1 / (1 - p)], rel=1e-4)
    # No row or column is favoured.
    assert float((masked == 0).float().mean(dim=1).sub(p).abs().max()) < 5 * (p * (1 - p) / 10_000) ** 0.5
    assert float((masked == 0).float().mean(dim=0).sub(p).abs().max()) < 6 * (p * (1 - p) / 40) ** 0.5


def test_neighbouring_elements_drop_independently():
    kept = dropped(Dropout(0.5), 9, 200_000) > 0
    for lag in range(1, 9):
        both = (kept[lag:] & kept[:-lag]).float().mean()
        assert abs(float(both) - 0.25) < 5 * (0.25 * 0.75 / 200_000) ** 0.5 * 2


def test_the_mask_is_a_function_of_key_and_layer():
    mask = dropped(Dropout(0.5), 1, 8, 50)
    assert torch.equal(dropped(Dropout(0.5), 1, 8, 50), mask)
    for other in (dropped(Dropout(0.5), 2, 8, 50), dropped(Dropout(0.5, number=1), 1, 8, 50)):
        agreement = float((other == mask).float().mean())
        assert 0.35 < agreement < 0.65
    torch.manual_seed(0)
    state = torch.get_rng_state()
    dropped(Dropout(0.5), 1, 8, 50)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_key_may_be_given_with_or_without_its_sign():
    layer = Dropout(0.5)
    assert torch.equal(dropped(layer, -1, 100), dropped(layer, (1 << 64) - 1, 100))
    set_dropout_key(layer, 1 << 63)
    assert int(layer.key) == -(1 << 63)


def test_evaluation_and_a_rate_of_zero_change_nothing():
    x = images(4, 9)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)
    for p in (-0.1, 1.0, float("nan")):
        with pytest.raises(Refusal, match=r"in \[0, 1\)"):
            Dropout(p)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 6), more=st.integers(0, 5), width=st.integers(1, 33), key=st.integers(0, 2**64 - 1))
def test_samples_appended_to_a_batch_leave_the_masks_of_the_others(rows, more, width, key):
    layer = Dropout(0.5)
    assert torch.equal(dropped(layer, key, rows + more, width)[:rows], dropped(layer, key, rows, width))


def test_the_gradient_passes_where_the_input_did():
    layer = Dropout(0.25)
    x = images(6, 10).requires_grad_()
    mask = dropped(layer, 3, 6, 10)
    assert torch.equal(torch.autograd.grad(layer(x).sum(), x)[0], mask)


def test_the_mask_is_the_same_in_every_precision_and_memory_layout():
    layer = Dropout(0.5)
    mask = dropped(layer, 4, 2, 3, 5, 5)
    for dtype in (torch.float64, torch.bfloat16):
        assert torch.equal(layer(torch.ones(2, 3, 5, 5, dtype=dtype)).float(), mask)
    assert torch.equal(layer(torch.ones(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)), mask)


def test_stacked_clients_draw_the_masks_of_the_loop_bit_for_bit():
    layer = Dropout(0.2)
    x = images(5, 7, 31)
    keys = randomness.bits(randomness.key(0, 1, "dropout"), 5)

    def one(key: Tensor, x: Tensor) -> Tensor:
        out: Tensor = functional_call(layer, {"key": key}, (x,))
        return out

    stacked = vmap(one)(keys, x)
    for client, key in enumerate(keys.tolist()):
        set_dropout_key(layer, key)
        assert torch.equal(stacked[client], layer(x[client]))


def test_a_stack_of_models_with_dropout_has_the_gradients_of_the_loop():
    module = build_model("pfl-cnn", {}, (1, 8, 8), 10, seed=0).double()
    x, y = SMALL.x[:12].view(3, 4, 1, 8, 8).double() / 16, SMALL.y[:12].view(3, 4)
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    keys = randomness.bits(randomness.key(0, 1, "dropout"), 3)

    def loss(parameters: dict[str, Tensor], key: Tensor, x: Tensor, y: Tensor) -> Tensor:
        buffers = {f"{name}.key": key for name in dropout_layers(module)}
        return F.cross_entropy(functional_call(module, {**parameters, **buffers}, (x,)), y)

    stacked = vmap(grad(loss), in_dims=(None, 0, 0, 0))(parameters, keys, x, y)
    for client, key in enumerate(keys.tolist()):
        set_dropout_key(module, key)
        alone = torch.autograd.grad(F.cross_entropy(module(x[client]), y[client]), list(module.parameters()))
        for name, gradient in zip(parameters, alone, strict=True):
            torch.testing.assert_close(stacked[name][client], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "layers"), [("fashion-cnn", 1), ("pfl-cnn", 2), ("vgg11", 2)])
def test_the_dropout_layers_of_a_model_are_numbered_and_keyed(name, layers):
    built = build_model(name, {}, CIFAR, 10, seed=0)
    direct = models[name].part(CIFAR, 10)
    for module in (built, direct, copy.deepcopy(built)):
        set_dropout_key(module, 77)
        found = dropout_layers(module).values()
        assert [layer.number for layer in found] == list(range(layers))
        assert [int(layer.key) for layer in found] == [77] * layers
    assert not any("key" in name for name in built.state_dict())
    assert not Layout.of(built).buffers


def test_a_step_depends_on_the_dropout_key_and_evaluation_does_not():
    module = build_model("fashion-cnn", {}, MNIST, 10, seed=0)
    x = images(3, *MNIST)
    with torch.no_grad():
        set_dropout_key(module.train(), 1)
        first = module(x)
        assert torch.equal(module(x), first)
        set_dropout_key(module, 2)
        assert not torch.equal(module(x), first)
        evaluated = module.eval()(x)
        set_dropout_key(module, 1)
        assert torch.equal(module(x), evaluated)
