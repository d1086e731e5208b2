"""Class shares from gradients: exact at a zero head, learned by a predictor, and with noise."""

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from covey import Config, Refusal
from covey.aggregation.share_predictor import WithPredictor
from covey.arrays import FloatArray, IntArray
from covey.client.batches import batches
from covey.client.learner import Learner
from covey.client.step_trace import StepRecorder
from covey.config.sections import Local
from covey.core.interfaces import Runtime
from covey.core.messages import Fault, Order
from covey.core.one_model import OneModel
from covey.core.replies import Replies, checked
from covey.data.dataset import Samples
from covey.job.experiment import Experiment
from covey.job.on_demand.class_shares import Estimator, estimated
from covey.model import build_model
from covey.model.layout import Layout
from covey.probe.class_query import (
    ClassQuery,
    Privacy,
    bounded_bias_gradient,
    clipped_gradient,
    cost_of_privacy,
    nearest_mix,
    zero_head,
)
from covey.probe.predictor import (
    ClassPredictor,
    Pairs,
    PredictorProbe,
    PrivatePredictorProbe,
    initial_predictor,
    predicted,
    predictor_size,
)
from covey.probe.predictor_fit import RecordedSteps
from covey.randomness import key, permutation
from covey.runtime import LocalRuntime

SMALL: dict[str, Any] = {
    "environment": {"name": "dirichlet", "alpha": 0.1},
    "clients": 40,
    "workers": 1,
    "rounds": 3,
    "selector": "uniform",
    "aggregator": {"name": "ondemand", "hidden": 16, "epochs": 2},
    "local": {"epochs": 1, "batch": 5, "rate": 0.05, "momentum": 0.9},
}


FEW: dict[str, Any] = {
    "precision": "fp64",
    "clients": 6,
    "cohort": 3,
    "environment": {"name": "uniform", "samples": 12},
    "aggregator": {**SMALL["aggregator"], "batch": 2},
}
"""Clients with three gradients each, which make a batch."""


def experiment(**given: Any) -> Experiment:
    return Experiment.of(Config.of({**SMALL, **given}))


def play(one: Experiment, rounds: range, candidates: IntArray | None = None, runtime: Runtime | None = None) -> None:
    method, runtime = one.method, runtime or one.runtime
    for t in rounds:
        order = method.order(t, runtime.available(t) if candidates is None else candidates)
        method.absorb(t, checked(runtime.execute(order)))


def errors(one: Experiment, estimator: Estimator, **more: Any) -> FloatArray:
    found, _, _ = estimated(one, 0, estimator, **more)
    return found.errors(one.federation.truth.shares)


def uniform_errors(one: Experiment) -> FloatArray:
    truth = one.federation.truth.shares
    off: FloatArray = np.abs(truth - 1 / truth.shape[1]).sum(axis=1)
    return off


def model_of(one: Experiment) -> torch.Tensor:
    assert isinstance(one.method, OneModel)
    return one.method.model


def aggregator_of(one: Experiment) -> WithPredictor:
    assert isinstance(one.method, OneModel)
    assert isinstance(one.method.aggregator, WithPredictor)
    return one.method.aggregator


# --- in closed form


@pytest.mark.parametrize("rounds", [0, 5])
def test_a_zero_head_gives_exact_class_shares_for_any_model(rounds):
    one = experiment()
    play(one, range(1, rounds + 1))
    assert errors(one, "analytic").max() < 1e-5


def test_without_a_zero_head_the_error_is_small_at_a_fresh_model_and_large_at_a_trained_one():
    """Measured here: 0.02 at a fresh model and 0.66 after ten rounds, where a uniform guess is off by 1.43."""
    one = experiment()
    fresh = errors(one, "analytic-as-is")
    play(one, range(1, 11))
    trained = errors(one, "analytic-as-is")
    guess = uniform_errors(one).mean()
    assert fresh.mean() < 0.05
    assert 10 * fresh.mean() < trained.mean() < guess


LEAF: dict[str, Any] = {"dataset": "digits", "clients": 12, "model": {"name": "leaf-cnn"}}


def test_without_a_bias_shares_are_exact_if_classes_have_the_same_mean_feature():
    """The no-bias CNN of the paper is off by 0.03; with a bias in its last layer there is nothing to assume."""
    plain = experiment(**LEAF)
    play(plain, range(1, 3))
    assert errors(plain, "analytic").mean() < 0.1
    with_bias = experiment(**{**LEAF, "model": {"name": "leaf-cnn", "head_bias": True}})
    assert errors(with_bias, "analytic").max() < 1e-5
    assert any("Class shares are approximate" in note for note in estimated(plain, 0, "analytic")[1])
    assert estimated(with_bias, 0, "analytic")[1] == []
    with pytest.raises(Refusal, match="only a zero head tells"):
        estimated(plain, 0, "analytic-as-is")
    with pytest.raises(Refusal, match="last layer has a bias"):
        estimated(plain, 0, "analytic", insight_dp="1,1e-5")


