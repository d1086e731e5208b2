"""Confidence of the analysis: the bound by hand and in the worst case, false alarms, and odd clients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import analyze
from covey.job.analysis.confidence import Confidence
from covey.selection.fedacs import skewness_scores


def test_the_bound_of_a_tiny_federation_by_hand():
    """Two clients with 50 and 150 samples in 2 classes, at level 0.1: v = 4·(1 - 49/200)/50 and 4·(1 - 149/200)/150."""
    found = Confidence.of(np.array([[0.6, -0.6], [-0.2, 0.2]]), np.array([50, 150]), 0.1)
    v = [4 * (151 / 200) / 50, 4 * (51 / 200) / 150]
    np.testing.assert_allclose(found.deviation, [0.6, 0.2])
    np.testing.assert_allclose(found.limit, [math.sqrt(one * math.log(2 * 2 * 2 / 0.1) / 2) for one in v])
    expected = [min(1, 4 * math.exp(-2 * 0.36 / v[0])), min(1, 4 * math.exp(-2 * 0.04 / v[1]))]
    np.testing.assert_allclose(found.p_values, expected)
    np.testing.assert_allclose(found.sureness, [1 - min(1, 2 * one) for one in expected])
    evidence = [2 * 50 * 0.72 / 4, 2 * 150 * 0.08 / 4]
    np.testing.assert_allclose(found.log_product, [2 * math.log(2) - one for one in evidence])


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(2, 12), st.floats(0.001, 0.5), st.integers(0, 10_000))
def test_beyond_the_limit_means_odd_at_the_level_and_nothing_else_does(clients, classes, level, seed):
    rng = np.random.default_rng(seed)
    found = Confidence.of(rng.uniform(-1, 1, (clients, classes)), rng.integers(1, 400, clients), level)
    np.testing.assert_array_equal(found.deviation >= found.limit, clients * found.p_values <= level)
    assert np.all((found.p_values >= 0) & (found.p_values <= 1))
    assert np.all((found.sureness >= 0) & (found.sureness <= 1))
    assert np.all((found.product >= 0) & (found.product <= 1))
    assert np.all(found.log_product <= classes * math.log(2))


@pytest.mark.parametrize("independent", [True, False], ids=["independent samples", "dealt from one pool"])
def test_false_alarms_are_no_more_frequent_than_the_level_even_in_the_worst_case(independent):
    """Values at both ends of the range, the worst case of Hoeffding's inequality. Half the range would fail here."""
    rng, level, trials = np.random.default_rng(1), 0.2, 3_000
    sizes = np.array([20, 40, 60, 80])
    alarms = {1.0: 0, 0.5: 0}
    pool = np.repeat([-1.0, 1.0], sizes.sum() // 2)
    for _ in range(trials):
        values = rng.choice([-1.0, 1.0], sizes.sum()) if independent else rng.permutation(pool)
        means = np.array([part.mean() for part in np.split(values, np.cumsum(sizes)[:-1])])
        apart = means - sizes @ means / sizes.sum()
        found = Confidence.of(np.stack([apart, -apart], axis=1), sizes, level)
        for share in alarms:
            alarms[share] += bool((found.deviation >= share * found.limit).any())
    assert alarms[1.0] / trials <= level
    assert alarms[0.5] / trials > level


def test_clients_that_are_alike_are_not_called_odd():
    for seed in range(5):
        analysis = analyze(environment="iid", clients=20, seed=seed, workers=1, rounds=2)
        assert not analysis.odd.any()
        assert not analysis.outlier.any()


def test_strongly_skewed_clients_are_called_odd_and_mildly_skewed_ones_are_not():
    analysis = analyze(workers=1)
    assert analysis.truth is not None
    assert analysis.confidence is not None
    assert analysis.odd[analysis.truth > 0.5].all()
    assert not analysis.odd[analysis.truth < 0.2].any()
    np.testing.assert_array_equal(analysis.odd, analysis.confidence.deviation >= analysis.confidence.limit)


def test_a_stricter_level_calls_fewer_clients_odd():
    counts = [analyze(workers=1, rounds=1, level=level).odd.sum() for level in (0.5, 0.05, 1e-6)]
    assert counts[0] >= counts[1] > counts[2]


def test_the_product_of_bounds_is_the_papers_with_the_logarithm_put_right():
    """Eq. 34: Q² = (K·ln 2 - ln P)·(b - a)²/2 on the K coordinates of the bias, and P is above 1 for clients alike."""
    rng = np.random.default_rng(0)
    samples = np.array([30, 60, 90])
    bias = rng.uniform(-0.3, 0.3, (3, 5))
    apart = bias - samples @ bias / samples.sum()
    score = skewness_scores(torch.from_numpy(bias), torch.from_numpy(samples))
    log_product = Confidence.of(apart, samples, 0.05).log_product
    np.testing.assert_allclose(score**2, (5 * math.log(2) - log_product) * 4 / 2)
    alike = analyze(environment="iid", clients=20, workers=1, rounds=1).confidence
    assert alike is not None
    assert np.all(alike.log_product > 0)
    assert np.all(alike.product == 1)
