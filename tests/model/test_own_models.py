"""Models of users' own: what they return, which layer is their last, and what is refused."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey import Refusal
from covey.model.factory import build_model
from covey.model.layout import Layout
from covey.registries import models, selectors, trainers
from tests.model import own_models
from tests.model.own_models import (
    Alone,
    Counting,
    Detached,
    Headless,
    Plain,
    Random,
    Spare,
    Tied,
    Unclear,
    frozen_whole,
)

GIVEN: dict[str, Any] = {"clients": 4, "cohort": 2, "rounds": 2, "workers": 1, "environment.samples": 20}
SHAPE = (1, 8, 8)
FULL = {"selector": {"name": "fedacs", "insight": "full", "pool": 1.0}}
"""A selector that measures the gradient of all parameters."""


def own(name: str) -> str:
    return f"{own_models.__name__}:{name}"


def built(name: str, **options: Any) -> nn.Module:
    return build_model(own(name), options, SHAPE, 10, seed=0)


@pytest.mark.parametrize("name", ["InDict", "OnlyTensor", "InTuple", "InObject"])
def test_an_output_of_any_kind_trains_as_a_tensor_does(name: str, tmp_path: Path) -> None:
    plain = covey.run(GIVEN, model=Plain, out=tmp_path / "plain")
    other = covey.run(GIVEN, model=getattr(own_models, name), out=tmp_path / "other")
    assert [row["loss"] for row in plain.metrics] == [row["loss"] for row in other.metrics]
    # Users get their own model back, and what it returns.
    assert not isinstance(other.model()(torch.rand(2, *SHAPE)), Tensor)


@pytest.mark.parametrize("settings", [{}, {"runtime": "stacked", "device": "cpu"}, {"method": "scaffold"}, FULL])
def test_parameters_that_the_output_does_not_depend_on_stay_as_they_are(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    plain = covey.run({**GIVEN, **settings}, model=Plain, out=tmp_path / "plain").model().state_dict()
    spare = covey.run({**GIVEN, **settings}, model=Spare, out=tmp_path / "spare").model().state_dict()
    assert all(torch.allclose(spare[name], values, atol=1e-5) for name, values in plain.items())
    first = build_model(own("Spare"), {}, SHAPE, 10, seed=0).state_dict()
    assert all(torch.equal(spare[name], first[name]) for name in set(spare) - set(plain))


def test_one_number_for_each_sample_may_come_without_an_axis(tmp_path: Path) -> None:
    x = torch.rand(60, 3)
    data = covey.federation(x, x.sum(dim=1) ** 2, parts=torch.arange(60) % 3)
    column = nn.Sequential(nn.Linear(3, 1))
    settings = {"cohort": 3, "rounds": 2, "workers": 1}
    plain = covey.run(settings, federation=data, model=column, out=tmp_path / "plain")
    for kind in ({}, {"runtime": "stacked", "device": "cpu"}):
        flat = nn.Sequential(column[0], nn.Flatten(0))
        run = covey.run({**settings, **kind}, federation=data, model=flat, out=tmp_path / f"flat{len(kind)}")
        assert [row["score"] for row in run.metrics] == pytest.approx([row["score"] for row in plain.metrics], rel=1e-5)
        assert run.model()(x).shape == (60,)
        run.export(tmp_path / "flat.ts")
        assert torch.jit.load(tmp_path / "flat.ts")(x).shape == (60, 1)


def test_an_output_without_logits_is_refused() -> None:
    with pytest.raises(Refusal, match=r"The model Unclear returns a dict with one, other: return the logits as a ten"):
        built("Unclear")
    assert issubclass(Unclear, Plain)


def test_the_last_linear_layer_is_found_where_its_output_is_the_models() -> None:
    for name, head in (("Plain", "last"), ("InDict", "last"), ("Alone", "layers.3"), ("Transfer", "fc")):
        layout = Layout.of(built(name))
        assert [slot.name for slot in layout.head] == [f"{head}.weight", f"{head}.bias"]
    assert Layout.of(built("Headless")).head == ()


def test_a_layer_called_head_is_found_too() -> None:
    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(4, 10), nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.body(x.flatten(1)))
            return out

    models.add("vision")(Vision)
    try:
        assert Layout.of(build_model("vision", {}, SHAPE, 10, seed=0)).head[0].name == "head.weight"
    finally:
        del models._entries["vision"]


@pytest.mark.parametrize("method", ["fedavg", "oort", "cmfl", "scaffold", "feddrl", "cfl", "nccb", "krum"])
def test_methods_that_read_no_last_layer_need_none(method: str, tmp_path: Path) -> None:
    parts = {"aggregator": "krum", "cohort": 4} if method == "krum" else {"method": method}
    run = covey.run({**GIVEN, **parts}, model=Headless, out=tmp_path / "run")
    assert run.finished


@pytest.mark.parametrize(
    ("settings", "reader"),
    [
        ({"method": "fedacs"}, r"The selector 'fedacs' \(insight=head; full takes any model\)"),
        ({"selector": "rexp3"}, r"The selector 'rexp3' \(insight=head; full takes any model\)"),
        ({"method": "fedper"}, "The method 'fedper'"),
        ({"method": "fedrep", "local.epochs": 2}, "The method 'fedrep'"),
        ({"method": "moon"}, "The loss of the trainer Moon"),
        ({"method": "mocha"}, "The method 'mocha'"),
        ({"aggregator": "ondemand"}, "The aggregator 'ondemand'"),
    ],
)
def test_methods_that_read_the_last_layer_say_so(settings: dict[str, Any], reader: str, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=rf"{reader} reads the model's last layer, and that of the model Headless is not"):
        covey.run({**GIVEN, **settings}, model=Headless, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_insight_of_all_layers_needs_no_last_one(tmp_path: Path) -> None:
    assert covey.run(
        GIVEN, model=Headless, selector={"name": "fedacs", "insight": "full"}, out=tmp_path / "run"
    ).finished
    with pytest.raises(Refusal, match=r"The analysis .* reads the model's last layer"):
        covey.analyze(GIVEN, model=Headless)


def test_a_last_layer_that_shares_its_weight_is_not_read(tmp_path: Path) -> None:
    layout = Layout.of(build_model(own("Tied"), {}, SHAPE, 10, seed=0))
    assert [slot.name for slot in layout.parameters] == ["encoder.weight", "back.weight", "back.bias"]
    with pytest.raises(Refusal, match=r"that of the model Tied \(decoder\) shares its weight with encoder.weight"):
        covey.run(GIVEN, model=Tied, method="fedacs", out=tmp_path / "run")
    run = covey.run(GIVEN, model=Tied, method="scaffold", out=tmp_path / "run")
    trained = run.model()
    assert trained.get_parameter("encoder.weight") is trained.get_parameter("decoder.weight")


def test_the_signature_says_how_a_model_is_called() -> None:
    assert built("Alone").get_parameter("layers.1.weight").shape == (8, 64)
    assert built("Plain", hidden=5).get_parameter("body.weight").shape == (5, 64)

    def two(shape: tuple[int, ...] = (3,), num_classes: int = 2) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), num_classes))

    models.add("two")(two)
    try:
        assert Layout.of(build_model("two", {}, SHAPE, 10, seed=0)).size == 650
    finally:
        del models._entries["two"]


def test_a_partial_is_a_model_with_other_defaults(tmp_path: Path) -> None:
    run = covey.run(GIVEN, model=partial(Plain, hidden=5), out=tmp_path / "run")
    assert run.config.model.options == {"hidden": 5}
    assert run.config.model.name.startswith("Plain@")
    assert run.model().get_parameter("body.weight").shape == (5, 64)
    other = {"name": partial(Plain, hidden=5), "hidden": 3}
    other_run = covey.run(GIVEN, model=other, out=tmp_path / "other")
    assert other_run.model().get_parameter("body.weight").shape == (3, 64)

    def built_with(shape: tuple[int, ...], classes: int, layer: Any = nn.ReLU) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes), layer())

    # A configuration cannot hold a class.
    gelu = covey.run(GIVEN, model=partial(built_with, layer=nn.GELU), out=tmp_path / "gelu")
    assert isinstance(list(gelu.model().children())[2], nn.GELU)
    assert gelu.config.model.options == {}


def test_partials_of_parts_have_other_defaults(tmp_path: Path) -> None:
    selector, trainer = partial(selectors["fedacs"].part, pool=0.9), partial(trainers["fedsam"].part)
    run = covey.run(GIVEN, model=Plain, selector=selector, trainer=trainer, out=tmp_path / "run")
    assert run.config.selector is not None
    assert run.config.selector.options["pool"] == 0.9


def lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))


def narrow() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def wrong_width() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 10))


def not_flat() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 10, 3))


class OfSizes(nn.Linear):
    """Wants numbers, not a shape and a number of classes."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)