class Scaled(nn.Module):
    """A model that changes its last layer's output."""

    head = "last"

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(math.prod(shape), 12)
        self.last = nn.Linear(12, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(F.relu(self.body(x.flatten(1))))
        return 3 * logits


def test_a_model_that_scales_its_logits_is_not_mistaken_for_one_that_does_not():
    one = experiment(model={"name": "tests.probe.test_class_query:Scaled"})
    assert errors(one, "analytic").mean() < 0.2


def test_unreachable_clients_are_asked_again_and_count_as_uniform_if_they_never_reply():
    one = experiment(devices={"availability": 0.5, "dropout": 0.2})
    found, notes, (up, down) = estimated(one, 0, "analytic")
    heard = found.seen > 0
    assert 0.6 < heard.mean() < 1
    assert set(found.seen.tolist()) == {0, 1, 2, 3}
    np.testing.assert_allclose(found.shares[~heard], 0.1)
    assert np.isnan(found.sizes[~heard]).all()
    assert notes == [f"Nothing is known of {(~heard).sum()} of 40 clients; uniform class shares are assumed."]
    assert 0 < up < down


def test_late_answers_are_compared_with_those_of_all_clients():
    """At a fresh model all estimates are equally good, whichever survey a client answered."""
    one = experiment(devices={"availability": 0.9})
    found, _, _ = estimated(one, 0, "analytic-as-is")
    assert (found.seen > 0).all()
    assert 0 < (found.seen > 1).sum() < 8
    off = found.errors(one.federation.truth.shares)
    assert off[found.seen > 1].mean() < 0.05


def counted(one: Experiment) -> np.ndarray:
    """`[clients]`: the number of times that each is asked."""
    counts, execute = np.zeros(one.federation.clients, dtype=int), one.runtime.execute

    def counting(order: Order) -> Replies:
        counts[order.clients] += 1
        return execute(order)

    one.runtime.execute = counting  # type: ignore[method-assign]
    return counts


def test_no_client_is_asked_twice_if_each_answer_spends_privacy():
    """Clients that cannot be reached at first are asked later; those whose answer is lost are not asked again."""
    one = experiment(devices={"availability": 0.5, "dropout": 0.4})
    counts = counted(one)
    found, notes, _ = estimated(one, 0, "analytic", insight_dp="1,1e-5")
    assert counts.max() == 1
    assert len(set(found.seen.tolist()) - {0}) > 1
    lost = int(((counts == 1) & (found.seen == 0)).sum())
    assert lost > 0
    assert any(note.startswith(f"No usable answer came from {lost} of the clients that were asked.") for note in notes)
    open_ = experiment(devices={"availability": 0.5, "dropout": 0.4})
    counts = counted(open_)
    _, notes, _ = estimated(open_, 0, "analytic")
    assert counts.max() == 3
    assert not any("No usable answer" in note for note in notes)


def test_a_survey_with_a_noisy_predictor_asks_once_and_reports_the_privacy_spent():
    given = {"name": "ondemand", "hidden": 4, "epochs": 1, "insight_dp": "4,1e-5"}
    one = experiment(aggregator=given, devices={"dropout": 0.4}, cohort=10)
    play(one, range(1, 3))
    most = int(aggregator_of(one).answers.max())
    counts = counted(one)
    _, notes, _ = estimated(one, 2, "learned", survey=True)
    assert set(counts.tolist()) == {1}
    assert any(note.startswith("No usable answer came from ") for note in notes)
    spent = Privacy(4, 1e-5).after(most + 1)
    assert any(note.endswith(f"has spent ε = {spent:.3g}.") for note in notes)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.integers(0, 10_000))
def test_the_nearest_mix_is_a_mix_and_no_other_is_nearer(classes, seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(0.2, 0.6, (4, classes))
    found = nearest_mix(values)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert np.all(found >= 0)
    np.testing.assert_allclose(nearest_mix(found), found, atol=1e-12)
    others = rng.dirichlet([0.5] * classes, 200)
    distance = np.linalg.norm(found - values, axis=1)
    assert np.all(distance <= np.linalg.norm(others[:, None] - values, axis=2).min(axis=0) + 1e-9)


# --- the predictor


def test_the_predictor_is_the_papers():
    module = ClassPredictor(512 * 10, 10)
    assert sum(parameter.numel() for parameter in module.parameters()) == 1_390_602
    big = ClassPredictor(1280 * 100, 100)
    assert sum(parameter.numel() for parameter in big.parameters()) == 33_116_772
    shares = module.eval()(torch.randn(3, 5120))
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(3))


def learner_of(one: Experiment) -> Learner:
    config, dataset = one.config, one.federation.dataset
    module = build_model(config.model.name, dict(config.model.options), dataset.shape, dataset.classes, config.seed)
    return Learner(module, dataset)


def test_gradients_are_those_of_the_last_layers_weight_on_mini_batches():
    one = experiment()
    learner, samples = learner_of(one), one.federation.samples(3)
    state = model_of(one)
    pairs = Pairs.of(learner, state, samples, [len(samples)], 5, key=1)
    assert pairs.counts == [math.ceil(len(samples) / 5)]
    np.testing.assert_allclose(5 * pairs.shares[:-1].sum(dim=1), 5)
    np.testing.assert_allclose(5 * pairs.shares[:-1], (5 * pairs.shares[:-1]).round(), atol=1e-5)
    np.testing.assert_allclose(pairs.mean(pairs.shares)[0], one.federation.truth.shares[3], atol=1e-6)
    learner.place(state)
    weight = learner.module.get_parameter("layers.head.weight")
    with torch.enable_grad():
        (expected,) = torch.autograd.grad(learner.loss(samples.x, samples.y), weight)
    torch.testing.assert_close(pairs.mean(pairs.gradients)[0], expected.flatten())


