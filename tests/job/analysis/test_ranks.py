"""Ranks of skew against the truth, from round to round, and in clients of different sizes."""

import time

import numpy as np
import pytest

from covey import analyze
from covey.job.analysis.ranks import rank_correlation


@pytest.mark.parametrize("dataset", ["digits", {"name": "synthetic", "train": 3000, "test": 100}])
@pytest.mark.parametrize("environment", ["uniform", "inverse-pareto", "few-class", "dirichlet-layers"])
def test_clients_are_ranked_by_their_true_skew(dataset, environment):
    begin = time.process_time()
    analysis = analyze(dataset=dataset, environment=environment, workers=1)
    assert time.process_time() - begin < 5
    assert analysis.spearman is not None
    assert analysis.spearman_score is not None
    assert analysis.spearman > 0.97
    assert analysis.spearman_score > 0.9


def test_clients_of_different_sizes_are_ranked_by_skew_where_the_score_ranks_them_by_size():
    analysis = analyze(environment={"name": "dirichlet", "alpha": 0.3}, workers=1)
    assert analysis.samples.max() > 5 * analysis.samples.min()
    assert analysis.spearman is not None
    assert analysis.spearman_score is not None
    assert analysis.spearman > 0.97
    assert analysis.spearman_score < 0.6
    by_size = rank_correlation(analysis.score, analysis.samples)
    assert by_size is not None
    assert by_size > 0.5


def test_the_estimate_is_nearly_the_distance_of_class_shares():
    analysis = analyze(environment="few-class", workers=1)
    assert analysis.measure == "class mix"
    assert analysis.truth is not None
    assert np.abs(analysis.skew - analysis.truth).max() < 0.05


def test_rounds_from_different_models_agree_and_one_round_has_no_agreement():
    agreement = analyze(workers=1).agreement
    assert agreement is not None
    assert agreement > 0.95
    alone = analyze(workers=1, rounds=1)
    assert alone.agreement is None
    assert alone.spearman is not None
    assert alone.spearman > 0.95


def test_ranks_are_those_of_the_estimates():
    analysis = analyze(clients=12, workers=1)
    each = analysis.each()
    assert [row["rank"] for row in each] == list(range(1, 13))
    assert [row["skew"] for row in each] == sorted(analysis.skew, reverse=True)
    by_score = sorted(each, key=lambda row: row["score_rank"])
    assert by_score[0]["score"] == pytest.approx(analysis.score.max(), rel=0.2)


def test_a_rank_correlation_needs_something_to_rank():
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0])) == pytest.approx(0.5)
    assert rank_correlation(np.array([1.0, 2.0]), np.array([1.0, 2.0])) is None
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.ones(3)) is None
