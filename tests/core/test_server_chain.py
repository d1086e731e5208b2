"""The server's chain: aggregator, then optimiser, then average over rounds."""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import covey
from covey import Config, Refusal, compare, ondemand, report, run
from covey.aggregation.cmfl import CMFL
from covey.config.schema import resolve
from covey.config.sections import GuardLimits, Local
from covey.config.server_sections import Averaging, ServerStep
from covey.core.checkpoint import read_checkpoint, write_checkpoint
from covey.core.interfaces import Aggregator, Setting
from covey.core.model_average import ModelAverage
from covey.core.one_model import OneModel
from covey.core.replies import Replies, checked
from covey.core.server_chain import ServerChain
from covey.core.server_optimizer import server_step
from covey.job.result_text import run_summary
from covey.job.settings import as_config
from covey.model.layout import Layout, Slot
from covey.selection.uniform import Uniform
from tests.conftest import SMALL, Answer, saved_state, without_timings
from tests.equal_runs import ends_the_same

WEIGHT = Slot("weight", (2,), 0)
LAYOUT = Layout(
    (WEIGHT,), (Slot("bn.running_mean", (1,), 2), Slot("bn.running_var", (1,), 3), Slot("scale", (1,), 4)), (WEIGHT,)
)
"""Two parameters, a batch norm's mean and variance, and another buffer."""

MOMENTUM = {"optimizer": "momentum", "beta": 0.9, "rate": 0.3}


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Optimisers


def stepped_twice(rule: ServerStep) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """The models after steps by Δ = (1, -2) and Δ = (0.5, -1) from (1, 2), and the moments after each."""
    model = numbers(1, 2)
    moments: dict[str, Tensor] = {}
    models, kept = [], []
    for change in (numbers(1, -2), numbers(0.5, -1)):
        model, moments = server_step(rule, moments, model, model + change)
        models.append(model)
        kept.append(moments)
    return models, kept


def test_momentum_is_that_of_its_equation():
    models, kept = stepped_twice(ServerStep(optimizer="momentum", beta=0.5, rate=0.1))
    assert [moments["velocity"].tolist() for moments in kept] == [[1, -2], [1, -2]]
    assert models[0].tolist() == pytest.approx([1.1, 1.8])
    assert models[1].tolist() == pytest.approx([1.2, 1.6])
    # v = 0.25·(1, -2) + (0.5, -1)
    models, kept = stepped_twice(ServerStep(optimizer="momentum", beta=0.25, rate=2.0))
    assert kept[1]["velocity"].tolist() == [0.75, -1.5]
    assert models[1].tolist() == pytest.approx([1 + 2 * 1 + 2 * 0.75, 2 - 2 * 2 - 2 * 1.5])


SQUARES = {
    "adagrad": ([1.25, 4.25], [1.5, 5.25]),
    # 0.25 is below both squares, so it rises by a quarter of them; (0.5, 1.25) is above (0.25, 1), so it falls.
    "yogi": ([0.5, 1.25], [0.4375, 1.0]),
    "adam": ([0.4375, 1.1875], [0.390625, 1.140625]),
}
"""s after Δ² = (1, 4) and Δ² = (0.25, 1), from τ² = 0.25 with β₂ = 0.75."""


@pytest.mark.parametrize("name", list(SQUARES))
def test_adaptive_optimisers_are_those_of_algorithm_2(name):
    second = {} if name == "adagrad" else {"beta2": 0.75}
    models, kept = stepped_twice(ServerStep(optimizer=name, beta=0.5, rate=0.1, tau=0.5, **second))
    assert [tuple(moments["square"].tolist()) for moments in kept] == [tuple(square) for square in SQUARES[name]]
    # m = (0.5, -1), then 0.5·(0.5, -1) + 0.5·(0.5, -1).
    assert [moments["mean"].tolist() for moments in kept] == [[0.5, -1], [0.5, -1]]
    expected = [1.0, 2.0]
    for model, squares in zip(models, SQUARES[name], strict=True):
        for place, mean in enumerate((0.5, -1.0)):
            expected[place] += 0.1 * mean / (math.sqrt(squares[place]) + 0.5)
        assert model.tolist() == pytest.approx(expected, rel=1e-12)