def test_gradients_may_be_those_of_the_steps_of_local_training():
    one = experiment()
    learner, samples, other = learner_of(one), one.federation.samples(3), one.federation.samples(5)
    state, work = model_of(one), Local(epochs=2, batch=5, rate=0.05, momentum=0.9, weight_decay=0.1)
    both = Samples(torch.cat([samples.x, other.x]), torch.cat([samples.y, other.y]))
    pairs = Pairs.along(learner, state, both, [len(samples), len(other)], work, 1, key=1)
    assert pairs.counts == [2 * math.ceil(len(samples) / 5), 2 * math.ceil(len(other) / 5)]
    np.testing.assert_allclose(pairs.mean(pairs.shares)[0], one.federation.truth.shares[3], atol=1e-6)
    np.testing.assert_allclose(pairs.mean(pairs.shares)[1], one.federation.truth.shares[5], atol=1e-6)
    # The same by hand: weight decay and momentum change the step, but are no part of the gradient.
    weight = learner.module.get_parameter("layers.head.weight")
    parameters = list(learner.module.parameters())
    learner.layout.bind(learner.module, state.clone())
    optimiser = torch.optim.SGD(parameters, 0.05, 0.9, weight_decay=0.1)
    expected = []
    for epoch in range(2):
        for x, y in batches(samples, work, key(1, epoch)):
            optimiser.zero_grad()
            learner.loss(x, y).backward()
            assert weight.grad is not None
            expected.append(weight.grad.flatten().clone())
            optimiser.step()
    torch.testing.assert_close(pairs.gradients[: pairs.counts[0]], torch.stack(expected))
    alone = Pairs.along(learner, state, other, [len(other)], work, 1, key=1)
    torch.testing.assert_close(pairs.gradients[pairs.counts[0] :], alone.gradients)


