"""Word embeddings compute the same as `nn.Embedding`, under vmap, grad and compile."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

from covey.model import embedding
from covey.model.embedding import WordVectors

WORDS = torch.tensor([[3, 3, 0], [1, 3, 4]])
TABLE = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def loss_of(look_up):
    return lambda table, words: (look_up(table, words) ** 3).sum()


def ours(table, words):
    return torch.ops.covey.word_vectors(table, words)


def theirs(table, words):
    return F.embedding(words, table)


def test_a_layer_looks_up_and_learns_as_torchs_own():
    layer, reference = WordVectors(6, 4).double(), nn.Embedding(6, 4).double()
    reference.load_state_dict(layer.state_dict())
    for one in (layer, reference):
        (one(WORDS) ** 2).sum().backward()
    assert torch.equal(layer(WORDS), reference(WORDS))
    torch.testing.assert_close(layer.weight.grad, reference.weight.grad)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
@pytest.mark.parametrize("shared", [False, True])
def test_every_lane_has_the_gradient_that_it_has_alone(backend, shared):
    tables = torch.stack([TABLE, 2 * TABLE, -TABLE])
    words = WORDS if shared else torch.stack([WORDS, WORDS.flip(0), 5 - WORDS])
    step = vmap(grad(loss_of(ours)), in_dims=(0, None if shared else 0))
    if backend:
        step = torch.compile(step, fullgraph=True, dynamic=False, backend=backend)
    each = [WORDS] * 3 if shared else list(words)
    expected = torch.stack([grad(loss_of(theirs))(table, own) for table, own in zip(tables, each, strict=True)])
    torch.testing.assert_close(step(tables, words), expected)


def test_a_gradient_through_a_stack_reaches_every_table():
    tables = torch.stack([TABLE, 2 * TABLE]).requires_grad_()
    vmap(ours, in_dims=(0, None))(tables, WORDS).square().sum().backward()
    expected = torch.stack([grad(lambda t: theirs(t, WORDS).square().sum())(table.detach()) for table in tables])
    torch.testing.assert_close(tables.grad, expected)


def test_sums_by_comparison_are_sums_in_order():
    words = torch.randint(5, (2, 30), generator=torch.Generator().manual_seed(1))
    gradient = torch.randn(2, 30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    in_order = embedding._add_up_lanes(gradient, words, 5)
    torch.testing.assert_close(embedding._by_comparison(gradient, words, 5), in_order)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_gradients_of_single_samples_in_a_stack(backend):
    """A `vmap` over samples within a `vmap` over lanes: all samples of a lane share its table."""
    tables, words = torch.stack([TABLE, 2 * TABLE, -TABLE]), torch.stack([WORDS, WORDS.flip(0), 5 - WORDS])
    step = vmap(vmap(grad(loss_of(ours)), in_dims=(None, 0)))
    if backend:
        step = torch.compile(step, fullgraph=True, dynamic=False, backend=backend)
    pairs = zip(tables, words, strict=True)
    expected = [torch.stack([grad(loss_of(theirs))(table, one) for one in own]) for table, own in pairs]
    torch.testing.assert_close(step(tables, words), torch.stack(expected))


def test_a_third_vmap_is_no_other_than_the_second():
    tables, words = torch.randn(2, 3, 4, 5, 3), torch.randint(5, (2, 3, 4, 6))
    found = vmap(vmap(vmap(torch.ops.covey.word_vectors)))(tables, words)
    assert torch.equal(found[1, 2, 3], F.embedding(words[1, 2, 3], tables[1, 2, 3]))
    inputs, weight = torch.randn(2, 3, 4, 5, 2, 8), torch.randn(2, 3, 4, 8, 2)
    traces = vmap(vmap(vmap(torch.ops.covey.lstm)))(inputs, weight)
    torch.testing.assert_close(traces[1, 2, 3], torch.ops.covey.lstm(inputs[1, 2, 3], weight[1, 2, 3]))
