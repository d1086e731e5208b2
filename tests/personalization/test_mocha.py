"""MOCHA solves its problem in the dual; MOCHA for deep models pulls models towards their mean."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import covey
from covey import Config, Refusal, run
from covey.client.learner import Learner
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.messages import Order
from covey.job.experiment import Experiment
from covey.job.settings import describing
from covey.model import build_model
from covey.model.layout import Layout
from covey.personalization.mocha import Mocha, Subproblem, features_of
from covey.personalization.mocha_deep import DeepMocha
from covey.probe.insight import full_gradient
from covey.runtime import LocalRuntime, StackedRuntime
from tests.conftest import SMALL, learner_of
from tests.equal_runs import ends_the_same

CLIENTS, CLASSES, WIDTH = 4, 3, 3
LINEAR = {
    "method": "mocha",
    "workers": 1,
    "precision": "fp64",
    "model": {"name": "mlp", "hidden": ()},
    "local": {"epochs": 10},
}
SKEWED = {**SMALL, "environment": {"name": "dirichlet", "alpha": 0.3}, "precision": "fp64"}


def tiny(sizes=(12, 9, 15, 7)):
    """A few clients whose classes lie in somewhat different places."""
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(CLASSES, WIDTH))
    y = [rng.integers(CLASSES, size=size) for size in sizes]
    x = [centres[of] + 0.5 * rng.normal(size=WIDTH) + rng.normal(size=(len(of), WIDTH)) for of in y]
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    samples, labels = np.concatenate(x), np.concatenate(y)
    return covey.federation(samples, labels, parts, test=(samples, labels))


def problem(held):
    """Features `[n, features]`, bias included, and signs `[n, classes]` of every client."""
    module = build_model("mlp", {"hidden": ()}, held.dataset.shape, CLASSES, 0)
    learner = Learner(module, held.dataset, "fp64")
    state = learner.layout.read(module)
    samples = [held.samples(client) for client in range(held.clients)]
    return [(features_of(learner, state, one), 2 * np.eye(CLASSES)[one.y.numpy()] - 1) for one in samples]


def loss_of(columns, data):
    """The logistic loss of every class against the rest, summed over everybody's samples."""
    return sum(np.logaddexp(0, -signs * (x @ w.T)).sum() for w, (x, signs) in zip(columns, data, strict=True))


def gradient_of(columns, data):
    """Its gradient `[clients, classes, features]`."""
    pairs = zip(columns, data, strict=True)
    return np.stack([(-signs / (1 + np.exp(signs * (x @ w.T)))).T @ x for w, (x, signs) in pairs])


def solved(held, rounds, **many):
    """W `[clients, classes, features]` after so many rounds, and the figures of every round."""
    experiment = Experiment.of(Config.of({**LINEAR, **describing(held), "many": many}), held)
    method, runtime = experiment.method, experiment.runtime
    assert isinstance(method, Mocha)
    figures = []
    for t in range(1, rounds + 1):
        method.absorb(t, runtime.execute(method.order(t, runtime.available(t))))
        figures.append(method.figures())
    runtime.close()
    layers = method.setting.layout.head
    heads = [slot.of(method.models()).reshape(CLIENTS, CLASSES, -1).numpy() for slot in layers]
    return np.concatenate(heads, axis=2), figures


@pytest.mark.parametrize("lambda1", [0.0, 2.0])
def test_the_mean_regularised_problem_is_solved_as_an_optimiser_solves_it(lambda1):
    held = tiny()
    found, figures = solved(held, 80, lambda1=lambda1, lambda2=0.5, loss="logistic")
    data = problem(held)
    shape = (CLIENTS, CLASSES, WIDTH + 1)

    def objective(flat):
        columns = flat.reshape(shape)
        apart = columns - columns.mean(axis=0)
        value = loss_of(columns, data) + lambda1 * (apart**2).sum() + 0.5 * (columns**2).sum()
        gradient = gradient_of(columns, data) + 2 * lambda1 * apart + columns
        return value, gradient.ravel()

    reference = minimize(objective, np.zeros(shape).ravel(), jac=True, tol=1e-12)
    assert np.abs(found - reference.x.reshape(shape)).max() < 1e-4
    assert figures[-1]["primal"] == pytest.approx(reference.fun, rel=1e-6)
    assert figures[-1]["objective"] == pytest.approx(-reference.fun, rel=1e-6)
    # The pull is real: where it exists, the loss alone has a slope that it balances.
    slope = gradient_of(found, data) + found
    assert np.abs(slope).max() < 1e-3 if lambda1 == 0 else np.abs(slope).max() > 0.1
    assert np.abs(slope + 2 * lambda1 * (found - found.mean(axis=0))).max() < 1e-3