def test_the_papers_gradients_are_an_option_that_trains_another_predictor():
    chosen = {**FEW["aggregator"], "gradients": "training"}
    local, stacked = (
        experiment(**{**FEW, **more, "aggregator": chosen}) for more in ({}, {"runtime": "stacked", "device": "cpu"})
    )
    plain = experiment(**{**FEW, "aggregator": {**FEW["aggregator"], "gradients": "received"}})
    for one in (local, stacked, plain):
        play(one, range(1, 3))
    predictors = [aggregator_of(one).predictor for one in (local, stacked, plain)]
    torch.testing.assert_close(predictors[0], predictors[1], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(predictors[0], predictors[2], rtol=1e-3)
    assert torch.equal(model_of(local), model_of(plain))


@pytest.mark.parametrize("sends", ["shares", "gradient"])
@pytest.mark.parametrize("gradients", ["received", "training", "mixed"])
def test_the_stack_estimates_what_single_clients_do_in_every_form(sends, gradients):
    given = {**FEW, "aggregator": {**FEW["aggregator"], "sends": sends, "gradients": gradients}}
    local, stacked = (experiment(**{**given, **more}) for more in ({}, {"runtime": "stacked", "device": "cpu"}))
    for one in (local, stacked):
        play(one, range(1, 4))
    known, other = (aggregator_of(one).class_estimates() for one in (local, stacked))
    assert known.seen.tolist() == other.seen.tolist()
    np.testing.assert_allclose(known.shares, other.shares, atol=1e-5)
    assert np.abs(known.shares[known.seen > 0] - 0.1).max() > 1e-3


def test_mixed_gradients_are_read_at_the_model_received_and_taken_there_if_no_steps_are_known():
    """As of a client that trains by a function of its own."""
    probes = {}
    for gradients in ("received", "training", "mixed"):
        one = experiment(**{**FEW, "aggregator": {**FEW["aggregator"], "gradients": gradients}})
        learner, samples, state = learner_of(one), one.federation.samples(3), model_of(one)
        probes[gradients] = probe_of(one).measure(learner, state, state, samples, 0)
    assert torch.equal(probes["mixed"]["predictor"], probes["received"]["predictor"])
    assert torch.equal(probes["mixed"]["shares"], probes["received"]["shares"])
    assert not torch.equal(probes["mixed"]["shares"], probes["training"]["shares"])


@pytest.mark.parametrize("runtime", [{}, {"runtime": "stacked", "device": "cpu"}], ids=["local", "stacked"])
def test_by_default_the_predictor_learns_from_the_steps_of_the_clients_own_training(runtime):
    one = experiment(**{**FEW, **runtime})
    order = one.method.order(1, np.arange(6))
    (probe,) = order.probes
    assert isinstance(probe, PredictorProbe)
    replies = checked(one.runtime.execute(order))
    learner = Learner(learner_of(one).module, one.federation.dataset, "fp64")
    for place, client in enumerate(replies.clients.tolist()):
        recorder = StepRecorder(learner)
        samples, own = one.federation.samples(client), key(one.config.seed, 1, client)
        trained, _ = learner.fit(order.start, samples, one.config.local, 1, own, on_step=recorder)
        torch.testing.assert_close(replies.states[place], trained)
        pairs = Pairs.of_steps([recorder.trace()])
        np.testing.assert_allclose(pairs.mean(pairs.shares)[0], one.federation.truth.shares[client], atol=1e-6)
        expected = probe.trained(pairs, RecordedSteps())[0]
        torch.testing.assert_close(replies.probes["predictor"]["predictor"][place], expected, rtol=1e-4, atol=1e-6)


def test_with_noise_gradients_are_taken_at_the_model_received():
    one = experiment(aggregator={"name": "ondemand", "hidden": 4, "insight_dp": "4,1e-5"})
    assert aggregator_of(one).gradients == "received"
    assert aggregator_of(experiment(aggregator={"name": "ondemand", "hidden": 4})).gradients == "mixed"


def probe_of(one: Experiment, **changes: Any) -> PredictorProbe:
    probe = aggregator_of(one).query(1, 2)
    assert isinstance(probe, PredictorProbe)
    return replace(probe, **changes)


def test_predictor_training_is_sgd_on_scaled_squared_errors():
    """Against torch's own modules and optimizer, for clients of different sizes, one without a whole batch."""
    one = experiment(numbering="environment", aggregator={**SMALL["aggregator"], "gradients": "received"})
    learner, state = learner_of(one), model_of(one)
    held = [one.federation.samples(client) for client in (3, 8, 11)]
    counts = [len(samples) for samples in held]
    together = Samples(torch.cat([samples.x for samples in held]), torch.cat([samples.y for samples in held]))
    probe = probe_of(one, epochs=3, batch=5)
    fields = probe.measure_cohort(learner, state, state.expand(3, -1), together, counts)
    for place, samples in enumerate(held):
        pairs = Pairs.of(learner, state, samples, [len(samples)], 5, probe.key)
        module = ClassPredictor(pairs.gradients.shape[1], 10, 16).train()
        layout = Layout.of(module)
        layout.bind(module, probe.predictor.clone())
        optimizer = torch.optim.SGD(module.parameters(), lr=0.001, momentum=0.5)
        for epoch in range(3):
            order = permutation(key(probe.key, epoch, "pairs"), len(pairs.gradients))
            for chosen in order.split(5):
                if len(chosen) == 5:
                    optimizer.zero_grad()
                    F.mse_loss(10 * module(pairs.gradients[chosen]), 10 * pairs.shares[chosen]).backward()
                    optimizer.step()
        torch.testing.assert_close(fields["predictor"][place], layout.read(module), rtol=1e-4, atol=1e-6)
        assert int(fields["gradients"][place]) == (len(pairs.gradients) if place != 1 else 0)
    assert not torch.equal(fields["predictor"][0], fields["predictor"][1])


def test_a_client_with_less_than_a_batch_of_gradients_does_not_train():
    one = experiment()
    learner, samples, state = learner_of(one), one.federation.samples(3), model_of(one)
    probe = probe_of(one, batch=1_000)
    fields = probe.measure(learner, state, state, samples, 7)
    assert int(fields["gradients"]) == 0
    torch.testing.assert_close(fields["predictor"], probe.predictor)


def replies_of(clients: list[int], fields: dict[str, torch.Tensor]) -> Replies:
    count = len(clients)
    states = torch.zeros(count, 650)
    samples = torch.tensor([10] * count)
    return Replies(np.array(clients), states, samples, torch.zeros(count).double(), {"predictor": fields})


def test_predictors_are_averaged_by_numbers_of_gradients_including_batch_norm():
    one = experiment(aggregator={"name": "ondemand", "hidden": 4, "sends": "shares"})
    aggregator = aggregator_of(one)
    size = len(aggregator.predictor)
    predictors = torch.stack([torch.full((size,), value) for value in (1.0, 3.0, 100.0)])
    shares = torch.full((3, 10), 0.1)
    fields = {"predictor": predictors, "gradients": torch.tensor([6, 2, 0]), "shares": shares}
    aggregator.learn(4, replies_of([2, 5, 7], fields))
    torch.testing.assert_close(aggregator.predictor, torch.full((size,), 1.5))
    nobody = {"predictor": predictors, "gradients": torch.tensor([0, 0, 0]), "shares": shares}
    aggregator.learn(5, replies_of([2, 5, 7], nobody))
    torch.testing.assert_close(aggregator.predictor, torch.full((size,), 1.5))


def test_estimates_are_from_the_latest_participation_and_uniform_for_clients_never_seen():
    one = experiment(aggregator={"name": "ondemand", "hidden": 4, "sends": "shares"})
    aggregator = aggregator_of(one)
    first, second = torch.eye(10)[:2], torch.eye(10)[4:5]
    aggregator.learn(1, replies_of([2, 5], {"shares": first}))
    aggregator.learn(3, replies_of([5], {"shares": second}))
    aggregator.learn(4, replies_of([2], {"shares": torch.full((1, 10), math.nan)}))
    aggregator.learn(4, replies_of([2, 5], {"shares": torch.stack([torch.zeros(10), -torch.ones(10)])}))
    known = aggregator.class_estimates()
    np.testing.assert_allclose(known.shares[2], np.eye(10)[0])
    np.testing.assert_allclose(known.shares[5], np.eye(10)[4])
    np.testing.assert_allclose(known.shares[[0, 1, 39]], 0.1)
    assert known.seen[[0, 2, 5]].tolist() == [0, 1, 3]
    assert aggregator.figures()["clients_estimated"] == 2


MIXTURE: dict[str, Any] = {
    "dataset": {"name": "synthetic", "shape": (1, 8, 8), "train": 10_000, "test": 1_000, "difficulty": 0.9},
    "clients": 100,
    "cohort": 10,
    "seed": 1,
    "model": {"name": "mlp", "hidden": (64,)},
    "aggregator": {"name": "ondemand", "hidden": 64},
    "local": {"epochs": 1, "batch": 10, "rate": 0.01, "momentum": 0.9},
}


@pytest.fixture(scope="module")
def taught() -> Experiment:
    """A predictor trained by the first 75 of 100 clients."""
    torch.set_num_threads(1)
    one = experiment(**MIXTURE)
    play(one, range(1, 21), candidates=np.arange(75))
    return one


def asked(one: Experiment, clients: IntArray, **changes: Any) -> Mapping[str, torch.Tensor]:
    probe = aggregator_of(one).query(99)
    assert isinstance(probe, PredictorProbe | PrivatePredictorProbe)
    order = Order(99, clients, model_of(one), one.config.local, (replace(probe, **changes),), train=False)
    return checked(one.runtime.execute(order)).probes["predictor"]


@pytest.mark.slow
@pytest.mark.parametrize("sends", ["gradient", "shares"])
def test_the_predictor_is_far_better_than_a_uniform_guess_on_clients_it_never_saw(taught, sends):
    """Measured over three seeds: 0.84 to 0.87 by mean gradients, 0.83 to 0.89 by mini-batches; a guess has 1.46."""
    aggregator, strangers = aggregator_of(taught), np.arange(75, 100)
    answers = asked(taught, strangers, sends=sends)
    if sends == "gradient":
        found = predicted(aggregator.predictor, answers["gradient"], 10, 64).double().numpy()
    else:
        found = answers["shares"].double().numpy()
    off = np.abs(found - taught.federation.truth.shares[strangers]).sum(axis=1)
    assert off.mean() < 0.65 * uniform_errors(taught)[strangers].mean()
    np.testing.assert_allclose(answers["error"], off, atol=1e-4)


def test_estimates_of_the_base_run_are_better_than_a_uniform_guess_for_clients_seen(taught):
    """Each is by the predictor that the client received when it last took part, so early ones are worse."""
    known = aggregator_of(taught).class_estimates()
    seen = known.seen > 0
    assert seen[:75].mean() > 0.8
    assert not seen[75:].any()
    off, guess = known.errors(taught.federation.truth.shares), uniform_errors(taught)
    early, late = seen & (known.seen <= 10), known.seen > 10
    assert off[late].mean() < 0.7 * guess[late].mean()
    assert off[late].mean() < off[early].mean() < guess[early].mean()
    np.testing.assert_allclose(known.shares.sum(axis=1), 1)


def test_clients_send_the_mean_of_the_predictions_for_their_mini_batches():
    """Eq. 6, by the predictor that they received; the server keeps what they sent."""
    one = experiment(**FEW)
    play(one, range(1, 3))
    aggregator, before = aggregator_of(one), aggregator_of(one).predictor.clone()
    order = one.method.order(3, one.runtime.available(3))
    replies = checked(one.runtime.execute(order))
    one.method.absorb(3, replies)
    (probe,) = order.probes
    assert isinstance(probe, PredictorProbe)
    known = aggregator.class_estimates().shares
    for client, sent in zip(replies.clients.tolist(), replies.probes["predictor"]["shares"], strict=True):
        samples = one.federation.samples(client)
        pairs = Pairs.of(learner_of(one), order.start, samples, [len(samples)], probe.mini_batch, probe.key)
        expected = pairs.mean(predicted(before, pairs.gradients, 10, probe.hidden))[0]
        torch.testing.assert_close(sent, expected)
        np.testing.assert_allclose(known[client], expected / expected.sum(), atol=1e-6)
    assert "gradient" not in replies.probes["predictor"]


def test_estimates_follow_when_clients_mixes_change(taught):
    """Each client gets its neighbour's samples; estimates of clients that take part again are of the new ones."""
    one = experiment(**MIXTURE)
    one.method.load_state_dict(taught.method.state_dict())
    old = one.federation.truth.shares
    parts = one.federation.parts
    moved = replace(one.federation, parts=[*parts[1:], parts[0]])
    new = moved.truth.shares
    other = Experiment.of(one.config)
    runtime = LocalRuntime(moved, other.module, seed=1, workers=1)
    before = aggregator_of(one).class_estimates()
    play(one, range(21, 25), candidates=np.arange(40), runtime=runtime)
    after = aggregator_of(one).class_estimates()
    fresh, stale = after.seen > 20, (after.seen > 0) & (after.seen <= 20)
    assert fresh.sum() > 20
    assert after.errors(new)[fresh].mean() < 0.6 * before.errors(new)[fresh].mean()
    assert after.errors(new)[fresh].mean() < after.errors(old)[fresh].mean()
    assert after.errors(old)[stale].mean() < after.errors(new)[stale].mean()


def test_a_resumed_run_is_as_if_never_stopped():
    whole, halves = experiment(), experiment()
    play(whole, range(1, 5))
    play(halves, range(1, 3))
    state = halves.method.state_dict()
    again = experiment()
    again.method.load_state_dict(state)
    play(again, range(3, 5))
    assert torch.equal(aggregator_of(whole).predictor, aggregator_of(again).predictor)
    np.testing.assert_array_equal(
        aggregator_of(whole).class_estimates().shares, aggregator_of(again).class_estimates().shares
    )
    assert torch.equal(model_of(whole), model_of(again))


def test_the_model_is_that_of_the_inner_aggregator():
    given = {"aggregator": {"name": "ondemand", "hidden": 16, "epochs": 1, "inner": "cmfl-server"}}
    with_predictor, plain = experiment(**given), experiment(aggregator="cmfl-server")
    for one in (with_predictor, plain):
        play(one, range(1, 4))
    assert torch.equal(model_of(with_predictor), model_of(plain))


def test_local_and_stacked_train_the_same_predictor():
    local, stacked = experiment(**FEW), experiment(**FEW, runtime="stacked", device="cpu")
    begun = aggregator_of(local).predictor.clone()
    for one in (local, stacked):
        play(one, range(1, 3))
    assert not torch.allclose(aggregator_of(local).predictor, begun, rtol=1e-3)
    torch.testing.assert_close(aggregator_of(local).predictor, aggregator_of(stacked).predictor, rtol=1e-4, atol=1e-6)


def test_the_predictor_travels_both_ways_and_is_counted():
    one = experiment()
    order = one.method.order(1, np.arange(40))
    replies = one.runtime.execute(order)
    size = 4 * len(aggregator_of(one).predictor)
    without = replace(order, probes=())
    assert order.bytes_down() - without.bytes_down() >= size * len(order.clients)
    assert replies.probe_bytes["predictor"] >= size * len(order.clients)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch": 1}, "batch must be at least 2"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"momentum": 1.0}, "momentum must be in"),
        ({"hidden": 0}, "hidden must be at least 1"),
        ({"clip": 0.0}, "clip must be above 0"),
        ({"inner": "ondemand"}, "another aggregator"),
        ({"inner": "mean"}, "There is no aggregator 'mean'"),
        ({"gradients": "all"}, "gradients is received, training or mixed, not 'all'"),
        ({"gradients": "training", "insight_dp": "1,1e-5"}, "set aggregator.gradients=received"),
        ({"insight_dp": "1"}, "insight_dp is epsilon and delta, such as 1,1e-5, not '1'"),
        ({"insight_dp": "0,1e-5"}, "epsilon must be above 0"),
        ({"insight_dp": "1,2"}, "delta must be between 0 and 1"),
    ],
)
def test_impossible_options_are_refused(options, sentence):
    with pytest.raises(Refusal, match=sentence):
        WithPredictor(**options)


