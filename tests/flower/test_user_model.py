"""Which layer of a user's model is the last one, on both sides of Flower."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord
from torch import Tensor, nn

from covey import Refusal
from covey.flower import InProcessGrid, Strategy, client_app
from covey.flower.user_model import outputs_of, passed, traced
from covey.model.last_layer import head_name
from tests.flower.test_flower import points


class LastFirst(nn.Module):
    """Registers its last layer first."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.body = nn.Linear(8, 3), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.body(x).relu())


class InDict(LastFirst):
    def forward(self, x: Tensor) -> Any:
        return {"logits": super().forward(x), "x": x}


class LogShares(LastFirst):
    """Its output is a function of its last layer's."""

    def forward(self, x: Tensor) -> Any:
        return F.log_softmax(super().forward(x), dim=1)


class Reshaped(LastFirst):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).view(x.shape[0], -1, 1).squeeze(-1)


class Headless(nn.Module):
    """Ends in a convolution; its linear layer is another."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(6, 8), nn.Conv1d(1, 3, 8)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.body(x)[:, None])[:, :, 0]


class Branching(LastFirst):
    """Its code cannot be followed without samples."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) if bool((x == x).all()) else x


class Residual(LastFirst):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + x[:, :3]


@pytest.mark.parametrize(
    ("made", "server", "client"),
    [
        (LastFirst, "model.out", "model.out"),
        (InDict, "model.out", "model.out"),
        (LogShares, "model.out", "model.out"),
        (Reshaped, "model.out", "model.out"),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(dim=1)), "model.0", "model.0"),
        (lambda: nn.Linear(6, 3), "model", "model"),
        (Headless, "", ""),
        (Branching, "model.body", "model.out"),
        (Residual, "", "model.out"),
    ],
)
def test_the_last_layer_is_the_one_that_the_output_comes_from(made: Any, server: str, client: str) -> None:
    assert head_name(traced(made())) == server
    module = passed(made(), (6,), words=False)
    assert head_name(module) == client
    assert outputs_of(module) == 3


def test_a_name_that_was_given_stands() -> None:
    for module in (traced(LastFirst(), "body"), passed(LastFirst(), (6,), words=False, head="body")):
        assert head_name(module) == "model.body"
    assert outputs_of(module) == 3


def test_a_model_that_fails_on_the_samples_says_so_in_training() -> None:
    module = passed(LastFirst(), (5,), words=False)
    assert head_name(module) == "model.body"
    with pytest.raises(Refusal, match="The number of outputs of the model Conv1d is not known"):
        outputs_of(passed(nn.Conv1d(6, 3, 1), (5,), words=False))


def played(made: Any, method: str, **options: Any) -> Strategy:
    torch.manual_seed(0)
    model = made()
    app = client_app(made, lambda context: points(int(context.node_config["partition-id"])), threads=1)
    strategy = Strategy(method, model=model, clients=3, cohort=2, **options)
    strategy.start(InProcessGrid(app, 3), ArrayRecord(model.state_dict()), num_rounds=1)
    return strategy


@pytest.mark.parametrize("made", [Headless, lambda: nn.Linear(6, 3)])
def test_methods_that_read_no_last_layer_train_any_model(made: Any) -> None:
    assert played(made, "fedavg").history[0]["faults"] == []


def test_methods_that_read_the_last_layer_need_one() -> None:
    fedacs = {"selector": {"name": "fedacs", "pool": 0.9}}
    strategy = played(LastFirst, "fedacs", **fedacs)
    assert strategy.history[0]["faults"] == []
    assert strategy.method is not None
    assert strategy.layout is not None
    assert [slot.name for slot in strategy.layout.head] == ["model.out.weight", "model.out.bias"]
    with pytest.raises(Refusal, match="reads the model's last layer, and that of the model Headless is not known"):
        played(Headless, "fedacs", **fedacs)
    with pytest.raises(Refusal, match=r"works with classes, .* and that of the model Headless is not known"):
        played(Headless, "fedlc")
