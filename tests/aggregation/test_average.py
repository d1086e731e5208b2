import numpy as np
import torch

from covey.aggregation import Average, weighted_sum
from covey.core.replies import Replies


def replies(states: torch.Tensor, samples: list[int]) -> Replies:
    count = len(states)
    return Replies(np.arange(count), states, torch.tensor(samples), torch.zeros(count, dtype=torch.float64))


def test_average_weighs_clients_by_their_samples():
    states = torch.tensor([[0.0, 4.0], [8.0, 0.0]])
    assert Average().combine(1, torch.zeros(2), replies(states, [30, 10])).tolist() == [2.0, 3.0]


def test_plain_average_ignores_samples():
    states = torch.tensor([[0.0, 4.0], [8.0, 0.0]])
    assert Average(weighted=False).combine(1, torch.zeros(2), replies(states, [30, 10])).tolist() == [4.0, 2.0]


def test_weighted_sum_does_not_depend_on_the_number_of_threads():
    states = torch.randn(7, 200_000)
    weights = torch.rand(7, dtype=torch.float64)
    torch.set_num_threads(1)
    one = weighted_sum(states, weights)
    torch.set_num_threads(2)
    assert torch.equal(one, weighted_sum(states, weights))
    assert torch.allclose(one.double(), weights @ states.double(), atol=1e-5)