# --- noise


@pytest.mark.parametrize(
    ("epsilon", "sigma"), [(0.1, 30.749566), (0.5, 7.031827), (1, 3.730632), (2, 1.993812), (8, 0.600229)]
)
def test_noise_is_as_little_as_the_guarantee_needs(epsilon, sigma):
    """Values of Google's dp-accounting 0.6, `gaussian_mechanism.get_sigma_gaussian(epsilon, 1e-5)`."""
    assert Privacy(epsilon, 1e-5).deviation == pytest.approx(sigma, rel=1e-6)


def test_answers_compose():
    """Values of dp-accounting's `get_epsilon_gaussian(3.7306/√k, 1e-5)`."""
    privacy = Privacy(1, 1e-5)
    assert privacy.after(1) == pytest.approx(1)
    assert privacy.after(10) == pytest.approx(3.618592, rel=1e-5)
    assert privacy.after(100) == pytest.approx(14.429270, rel=1e-5)


def test_noise_has_the_right_deviation_and_is_drawn_by_key():
    privacy, values = Privacy(1, 1e-5), torch.zeros(20_000, dtype=torch.float64)
    noise = privacy.noisy(values, 0.02, key(1, 2))
    assert float(noise.std()) == pytest.approx(0.02 * privacy.deviation, rel=0.03)
    assert torch.equal(noise, privacy.noisy(values, 0.02, key(1, 2)))
    assert not torch.equal(noise, privacy.noisy(values, 0.02, key(1, 3)))