def test_the_mean_weighs_what_was_and_what_is():
    rule = ServerStep(optimizer="adam", beta=0.75, beta2=0.5, tau=0.5, rate=1.0)
    _, moments = server_step(rule, {"mean": numbers(2), "square": numbers(4)}, numbers(0), numbers(1))
    assert moments["mean"].tolist() == [0.75 * 2 + 0.25 * 1]
    assert moments["square"].tolist() == [0.5 * 4 + 0.5 * 1]


def test_defaults_belong_to_the_optimiser():
    assert ServerStep() == ServerStep(optimizer="none", rate=None, beta=None, beta2=None, tau=None)
    assert ServerStep(optimizer="momentum") == ServerStep(optimizer="momentum", rate=1, beta=0.9)
    for name in ("adam", "yogi"):
        assert ServerStep(optimizer=name) == ServerStep(optimizer=name, rate=0.01, beta=0.9, beta2=0.99, tau=0.001)
    assert ServerStep(optimizer="adagrad") == ServerStep(optimizer="adagrad", rate=0.1, beta=0, tau=0.001)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_have_the_models_precision_and_leave_their_arguments_alone(optimizer, dtype):
    model, target = torch.ones(2, dtype=dtype), torch.full((2,), 2.0, dtype=dtype)
    rule = ServerStep(optimizer=optimizer)
    after, moments = server_step(rule, {}, model, target)
    before = {name: moment.clone() for name, moment in moments.items()}
    server_step(rule, moments, after, target)
    assert after.dtype == dtype and all(moment.dtype == dtype for moment in moments.values())
    assert all(torch.equal(moments[name], before[name]) for name in moments)
    assert model.tolist() == [1, 1] and target.tolist() == [2, 2]


@pytest.mark.parametrize("optimizer", ["momentum", "adagrad"])
@pytest.mark.parametrize("averaging", [{"ema": 0.9}, {"swa": 2}])
def test_state_follows_the_model_to_its_device(optimizer, averaging):
    """A run that is resumed has its state on the CPU, and the aggregator's result on the device of the replies."""
    average, rule = ModelAverage(Averaging(**averaging), LAYOUT), ServerStep(optimizer=optimizer)
    _, moments = server_step(rule, {}, numbers(0, 0), numbers(1, 1))
    found = ROUNDS[0].to("meta")
    after, moments = server_step(rule, moments, numbers(0, 0), found[:2])
    state = average.with_model(average.with_model({}, ROUNDS[0]), found)
    assert {one.device.type for one in (after, *moments.values())} == {"meta"}
    assert average.served(state, found).device.type == "meta"
    assert average.tensors(state)[-1].device.type == "meta"


# The chain


def chain(averaging: dict[str, Any] | None = None, **optimizer: Any) -> ServerChain:
    return ServerChain(LAYOUT, ServerStep(**optimizer), Averaging(**(averaging or {})))


def test_without_an_optimiser_the_aggregators_result_is_the_model():
    found = numbers(1, 2, 3, 4, 5)
    assert chain().step(numbers(0, 0, 0, 0, 0), found) is found
    assert chain().served(found) is found


def test_the_optimiser_leaves_buffers_to_the_aggregator():
    one = chain(optimizer="momentum", rate=0.5)
    after = one.step(numbers(0, 0, 1, 1, 1), numbers(2, 4, 9, 8, 7))
    assert after is not None
    assert after.tolist() == [1, 2, 9, 8, 7]
    assert one.state.moments["velocity"].tolist() == [2, 4]


ROUNDS = (numbers(1, 10, 0, 1, 5), numbers(2, 10, 3, 4, 5), numbers(6, 10, 6, 7, 5))


def served(averaging: dict[str, Any], models: tuple[Tensor, ...] = ROUNDS) -> list[float]:
    one, before = chain(averaging), numbers(99, 99, 99, 99, 99)
    for model in models:
        assert one.step(before, model) is model, "training goes on from the model itself"
        before = model
    return one.served(before).tolist()


def test_a_window_is_the_mean_of_its_last_rounds_with_pooled_variances():
    assert served({"swa": 5}, ROUNDS[:1]) == ROUNDS[0].tolist()
    # Of rounds 2 and 3: the variance is mean(4 + 9, 7 + 36) - 4.5².
    assert served({"swa": 2}) == pytest.approx([4, 10, 4.5, (13 + 43) / 2 - 4.5**2, 5], rel=1e-12)
    assert served({"swa": 3}) == pytest.approx([3, 10, 3, (1 + 13 + 43) / 3 - 9, 5], rel=1e-12)


