"""Which models of users' own a stack trains as the local runtime does; all others are refused, or trained locally."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import covey
from covey import Refusal
from covey.model.factory import build_model
from covey.registries import models
from covey.runtime.stacked.model_check import why_not_stacked

FEDERATION = covey.federation(
    torch.randn(33, 8, generator=torch.Generator().manual_seed(0)), torch.arange(33) % 3, torch.arange(33) % 3
)


class Net(nn.Module):
    def __init__(self, body: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.last = body or nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.body(x).relu())


class Centred(Net):
    """Mixes the samples of a batch."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x - x.mean(0) if self.training else x)


class Moving(Net):
    """Has statistics of its own, which padded samples would change."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.mean(0).detach())
        return super().forward(x)


class Replacing(Moving):
    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return Net.forward(self, x - self.mean)


class Words(Net):
    """Reads its samples as words."""

    def __init__(self, **options: Any) -> None:
        super().__init__(nn.Embedding(5, 1, **options))

    def forward(self, x: Tensor) -> Any:
        return self.last(self.body((x.abs() * 2).long().clamp(max=4)).flatten(1))


class Checkpointed(Net):
    def forward(self, x: Tensor) -> Any:
        return self.last(checkpoint(self.body, x, use_reentrant=False))


class Branching(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x if x.sum() > 0 else -x)


class SinglePrecision(Net):
    """Works in float32 alone."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x @ torch.ones(8, 8))


def reason(made: Callable[[], nn.Module]) -> str:
    models.add("of-ones-own")(made)
    try:
        return why_not_stacked(build_model("of-ones-own", {}, (8,), 3, seed=0), FEDERATION.dataset)
    finally:
        del models._entries["of-ones-own"]


@pytest.mark.parametrize(
    "made",
    [
        Net,
        lambda: Net(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))),
        lambda: Net(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))),
        lambda: Net(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).requires_grad_(False)),
        Words,
        SinglePrecision,
    ],
)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_models_that_keep_samples_apart_are_stacked(made: Callable[[], nn.Module]) -> None:
    assert reason(made) == ""


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (Centred, "it mixes the samples of a batch: its gradient"),
        (Moving, "it mixes the samples of a batch: its buffers"),
        (lambda: Words(max_norm=0.5), "The layer body is an embedding with max_norm or scale_grad_by_freq"),
        (lambda: Net(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))), "atching rule"),
        (Checkpointed, "saved tensor hooks"),
        (Branching, "it branches on a tensor's value"),
    ],
)
def test_models_that_a_stack_would_train_otherwise_are_not(made: Callable[[], nn.Module], why: str) -> None:
    assert why in reason(made)


def test_a_stack_that_was_asked_for_refuses_them(tmp_path: Path) -> None:
    given = {"rounds": 1, "cohort": 2, "workers": 1, "local.batch": 4}
    stacked = {"runtime": "stacked", "device": "cpu"}
    with pytest.raises(
        Refusal, match=r"The runtime 'stacked', .*, cannot train this model .it mixes the samples of a b"
    ):
        covey.run({**given, **stacked}, federation=FEDERATION, model=Centred, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert covey.run(given, federation=FEDERATION, model=Centred, out=tmp_path / "run").finished


def test_a_buffer_that_is_replaced_is_refused_everywhere() -> None:
    with pytest.raises(Refusal, match="The model Replacing replaces the buffer mean by another tensor as it trains"):
        reason(Replacing)