@pytest.mark.slow
def test_more_privacy_costs_more_error():
    one = experiment(**{**MIXTURE, "dataset": {**MIXTURE["dataset"], "train": 60_000, "shape": (1, 2, 2)}})
    off = {epsilon: errors(one, "analytic", insight_dp=f"{epsilon},1e-5").mean() for epsilon in (0.1, 1, 8)}
    assert off[8] < 0.05 < off[1] < 0.2 < off[0.1] < uniform_errors(one).mean()
    assert errors(one, "analytic").max() < 1e-5
    truth, sizes = one.federation.truth.shares, one.federation.sizes.astype(np.float64)
    for cost in cost_of_privacy(truth, sizes, 1e-5, tuple(off)):
        assert cost.error == pytest.approx(off[cost.epsilon], rel=0.25)
        assert cost.error_by_samples < cost.error
        assert cost.deviation == Privacy(cost.epsilon, 1e-5).deviation


def test_one_sample_changes_the_query_at_a_zero_head_by_no_more_than_its_sensitivity():
    one = experiment()
    learner, samples = learner_of(one), one.federation.samples(3)
    zero = torch.zeros_like(model_of(one))
    probe, moved = ClassQuery("bias"), samples.y.clone()
    moved[0] = (moved[0] + 1) % 10
    before = probe.measure(learner, zero, zero, samples, 0)["gradient"]
    after = probe.measure(learner, zero, zero, Samples(samples.x, moved), 0)["gradient"]
    assert float((after - before).norm()) == pytest.approx(math.sqrt(2) / len(samples), rel=1e-5)


