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


def test_nested_vmap_is_refused():
    tables, words = torch.randn(4, 4, 5, 3), torch.zeros(4, 4, 2, dtype=torch.int64)
    with pytest.raises(NotImplementedError, match="no stacks of stacks"):
        vmap(vmap(torch.ops.covey.word_vectors))(tables, words)
    gradients = torch.randn(4, 4, 2, 3)
    with pytest.raises(NotImplementedError, match="no stacks of stacks"):
        vmap(lambda gradient, which: torch.ops.covey.word_gradients_of_lanes(gradient, which, 5))(gradients, words)
    with pytest.raises(NotImplementedError, match="no stacks of stacks"):
        vmap(vmap(torch.ops.covey.lstm))(torch.randn(4, 4, 2, 3, 8), torch.randn(4, 4, 8, 2))
