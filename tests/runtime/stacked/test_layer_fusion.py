"""Convolutions that leave pool and ReLU to one operator: which they are, and that models train as before."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

import covey
from covey import Config
from covey.core.build import build_federation
from covey.model import build_model
from covey.runtime.stacked import graph_capture, pooled_check
from covey.runtime.stacked.convolution import ConvAlgorithm, candidate_algorithms
from covey.runtime.stacked.engine import Engine
from covey.runtime.stacked.lane_net import SplitModel
from covey.runtime.stacked.layer_fusion import SETTING, fusible, wanted
from covey.runtime.stacked.pooled_check import layers_agree, worst_error
from covey.runtime.stacked.stack_module import stack_module
from tests.conftest import SMALL

TOGETHER: dict[str, ConvAlgorithm] = {"conv1": "fused", "conv2": "fused"}


def layers(*given: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), *given, nn.Flatten(), nn.LazyLinear(10))


class Forked(nn.Module):
    """Uses the convolution's own output too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        pooled: Tensor = F.max_pool2d(F.relu(y), 2).flatten(1) + y.mean()
        return pooled


class Twice(Forked):
    """Calls the convolution twice."""

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(self.conv(x).relu(), 2) + F.max_pool2d(self.conv(-x).relu(), 2)


class Branching(Forked):
    """Depends on the values of its images."""

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(self.conv(x).relu(), 2) if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (layers(nn.ReLU(), nn.MaxPool2d(2)), ["0"]),
        (layers(nn.MaxPool2d((2, 2), stride=(2, 2)), nn.ReLU(inplace=True)), ["0"]),
        (layers(nn.MaxPool2d(3, 2), nn.ReLU()), []),
        (layers(nn.MaxPool2d(2, stride=1), nn.ReLU()), []),
        (layers(nn.MaxPool2d(2, padding=1), nn.ReLU()), []),
        (layers(nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()), []),
        (layers(nn.AvgPool2d(2), nn.ReLU()), []),
        (layers(nn.MaxPool2d(2), nn.GELU()), []),
        (layers(nn.MaxPool2d(2)), []),
        (nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2)), []),
        (nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)), []),
        (nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.ReLU(), nn.MaxPool2d(2)), []),
        (nn.Sequential(nn.Conv2d(11, 4, 3), nn.ReLU(), nn.MaxPool2d(2)), []),
        (Forked(), []),
        (Twice(), []),
        (Branching(), []),
    ],
)
def test_which_convolutions_can_be_fused(module: nn.Module, names: list[str]) -> None:
    assert fusible(module) == names


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("tutorial-cnn", ["conv1", "conv2"]),
        ("mcmahan-cnn", ["conv1"]),
        ("fashion-cnn", ["conv1"]),
        ("leaf-cnn", []),
        ("pfl-cnn", []),
        ("mlp", []),
        ("mobilenetv2", []),
    ],
)
def test_which_of_our_models_can_be_fused(model: str, names: list[str]) -> None:
    shape = (1, 28, 28) if model in ("mcmahan-cnn", "fashion-cnn") else (3, 32, 32)
    assert fusible(build_model(model, {}, shape, 10, 0)) == names