def hooked() -> nn.Module:
    """A model whose weight is computed from others, and is no parameter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, 10)))


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(Alone())


def words() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.EmbeddingBag(20, 10))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (dict, "model=dict is a class, but no torch.nn.Module"),
        (3, "model must be a name, or a section with a name and options, not 3"),
        (object(), "model must be a name, a torch.nn.Module, or a class or function that makes one, not a object"),
        (lazy(), r"The model Sequential has lazy parameters \(1.weight\)"),
        (lazy, r"The model Sequential has lazy parameters \(1.weight\)"),
        (Alone().double(), r"has tensors of the type float64 \(layers.1.weight\), and models are given in float32"),
        (Alone().to(torch.bfloat16), "has tensors of the type bfloat16"),
        (Alone().to("meta"), r"is on the device meta \(layers.1.weight\): give it on the CPU"),
        (frozen_whole, "All parameters of the model Alone are frozen"),
        (nn.Flatten(), "The model Flatten has no parameters to train"),
        (Counting, "The model Counting changes the buffer count of whole numbers as it trains"),
        (Detached, "The output of the model Detached depends on none of its trained parameters"),
        (words, r"Expected tensor for argument .*: if they are numbers of words, say .*\(..., tokens=True\)"),
        (Random, "The model Random draws from torch's generator as it trains"),
        (narrow, "The model Sequential returns 3 numbers for a sample, and the data needs 10: one for each c"),
        (wrong_width, r"The model Sequential fails on samples of the shape \(1, 8, 8\): RuntimeError: mat1 and mat2"),
        (not_flat, r"returns a tensor \(2, 10, 6, 6\) for 2 samples, not outputs \(2, 10\): one for each"),
        (lambda size, depth, width: Alone(), "is not called as name.shape, classes"),
        (
            OfSizes,
            r"The model '.*:OfSizes' cannot be built with shape = \(1, 8, 8\), classes = 10: TypeError: .* lambda: N",
        ),
        (scripted(), "The model Alone is TorchScript, whose layers cannot be replaced"),
        (scripted, "The model Alone is TorchScript, whose layers cannot be replaced"),
        (hooked(), r"The model Sequential cannot be copied: RuntimeError: .*parametrizations\.weight_norm can"),
    ],
)
def test_wrong_models_are_refused_in_a_sentence(model: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=sentence) as refused:
        covey.run(GIVEN, model=model, out=tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_single_layer_is_a_model(tmp_path: Path) -> None:
    x, y = torch.arange(240.0).view(60, 4) % 7, torch.arange(60) % 3
    federation = covey.federation(x, y, torch.arange(60) % 3)
    given = {"rounds": 1, "cohort": 1, "workers": 1, "method": "fedacs"}
    run = covey.run(given, federation=federation, model=nn.Linear(4, 3), out=tmp_path / "run")
    assert [name for name, _ in run.model().named_parameters()] == ["0.weight", "0.bias"]


@pytest.mark.parametrize(
    "settings", [{}, {"runtime": "stacked", "device": "cpu"}, {"method": "fed-cbs"}, {"trainer": "fedlc"}]
)
def test_outputs_beyond_the_classes_are_never_an_answer(settings: dict[str, Any], tmp_path: Path) -> None:
    x, y = torch.arange(240.0).view(60, 4) % 7, torch.arange(60) % 3
    federation = covey.federation(x, y, torch.arange(60) % 3, test=(x, y))
    wide = nn.Linear(4, 10)
    with torch.no_grad():
        # One that would be every answer.
        wide.bias[7] = 1e3
    given = {"rounds": 1, "cohort": 2, "workers": 1, "local.rate": 1e-3, **settings}
    run = covey.run(given, federation=federation, model=wide, out=tmp_path / "run")
    logits = run.model()((x - x.mean()) / x.std())
    assert logits.shape == (60, 10)
    assert int(logits[0].argmax()) == 7
    rows = run.metrics[-1]
    assert len(rows["class_accuracy"]) == 3
    assert sum(rows["class_accuracy"]) > 0
    assert rows["accuracy"] == pytest.approx(sum(rows["class_accuracy"]) / 3)