def neighbours(samples: Samples, inputs: int) -> list[Samples]:
    """The samples with the first one replaced, by some of the others' inputs with each label."""
    sets = []
    for other in range(min(len(samples), inputs)):
        for label in range(10):
            x, y = samples.x.clone(), samples.y.clone()
            x[0], y[0] = samples.x[other], label
            sets.append(Samples(x, y))
    return sets


def farthest(one: Experiment, probe: ClassQuery, state: torch.Tensor, inputs: int = 12) -> float:
    """The largest change of the answer from replacing one sample, times samples; equal noise cancels out."""
    learner, samples = learner_of(one), one.federation.samples(3)
    answers = [probe.measure(learner, state, state, near, 0)["gradient"] for near in neighbours(samples, inputs)]
    return float(torch.cdist(torch.stack(answers), torch.stack(answers)).max()) * len(samples)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, 1e38])
def test_one_sample_changes_the_query_by_no_more_than_its_sensitivity_at_any_head(scale):
    """With a head that saturates the softmax, one sample changes the unbounded answer by twice as much."""
    one = experiment(numbering="environment")
    learner = learner_of(one)
    state = zero_head(learner.layout, model_of(one))
    weight = learner.layout.head[0]
    draw = torch.Generator().manual_seed(1)
    state[weight.start : weight.start + weight.size] = scale * torch.randn(weight.size, generator=draw)
    assert farthest(one, ClassQuery("bias", Privacy(1, 1e-5)), state) <= math.sqrt(2) + 1e-4
    if scale == 1e4:
        assert farthest(one, ClassQuery("bias"), state) > 1.9 * math.sqrt(2)


@pytest.mark.slow
def test_the_query_of_a_model_that_scales_its_logits_is_bounded_too():
    one = experiment(model={"name": "tests.probe.test_class_query:Scaled"})
    state = zero_head(learner_of(one).layout, model_of(one))
    assert farthest(one, ClassQuery("bias"), state, inputs=1) > 2 * math.sqrt(2)
    assert farthest(one, ClassQuery("bias", Privacy(1, 1e-5)), state, inputs=1) <= math.sqrt(2) + 1e-4


def test_every_gradient_of_a_bias_counts_as_a_mix_of_classes_even_one_that_overflows(monkeypatch):
    one = experiment()
    rows = torch.tensor([[1e30] * 3, [math.nan] * 3, [-math.inf, 0, 0], [1 / 3, 1 / 3, -2 / 3]])
    for row in rows:
        monkeypatch.setattr("covey.probe.class_query.sample_gradients", lambda *_, row=row: iter([{"bias": row[None]}]))
        mix = 1 / 3 - bounded_bias_gradient(learner_of(one), model_of(one), one.federation.samples(3))
        assert float(mix.sum()) == pytest.approx(1)
        assert float(mix.min()) >= -1e-6
    torch.testing.assert_close(mix, torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64), atol=1e-6, rtol=0)


def test_at_a_zero_head_bounding_changes_nothing():
    one = experiment()
    learner, samples = learner_of(one), one.federation.samples(3)
    state = zero_head(learner.layout, model_of(one))
    privacy = Privacy(1, 1e-5)
    plain = ClassQuery("bias").measure(learner, state, state, samples, 7)["gradient"]
    noisy = ClassQuery("bias", privacy).measure(learner, state, state, samples, 7)["gradient"]
    torch.testing.assert_close(noisy, privacy.noisy(plain, math.sqrt(2) / len(samples), 7), rtol=0, atol=1e-6)


def test_a_last_layer_without_a_bias_is_not_asked_for_its_gradient():
    one = experiment(**LEAF)
    state = model_of(one)
    with pytest.raises(Refusal, match="has no bias to tell class shares from"):
        ClassQuery("bias").measure(learner_of(one), state, state, one.federation.samples(3), 0)


@pytest.mark.parametrize("clip", [0.1, 1.0])
def test_gradients_for_the_predictor_have_noise_for_their_clipping(clip):
    one = experiment()
    learner, samples, state = learner_of(one), one.federation.samples(3), model_of(one)
    privacy = Privacy(2, 1e-5)
    probe = PrivatePredictorProbe(probe_of(one, epochs=0, sends="gradient"), privacy, clip)
    clipped = clipped_gradient(learner, state, samples, clip)
    answers = [probe.measure(learner, state, state, samples, place) for place in range(30)]
    noise = torch.stack([answer["gradient"].double() - clipped for answer in answers])
    assert float(noise.std()) == pytest.approx(2 * clip / len(samples) * privacy.deviation, rel=0.03)
    assert float(noise.mean().abs()) < 0.05 * float(noise.std())
    shares = replace(probe, open=replace(probe.open, sends="shares")).measure(learner, state, state, samples, 5)
    expected = predicted(probe.open.predictor, answers[5]["gradient"][None], 10, probe.open.hidden)[0]
    assert set(shares) == {"shares"}
    torch.testing.assert_close(shares["shares"], expected)