def test_models_with_frozen_parts_are_not_fused() -> None:
    module = nn.Sequential(nn.Sequential(nn.Conv2d(3, 3, 1)), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
    assert fusible(module) == ["1"]
    module[0].requires_grad_(False)
    assert fusible(module) == []


@pytest.mark.parametrize("compiled", [False, True])
def test_a_fused_model_has_the_same_gradients(compiled: bool) -> None:
    module = build_model("tutorial-cnn", {}, (3, 17, 16), 10, 0).double()
    plain, together = stack_module(module, {}), stack_module(module, TOGETHER)
    assert type(module).forward is type(plain).forward is not type(together).forward
    x = torch.randn(2, 5, 3, 17, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(10).reshape(2, 5)
    parameters = {name: torch.stack([value, 0.5 * value]).detach() for name, value in plain.named_parameters()}
    assert parameters.keys() == dict(together.named_parameters()).keys()

    def gradients(module: nn.Module, compiled: bool) -> Any:
        def loss_of(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(module, parameters, (x,)), y)

        step = vmap(grad_and_value(loss_of))
        return (torch.compile(step, dynamic=False, backend="aot_eager") if compiled else step)(parameters, x, y)

    torch.testing.assert_close(gradients(together, compiled), gradients(plain, False))


@pytest.mark.parametrize("trainer", [None, "scaffold", "feddyn", "moon", "fedlc", "fedsam", "fedcm", "dp-sgd"])
def test_every_trainer_trains_fused_models_as_it_does_others(
    trainer: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = {"name": "synthetic", "shape": (3, 16, 16), "train": 60, "test": 10}
    given = {**SMALL, "dataset": dataset, "model": "tutorial-cnn", "rounds": 2}
    given |= {"runtime": "stacked", "device": "cpu", "precision": "fp64"}
    if trainer:
        given["trainer"] = {"name": trainer, "delta": None} if trainer == "dp-sgd" else trainer
        given["aggregator"] = {"name": "average", "weighted": False}
    make_step = Engine.make_step
    monkeypatch.setattr(Engine, "make_step", lambda engine, terms, _: make_step(engine, terms, TOGETHER))
    fused = parameters_of(covey.run(given, out=tmp_path / "fused"))
    # An engine lives as long as a run that uses it.
    gc.collect()
    monkeypatch.undo()
    plain = parameters_of(covey.run(given, out=tmp_path / "plain"))
    assert not torch.equal(fused, plain)
    torch.testing.assert_close(fused, plain, rtol=1e-7, atol=1e-9)


def parameters_of(run: covey.Run) -> Tensor:
    return torch.cat([one.detach().flatten() for one in run.model().parameters()])


def test_a_fused_model_still_has_its_features() -> None:
    module = build_model("tutorial-cnn", {}, (3, 16, 16), 10, 0)
    plain, together = stack_module(module, {}), stack_module(module, TOGETHER)
    x, weight = torch.randn(2, 3, 16, 16), torch.full((2,), 0.5)
    tensors = {name: value.detach() for name, value in plain.named_parameters()}
    below = [SplitModel(one).below(tensors, x, weight) for one in (plain, together)]
    torch.testing.assert_close(*below)


def test_fused_layers_are_a_candidate_where_they_are_wanted() -> None:
    module = build_model("tutorial-cnn", {}, (3, 32, 32), 10, 0)
    plain = candidate_algorithms(module, kernels=True)
    together = candidate_algorithms(module, kernels=True, fused=fusible(module))
    assert plain[-1] == {"conv1": "kernel", "conv2": "kernel"}
    assert together == [{"conv1": "fused", "conv2": "fused"}, plain[-1]]
    some = candidate_algorithms(build_model("mcmahan-cnn", {}, (1, 28, 28), 10, 0), kernels=True, fused=["conv1"])
    assert some[0] == {"conv1": "fused", "conv2": "slices"} and len(some) > 1


def test_the_check_finds_kernels_that_err(monkeypatch: pytest.MonkeyPatch) -> None:
    module = build_model("tutorial-cnn", {}, (3, 17, 16), 10, 0)
    cpu = torch.device("cpu")
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert layers_agree(module, ["conv1", "conv2"], (3, 17, 16), dtype, cpu)
    conv2 = module.get_submodule("conv2")
    assert isinstance(conv2, nn.Conv2d)
    right = torch.ops.covey.pooled_convolution_images

    def wrong(*given: Any) -> Tensor:
        found: Tensor = right(*given)
        found[0, 0, 0, 0, 0] = torch.nan
        return found

    monkeypatch.setattr(torch.ops.covey, "pooled_convolution_images", wrong)
    assert worst_error(conv2, (6, 6, 6), torch.float32, cpu) == float("inf")
    assert not layers_agree(module, ["conv1", "conv2"], (3, 17, 16), torch.float32, cpu)

    def unable(*given: Any) -> Tensor:
        raise ValueError("out of shared memory")

    monkeypatch.setattr(torch.ops.covey, "pooled_convolution_images", unable)
    assert not layers_agree(module, ["conv1", "conv2"], (3, 17, 16), torch.float32, cpu)


def test_fused_layers_are_tried_where_they_are_right_unless_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**SMALL, "dataset": {"name": "synthetic", "shape": (3, 16, 16), "train": 60, "test": 20}}
    config = Config.of({**given, "model": "tutorial-cnn", "precision": "bf16"})
    federation = build_federation(config)
    module = build_model("tutorial-cnn", {}, (3, 16, 16), 10, 0)
    engine = Engine(module, federation.dataset, "bf16", torch.device("cpu"))
    steps = graph_capture.GraphSteps.__new__(graph_capture.GraphSteps)
    steps.engine, steps._batch = engine, 7
    engine.has_kernels = True
    monkeypatch.setenv(SETTING, "0")
    assert not wanted() and steps._fused() == []
    monkeypatch.delenv(SETTING)
    assert wanted() and steps._fused() == ["conv1", "conv2"]
    monkeypatch.setattr(pooled_check, "worst_error", lambda *given: 1.0)
    assert steps._fused() == []
    checked: list[int] = []

    def right(*given: Any) -> float:
        checked.append(given[-1])
        return 0.0

    monkeypatch.setattr(pooled_check, "worst_error", right)
    assert steps._fused() == ["conv1", "conv2"] and checked == [7, 7]
    steps._batch = 400
    assert steps._fused() == ["conv1", "conv2"] and checked[2:] == [64, 64]
    engine.has_kernels = False
    monkeypatch.undo()
    monkeypatch.delenv(SETTING, raising=False)
    assert steps._fused() == []
