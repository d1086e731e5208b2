"""Metrics of every task agree with scikit-learn's."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as reference
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from covey.core.scores import Scores, over_clients, summary
from covey.environment.truth import Truth
from covey.task import Classification, Custom, MultiLabel, NextToken, Regression, main_score, metric_of
from covey.task.multilabel import average_precision
from covey.task.regression import quantile_bins

RNG = np.random.default_rng(0)


def test_regression_is_measured_in_the_unit_of_the_targets():
    right = RNG.normal((100, 5), (30, 2), (200, 2))
    given = right + RNG.normal(0, (10, 1), (200, 2))
    task = Regression().completed(torch.from_numpy(right))
    found = task.score(task.standardised(torch.from_numpy(given)), task.standardised(torch.from_numpy(right)))
    assert found["rmse"] == pytest.approx(reference.root_mean_squared_error(right, given), rel=1e-5)
    assert found["mae"] == pytest.approx(reference.mean_absolute_error(right, given), rel=1e-5)
    assert found["r2"] == pytest.approx(reference.r2_score(right, given), rel=1e-5)


def test_standardised_targets_come_back():
    targets = torch.tensor([[1e6], [1e6 + 3], [1e6 + 9]], dtype=torch.float64)
    task = Regression().completed(targets)
    standard = task.standardised(targets)
    assert float(standard.mean()) == pytest.approx(0, abs=1e-6)
    assert float(standard.std(correction=0)) == pytest.approx(1, rel=1e-6)
    torch.testing.assert_close(task.original(standard), targets, rtol=0, atol=1e-3)


def test_constant_targets_have_no_r2():
    task = Regression().completed(torch.full((4, 1), 7.0, dtype=torch.float64))
    assert task.scale == (1.0,)
    assert task.score(torch.zeros(4, 1), torch.zeros(4, 1)) == {"rmse": 0.0, "mae": 0.0, "r2": None}


def test_a_model_that_diverged_has_no_score():
    task = Regression(centre=(0.0,), scale=(1.0,))
    assert task.score(torch.full((3, 1), torch.inf), torch.zeros(3, 1))["rmse"] is None


@pytest.mark.parametrize("ties", [False, True])
def test_mean_average_precision_and_f1(ties):
    right = RNG.random((300, 4)) < (0.5, 0.2, 0.05, 0.7)
    logits = RNG.normal(size=(300, 4)) + right
    logits = np.round(logits) if ties else logits
    found = MultiLabel(labels=4).score(torch.from_numpy(logits), torch.from_numpy(right).float())
    assert found["map"] == pytest.approx(reference.average_precision_score(right, logits))
    assert found["f1"] == pytest.approx(reference.f1_score(right, logits >= 0, average="macro"))


def test_labels_without_a_positive_sample_do_not_count():
    right = np.array([[1, 0], [0, 0]])
    found = MultiLabel(labels=2).score(torch.tensor([[2.0, -1.0], [-1.0, -1.0]]), torch.from_numpy(right).float())
    assert found == {"map": 1.0, "f1": 1.0}
    assert average_precision(np.array([0.1, 0.9]), np.array([True, False])) == 0.5


def test_macro_f1_counts_classes_that_were_answered_or_are_right():
    right, given = RNG.integers(0, 4, 200), RNG.integers(0, 5, 200)
    found = Classification().score(torch.from_numpy(given), torch.from_numpy(right))
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(right, given))
    assert found["macro_f1"] == pytest.approx(reference.f1_score(right, given, average="macro"))


def test_perplexity_is_the_exponential_of_the_loss():
    zero = np.zeros(2)
    assert NextToken().of_counts(zero, zero, zero, 2.0)["perplexity"] == pytest.approx(np.exp(2.0))
    assert NextToken().of_counts(zero, zero, zero, 1e9)["perplexity"] is None


def test_quantile_bins_are_equally_full_and_keep_equal_values_together():
    values = RNG.normal(size=1000)
    assert np.bincount(quantile_bins(values, 10)).tolist() == [100] * 10
    found = quantile_bins(np.repeat([1.0, 2.0, 3.0], (900, 50, 50)), 10)
    assert len(set(found[:900])) == 1
    assert set(quantile_bins(np.full(9, 4.0), 10)) == {0}


def test_scores_over_clients_tell_mean_worst_decile_and_spread():
    task = Regression(centre=(0.0,), scale=(1.0,))
    errors = torch.arange(1.0, 21.0)
    answers = errors.repeat_interleave(2)[None, :, None]
    scores = Scores(
        np.zeros(1), np.zeros((1, 0), np.int64), np.zeros(0, np.int64), answers=answers, y=torch.zeros(40, 1), task=task
    )
    tests = [*torch.arange(40).split(2), torch.arange(0)]
    every = over_clients(scores, tests, np.zeros(21, np.int64))
    over = every["rmse"]
    assert over == {
        "mean": pytest.approx(10.5),
        "worst_decile": pytest.approx(19.5),
        "spread": pytest.approx(np.std(np.arange(1, 21))),
        "clients": 20,
    }
    truth = Truth(np.ones((21, 1)), np.zeros(21), tests)
    row = summary(scores, truth, np.zeros(21, np.int64))
    assert (row["metric"], row["better"], row["client_score"]) == ("rmse", "lower", over)
    assert main_score(row) == row["score"] == pytest.approx(float(errors.square().mean().sqrt()))
    assert metric_of([row]).label == "RMSE"
    assert row["client_metrics"] == {"mae": every["mae"]}, "no client's own targets have an R²: they are constant"
    assert every["mae"]["worst_decile"] == pytest.approx(19.5)


def test_scores_over_clients_have_every_metric_of_a_task_with_classes():
    y = torch.tensor([0, 1, 0, 1, 2, 2])
    answers = torch.tensor([[0, 1, 1, 1, 2, 0]])
    tests = [torch.arange(0, 2), torch.arange(2, 4), torch.arange(4, 6)]
    counts = [torch.bincount(one, minlength=3).numpy() for one in (y[answers[0] == y], answers[0], y)]
    found = [
        summary(
            Scores(np.ones(1), counts[0][None], counts[2], predicted=counts[1][None], answers=answers, y=y, task=task),
            Truth(np.full((3, 3), 1 / 3), np.zeros(3), tests),
            np.zeros(3, np.int64),
        )
        for task in (Classification(), NextToken())
    ]
    own = [reference.f1_score(y[rows], answers[0, rows], average="macro") for rows in tests]
    f1 = found[0]["client_metrics"]["macro_f1"]
    assert (f1["mean"], f1["worst_decile"]) == pytest.approx((np.mean(own), min(own)))
    assert found[0]["client_score"]["mean"] == pytest.approx(np.mean([1, 0.5, 0.5]))
    assert "client_metrics" not in found[1], "the perplexity of a client needs the losses of its samples"


def test_nobody_says_which_clients_a_metric_of_ones_own_serves_worst():
    task = Custom(loss="tests.task.federations:squared", metrics="tests.task.federations:median_error", better="lower")
    scores = Scores(
        np.zeros(1), np.zeros((1, 0), np.int64), np.zeros(0, np.int64),
        answers=torch.arange(8.0)[None, :, None], y=torch.zeros(8, 1), task=task,
    )  # fmt: skip
    over = over_clients(scores, [torch.arange(4), torch.arange(4, 8)], np.zeros(2, np.int64))
    assert (over["median_error"]["mean"], over["median_error"]["worst_decile"]) == (3.0, 5.0)
    assert (over["largest_error"]["mean"], over["largest_error"]["worst_decile"]) == (5.0, None)


def test_the_loss_of_classification_is_traced_as_cross_entropy():
    """The stacked runtime compiles what it compiled before there were tasks."""

    def step(loss):
        def of_lane(weight, x, y):
            return (loss(x @ weight, y) * 0.25).sum()

        lanes = vmap(grad_and_value(of_lane))
        graph = make_fx(lanes)(torch.ones(3, 5, 4), torch.ones(3, 2, 5), torch.ones(3, 2, dtype=torch.int64))
        return graph.code

    assert step(Classification().loss) == step(partial(F.cross_entropy, reduction="none"))
    assert step(NextToken().loss) == step(partial(F.cross_entropy, reduction="none"))
