"""FedFomo: clients mix in the models that do better on their own validation samples, and no others."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import covey
from covey import Config, Refusal, run
from covey.client.holdout import training_part, validation_part
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.messages import Order
from covey.data.dataset import Samples
from covey.job.experiment import Experiment
from covey.personalization.fedfomo import FedFomo, Gains
from covey.runtime import LocalRuntime, StackedRuntime
from tests.conftest import SMALL, learner_of, saved_state
from tests.equal_runs import ends_the_same
from tests.personalization.test_cfl import LEARNING, accuracy, grouped

FOMO = {**SMALL, "method": "fedfomo", "environment": {"name": "dirichlet", "alpha": 0.5}, "precision": "fp64"}


def played(experiment: Experiment, rounds: int) -> FedFomo:
    """Return the method after so many rounds."""
    method, runtime = experiment.method, experiment.runtime
    assert isinstance(method, FedFomo)
    for t in range(1, rounds + 1):
        asked = method.survey(t, runtime.available(t))
        if asked is not None:
            method.surveyed(t, runtime.execute(asked))
        method.absorb(t, runtime.execute(method.order(t, runtime.available(t))))
    return method


@pytest.mark.slow
def test_clients_take_from_their_own_group_and_are_better_for_it(tmp_path):
    held, group, meanings = grouped(2, 8)
    given = {**LEARNING, "method": "fedfomo", "local": {"epochs": 2, "batch": 10, "rate": 0.1}}
    result = run(given, federation=held, rounds=12, many={"models": 3}, out=tmp_path / "run")
    preference = saved_state(result.folder)["preference"]
    alike = group[:, None] == group
    others = ~np.eye(8, dtype=bool)
    assert preference[alike & others].mean() > 0 > preference[~alike].mean()
    assert alike[others & (preference > 0.1)].all()
    favourite = np.where(others, preference, -np.inf).argmax(axis=1)
    assert group[favourite].tolist() == group.tolist()
    alone = run(given, federation=held, rounds=12, many={"models": 0}, out=tmp_path / "alone")
    served, left_alone = (
        np.mean([accuracy(of, client, meanings[group[client]]) for client in range(8)]) for of in (result, alone)
    )
    assert served > left_alone + 0.05


def test_a_models_weight_is_what_it_gains_on_the_validation_samples_per_distance():
    experiment = Experiment.of(Config.of({**FOMO, "many": {"models": 2, "epsilon": 0.0}}))
    method = played(experiment, 2)
    order = method.survey(3, np.arange(8))
    assert order is not None
    replies = experiment.runtime.execute(order)
    learner, federation = learner_of(experiment), experiment.federation
    for client in (0, 5):
        validation = validation_part(federation.samples(client), 5)
        began, offered = method.before[client], method.offers[client]
        assert offered[0] == client
        for slot, owner in enumerate(offered):
            model = method.personal[owner]
            gained = learner.mean_loss(began, validation) - learner.mean_loss(model, validation)
            expected = gained / (model - began).norm().item()
            assert replies.probes["gains"]["value"][client, slot].item() == pytest.approx(expected, rel=1e-12)
    before, preference = method.before.clone(), method.preference.copy()
    method.surveyed(3, replies)
    experiment.runtime.close()
    for client in range(8):
        gains = replies.probes["gains"]["value"][client].numpy()
        added = (method.preference - preference)[client, list(method.offers[client])]
        assert added == pytest.approx(gains / np.abs(gains).sum())
        weights = gains.clip(min=0) / gains.clip(min=0).sum()
        mixed = sum(w * method.personal[owner] for w, owner in zip(weights, method.offers[client], strict=True))
        assert torch.allclose(method.starts[client], mixed if weights.any() else before[client], atol=1e-12)
    assert any(len(np.flatnonzero(weights)) > 1 for weights in method.weights.values())


def answer(method: FedFomo, gains: list[float]) -> torch.Tensor:
    """Return the starts of round 2 if every client measures the same gains of the models offered to it."""
    order = method.survey(2, np.arange(8))
    assert order is not None
    values = torch.tensor([gains] * 8, dtype=torch.float64)
    count = torch.full((8,), 5)
    silent = torch.zeros(8, dtype=torch.float64)
    sent = covey.core.replies.Replies(order.clients, torch.empty(8, 0), count, silent, {"gains": {"value": values}})
    method.surveyed(2, sent)
    return method.order(2, np.arange(8)).start


def test_both_forms_mix_alike_and_differ_where_no_model_is_better():
    starts = {}
    for form in ("delta", "weighted"):
        experiment = Experiment.of(Config.of({**FOMO, "many": {"form": form, "models": 2, "epsilon": 0.0}}))
        method = played(experiment, 1)
        experiment.runtime.close()
        helpful = answer(method, [3.0, 1.0, 0.0][: 3 if form == "delta" else 2])
        # Both weigh the client's own model first: the delta form always, the other as P begins with the identity.
        assert all(owners[0] == client for client, owners in method.offers.items())
        for client, owners in method.offers.items():
            mix = 0.75 * method.personal[client] + 0.25 * method.personal[owners[1]]
            assert torch.allclose(helpful[client], mix, atol=1e-12)
        starts[form] = method, answer(method, [-1.0, 0.0, -1.0][: 3 if form == "delta" else 2])
    method, returned = starts["delta"]
    assert torch.equal(returned, method.before)
    method, kept = starts["weighted"]
    assert torch.equal(kept, method.personal)
    assert not torch.equal(method.personal, method.before)


@pytest.mark.parametrize(("form", "epsilon"), [("delta", 0.3), ("weighted", 0.0)])
def test_only_the_papers_form_explores_unless_it_is_asked_for(form, epsilon):
    experiment = Experiment.of(Config.of({**FOMO, "many": {"form": form, "models": 2}}))
    method = played(experiment, 1)
    experiment.runtime.close()
    assert method.epsilon == epsilon
    method.preference[:] = np.arange(8.0)
    offered = [method._offered(2, client)[-2:] for client in range(8)]
    highest = [tuple(owner for owner in (7, 6, 5) if form == "weighted" or owner != client)[:2] for client in range(8)]
    assert (offered == highest) == (form == "weighted")


def test_models_are_compared_with_the_one_that_the_last_training_began_from():
    experiment = Experiment.of(Config.of(FOMO))
    initial = experiment.method.models()[0].clone()
    method, runtime = played(experiment, 1), experiment.runtime
    assert torch.equal(method.before, initial.expand(8, -1))
    survey = method.survey(2, np.arange(8))
    assert survey is not None
    method.surveyed(2, runtime.execute(survey))
    order = method.order(2, np.arange(8))
    method.absorb(2, runtime.execute(order.take(np.array([0, 3, 4]))))
    runtime.close()
    assert torch.equal(method.before[[0, 3, 4]], order.start[[0, 3, 4]])
    assert not torch.equal(order.start[[0, 3, 4]], initial.expand(3, -1))
    assert torch.equal(method.before[[1, 2, 5, 6, 7]], initial.expand(5, -1))


def test_without_an_answer_a_client_trains_its_own_model():
    experiment = Experiment.of(Config.of(FOMO))
    method = played(experiment, 1)
    experiment.runtime.close()
    start = answer(method, [float("nan")] * 6)
    assert torch.equal(start, method.personal)
    assert np.array_equal(method.preference, np.eye(8))


def test_models_are_asked_for_by_preference_and_at_random_to_begin_with():
    experiment = Experiment.of(Config.of({**FOMO, "many": {"models": 2, "epsilon": 0.6, "decay": 0.3}}))
    experiment.runtime.close()
    method = played(experiment, 0)
    assert method.survey(1, np.arange(8)) is None
    method.known[:] = True
    method.preference[3] = [0, 0.5, 0, 9, 0.7, 0, -2, 0]
    assert {method._offered(t, 3) for t in range(4, 40)} == {(3, 4, 1)}
    early = [replace_seed(method, seed)._offered(2, 3) for seed in range(200)]
    assert all(owners[0] == 3 and len(set(owners)) == 3 for owners in early)
    seen = np.bincount([owner for owners in early for owner in owners[1:]], minlength=8)
    assert (seen[[0, 2, 5, 6, 7]] > 5).all()
    assert seen[4] > 80
    method.known[:] = False
    method.known[[3, 6]] = True
    assert method._offered(9, 3) == (3, 6)
    assert method._offered(9, 0) in {(6, 3), (3, 6)}


def replace_seed(method: FedFomo, seed: int) -> FedFomo:
    method.setting = replace(method.setting, seed=seed)
    return method


def test_the_models_sent_are_counted_and_the_ones_a_client_holds_are_not():
    experiment = Experiment.of(Config.of({**FOMO, "many": {"models": 3}}))
    method = played(experiment, 1)
    survey = method.survey(2, np.arange(8))
    assert survey is not None
    order = method.order(2, np.arange(8))
    size = 8 * method.personal.shape[1]
    assert 8 * 3 * size < survey.bytes_down() < 8 * (3 * size + 1000)
    assert order.bytes_down() < 8 * 1000
    replies = experiment.runtime.execute(survey)
    experiment.runtime.close()
    assert replies.bytes_up < 8 * 500
    assert replies.round_seconds > 3 * size / experiment.config.devices.bandwidth


def test_validation_samples_are_never_trained_on():
    samples = Samples(torch.arange(23)[:, None], torch.arange(23))
    assert validation_part(samples, 5).y.tolist() == [4, 9, 14, 19]
    assert sorted([*training_part(samples, 5).y.tolist(), 4, 9, 14, 19]) == list(range(23))
    few = Samples(torch.arange(3)[:, None], torch.arange(3))
    assert training_part(few, 5).y.tolist() == validation_part(few, 5).y.tolist() == [0, 1, 2]
    federation = build_federation(Config.of(FOMO))
    module = covey.models["mlp"].part((1, 8, 8), 10, hidden=(16,))
    start = covey.model.layout.Layout.of(module).read(module).double()
    order = Order(2, np.array([0, 2, 5]), start, Local(epochs=2, batch=4), holdout=5)
    trained = {}
    for name, place in (("as it is", None), ("validation", 9), ("training", 8)):
        labels = federation.dataset.y.clone()
        if place is not None:
            labels[federation.parts[2][place]] = (labels[federation.parts[2][place]] + 1) % 10
        changed = replace(federation, dataset=replace(federation.dataset, y=labels))
        for kind in (LocalRuntime, StackedRuntime):
            runtime = kind(changed, module, precision="fp64")
            trained[name, kind] = runtime.execute(order)
            runtime.close()
        local, stacked = trained[name, LocalRuntime], trained[name, StackedRuntime]
        assert torch.allclose(local.states, stacked.states, rtol=0, atol=1e-12)
        assert torch.allclose(local.losses, stacked.losses, rtol=1e-12)
    plain, validation, training = (
        trained[name, LocalRuntime].states for name in ("as it is", "validation", "training")
    )
    assert torch.equal(plain, validation)
    assert torch.equal(plain[[0, 2]], training[[0, 2]])
    assert not torch.equal(plain[1], training[1])


@pytest.mark.slow
@pytest.mark.parametrize("many", [{}, {"form": "weighted", "models": 2, "participation": "cohort"}], ids=str)
def test_runtimes_workers_and_a_resume_end_the_same(many, tmp_path):
    given = {**FOMO, "rounds": 5, "many": many, "devices": {"dropout": 0.2}}
    ends_the_same(given, tmp_path)


def test_nobody_measures_the_offers_of_all() -> None:
    with pytest.raises(TypeError, match="own offer"):
        Gains(torch.zeros(2, 3), {}, 1, 5).measure(None, None, None, None, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"models": -1}, "many.models must not be negative, not -1."),
        ({"models": 0, "form": "weighted"}, "many.models must be at least 1 where many.form is weighted."),
        ({"epsilon": 1.5}, r"many.epsilon is a probability in \[0, 1\], not 1.5."),
        ({"decay": -0.1}, "many.decay must not be negative, not -0.1."),
        ({"holdout": 1}, "many.holdout must be at least 2, not 1."),
    ],
    ids=str,
)
def test_impossible_options_are_refused(options, sentence):
    with pytest.raises(Refusal, match=sentence):
        Experiment.of(Config.of({**FOMO, "many": options}))