def test_an_exponential_average_weighs_rounds_by_their_age_and_pools_variances():
    assert served({"ema": 0.5}, ROUNDS[:1]) == ROUNDS[0].tolist()
    # Weights 1/4, 1/2 and 1 over 7/4.
    shares = np.array([1, 2, 4]) / 7
    first = shares @ np.array([1, 2, 6])
    middle = shares @ np.array([0, 3, 6])
    spread = shares @ np.array([1 + 0, 4 + 9, 7 + 36]) - middle**2
    assert served({"ema": 0.5}) == pytest.approx([first, 10, middle, spread, 5], rel=1e-12)


@pytest.mark.parametrize("averaging", [{"swa": 3}, {"ema": 0.9}])
def test_variances_stay_positive_where_means_are_large(averaging):
    models = tuple(torch.tensor([0, 0, 1e4 + place, 1e-4, 0], dtype=torch.float32) for place in (0, 0, 0))
    assert served(averaging, models)[3] == pytest.approx(1e-4, rel=1e-5)


# In a method


class Told(Aggregator):
    """Returns what it is told to, and remembers the steps that the server took."""

    def __init__(self, *results: Tensor) -> None:
        self.results = list(results)
        self.steps: list[Tensor] = []

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        return self.results.pop(0)

    def stepped(self, t: int, before: Tensor, after: Tensor) -> None:
        self.steps.append(after - before)


def method(aggregator: Aggregator, averaging: dict[str, Any] | None = None, **optimizer: Any) -> OneModel:
    return OneModel(
        Setting(3, 3, 9, 10, 0, LAYOUT, Local()),
        numbers(1, 1, 1, 1, 1),
        Uniform(),
        aggregator,
        limits=GuardLimits(norm=0),
        optimizer=ServerStep(**optimizer),
        averaging=Averaging(**(averaging or {})),
    )


def replies(count: int = 3, value: float = 1.0) -> Replies:
    states = torch.full((count, 5), value, dtype=torch.float64)
    ones = torch.ones(count, dtype=torch.int64)
    return checked(Replies(np.arange(count), states, ones, ones.double()))


def content(one: OneModel) -> dict[str, list[float]]:
    """The model, moments and averages of a method."""
    state = one.state_dict()
    server = state.get("server", {})
    kept = {**server.get("moments", {}), **server.get("average", {})}
    found = {name: value.tolist() for name, value in kept.items() if isinstance(value, Tensor)}
    return {"model": state["model"].tolist(), **found, "weight": [kept.get("weight", 0.0)]}


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "yogi", "adagrad"])
def test_rounds_that_change_nothing_do_not_move_the_chain(optimizer):
    target = numbers(2, 3, 2, 2, 2)
    one = method(Told(target, numbers(float("nan"), 1, 1, 1, 1), target), {"ema": 0.5}, optimizer=optimizer, rate=0.1)
    one.absorb(1, replies())
    before = content(one)
    assert before["model"] != [1, 1, 1, 1, 1]
    with pytest.warns(UserWarning, match="The aggregator Told returned NaN or infinity in round 2"):
        one.absorb(2, replies())
    assert one.figures() == {"model_kept": True}
    assert content(one) == before
    one.absorb(3, replies(0))
    assert content(one) == before, "no coasting on momentum"
    one.absorb(4, replies())
    assert content(one) != before
    assert isinstance(one.aggregator, Told)
    assert len(one.aggregator.steps) == 2


@pytest.mark.parametrize(("optimizer", "huge"), [("momentum", 1e308), ("adam", 1e200)])
def test_a_step_that_overflows_is_not_taken(optimizer, huge):
    """Adam's step is finite there, but its mean square is not: it would never move again."""
    far = numbers(huge, 1, 1, 1, 1)
    one = method(Told(far, numbers(2, 2, 2, 2, 2)), optimizer=optimizer, rate=10.0)
    with pytest.warns(UserWarning, match=r"The server's step \(optimizer \w+\) after the aggregator Told"):
        one.absorb(1, replies())
    assert content(one) == content(method(Told()))
    one.absorb(2, replies())
    assert all(math.isfinite(value) for values in content(one).values() for value in values)


