"""On-Demand FL's target distributions and their test sets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.data import paper_targets as targets
from covey.errors import Refusal
from covey.randomness import generator


@pytest.mark.parametrize(("name", "covered"), [("td1", 3), ("td2", 4), ("TD3", 5)])
@pytest.mark.parametrize("classes", [10, 100])
def test_prefix_targets_are_uniform_on_the_first_classes(name: str, covered: int, classes: int) -> None:
    mix = targets.target(name, classes)
    number = covered * classes // 10
    assert mix.tolist() == [1 / number] * number + [0.0] * (classes - number)


def test_prefix_targets_cover_at_least_one_class() -> None:
    assert targets.prefix_target(2, 0.1).tolist() == [1.0, 0.0]


def test_a_prefix_target_is_tested_on_all_images_of_its_classes() -> None:
    labels = np.arange(1000) % 10
    chosen = targets.test_indices(targets.target("td1", 10), labels)
    assert chosen.tolist() == np.flatnonzero(labels < 3).tolist()
    assert chosen.dtype == np.int64


def test_a_local_target_is_tested_on_the_first_images_in_its_mix() -> None:
    labels = np.arange(1000) % 10
    shares = np.zeros((3, 10))
    shares[1, [0, 7, 9]] = [0.5, 0.3, 0.2]
    shares[[0, 2], 0] = 1.0
    mix = targets.target("local:1", 10, shares)
    chosen = targets.test_indices(mix, labels)
    for label, count in ((0, 50), (7, 30), (9, 20)):
        assert chosen[labels[chosen] == label].tolist() == np.flatnonzero(labels == label)[:count].tolist()
    assert len(chosen) == 100, "as many as a class has on average"


@settings(max_examples=60)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=12).filter(any), st.integers(0, 1000))
def test_every_mix_has_a_test_set_of_its_own_classes(counts: list[int], seed: int) -> None:
    labels = generator(seed).integers(0, len(counts), 400)
    chosen = targets.test_indices(np.array(counts, dtype=np.float64), labels)
    assert len(np.unique(chosen)) == len(chosen) > 0
    assert all(counts[label] > 0 for label in labels[chosen])


def test_a_test_set_too_small_for_a_mix_gives_one_sample_of_its_commonest_class() -> None:
    labels = np.arange(24) % 12
    mix = np.full(12, 1.0)
    mix[5] = 1.5
    assert targets.test_indices(mix, labels).tolist() == [5]
    assert targets.test_indices(mix, np.delete(labels, [5, 17])).tolist() == [0]


def test_a_target_without_test_samples_is_refused() -> None:
    with pytest.raises(Refusal, match="no sample of the target's classes"):
        targets.test_indices(np.array([1.0, 0.0]), np.ones(5, dtype=np.int64))


def test_local_targets_are_counts_made_shares() -> None:
    assert targets.local_target(np.array([[2, 2], [0, 5]])).tolist() == [[0.5, 0.5], [0.0, 1.0]]
    with pytest.raises(Refusal, match="nor all zero"):
        targets.local_target(np.zeros(3))
    with pytest.raises(Refusal, match="must not be negative"):
        targets.local_target(np.array([1.5, -0.5]))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("td4", "There is no target 'td4'. Known targets: td1, td2, td3, and local:0"),
        ("local:x", "There is no target 'local:x'"),
        ("local:2", "clients run from 0 to 1."),
    ],
)
def test_unknown_targets_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(Refusal) as refusal:
        targets.target(name, 4, np.ones((2, 4)))
    assert sentence in str(refusal.value)
    with pytest.raises(Refusal, match="above 0 and at most 1"):
        targets.prefix_target(10, 0.0)
