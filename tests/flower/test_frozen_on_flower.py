"""Frozen parts and outputs of other kinds on Flower: clients build the same model, and only what is trained travels."""

from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from covey import Config
from covey.flower import InProcessGrid, Strategy, client_app
from covey.flower.simulated_client import app as simulated_app
from tests.flower.test_flower import a_local_experiment, played, points
from tests.model import own_models


class Named(nn.Module):
    """A frozen layer and one that is trained; returns logits by name."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU()).requires_grad_(False)
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Any:
        return {"logits": self.last(self.body(x)), "x": x}


def named(seed: int = 0) -> Named:
    torch.manual_seed(seed)
    return Named()


def as_built(shape: tuple[int, ...], classes: int) -> nn.Module:
    return named()


def app(seed: int = 0) -> Any:
    return client_app(lambda: named(seed), lambda context: points(int(context.node_config["partition-id"])), threads=1)


def test_the_strategy_trains_the_free_part_as_the_local_run_does() -> None:
    strategy = Strategy("fedacs", model=named(), clients=12, cohort=4)
    result = strategy.start(InProcessGrid(app(), 12), ArrayRecord(named().state_dict()), num_rounds=3)
    local = a_local_experiment("fedacs", 3, clients=12, cohort=4, model="tests.flower.test_frozen_on_flower:as_built")
    assert strategy.method is not None
    assert strategy.method.models().shape == (1, 18)
    assert torch.equal(strategy.method.models(), local.method.models())
    # The result is the whole model.
    tensors = result.arrays.to_torch_state_dict()
    assert list(tensors) == list(named().state_dict())
    assert torch.equal(tensors["body.0.weight"], named().get_parameter("body.0.weight"))
    assert not torch.equal(tensors["last.weight"], named().last.weight)


def test_a_client_with_other_frozen_weights_declines() -> None:
    grid = InProcessGrid([app(), app(), app(seed=1)], 3)
    strategy = Strategy("fedavg", model=named(), clients=3, cohort=3)
    strategy.start(grid, ArrayRecord(named().state_dict()), num_rounds=1)
    (fault,) = strategy.history[0]["faults"]
    assert fault["client"] == "2"
    assert "frozen parameters here are not those of the server's model, and they do not travel" in fault["reason"]


def test_simulated_nodes_build_the_same_frozen_parts(tmp_path) -> None:
    given = {
        "clients": 4,
        "cohort": 2,
        "rounds": 2,
        "workers": 1,
        "environment": {"name": "uniform", "samples": 30},
        "model": f"{own_models.__name__}:Transfer",
    }
    config = Config.of(given)
    local = played(config, tmp_path / "local")
    over = played(config, tmp_path / "grid", lambda nodes: InProcessGrid(simulated_app, nodes))
    assert over == local