@pytest.mark.parametrize("averaging", [{"ema": 0.5}, {"swa": 2}])
def test_a_model_that_is_rolled_back_leaves_no_trace_in_moments_and_averages(averaging, tmp_path):
    near, far = numbers(2, 2, 2, 2, 2), numbers(1e9, 1e9, 1e9, 1e9, 1e9)
    one = method(Told(near, far), averaging, optimizer="momentum")
    one.absorb(1, replies())
    before, given = content(one), one.models()
    one.absorb(2, replies())
    assert float(one.models().max()) > 1e8
    write_checkpoint(tmp_path, 2, one.state_dict())
    other = method(Told(), averaging, optimizer="momentum")
    _, state = read_checkpoint(tmp_path)
    assert state is not None
    other.load_state_dict(state)
    for restored in (one, other):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            restored.absorb(3, replies(value=float("nan")))
        assert restored.figures() == {"rolled_back": True}
        assert content(restored) == before
        assert torch.equal(restored.models(), given)
        assert "server_before" not in restored.state_dict()


def test_cmfl_sends_the_step_that_the_server_took():
    one = method(CMFL(), optimizer="momentum", rate=0.5)
    one.absorb(1, replies(value=3.0))
    assert isinstance(one.aggregator, CMFL)
    assert one.aggregator.update is not None
    # From 1 halfway to 3.
    assert one.aggregator.update.tolist() == [1, 1]
    one.absorb(2, replies(value=2.0))
    # v = 0.9·2 + 0: the clients' mean is where the model is, and momentum moves it on.
    assert one.aggregator.update.tolist() == pytest.approx([0.9, 0.9])


@pytest.mark.parametrize("around", [{"name": "norm-bound", "around": "cmfl"}, {"name": "ondemand", "inner": "cmfl"}])
def test_aggregators_around_cmfl_tell_it_the_step(around, tmp_path):
    small = {"hidden": 4} if around["name"] == "ondemand" else {}
    result = run({**SMALL, "rounds": 2, "aggregator": {**around, **small}, "server": MOMENTUM}, out=tmp_path / "run")
    earlier = run({**SMALL, "rounds": 1, "aggregator": {**around, **small}, "server": MOMENTUM}, out=tmp_path / "one")
    step = saved_state(result.folder)["model"] - saved_state(earlier.folder)["model"]
    assert torch.equal(saved_state(result.folder)["aggregator"]["inner"]["update"], step)


def test_a_checkpoint_of_another_kind_or_size_is_refused():
    one = method(Told(numbers(2, 2, 2, 2, 2)), {"ema": 0.5}, optimizer="momentum")
    one.absorb(1, replies())
    state = one.state_dict()
    for damaged, sentence in (
        ({"moments": {"velocity": numbers(1, 1, 1)}}, "the server's optimiser or average has"),
        ({"average": {"mean": numbers(1), "weight": 1.0}}, "the server's optimiser or average has"),
        ({"moments": {"mean": numbers(1, 1)}}, "the server's optimiser lacks moments"),
        ({"average": {"models": {"0": numbers(1, 1, 1, 1, 1)}}}, "the average over rounds is of another kind"),
        ({"average": {"mean": numbers(1, 1, 1, 1, 1), "weight": 0.0}}, "the average over rounds is of another kind"),
    ):
        damaged = {**state["server"], **damaged}
        with pytest.raises(Refusal, match=sentence):
            method(Told(), {"ema": 0.5}, optimizer="momentum").load_state_dict({**state, "server": damaged})


# Runs

CHAINS: dict[str, dict[str, Any]] = {
    "momentum-ema": {"server": MOMENTUM, "averaging": {"ema": 0.95}},
    "adam-swa": {"server": {"optimizer": "adam"}, "averaging": {"swa": 2}},
    "yogi": {"server": {"optimizer": "yogi"}},
    "adagrad": {"server": {"optimizer": "adagrad"}},
    "feddrl-set": {"aggregator": "feddrl-set", "server": MOMENTUM, "averaging": {"swa": 3}},
}


