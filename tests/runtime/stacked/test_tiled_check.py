"""Kernels for many channels: the layers that may take them, and the check before they are used."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey import Config
from covey.core.build import build_federation
from covey.model import build_model
from covey.runtime.stacked.convolution import candidate_algorithms
from covey.runtime.stacked.engine import Engine
from covey.runtime.stacked.graph_capture import GraphSteps
from covey.runtime.stacked.pooled_check import layers_agree
from covey.runtime.stacked.tiled_check import SETTING, tileable, worst_error
from tests.conftest import SMALL

CPU = torch.device("cpu")


def test_wide_convolutions_whose_filters_span_pixels_are_for_the_kernels() -> None:
    shape = (3, 32, 32)
    assert tileable(build_model("pfl-cnn", {}, shape, 10, 0)) == ["conv2"]
    assert tileable(build_model("mcmahan-cnn", {}, (1, 28, 28), 10, 0)) == ["conv2"]
    assert tileable(build_model("tutorial-cnn", {}, shape, 10, 0)) == []
    assert len(tileable(build_model("vgg11", {}, shape, 10, 0))) == 7
    assert tileable(build_model("mobilenetv2", {}, shape, 10, 0)) == []


def test_tiles_are_one_more_candidate() -> None:
    pfl = build_model("pfl-cnn", {}, (3, 32, 32), 10, 0)
    tiles, slices = candidate_algorithms(pfl, kernels=True, tiled=["conv2"])
    assert tiles == {"conv1": "kernel", "conv2": "tiles"} and slices == {"conv1": "kernel", "conv2": "slices"}
    mcmahan = build_model("mcmahan-cnn", {}, (1, 28, 28), 10, 0)
    both = candidate_algorithms(mcmahan, kernels=True, fused=["conv1"], tiled=["conv2"])
    assert [list(one.values()) for one in both] == [["fused", "tiles"], ["fused", "slices"], ["kernel", "slices"]]
    vgg = build_model("vgg11", {}, (3, 32, 32), 10, 0)
    deep = candidate_algorithms(vgg, kernels=True, tiled=tileable(vgg))
    assert [list(one.values()) for one in deep] == [["kernel", *["tiles"] * 7], ["kernel", *["slices"] * 7]]
    # A layer of few channels among others: all that was tried before still is.
    mixed = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 16, 3), nn.Conv2d(16, 16, 3))
    before, after = candidate_algorithms(mixed, kernels=True), candidate_algorithms(mixed, kernels=True, tiled=["2"])
    assert after == [{"0": "kernel", "1": "slices", "2": "tiles"}, *before]
    # Without Triton there is none.
    assert candidate_algorithms(pfl, tiled=["conv2"]) == candidate_algorithms(pfl)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_check_finds_layers_right(dtype: torch.dtype) -> None:
    layers: list[nn.Conv2d] = [nn.Conv2d(8, 9, 3, padding=1), nn.Conv2d(16, 8, (2, 5), stride=(2, 1), bias=False)]
    module = nn.Sequential(nn.Conv2d(2, 8, 3), layers[0], nn.Conv2d(9, 16, 1), layers[1])
    assert layers_agree(module, ["1", "3"], (2, 11, 10), dtype, CPU, error_of=worst_error)
    same = nn.Conv2d(8, 8, 4, padding="same")
    assert worst_error(same, (8, 7, 6), dtype, CPU) <= 1e-2


@pytest.mark.parametrize("which", [0, 1])
def test_the_check_finds_kernels_that_err(monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    layer, right = nn.Conv2d(8, 9, 3), torch.ops.covey.tiled_convolution_gradients

    def wrong(*given: Any) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = right(*given)
        found[which][-1, -1, -1, -1, -1] = torch.nan
        return found

    monkeypatch.setattr(torch.ops.covey, "tiled_convolution_gradients", wrong)
    assert worst_error(layer, (8, 6, 6), torch.float32, CPU) == float("inf")
    assert not layers_agree(nn.Sequential(layer), ["0"], (8, 6, 6), torch.float32, CPU, error_of=worst_error)


def test_tiles_are_tried_where_they_are_right_unless_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**SMALL, "dataset": {"name": "synthetic", "shape": (3, 16, 16), "train": 60, "test": 20}}
    federation = build_federation(Config.of({**given, "model": "pfl-cnn", "precision": "bf16"}))
    module = build_model("pfl-cnn", {}, (3, 16, 16), 10, 0)
    engine = Engine(module, federation.dataset, "bf16", CPU)
    steps = GraphSteps.__new__(GraphSteps)
    steps.engine, steps._batch, steps._terms = engine, 7, SimpleNamespace()  # type: ignore[assignment]
    made: list[dict[str, str]] = []
    monkeypatch.setattr(Engine, "make_step", lambda engine, terms, algorithms, updated: made.append(algorithms))
    monkeypatch.setattr(GraphSteps, "_record", lambda steps, step: step)
    engine.has_kernels = True
    monkeypatch.delenv(SETTING, raising=False)
    assert steps._tiled() == []
    monkeypatch.setenv(SETTING, "1")
    assert steps._tiled() == ["conv2"]
    algorithms: Any = {"conv1": "kernel", "conv2": "tiles"}
    steps._record_with(algorithms)
    assert made == [algorithms]
    monkeypatch.setattr("covey.runtime.stacked.tiled_check.worst_error", lambda *given: 1.0)
    with pytest.raises(RuntimeError, match="err on this device"):
        steps._record_with(algorithms)
    # Others need no check.
    steps._record_with({"conv1": "kernel", "conv2": "slices"})
    assert len(made) == 2
    engine.precision = "fp32"
    assert steps._tiled() == []
