"""Parts given as classes, functions and instances: in runs, comparisons and resumes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import covey
from covey import Aggregator, Dataset, Deal, Recipe, Refusal, Run, Selector, Trainer
from covey.aggregation.average import Average
from covey.core.one_model import OneModel
from covey.registries import aggregators, models, selectors, trainers
from covey.selection.uniform import Uniform
from tests.conftest import without_timings
from tests.model.own_models import Alone, Plain

GIVEN: dict[str, Any] = {"clients": 6, "cohort": 2, "rounds": 2, "workers": 1, "environment.samples": 20}


class Lowest(Selector):
    """Invites the clients of the lowest numbers, from `first` on."""

    def __init__(self, *, first: int = 0) -> None:
        self.first = first

    def select(self, t, candidates):
        return candidates[self.first : self.first + self.setting.cohort]


class Halfway(Aggregator):
    """Moves half of the way to the mean."""

    def combine(self, t, model, replies):
        return (model + replies.states.mean(dim=0)) / 2


class Doubled(Trainer):
    """Follows twice the gradient."""

    def __init__(self, *, factor: float = 2.0) -> None:
        self.factor = factor

    def client_step(self, w, batch, client, carry, net):
        return {name: self.factor * one for name, one in net.gradient(w, batch).items()}, carry


class Whole(OneModel):
    """A whole method: invites uniformly, averages, and says so."""

    def __init__(self, setting, model, *, note: str = "whole") -> None:
        super().__init__(setting, model, Uniform(), Average())
        self.note = note

    def figures(self):
        return {"note": self.note}


class Empty(covey.Method):
    """A method that says nothing."""

    def __init__(self, setting, model) -> None:
        pass


class Idle(Whole):
    """A method that forgets to return its order."""

    def order(self, t, candidates):
        super().order(t, candidates)


RECIPE = Recipe("The lowest, halfway.", selector=f"{__name__}:Lowest", selecting={"first": 3})


def in_turn(labels, classes, clients, rng, *, step: int = 1):
    """Deal samples in turn."""
    return Deal([np.arange(client, len(labels), clients * step) for client in range(clients)], shared=False)


def stripes(folder, *, count: int = 120):
    """Make stripes of two kinds."""
    y = torch.arange(count) % 2
    x = torch.zeros(count, 1, 4, 4) + y.view(-1, 1, 1, 1)
    return Dataset("stripes", x, y, x[:20], y[:20], ("plain", "bright"))


def local_selector(first: int) -> type[Selector]:
    """Make a class that nobody can import."""

    class Local(Selector):
        def select(self, t, candidates):
            return candidates[first : first + self.setting.cohort]

    return Local


def forget() -> None:
    """Forget every object that was given, as another process has none of them."""
    for registry in (models, selectors, aggregators, trainers, covey.methods, covey.manymodels):
        registry._held.clear()


def test_classes_that_can_be_imported_are_recorded_by_their_place(tmp_path: Path) -> None:
    given: dict[str, Any] = {"selector": Lowest, "aggregator": Halfway, "trainer": Doubled, "model": Plain}
    run = covey.run(GIVEN, **given, out=tmp_path / "run")
    names: dict[str, Any] = {section: f"{part.__module__}:{part.__name__}" for section, part in given.items()}
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert {section: stored[section]["name"] for section in given} == names
    by_name = covey.run(GIVEN, **names, out=tmp_path / "named")
    assert without_timings(by_name.metrics) == without_timings(run.metrics)
    # Its folder needs trust, as for any code of one's own, or the class again.
    with pytest.raises(Refusal, match="trust"):
        Run.open(tmp_path / "run").evaluate()
    assert Run.open(tmp_path / "run", model=Plain).evaluate()["accuracy"] == run.metrics[-1]["accuracy"]
    with pytest.raises(Refusal, match=r"has the model 'tests.model.own_models:Plain', not 'tests.model.own_models:Alo"):
        Run.open(tmp_path / "run", model=Alone)


def test_options_go_with_a_class_and_an_instance_has_its_own(tmp_path: Path) -> None:
    by_class = covey.run(GIVEN, selector={"name": Lowest, "first": 2}, out=tmp_path / "class")
    instance = Lowest(first=2)
    by_instance = covey.run(GIVEN, selector=instance, out=tmp_path / "instance")
    assert [row["clients"] for row in by_class.metrics] == [[2, 3], [2, 3]]
    assert without_timings(by_class.metrics) == without_timings(by_instance.metrics)
    assert not hasattr(instance, "setting")
    assert str(by_instance.config.method).startswith("Lowest@")
    with pytest.raises(Refusal, match=r"has no option 'last'. Did you mean 'first'|has no option 'last'"):
        covey.run(GIVEN, selector={"name": Lowest, "last": 2}, out=tmp_path / "wrong")


def test_a_class_of_covey_goes_by_its_name() -> None:
    assert covey.Config.of(selector=Uniform, aggregator=Average).as_mapping()["method"] == "uniform+average"


@pytest.mark.parametrize("workers", [1, 2])
def test_objects_reach_worker_processes_and_stacks(workers: int, tmp_path: Path) -> None:
    given = {**GIVEN, "workers": workers, "precision": "fp64", "trainer": Doubled(factor=3.0)}
    local = covey.run(given, out=tmp_path / "local")
    stacked = covey.run(given, runtime="stacked", device="cpu", out=tmp_path / "stacked")
    assert [row["loss"] for row in local.metrics] == pytest.approx([row["loss"] for row in stacked.metrics], rel=1e-9)
    plain = covey.run(given | {"trainer": "sgd"}, out=tmp_path / "plain")
    assert plain.metrics[-1]["loss"] != local.metrics[-1]["loss"]


def test_functions_deal_samples_and_load_data(tmp_path: Path) -> None:
    given = {"clients": 4, "cohort": 2, "rounds": 1, "workers": 1}
    run = covey.run(given, dataset=stripes, environment={"name": in_turn, "step": 2}, out=tmp_path / "run")
    assert run.config.dataset.options == {"count": 120}
    described = covey.describe({**given, "dataset": lambda folder: stripes(folder, count=40), "environment": in_turn})
    assert described.available == 40


def test_an_instance_keeps_its_weights_as_the_initial_model(tmp_path: Path) -> None:
    module = Alone()
    with torch.no_grad():
        for one in module.parameters():
            one.fill_(0.25)
    still = covey.run(GIVEN, model=module, local={"rate": 1e-12}, seed=3, out=tmp_path / "run")
    assert all(torch.allclose(one, torch.full_like(one, 0.25)) for one in still.model().parameters())
    with torch.no_grad():
        module.get_parameter("layers.1.weight").fill_(9.0)
    assert float(still.model().get_parameter("layers.1.weight").detach().max()) < 1


def test_a_run_of_objects_resumes_with_them_again(tmp_path: Path) -> None:
    class Mine(Plain):
        pass

    def given() -> dict[str, Any]:
        return {"model": Mine, "selector": Lowest(first=1), "aggregator": local_aggregator()}

    whole = covey.run(GIVEN | {"rounds": 4}, **given(), out=tmp_path / "whole")

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        covey.run(GIVEN | {"rounds": 4}, **given(), out=tmp_path / "cut", on_round=stop)
    forget()
    with pytest.raises(
        Refusal, match=r"The model 'Mine' was given to its run as a Python object.*resume\(folder, model=M"
    ):
        covey.resume(tmp_path / "cut")
    # The records can be read, and the report be written.
    assert len(Run.open(tmp_path / "cut").metrics) == 2
    assert covey.report([tmp_path / "cut"], tmp_path / "page.html").exists()
    with pytest.raises(Refusal, match=r"The selector given is not the one that the run in .* was made with"):
        covey.resume(tmp_path / "cut", **{**given(), "selector": Lowest(first=2)})
    forget()
    with pytest.raises(Refusal, match=r"The model Alone is not the one that the run in .* was made with"):
        covey.resume(tmp_path / "cut", **{**given(), "model": lambda *, hidden: Alone(hidden)})
    with pytest.raises(Refusal, match="There is no part 'modle' to give again"):
        covey.resume(tmp_path / "cut", modle=Mine)
    resumed = covey.resume(tmp_path / "cut", **given())
    assert without_timings(resumed.metrics) == without_timings(whole.metrics)
    forget()
    later = Run.open(tmp_path / "cut", model=Mine)
    assert later.evaluate()["accuracy"] == whole.metrics[-1]["accuracy"]


def local_aggregator() -> Aggregator:
    class Third(Aggregator):
        def combine(self, t, model, replies):
            return model + (replies.states.mean(dim=0) - model) / 3

    return Third()


def test_other_objects_have_other_names() -> None:
    def name(part: Any) -> str:
        choice = covey.Config.of(selector=part).selector
        assert choice is not None
        return choice.name

    first, second, again = local_selector(0), local_selector(1), local_selector(0)
    assert name(first) == name(first) == name(again) != name(second)
    assert name(Lowest(first=1)) == name(Lowest(first=1)) != name(Lowest(first=2))


def test_a_whole_method_of_ones_own(tmp_path: Path) -> None:
    run = covey.run(GIVEN, method=Whole, many={"note": "mine"}, out=tmp_path / "run")
    plain = covey.run(GIVEN, method="fedavg", guard={"on": False}, out=tmp_path / "plain")
    assert run.config.method == f"{__name__}:Whole"
    assert [row["loss"] for row in run.metrics] == [row["loss"] for row in plain.metrics]
    assert run.metrics[0]["figures"] == {"note": "mine"}
    assert covey.run(GIVEN, method=f"{__name__}:Whole", out=tmp_path / "named").finished
    with pytest.raises(Refusal, match="names code that is not part of Covey"):
        covey.resume(tmp_path / "run")
    with pytest.raises(Refusal, match="names code that is not part of Covey"):
        Run.open(tmp_path / "run").evaluate()
    assert Run.open(tmp_path / "run").finished
    assert Run.open(tmp_path / "run", trust=True).evaluate()["accuracy"] == run.metrics[-1]["accuracy"]


def test_a_recipe_of_ones_own_by_its_place_or_as_an_object(tmp_path: Path) -> None:
    named = covey.run(GIVEN, method=f"{__name__}:RECIPE", out=tmp_path / "named")
    assert [row["clients"] for row in named.metrics] == [[3, 4], [3, 4]]
    given = covey.run(GIVEN, method=RECIPE, out=tmp_path / "given")
    assert without_timings(given.metrics) == without_timings(named.metrics)
    # The method and its selector are left out when a model is scored.
    assert Run.open(tmp_path / "named").evaluate()["accuracy"] == named.metrics[-1]["accuracy"]


def test_a_method_that_is_one_part_is_fedavg_with_it(tmp_path: Path) -> None:
    class Thrice(Trainer):
        """Follows the gradient thrice."""

        def client_step(self, w, batch, client, carry, net):
            return {name: 3 * one for name, one in net.gradient(w, batch).items()}, carry

    methods: list[Any] = ["fedavg", f"{__name__}:Doubled", Halfway, Lowest(first=1), Thrice]
    found = covey.compare(methods, 1, given=GIVEN, trainer={"factor": 1.5}, out=tmp_path / "cmp")
    configs = {label: runs[0].config for label, runs in found.runs.items()}
    parts = [[one and one.name for one in (c.selector, c.aggregator, c.trainer)] for c in configs.values()]
    mine = [f"{__name__}:Doubled", f"{__name__}:Halfway", *list(configs)[3:]]
    assert list(configs) == ["fedavg", *mine]
    assert parts == [
        ["uniform", "average", "sgd"],
        ["uniform", "average", mine[0]],
        ["uniform", mine[1], "sgd"],
        [mine[2], "average", "sgd"],
        ["uniform", "average", mine[3]],
    ]
    assert configs[mine[0]].as_mapping()["trainer"]["factor"] == 1.5
    named = covey.run(GIVEN, trainer={"name": Doubled, "factor": 1.5}, out=tmp_path / "named")
    assert without_timings(found.runs[mine[0]][0].metrics) == without_timings(named.metrics)
    run = covey.run(GIVEN, method=Thrice, out=tmp_path / "run")
    assert without_timings(run.metrics) == without_timings(found.runs[mine[3]][0].metrics)
    recipe = Recipe("Mine.", trainer=Thrice)  # type: ignore[arg-type]
    assert without_timings(covey.run(GIVEN, method=recipe, out=tmp_path / "recipe").metrics) == without_timings(
        run.metrics
    )
    assert covey.resume(tmp_path / "run", rounds=3, method=Thrice).metrics[-1]["round"] == 3


def test_a_comparison_takes_objects(tmp_path: Path) -> None:
    found = covey.compare(["fedavg", Whole], 1, given=GIVEN, model=Alone(), out=tmp_path / "all")
    assert [one.method for one in found.contenders] == ["fedavg", f"{__name__}:Whole"]
    assert covey.Comparison.open(tmp_path / "all").rows == found.rows
    varied = covey.compare("fedavg", 1, vary={"model": [Alone, Plain]}, given=GIVEN, out=tmp_path / "varied")
    assert len(varied.contenders) == 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"selector": 3}, "selector must be a name, or a section with a name and options, not 3"),
        ({"selector": object()}, "is no selector: one of your own derives from covey.Selector"),
        ({"aggregator": Lowest}, "is no aggregator: one of your own derives from covey.Aggregator"),
        ({"trainer": Halfway()}, "Halfway is no trainer: one of your own derives from covey.Trainer"),
        ({"dataset": object()}, "dataset must be a name, or a function that returns a covey.Dataset, not a object"),
        (
            {"method": object()},
            "method must be a name, a covey.Recipe, a selector, an aggregator or a trainer, or a cl",
        ),
        ({"method": lambda setting: setting}, r"is not called as name\(setting, model, \*, option=default, ...\)"),
        ({"method": lambda setting, model: 3}, "made a int, which has no survey and no surveyed and no order"),
        (
            {"method": Empty},
            "Empty' has no survey and no surveyed and no order .*: a whole method has what covey.Method",
        ),
        ({"method": Plain}, r"Plain' has no survey .*: .* A model, .* is given as model=, selector="),
        ({"method": Idle}, "The method Idle must return the round's covey.Order, not None"),
        ({"many": Whole}, "many must be a name, or a section with a name and options"),
        ({"method": f"{__name__}:GIVEN"}, "must be a class or a function; it is of the type dict"),
    ],
)
def test_wrong_objects_are_refused_in_a_sentence(settings: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=sentence) as refused:
        covey.run(GIVEN, **settings, out=tmp_path / "run")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "settings", [{"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10))}, {"trainer": Doubled()}]
)
def test_objects_do_not_reach_clients_in_other_programs(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="was given as a Python object, and clients of the runtime 'flower' run in other"):
        covey.run(GIVEN, **settings, runtime="flower", out=tmp_path / "run")