@pytest.mark.parametrize("name", list(CHAINS))
def test_a_run_ends_the_same_on_every_runtime_and_when_it_is_resumed(name, tmp_path):
    given = {**SMALL, "rounds": 5, "precision": "fp64", "devices": {"dropout": 0.3}, **CHAINS[name]}
    ends_the_same(given, tmp_path)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("fedavgm", "momentum"), ("fedadam", "adam"), ("fedyogi", "yogi"), ("fedadagrad", "adagrad")],
)
def test_a_method_by_name_is_fedavg_with_that_optimiser(name, optimizer, tmp_path):
    named = run({**SMALL, "method": name}, out=tmp_path / "named")
    plain = run({**SMALL, "server": {"optimizer": optimizer}}, out=tmp_path / "plain")
    assert without_timings(named.metrics) == without_timings(plain.metrics)
    other = Config.of({**SMALL, "method": name, "server": {"rate": 0.5}}).server
    assert other == ServerStep(optimizer=optimizer, rate=0.5)
    assert Config.of({**SMALL, "method": name, "server": {"optimizer": "none"}}).server == ServerStep()


def test_momentum_without_memory_and_at_rate_1_is_fedavg(tmp_path):
    given = {**SMALL, "precision": "fp64"}
    plain = run(given, out=tmp_path / "plain")
    other = run({**given, "server": {"optimizer": "momentum", "beta": 0.0}}, out=tmp_path / "other")
    assert [row["loss"] for row in other.metrics] == pytest.approx([row["loss"] for row in plain.metrics], rel=1e-12)
    moved = run({**given, "server": {"optimizer": "momentum"}}, out=tmp_path / "moved")
    assert moved.metrics[0]["loss"] == pytest.approx(plain.metrics[0]["loss"], rel=1e-12)
    assert abs(moved.metrics[-1]["loss"] - plain.metrics[-1]["loss"]) > 1e-4


def test_nothing_is_written_without_a_chain(tmp_path):
    result = run(SMALL, out=tmp_path / "run")
    assert set(saved_state(result.folder)) == {"model", "selector", "aggregator", "guard"}
    assert not any(key.startswith("raw") for row in result.metrics for key in row)


def final(result: covey.Run) -> Tensor:
    return Layout.of(result.model()).read(result.model())


@pytest.mark.parametrize("optimizer", ["none", "momentum"])
def test_the_average_is_evaluated_and_handed_out_while_training_goes_on_from_the_model(optimizer, tmp_path):
    given = {**SMALL, "rounds": 4, "server": {"optimizer": optimizer}, "environment": {"name": "dirichlet"}}
    averaged = run({**given, "averaging": {"swa": 2}}, out=tmp_path / "averaged")
    plain = run(given, out=tmp_path / "plain")
    assert [row["train_loss"] for row in averaged.metrics] == [row["train_loss"] for row in plain.metrics]
    for kind in ("accuracy", "loss"):
        raw = [row[f"raw_{kind}"] for row in averaged.metrics]
        assert raw == pytest.approx([row[kind] for row in plain.metrics], rel=1e-6)
    last, before = saved_state(plain.folder)["model"], run({**given, "rounds": 3}, out=tmp_path / "before")
    mean = (last.double() + saved_state(before.folder)["model"].double()) / 2
    assert torch.equal(saved_state(averaged.folder)["model"], last)
    assert torch.equal(final(averaged), mean.float())
    assert averaged.metrics[-1]["loss"] != averaged.metrics[-1]["raw_loss"]
    scored = averaged.evaluate()
    assert [scored[kind] for kind in ("accuracy", "loss")] == pytest.approx(
        [averaged.metrics[-1][kind] for kind in ("accuracy", "loss")], rel=1e-6
    )
    averaged.export(tmp_path / "model.safetensors")
    exported = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(exported[name], value) for name, value in averaged.model().state_dict().items())


def test_an_average_is_on_a_models_own_class_mix_too(tmp_path):
    result = run({**SMALL, "averaging": {"ema": 0.9}}, out=tmp_path / "run")
    row = result.metrics[-1]
    assert row["accuracy"] == pytest.approx(result.evaluate()["accuracy"])
    assert row["own_accuracy"] == pytest.approx(result.evaluate()["own_accuracy"])
    assert len(row["class_accuracy"]) == 10