@pytest.mark.slow
def test_the_relation_between_clients_is_learned_as_an_optimiser_would():
    """With Ω minimised out, its term is λ1 (tr (WᵀW)^½)², the squared trace norm."""
    held = tiny()
    many = {"lambda1": 0.3, "lambda2": 0.2, "loss": "logistic", "omega_every": 4}
    found, _ = solved(held, 120, omega="learned", **many)
    data = problem(held)
    shape = (CLIENTS, CLASSES, WIDTH + 1)

    def objective(flat):
        columns = flat.reshape(CLIENTS, -1)
        values, vectors = np.linalg.eigh(columns @ columns.T)
        roots = np.sqrt(values.clip(0) + 1e-6)
        penalty = 0.3 * roots.sum() ** 2 + 0.2 * (columns**2).sum()
        slope = 2 * 0.3 * roots.sum() * (vectors / roots) @ vectors.T @ columns + 0.4 * columns
        wide = flat.reshape(shape)
        return loss_of(wide, data) + penalty, (gradient_of(wide, data) + slope.reshape(shape)).ravel()

    reference = minimize(objective, np.full(shape, 0.1).ravel(), jac=True, tol=1e-10)
    assert objective(found.ravel())[0] == pytest.approx(reference.fun, rel=1e-4)
    fixed, _ = solved(held, 40, omega="mean", **many)
    assert objective(fixed.ravel())[0] > 1.001 * reference.fun


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize(("participation", "dropout"), [("all", 0.0), ("all", 0.4), ("cohort", 0.0)])
def test_the_dual_objective_falls_every_round_whoever_takes_part(loss, participation, dropout, tmp_path):
    given = {**SKEWED, "rounds": 8, "method": "mocha", "devices": {"dropout": dropout}}
    result = run(given, many={"loss": loss, "participation": participation}, out=tmp_path / "run")
    objective = [row["figures"]["objective"] for row in result.metrics]
    assert all(after < before for before, after in zip([0.0, *objective], objective, strict=False))
    assert all(row["train_loss"] is None for row in result.metrics)


def test_with_a_learned_relation_the_objective_falls_from_what_each_estimate_makes_of_it(tmp_path):
    given = {**SKEWED, "rounds": 9, "method": "mocha"}
    many = {"omega": "learned", "omega_every": 3, "lambda1": 0.1}
    rows = [row["figures"] for row in run(given, many=many, out=tmp_path / "run").metrics]
    assert [at for at, row in enumerate(rows, 1) if "restated" in row] == [3, 6, 9]
    for before, after in pairwise(rows):
        assert after["objective"] < before.get("restated", before["objective"])
    assert rows[3]["objective"] > rows[2]["objective"]


def test_the_duality_gap_closes_and_so_proves_the_support_vector_machine_optimal():
    _, figures = solved(tiny(), 150, lambda2=0.5)
    gaps = [row["gap"] for row in figures]
    assert min(gaps) >= -1e-9
    assert gaps[-1] < 1e-3 * figures[-1]["primal"]
    assert gaps[-1] < 1e-3 * gaps[0]


def test_coupling_changes_the_models_and_draws_them_together():
    spread = []
    for lambda1 in (0.0, 1.0, 1000.0):
        columns, _ = solved(tiny(), 40, lambda1=lambda1)
        spread.append(np.abs(columns - columns.mean(axis=0)).max())
    assert spread[0] > 1.5 * spread[1] > 20 * spread[2]


