"""Outliers: flipped labels and altered images, seen by untrained and by trained models."""

import numpy as np
import pytest
import torch
from torch import nn

import covey
from covey import analyze
from covey.core.build import build_federation
from covey.job.analysis.outliers import STANDS_OUT, chance_of_any, deviations_above, unexplained


def altered(analysis, kind: str) -> set[int]:
    """The clients that really are poisoned, or whose images really are altered."""
    drawn = build_federation(analysis.config).altered
    assert drawn is not None
    flags = drawn.poisoned if kind == "poisoned" else [found == kind for found in drawn.features]
    return {client for client, flag in enumerate(flags) if flag}


def outliers(analysis) -> set[int]:
    return set(analysis.clients[analysis.outlier].tolist())


@pytest.mark.parametrize(
    "environment", ["iid", "uniform", "dirichlet", {"name": "uniform", "samples": 60}], ids=lambda given: str(given)
)
def test_poisoned_clients_stand_out_without_any_training(environment):
    analysis = analyze(environment=environment, altered={"poison": 0.1}, workers=1)
    poisoned = altered(analysis, "poisoned")
    assert len(poisoned) == 6
    assert poisoned <= outliers(analysis)
    assert len(outliers(analysis) - poisoned) <= 1


def test_flipped_labels_do_not_show_in_the_class_mix_or_in_the_score():
    """The reason to look at what the class mix does not explain."""
    alike = analyze(environment="iid", clients=40, altered={"poison": 0.1}, workers=1)
    assert not alike.odd.any()
    skewed = analyze(altered={"poison": 0.1}, workers=1)
    assert not (deviations_above(skewed.score) > STANDS_OUT).any()


@pytest.mark.parametrize("kind", ["shifted", "inverted"])
def test_clients_whose_images_are_altered_stand_out(kind):
    analysis = analyze(altered={kind: 0.1}, workers=1)
    assert outliers(analysis) == altered(analysis, kind)
    assert analysis.spearman is not None
    assert analysis.spearman > 0.97


@pytest.mark.slow
def test_poisoned_clients_stand_out_from_the_view_of_a_trained_model(tmp_path):
    """Even one that was trained on their labels too; its view of the skew is worse than an untrained one's."""
    run = covey.run(altered={"poison": 0.1}, rounds=10, evaluate_every=10, workers=1, out=tmp_path / "run")
    analysis = analyze(model_of=run)
    poisoned = altered(analysis, "poisoned")
    assert poisoned <= outliers(analysis)
    assert set(analysis.clients[analysis.order[: len(poisoned)]].tolist()) == poisoned
    assert (analysis.measure, analysis.confidence, analysis.rounds) == ("distance", None, 1)
    assert "was trained" in analysis.notes[0]
    assert analysis.as_mapping()["odd"] is None
    elsewhere = analyze({"altered": {"poison": 0}}, model_of=tmp_path / "run", environment="iid")
    assert elsewhere.config.environment.name == "iid"
    assert not poisoned & outliers(elsewhere)


def test_a_third_of_wrong_labels_does_not_bend_the_line_towards_itself():
    analysis = analyze(environment="few-class", altered={"poison": 0.3}, workers=1)
    assert altered(analysis, "poisoned") == outliers(analysis)


def brightness(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A user's own insight: the mean image."""
    return x.mean(dim=0).flatten()


def test_a_function_of_the_user_shows_clients_whose_images_are_shifted():
    analysis = analyze(
        environment="iid",
        altered={"shifted": 0.1},
        insight="tests.job.analysis.test_outliers:brightness",
        workers=1,
        rounds=1,
    )
    shifted = altered(analysis, "shifted")
    assert len(shifted) == 6
    assert outliers(analysis) == shifted
    assert set(analysis.clients[analysis.order[:6]].tolist()) == shifted
    assert analysis.confidence is None
    assert "brightness is not known" in analysis.notes[0]


def test_what_is_unexplained_does_not_depend_on_how_insights_are_turned():
    """Few long vectors are handled by their inner products alone."""
    rng = np.random.default_rng(0)
    bias = rng.normal(size=(30, 4))
    insights = bias @ rng.normal(size=(4, 20)) + 0.1 * rng.normal(size=(30, 20))
    insights[7] += 1.0
    samples = rng.integers(10, 50, 30)
    turned = insights @ np.linalg.qr(rng.normal(size=(200, 20)))[0].T
    short = unexplained(torch.from_numpy(insights), bias, samples)
    np.testing.assert_allclose(unexplained(torch.from_numpy(turned), bias, samples), short, rtol=1e-6)
    assert short.argmax() == 7
    assert np.flatnonzero(deviations_above(short) > STANDS_OUT).tolist() == [7]


@pytest.mark.parametrize("clients", [15, 60, 100, 150, 200, 300, 500, 1000])
def test_alike_clients_have_an_outlier_about_as_often_as_is_said(clients):
    values = np.sqrt(np.random.default_rng(0).chisquare(10, (2000, clients)))
    share = np.mean([(deviations_above(one) > STANDS_OUT).any() for one in values])
    assert 0.75 < share * chance_of_any(clients) < 1.3


def test_clients_that_are_all_the_same_do_not_stand_out():
    assert not deviations_above(np.zeros(8)).any()
    assert not deviations_above(np.full(8, 3.0)).any()
    same = unexplained(torch.ones(30, 12, dtype=torch.float64), np.ones((30, 3)), np.full(30, 10))
    assert np.abs(same).max() < 1e-9


def test_too_few_clients_are_ranked_and_nobody_stands_out():
    analysis = analyze(clients=6, workers=1, rounds=1)
    assert analysis.strangeness is None
    assert "Fewer than 20 clients answered in some round" in analysis.notes[0]
    assert analysis.each()[0]["outlier"] is None
