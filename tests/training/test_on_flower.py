"""Trainers on Flower: what clients keep stays with them, outlives Flower's runs, and is asked for by its round."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from torch import Tensor, nn

import covey
from covey.flower import InProcessGrid, Protection, Strategy, client_app


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def points(client: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(client)
    y = torch.randint(3, (20 + client,), generator=draw)
    return torch.randn(len(y), 6, generator=draw) + 2 * torch.eye(3)[y].repeat(1, 2), y


def an_app(**options: Any) -> ClientApp:
    return client_app(net, lambda context: points(int(context.node_config["partition-id"])), threads=1, **options)


def started(app: ClientApp, rounds: int, folder: Path | None, method: str = "scaffold", **more: Any) -> Strategy:
    """Run rounds on nodes that have just started."""
    strategy = Strategy(method, model=net(), clients=4, cohort=2, evaluate=0.0, folder=folder, **more)
    strategy.start(InProcessGrid(app, 4), ArrayRecord(net().state_dict()), num_rounds=rounds)
    return strategy


def model(strategy: Strategy) -> Tensor:
    assert strategy.method is not None
    return strategy.method.models()[0]


@pytest.mark.parametrize("method", ["scaffold", "moon", "feddyn"])
def test_what_a_client_keeps_outlives_a_flower_run_in_its_own_folder(method: str, tmp_path: Path) -> None:
    whole = started(an_app(), 6, None, method)
    app = an_app(memory=tmp_path / "memory")
    started(app, 3, tmp_path / "run", method)
    again = started(app, 6, tmp_path / "run", method)
    assert torch.equal(model(whole), model(again))
    files = [path for path in (tmp_path / "memory").iterdir() if not path.name.endswith(".turns")]
    assert files and all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_without_a_folder_clients_that_restart_are_visited_as_if_for_the_first_time(tmp_path: Path) -> None:
    whole = started(an_app(), 6, None)
    started(an_app(), 3, tmp_path / "run")
    again = started(an_app(), 6, tmp_path / "run")
    assert [row["faults"] for row in again.history if row.get("faults")] == []
    assert not torch.equal(model(whole), model(again))


def test_a_client_trains_by_trainers_of_ones_own_only_if_it_lists_them() -> None:
    name = "tests.training.test_trainers:Widest"
    refused = started(an_app(), 1, None, "fedavg", trainer=name)
    assert refused.history[-1]["answered"] == []
    assert "list it under trainers=" in str(refused.history[-1])
    assert len(started(an_app(trainers=[name]), 1, None, "fedavg", trainer=name).history[-1]["answered"]) == 2


@pytest.mark.parametrize(
    ("options", "method", "sentence"),
    [
        ({"protection": Protection(update_clip=1.0)}, "scaffold", "asks for more than a model"),
        (
            {"protection": Protection(update="8,1e-5", update_clip=1.0, budget="unlimited", unprotected=("loss",))},
            "moon",
            "keeps what it saw",
        ),
        ({"train": lambda model, data, settings: 0.0}, "fedlc", "a training function of your own"),
    ],
)
def test_a_client_declines_what_it_does_not_do(options: dict[str, Any], method: str, sentence: str) -> None:
    strategy = started(an_app(**options), 1, None, method)
    assert strategy.history[-1]["answered"] == []
    assert sentence in str(strategy.history[-1])


def test_a_client_with_noise_trains_by_a_trainer_that_keeps_and_replies_nothing() -> None:
    noisy = Protection(update="8,1e-5", update_clip=1.0, budget="unlimited", unprotected=("loss", "samples"))
    assert len(started(an_app(protection=noisy), 1, None, "fedlc").history[-1]["answered"]) == 2


def test_public_names_of_trainers() -> None:
    assert {"Trainer", "MODEL", "map_tree", "trainers", "answers"} <= set(covey.__all__)