def test_dual_variables_stay_with_the_client_and_its_models_head_alone_travels() -> None:
    experiment = Experiment.of(Config.of({**SKEWED, "method": "mocha"}))
    order = experiment.method.order(1, np.arange(8))
    replies = experiment.runtime.execute(order)
    experiment.runtime.close()
    assert set(replies.probes["subproblem"]) == {"change", "loss", "conjugates"}
    sizes = experiment.federation.sizes
    assert [replies.kept["subproblem"][client]["duals"].shape for client in range(8)] == [(n, 10) for n in sizes]
    head = 8 * 10 * 17
    assert 8 * head < replies.bytes_up < 8 * (head + 600)
    assert 8 * head < order.bytes_down() < 8 * (head + 800)
    everybody = Subproblem(np.zeros((1, 1, 1)), np.zeros(1), {}, "hinge", 1)
    with pytest.raises(TypeError, match="own part"):
        everybody.measure(None, None, None, None, 0)  # type: ignore[arg-type]


def test_only_the_last_layer_differs_between_clients_and_it_serves_their_mix(tmp_path):
    given = {**SKEWED, "rounds": 8, "local": {"epochs": 3}, "model": {"name": "mlp", "hidden": (64,)}}
    result = run(given, method="mocha", out=tmp_path / "run")
    first, second = (dict(result.model(client).named_parameters()) for client in (0, 1))
    for name, value in first.items():
        assert torch.equal(value, second[name]) != name.startswith("layers.head")
    assert result.metrics[-1]["own_accuracy"] > 0.85


def test_features_of_a_trained_model_can_be_given(tmp_path):
    run(SMALL, rounds=20, local={"epochs": 5}, out=tmp_path / "trained").export(tmp_path / "body.safetensors")
    given = {**SMALL, "method": "mocha", "rounds": 5}
    raw = run(given, out=tmp_path / "raw")
    result = run(given, many={"features": str(tmp_path / "body.safetensors")}, out=tmp_path / "run")
    assert result.metrics[-1]["accuracy"] > raw.metrics[-1]["accuracy"] + 0.05
    other = {**given, "model": {"name": "mlp", "hidden": (8,)}}
    with pytest.raises(Refusal, match="holds another model"):
        run(other, many={"features": str(tmp_path / "body.safetensors")}, out=tmp_path / "other")
    with pytest.raises(Refusal, match="cannot be read"):
        run(given, many={"features": str(tmp_path / "absent")}, out=tmp_path / "absent")
    # A run holds what it has taken.
    scores = result.evaluate()
    (tmp_path / "body.safetensors").unlink()
    assert result.evaluate() == scores


LEARNED = {"omega": "learned", "omega_every": 2, "loss": "logistic"}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "many"), [("mocha", LEARNED), ("mocha-deep", {"participation": "cohort"})])
def test_runtimes_workers_and_a_resume_end_the_same(method, many, tmp_path):
    given = {**SKEWED, "rounds": 5, "method": method, "many": many, "devices": {"dropout": 0.2}}
    ends_the_same(given, tmp_path)


def test_a_step_of_the_deep_form_takes_the_slope_of_the_pull_towards_the_mean():
    work = {"epochs": 1, "batch": 0, "rate": 0.1}
    experiment = Experiment.of(Config.of({**SKEWED, "method": "mocha-deep", "local": work, "many": {"coupling": 0.5}}))
    method, runtime = experiment.method, experiment.runtime
    learner = learner_of(experiment)
    method.absorb(1, runtime.execute(method.order(1, np.arange(8))))
    before = method.models().clone()
    mean = before.mean(dim=0)
    method.absorb(2, runtime.execute(method.order(2, np.arange(8))))
    for client in range(8):
        gradient = full_gradient(learner, before[client].clone(), experiment.federation.samples(client))
        pull = 0.5 * (before[client] - mean)
        assert pull.norm() > 0.01 * gradient.norm()
        expected = before[client] - 0.1 * (gradient + pull)
        assert torch.allclose(method.models()[client], expected, rtol=0, atol=1e-13)
    runtime.close()