def test_a_comparison_in_lockstep_has_the_runs_that_each_is_alone(tmp_path):
    given = {**SMALL, "runtime": "stacked", "device": "cpu", "precision": "fp64", "averaging": {"ema": 0.9}}
    compare(["fedavg", "fedavgm", "fedadam"], 1, out=tmp_path / "together", **given)
    for name in ("fedavg", "fedavgm", "fedadam"):
        alone = run({**given, "method": name}, out=tmp_path / name)
        together = covey.Run.open(tmp_path / "together" / name / "seed-0")
        assert (final(alone) - final(together)).norm() <= 1e-9 * final(alone).norm()
        for mine, theirs in zip(alone.metrics, together.metrics, strict=True):
            assert mine["raw_loss"] == pytest.approx(theirs["raw_loss"], rel=1e-9)
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-9)


def test_what_a_run_says_has_the_model_before_averaging_beside_the_average(tmp_path, covey_command):
    result = run({**SMALL, "averaging": {"ema": 0.9}}, out=tmp_path / "run")
    assert run_summary(result)["raw_accuracy"] == result.metrics[-1]["raw_accuracy"]
    page = report([result.folder]).read_text(encoding="utf-8")
    assert "before averaging" in page
    printed: Answer = covey_command(
        "run", "--rounds", 2, "--clients", 4, "--set", "averaging.swa=2", "--out", tmp_path / "other"
    )
    assert printed.code == 0 and "before averaging" in printed.out + printed.err
    plain = run(SMALL, out=tmp_path / "plain")
    assert "raw_accuracy" not in run_summary(plain)
    assert "before averaging" not in report([plain.folder]).read_text(encoding="utf-8")


def test_fine_tuning_starts_from_the_average_with_a_fresh_optimiser(tmp_path):
    base = run({**SMALL, "server": MOMENTUM, "averaging": {"ema": 0.9}}, out=tmp_path / "base")
    job = ondemand(base, "0=0.5,3=0.5", estimator="ground-truth", rounds=1, continued=True, out=tmp_path / "job")
    tuned = job.tailored[0].run
    assert tuned.config.server == base.config.server
    assert tuned.config.averaging == base.config.averaging
    moved = saved_state(tuned.folder)
    # One round at rate 0.3 from the average: w = e + 0.3·v.
    start = moved["model"] - 0.3 * moved["server"]["moments"]["velocity"]
    assert torch.allclose(start, final(base), atol=1e-6)
    assert job.continued is not None
    longer = run({**SMALL, "rounds": 4, "server": MOMENTUM, "averaging": {"ema": 0.9}}, out=tmp_path / "longer")
    assert torch.equal(saved_state(job.continued.folder)["model"], saved_state(longer.folder)["model"])
    assert torch.equal(final(job.continued), final(longer))
    one, last = job.tailored[0], job.continued.metrics[-1]
    assert one.continued is not None
    assert last["accuracy"] != last["raw_accuracy"]
    for scores, row in ((one.base, base.metrics[-1]), (one.continued, last)):
        assert scores.accuracy == pytest.approx(np.array(row["class_accuracy"]) @ one.tested_mix)
    with pytest.raises(Refusal, match="The averaging is that of the base run"):
        ondemand(base, "td1", estimator="ground-truth", rounds=1, out=tmp_path / "other", averaging={"swa": 2})


def test_a_base_run_continued_by_another_optimiser_begins_that_one_afresh(tmp_path):
    base = run({**SMALL, "server": MOMENTUM}, out=tmp_path / "base")
    other: dict[str, Any] = {"server.optimizer": "adam"}
    job = ondemand(base, "0=1", estimator="ground-truth", rounds=1, continued=True, out=tmp_path / "job", **other)
    assert job.continued is not None
    assert job.continued.config.server == ServerStep(optimizer="adam")
    assert set(saved_state(job.continued.folder)["server"]["moments"]) == {"mean", "square"}