def test_clipped_gradients_are_short_and_one_sample_changes_them_little():
    one = experiment()
    learner, samples, state = learner_of(one), one.federation.samples(3), model_of(one)
    open_ = clipped_gradient(learner, state, samples, 1e9)
    pairs = Pairs.of(learner, state, samples, [len(samples)], 0, key=0)
    torch.testing.assert_close(open_.float(), pairs.gradients[0])
    assert pairs.counts == [1]
    clip = 0.1
    short = clipped_gradient(learner, state, samples, clip)
    assert float(short.norm()) <= clip + 1e-6
    x, y = samples.x.clone(), samples.y.clone()
    x[0], y[0] = x[0].flip(-1), (y[0] + 5) % 10
    moved = clipped_gradient(learner, state, Samples(x, y), clip)
    assert 0 < float((moved - short).norm()) <= 2 * clip / len(samples) + 1e-9


def test_a_predictor_works_on_noisy_gradients_and_sends_no_error():
    given = {"aggregator": {"name": "ondemand", "hidden": 16, "epochs": 1, "insight_dp": "4,1e-5", "sends": "shares"}}
    one = experiment(**given)
    play(one, range(1, 3))
    answers = asked(one, np.arange(40))
    assert set(answers) == {"shares"}
    torch.testing.assert_close(answers["shares"].sum(dim=1), torch.ones(40))
    figures = aggregator_of(one).figures()
    assert "predictor_error" not in figures
    most = aggregator_of(one).answers.max()
    assert figures["epsilon_spent"] == pytest.approx(Privacy(4, 1e-5).after(int(most)))


def test_answers_that_the_server_cannot_use_spend_privacy_too():
    """A lost answer may have been sent, so it counts as sent."""
    given = {"name": "ondemand", "hidden": 4, "inner": "cmfl", "sends": "shares", "insight_dp": "4,1e-5"}
    one = experiment(aggregator=given, cohort=4)
    aggregator = aggregator_of(one)
    shares = torch.full((2, 10), 0.1)
    shares[1] = math.nan
    answers = {"predictor": {"shares": shares}}
    lost = replace(
        replies_of([2, 5], {}),
        states=torch.zeros(2, one.method.models().shape[1]),
        probes=answers,
        faults=(Fault(5, "its predictor holds NaN", "predictor"), Fault(7, "its model holds NaN")),
        withheld=np.array([9]),
    )
    one.method.absorb(1, lost)
    assert np.flatnonzero(aggregator.answers).tolist() == [2, 5, 7, 9]
    one.method.absorb(2, replace(replies_of([], {}), probes={}, faults=(Fault(7, "no answer within 5 seconds"),)))
    assert aggregator.answers[7] == aggregator.answers.max() == 2
    assert aggregator.figures()["epsilon_spent"] == pytest.approx(Privacy(4, 1e-5).after(2))
    assert aggregator.figures()["clients_estimated"] == 1


def test_without_dp_accounting_noise_is_refused_with_the_package_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(Refusal, match=r"dp-accounting, which is not installed: pip install '.\[privacy\]'"):
        Privacy(1.234, 1e-5)


@pytest.mark.parametrize(("epsilon", "delta"), [(0, 1e-5), (-1, 1e-5), (math.inf, 1e-5), (math.nan, 1e-5), (1, 1)])
def test_impossible_budgets_are_refused_by_the_name_of_the_option(epsilon, delta):
    with pytest.raises(Refusal, match=r"^insight_dp: (epsilon|delta) must be"):
        Privacy.of(f"{epsilon},{delta}", "insight_dp")
    with pytest.raises(Refusal, match=r"^(Epsilon|Delta) must be"):
        Privacy(epsilon, delta)


def test_predictors_begin_alike_for_the_same_seed():
    assert torch.equal(initial_predictor(20, 4, 8, seed=3), initial_predictor(20, 4, 8, seed=3))
    assert not torch.equal(initial_predictor(20, 4, 8, seed=3), initial_predictor(20, 4, 8, seed=4))


def test_a_predictor_too_large_to_be_sent_is_refused_with_a_way_out(monkeypatch):
    assert predictor_size(20, 4, 8) == len(initial_predictor(20, 4, 8, seed=3))
    given = {"model": {"name": "mlp", "hidden": (50,)}, "aggregator": {"name": "ondemand", "hidden": 64}}
    needed = predictor_size(500, 10, 64)
    monkeypatch.setattr("covey.probe.predictor.LARGEST_PREDICTOR", needed)
    experiment(**given)
    for limit, way in (
        (needed - 1, "set aggregator.hidden=32 or less, or run another"),
        (1000, "send it: run another"),
    ):
        monkeypatch.setattr("covey.probe.predictor.LARGEST_PREDICTOR", limit)
        with pytest.raises(Refusal, match=way) as refusal:
            experiment(**given)
        assert f"would have {needed:,} numbers" in str(refusal.value)
        assert "a last layer of 500 weights" in str(refusal.value)


def test_a_warning_says_that_noise_does_not_cover_the_predictor():
    with pytest.warns(UserWarning, match="not to the predictor, which clients train on their labels"):
        experiment(aggregator={"name": "ondemand", "hidden": 4, "insight_dp": "4,1e-5"})