def test_without_coupling_the_deep_form_is_local_only_and_with_it_clients_come_together(tmp_path):
    alone = run(SKEWED, method="local-only", out=tmp_path / "alone")
    results = {}
    for coupling in (0.0, 0.1, 1.0):
        many = {"coupling": coupling}
        results[coupling] = run(SKEWED, method="mocha-deep", many=many, out=tmp_path / str(coupling))
    ours, theirs = (Layout.of(result.model(3)).read(result.model(3)) for result in (results[0.0], alone))
    assert torch.equal(ours, theirs)
    apart = [result.metrics[-1]["figures"]["distance_from_mean"] for result in results.values()]
    assert apart[0] > 1.05 * apart[1] > 1.2 * apart[2]


def test_the_deep_form_sends_the_mean_down_and_the_clients_model_up():
    experiment = Experiment.of(Config.of({**SMALL, "method": "mocha-deep"}))
    order = experiment.method.order(1, np.arange(8))
    replies = experiment.runtime.execute(order)
    experiment.runtime.close()
    assert order.anchor is not None
    size = 4 * len(order.anchor)
    assert 8 * size < order.bytes_down() < 8 * (size + 1000)
    assert 8 * size < replies.bytes_up < 8 * (size + 1000)


def test_absent_clients_count_in_the_mean_with_the_model_that_they_had():
    experiment = Experiment.of(Config.of({**SKEWED, "method": "mocha-deep"}))
    method, runtime = experiment.method, experiment.runtime
    assert isinstance(method, DeepMocha)
    method.absorb(1, runtime.execute(method.order(1, np.array([1, 4]))))
    runtime.close()
    untouched = [client for client in range(8) if client not in (1, 4)]
    assert torch.equal(method.models()[untouched], method.models()[[0]].expand(6, -1))
    assert torch.allclose(method.mean, method.models().mean(dim=0))


@pytest.mark.parametrize("each", [False, True])
def test_an_anchor_is_pulled_to_on_both_runtimes_and_follows_its_client(each):
    federation = build_federation(Config.of(SKEWED))
    module = build_model("mlp", {"hidden": (16,)}, (1, 8, 8), 10, 0)
    start = Layout.of(module).read(module).double()
    anchor = torch.stack([start + shift for shift in (0.0, 0.5, -1.0)]) if each else start + 0.5
    work = Local(epochs=2, batch=7, rate=0.05, proximal=0.7)
    order = Order(2, np.array([1, 3, 6]), start, work, anchor=anchor)
    replies = []
    for kind in (LocalRuntime, StackedRuntime):
        runtime = kind(federation, module, precision="fp64")
        replies.append(runtime.execute(order))
        part = runtime.execute(order.take(np.array([0, 2])))
        assert torch.allclose(part.states, replies[-1].states[[0, 2]], rtol=0, atol=1e-12)
        runtime.close()
    assert torch.allclose(replies[0].states, replies[1].states, rtol=0, atol=1e-12)
    plain = Order(2, order.clients, start, work)
    runtime = LocalRuntime(federation, module, precision="fp64")
    moved = (replies[0].states - runtime.execute(plain).states).mean(dim=1)
    runtime.close()
    assert [round(float(value), 3) != 0 for value in moved] == ([False, True, True] if each else [True] * 3)
    if each:
        assert moved[1] > 0 > moved[2]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"many": {"lambda1": -1}}, "many.lambda1 must not be negative, not -1."),
        ({"many": {"lambda2": 0}}, "many.lambda2 must be above 0, not 0."),
        ({"many": {"omega_every": 0}}, "many.omega_every must be at least 1, not 0."),
        ({"method": "mocha-deep", "many": {"coupling": -1}}, "many.coupling must not be negative, not -1."),
        ({"method": "mocha-deep", "local": {"proximal": 0.1}}, "local.proximal, which pulls towards the model"),
        (
            {"dataset": {"name": "synthetic", "shape": (3, 16, 16), "train": 60, "test": 20}, "model": "mobilenetv2"},
            "needs a model that ends in a linear layer",
        ),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(given, sentence):
    with pytest.raises(Refusal, match=sentence):
        Experiment.of(Config.of({"method": "mocha", "clients": 4, "cohort": 2, "environment": "iid", **given}))