# Settings


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"server": {"rate": 0.5}}, "server.rate has no effect with server.optimizer=none: leave it out"),
        ({"server": {"optimizer": "momentum", "beta2": 0.9}}, "server.beta2 has no effect .* or choose adam or yogi."),
        ({"server": {"optimizer": "momentum", "tau": 0.9}}, "server.tau has no effect with server.optimizer=momentum"),
        (
            {"server": {"optimizer": "adagrad", "beta2": 0.9}},
            "server.beta2 has no effect with server.optimizer=adagrad",
        ),
        ({"server": {"optimizer": "lion"}}, "server.optimizer must be one of none, momentum, adam, yogi, adagrad"),
        ({"server": {"optimizer": "adam", "rate": 0}}, r"server.rate must be above 0, not 0.0\."),
        ({"server": {"optimizer": "adam", "beta": 1}}, r"server.beta must be in \[0, 1\), not 1.0\."),
        ({"server": {"optimizer": "adam", "beta2": 1}}, r"server.beta2 must be in \[0, 1\), not 1.0\."),
        ({"server": {"optimizer": "adam", "tau": 0}}, r"server.tau must be above 0, not 0.0\."),
        ({"server": {"momentum": 0.9}}, "There is no setting 'server.momentum'."),
        ({"averaging": {"ema": 0.9, "swa": 3}}, "averaging.ema and averaging.swa are two ways to average: choose one"),
        ({"averaging": {"ema": 1}}, r"averaging.ema must be in \[0, 1\), not 1; 0 switches it off."),
        ({"averaging": {"swa": 1}}, "averaging.swa is a number of rounds from 2, or 0 for no averaging, not 1."),
        (
            {"method": "cfl", "server": MOMENTUM},
            "'cfl' keeps many models, and server.optimizer is for methods with one",
        ),
        ({"method": "local-only", "averaging": {"ema": 0.9}}, "'local-only' keeps many models, and averaging is for"),
        ({"method": "central", "server": MOMENTUM}, "With 'central' models stay with the clients"),
    ],
    ids=str,
)
def test_settings_that_are_wrong_or_have_no_effect_are_refused(given, sentence):
    with pytest.raises(Refusal, match=sentence):
        Config.of({**SMALL, **given})


@pytest.mark.parametrize("server", [{}, MOMENTUM, {"optimizer": "yogi"}, {"optimizer": "adagrad", "beta": 0.5}])
def test_a_resolved_configuration_resolves_to_itself(server):
    config = Config.of({**SMALL, "server": server, "averaging": {"swa": 3}})
    assert resolve(config.as_mapping()) == config
    assert Config.stored(config.as_mapping()) == config


def test_a_folder_without_these_sections_has_neither():
    mapping = Config.of(SMALL).as_mapping()
    del mapping["server"], mapping["averaging"]
    old = Config.stored(mapping)
    assert not old.server and not old.averaging


def test_another_optimiser_has_its_own_defaults():
    config = Config.of({**SMALL, "server": {**MOMENTUM, "beta": 0.5}})
    assert as_config(config, {"server.optimizer": "adam"}).server == ServerStep(optimizer="adam")
    assert as_config(config, {"server.rate": 0.1}).server == ServerStep(optimizer="momentum", beta=0.5, rate=0.1)
    assert as_config(config, {"rounds": 9}).server == config.server
    assert as_config(config, {"server.rate": 2, "server.optimizer": "momentum"}).server.rate == 2


def test_the_command_line_sets_the_chain(tmp_path, covey_command):
    sets = ["server.optimizer=momentum", "server.beta=0.8", "server.rate=0.3", "averaging.ema=0.95"]
    flags = [word for one in sets for word in ("--set", one)]
    answer = covey_command(
        "run", "--method", "feddrl", "--rounds", 1, "--clients", 4, *flags, "--out", tmp_path / "run"
    )
    assert answer.code == 0
    config = covey.Run.open(tmp_path / "run").config
    assert config.server == ServerStep(optimizer="momentum", beta=0.8, rate=0.3)
    assert config.averaging == Averaging(ema=0.95)
    refused = covey_command("run", "--set", "server.beta=0.8", "--out", tmp_path / "no")
    assert refused.code == 2 and "server.beta has no effect" in refused.err
    assert not Path(tmp_path / "no").exists()


def test_the_reference_central_can_be_averaged(tmp_path):
    result = run({**SMALL, "method": "central", "averaging": {"swa": 2}}, out=tmp_path / "run")
    plain = run({**SMALL, "method": "central"}, out=tmp_path / "plain")
    assert [row["raw_loss"] for row in result.metrics] == pytest.approx(
        [row["loss"] for row in plain.metrics], rel=1e-6
    )
    assert result.metrics[-1]["loss"] != result.metrics[-1]["raw_loss"]
