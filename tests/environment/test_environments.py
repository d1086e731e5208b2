"""Splits of data: each environment against its paper's definition, and what all of them guarantee."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from covey.arrays import IntArray
from covey.config.sections import Alterations
from covey.environment import Deal, alter_images, alter_labels, assign, split_samples
from covey.environment.dominance import dominance_counts, inverse_pareto_quantiles
from covey.environment.partition import ClassPools, allot, dirichlet_shares
from covey.errors import Refusal
from covey.randomness import generator
from covey.registries import environments

positive = st.floats(1e-6, 50.0)
samples = {"samples": st.none() | st.integers(1, 60), "reuse": st.floats(0.5, 10.0)}
clusters = {
    "delta": st.floats(0.05, 1.0),
    "labels": st.integers(1, 4),
    "groups": st.sampled_from(["disjoint", "overlapping"]),
    "samples": st.none() | st.integers(1, 8),
}
OPTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "iid": {"samples": st.none() | st.integers(1, 60)},
    "uniform": samples,
    "uniform-observed": {"group": st.integers(1, 5), **samples},
    "inverse-pareto": {"shape": positive, **samples},
    "dirichlet-layers": {"median": st.floats(1e-6, 1.0), "maximum": st.floats(0.5, 5.0), **samples},
    "few-class": samples,
    "dirichlet": {"alpha": positive, "minimum": st.integers(1, 4)},
    "pareto": {"labels": st.integers(1, 4), "shape": positive},
    "clustered-equal": clusters,
    "clustered-unequal": {"spread": st.floats(0.0, 0.9), **clusters},
    "shards-equal": {"shards": st.integers(1, 5)},
    "shards-unequal": {"shards": st.integers(1, 10), "spread": st.integers(0, 4)},
}
NAMES = sorted(OPTIONS)
SHARED = {"uniform", "uniform-observed", "inverse-pareto", "dirichlet-layers", "few-class"}


def balanced(samples: int, classes: int = 10) -> IntArray:
    return np.arange(samples, dtype=np.int64) % classes


def split(name: str, y: IntArray, clients: int, /, seed: int = 0, classes: int = 10, **options: Any) -> Deal:
    return split_samples(name, options, y, classes, clients, generator(seed, "environment"))


def split_or_refused(*arguments: Any, **options: Any) -> Deal | str:
    try:
        return split(*arguments, **options)
    except Refusal as refusal:
        return str(refusal)


def class_counts(result: Deal, labels: IntArray, classes: int = 10) -> IntArray:
    """`[clients, classes]`"""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in result.parts])


# Guarantees of every environment.


def test_every_environment_is_tested_here() -> None:
    # Those two take clients as they come, and split nothing.
    assert environments.names() == sorted([*NAMES, "given", "natural"])


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_client_gets_valid_samples_or_the_user_a_sentence(name: str, data: st.DataObject) -> None:
    classes = data.draw(st.integers(2, 12))
    clients = data.draw(st.integers(1, 40))
    weights = data.draw(st.lists(st.integers(1, 5), min_size=classes, max_size=classes))
    labels = np.repeat(np.arange(classes), weights)
    labels = generator(0).permutation(np.tile(labels, data.draw(st.integers(1, 40))))
    options = data.draw(st.fixed_dictionaries(OPTIONS[name]))
    seed = data.draw(st.integers(0, 2**32))
    result = split_or_refused(name, labels, clients, seed, classes, **options)
    if isinstance(result, str):
        assert result.endswith(".")
        assert any(advice in result for advice in ("lower ", "raise ", "must be", "at most"))
        return
    assert len(result.parts) == clients
    for part in result.parts:
        assert part.dtype == np.int64
        assert len(part) > 0
        assert part.min() >= 0 and part.max() < len(labels)
    if not result.shared:
        everything = np.concatenate(result.parts)
        assert len(np.unique(everything)) == len(everything)
    if result.skew is not None:
        assert result.skew.shape == (clients,)
        assert ((result.skew >= 0) & (result.skew <= 1)).all()
    again = split(name, labels, clients, seed, classes, **options)
    assert all(np.array_equal(one, other) for one, other in zip(result.parts, again.parts, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_defaults_serve_a_hundred_clients_and_another_seed_splits_differently(name: str) -> None:
    labels = balanced(3000)
    one, other = split(name, labels, 100, seed=1), split(name, labels, 100, seed=2)
    assert one.shared == (name in SHARED)
    assert any(not np.array_equal(a, b) for a, b in zip(one.parts, other.parts, strict=True))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dirichlet", {"alpha": 1e-6}),
        ("dirichlet", {"alpha": 1e-320}),
        ("dirichlet", {"alpha": 1e300}),
        ("dirichlet-layers", {"median": 1e-300, "maximum": 1e-6}),
        ("inverse-pareto", {"shape": 1e-300}),
        ("inverse-pareto", {"shape": 1e6}),
        ("pareto", {"shape": 1e-320}),
        ("pareto", {"shape": 1e300}),
        ("few-class", {}),
        ("shards-unequal", {"shards": 2, "spread": 1}),
        ("clustered-unequal", {"spread": 0.1}),
    ],
)
def test_splits_end_with_extreme_parameters_and_two_thousand_clients(name: str, options: dict[str, Any]) -> None:
    labels = balanced(20_000)
    result = split(name, labels, 2000, **options)
    assert min(len(part) for part in result.parts) >= 1


@pytest.mark.parametrize(
    ("name", "options", "clients", "sentence"),
    [
        ("uniform", {"samples": 0}, 10, "environment.samples must be at least 1, not 0."),
        ("uniform", {"reuse": -1.0}, 10, "environment.reuse must be above 0"),
        ("uniform", {"reuse": 0.01}, 10, "lower --clients or raise environment.reuse"),
        ("uniform-observed", {}, 60, "set environment.group=3 or raise --clients."),
        ("uniform-observed", {"group": 1}, 6, "raise --clients."),
        ("uniform-observed", {"group": 0}, 60, "environment.group must be at least 1"),
        ("inverse-pareto", {"shape": 0.0}, 10, "environment.shape must be above 0"),
        ("dirichlet-layers", {"median": 3.0}, 10, "below environment.maximum"),
        ("dirichlet", {"alpha": 0.0}, 10, "environment.alpha must be above 0"),
        ("dirichlet", {"minimum": 50}, 10, "lower --clients or environment.minimum."),
        ("pareto", {"labels": 11}, 10, "from 1 to the data set's 10 classes, not 11."),
        ("pareto", {}, 110, "lower --clients or environment.labels."),
        ("clustered-equal", {"delta": 0.0}, 10, "environment.delta must be above 0 and at most 1"),
        ("clustered-equal", {"labels": 10}, 10, "lower environment.labels or set environment.delta=1."),
        ("clustered-equal", {"labels": 6, "groups": "overlapping"}, 10, "lower environment.labels"),
        ("clustered-equal", {"samples": 100}, 10, "class 0 has 20 training samples for 6 clients that hold it"),
        ("clustered-equal", {"samples": 1}, 10, "environment.samples=1 does not give a client one sample of each"),
        ("clustered-equal", {}, 100, "lower --clients"),
        ("clustered-equal", {"groups": "none"}, 10, "one of disjoint, overlapping"),
        ("clustered-unequal", {"spread": 1.0}, 10, "environment.spread must be from 0 to below 1"),
        ("shards-equal", {"shards": 0}, 10, "environment.shards must be at least 1"),
        ("shards-equal", {}, 101, "lower --clients or environment.shards."),
        ("shards-unequal", {"spread": 10}, 10, "from 0 to environment.shards - 1 = 9, not 10."),
    ],
)
def test_impossible_requests_are_refused_with_advice(
    name: str, options: dict[str, Any], clients: int, sentence: str
) -> None:
    with pytest.raises(Refusal) as refusal:
        split(name, balanced(200), clients, **options)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("name", sorted(SHARED))
def test_a_class_without_samples_is_refused_where_everyone_needs_it(name: str) -> None:
    with pytest.raises(Refusal, match="Class 9 has no training sample"):
        split(name, balanced(900, classes=9), 100, reuse=20.0)


# Pools and rounding.


def test_pools_repeat_no_image_in_a_part_until_they_are_used_up() -> None:
    pools = ClassPools(balanced(70, classes=10), 10, generator(0))
    for _ in range(40):
        part = pools.take(3, 5)
        assert len(set(part.tolist())) == 5
        assert (part % 10 == 3).all()
    times = np.bincount(pools.take(4, 24), minlength=70)[4::10]
    assert set(times.tolist()) == {3, 4}


def test_pools_use_every_image_equally_often() -> None:
    labels = balanced(500)
    result = split("uniform", labels, 50, reuse=8.0)
    times = np.bincount(np.concatenate(result.parts), minlength=500)
    # Classes differ by what one client takes, images of one class by one more or less from each pass over the pool.
    assert times.min() >= 6 and times.max() <= 10


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20).filter(lambda shares: sum(shares) > 0), st.integers(0, 5000))
def test_allotment_is_exact_in_sum_and_within_one_of_each_share(weights: list[float], total: int) -> None:
    shares = np.array(weights) / sum(weights)
    counts = allot(total, shares)
    assert counts.sum() == total
    assert (np.abs(counts - total * shares) < 1).all()


@pytest.mark.parametrize("alpha", [1e-6, 0.02, 0.2, 3.0, 100.0])
def test_dirichlet_shares_have_the_moments_of_their_law(alpha: float) -> None:
    rng = generator(0)
    draws = np.stack([dirichlet_shares(alpha, 5, rng) for _ in range(2000)])
    assert np.allclose(draws.sum(axis=1), 1)
    assert np.allclose(draws.mean(axis=0), 0.2, atol=0.04)
    # E[p_c²] = (α + 1)/(C(Cα + 1))
    assert (draws**2).sum(axis=1).mean() == pytest.approx((alpha + 1) / (5 * alpha + 1), abs=0.02)


# FedACS.


def test_a_half_dominance_client_of_100_holds_55_and_5_as_in_the_paper() -> None:
    assert dominance_counts(0.5, 2, 100, 10).tolist() == [5, 5, 55, 5, 5, 5, 5, 5, 5, 5]


@pytest.mark.parametrize("name", ["uniform", "uniform-observed", "inverse-pareto"])
def test_dominance_clients_hold_their_alpha(name: str) -> None:
    labels = balanced(5000)
    result = split(name, labels, 200, samples=200)
    assert result.skew is not None
    for counts, alpha in zip(class_counts(result, labels), result.skew, strict=True):
        common = int(200 * (1 - alpha) / 10 + 1e-9)
        assert sorted(counts.tolist()) == [common] * 9 + [200 - 9 * common]


def test_dominant_classes_are_spread_so_that_all_classes_are_taken_alike() -> None:
    labels = balanced(5000)
    taken_of_class = class_counts(split("uniform", labels, 200, samples=200), labels).sum(axis=0)
    assert taken_of_class.max() - taken_of_class.min() <= 200


def test_uniform_alphas_are_uniform() -> None:
    skew = split("uniform", balanced(100), 2000, samples=1).skew
    assert skew is not None
    assert stats.kstest(skew, "uniform").pvalue > 0.01


def test_the_last_sixty_of_two_hundred_clients_are_the_observation_groups_of_figure_4() -> None:
    skew = split("uniform-observed", balanced(2000), 200).skew
    assert skew is not None
    assert skew[140:].reshape(6, 10).tolist() == [[alpha] * 10 for alpha in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    assert len(np.unique(skew[:140])) == 140


def test_inverse_pareto_is_the_law_that_the_authors_draw_by_rejection() -> None:
    rng = generator(1)
    lomax = rng.pareto(2.0, size=8000)
    by_rejection = 1 - lomax[lomax <= 1]
    skew = split("inverse-pareto", balanced(100), 2000, samples=1).skew
    assert skew is not None
    assert stats.ks_2samp(skew, by_rejection).pvalue > 0.01
    assert skew.mean() > 0.6, "most clients are heavily skewed"


@pytest.mark.parametrize("shape", [0.5, 2.0, 7.0])
def test_inverse_pareto_quantiles_invert_the_distribution(shape: float) -> None:
    probability = np.linspace(0, 1, 21)
    x = 2 - inverse_pareto_quantiles(probability, shape)
    assert np.allclose((1 - x**-shape) / (1 - 2**-shape), probability)
    assert x[0] == pytest.approx(1) and x[-1] == pytest.approx(2)


def test_dirichlet_layers_alternate_between_mild_and_heavy_skew() -> None:
    labels = balanced(2000)
    result = split("dirichlet-layers", labels, 1200, samples=400)
    assert result.skew is None
    assert {len(part) for part in result.parts} == {400}
    concentration = ((class_counts(result, labels) / 400) ** 2).sum(axis=1)
    for layer, low, high in ((1, 0.0, 0.2), (0, 0.2, 3.0)):
        beta = np.linspace(low, high, 10_001)[1:]
        expected = ((beta + 1) / (10 * beta + 1)).mean()
        assert concentration[layer::2].mean() == pytest.approx(expected, abs=0.03)


def test_few_class_clients_hold_one_to_all_classes_with_dominance_within() -> None:
    labels = balanced(5000)
    result = split("few-class", labels, 1000, samples=1000)
    assert result.skew is None
    numbers = []
    for counts in class_counts(result, labels):
        held = np.sort(counts[counts > 0])
        assert held.sum() == 1000
        assert len(set(held[:-1].tolist())) <= 1, "all but the dominant class are held alike"
        numbers.append(len(held))
    frequency = np.bincount(numbers, minlength=11)[1:]
    assert (frequency > 60).all() and (frequency < 140).all()


# On-Demand FL.


def test_dirichlet_assigns_everything_and_a_small_alpha_leaves_a_class_with_one_client() -> None:
    labels = balanced(5000)
    for alpha in (1e-6, 0.1, 10.0):
        counts = class_counts(split("dirichlet", labels, 40, alpha=alpha), labels)
        assert counts.sum(axis=0).tolist() == [500] * 10
        if alpha == 1e-6:
            assert (counts.max(axis=0) >= 450).all()


def test_dirichlet_with_a_large_alpha_favours_nobody() -> None:
    sizes = [len(part) for part in split("dirichlet", balanced(6000, 30), 600, classes=30, alpha=1e6).parts]
    assert min(sizes) >= 2 and max(sizes) <= 20, "10 samples each, in 30 roundings"


def test_dirichlet_gives_everyone_the_minimum() -> None:
    sizes = [len(part) for part in split("dirichlet", balanced(400), 40, alpha=1e-6, minimum=10).parts]
    assert sizes == [10] * 40


# FedDRL.


def test_pareto_clients_hold_two_labels_and_labels_are_held_alike() -> None:
    labels = balanced(6000)
    counts = class_counts(split("pareto", labels, 100), labels)
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert ((counts > 0).sum(axis=0) == 20).all()
    assert counts.sum() == 6000, "all samples are assigned"
    assert len({tuple(np.flatnonzero(row)) for row in counts}) > 10, "pairs are random, not clusters"


@pytest.mark.parametrize("shape", [1.0, 2.5])
def test_pareto_sizes_follow_a_power_law_of_the_given_index(shape: float) -> None:
    labels = balanced(400_000, classes=1)
    sizes = np.array([len(part) for part in split("pareto", labels, 1000, classes=1, labels=1, shape=shape).parts])
    # Hill's estimate from all sizes, the smallest being the scale.
    assert 1 / np.log(sizes / sizes.min()).mean() == pytest.approx(shape, rel=0.1)


def test_clustered_equal_with_ten_clients_is_the_authors_partition() -> None:
    labels = balanced(60_000)
    counts = class_counts(split("clustered-equal", labels, 10), labels)
    expected = np.zeros((10, 10), dtype=np.int64)
    expected[:6, [0, 1]] = 1000
    for client, pair in zip(range(6, 10), ([2, 3], [4, 5], [6, 7], [8, 9]), strict=True):
        expected[client, pair] = 1000
    assert counts.tolist() == expected.tolist()


def test_clustered_equal_with_a_hundred_clients_and_overlapping_groups_is_as_the_authors_files() -> None:
    labels = balanced(60_000)
    counts = class_counts(split("clustered-equal", labels, 100, groups="overlapping"), labels)
    assert counts[:60].tolist() == [[100, 100] + [0] * 8] * 60
    assert (counts[60:, :2] == 0).all()
    assert (np.sort(counts[60:], axis=1)[:, -2:] == 100).all()
    assert len({tuple(np.flatnonzero(row)) for row in counts[60:]}) > 4, "random pairs, not four groups"


def test_disjoint_groups_share_no_label_and_the_last_takes_what_remains() -> None:
    labels = balanced(2800, classes=7)
    counts = class_counts(split("clustered-equal", labels, 20, classes=7, delta=0.4), labels, classes=7)
    assert {tuple(np.flatnonzero(row)) for row in counts} == {(0, 1), (2, 3), (4, 5), (6,)}
    assert (counts[:8, :2] > 0).all()
    assert len(set(counts.sum(axis=1).tolist())) == 1


def test_clustered_samples_can_be_fewer_than_the_scarcest_label_allows() -> None:
    labels = balanced(6000)
    assert {len(part) for part in split("clustered-equal", labels, 10, samples=31).parts} == {31}


def test_clustered_unequal_sizes_differ_within_the_spread() -> None:
    labels = balanced(60_000)
    result = split("clustered-unequal", labels, 10)
    counts = class_counts(result, labels)
    sizes = counts.sum(axis=1)
    assert len(set(sizes.tolist())) > 5
    assert sizes.max() / sizes.min() <= 1.2 / 0.8 + 0.01
    assert counts[:, 0].sum() > 5990, "the scarcest label is used up"
    assert [np.flatnonzero(row).tolist() for row in counts[[0, 5, 6, 9]]] == [[0, 1], [0, 1], [2, 3], [8, 9]]
    equal = class_counts(split("clustered-unequal", labels, 10, spread=0.0), labels)
    assert (equal.sum(axis=1) == 2000).all()


def test_equal_shards_give_two_pieces_of_sorted_data() -> None:
    labels = generator(0).permutation(balanced(1000))
    counts = class_counts(split("shards-equal", labels, 50), labels)
    assert (counts.sum(axis=1) == 20).all()
    assert set(np.unique(counts).tolist()) <= {0, 10, 20}, "whole shards of one label"


def test_unequal_shards_give_six_to_fourteen_pieces_and_leave_nothing() -> None:
    labels = balanced(9000)
    result = split("shards-unequal", labels, 901, shards=9, spread=3)
    assert sum(len(part) for part in result.parts) == 9000
    labels = balanced(10_000)
    sizes = np.array([len(part) for part in split("shards-unequal", labels, 500).parts])
    assert (sizes % 2 == 0).all(), "whole shards of two samples"
    frequency = np.bincount(sizes // 2, minlength=16)
    assert frequency.sum() == frequency[6:15].sum() == 500
    assert (frequency[6:15] > 25).all(), "every number from 6 to 14 is about as likely"


# Alterations.


@settings(max_examples=50)
@given(
    st.integers(1, 60),
    st.floats(0, 0.33),
    st.floats(0, 0.33),
    st.floats(0, 0.33),
    st.floats(0, 1),
    st.integers(0, 1000),
)
def test_altered_clients_come_in_rounded_numbers(
    clients: int, shifted: float, blurred: float, inverted: float, poison: float, seed: int
) -> None:
    alterations = Alterations(shifted=shifted, blurred=blurred, inverted=inverted, poison=poison)
    altered = assign(alterations, clients, generator(seed))
    assert altered == assign(alterations, clients, generator(seed))
    assert sum(altered.poisoned) == int(poison * clients + 0.5)
    wanted = {kind: int(share * clients + 0.5) for kind, share in vars(alterations).items()}
    if wanted["shifted"] + wanted["blurred"] + wanted["inverted"] <= clients:
        for kind in ("shifted", "blurred", "inverted"):
            assert altered.features.count(kind) == wanted[kind]


def test_another_seed_alters_other_clients_and_nothing_asked_alters_nobody() -> None:
    half = Alterations(inverted=0.5, poison=0.5)
    assert bool(half) and not Alterations()
    assert assign(half, 40, generator(1)) != assign(half, 40, generator(2))
    nobody = assign(Alterations(noise=0.1), 5, generator(0))
    assert nobody.features == (None,) * 5 and nobody.poisoned == (False,) * 5
    everybody = assign(Alterations(shifted=0.5, blurred=0.5), 3, generator(0))
    assert None not in everybody.features


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ({"noise": 1.5}, "noise must be a share from 0 to 1, not 1.5."),
        ({"poison": -0.1}, "poison must be a share from 0 to 1"),
        ({"blurred": float("nan")}, "blurred must be a share from 0 to 1"),
        ({"shifted": 0.5, "inverted": 0.6}, "their shares sum to 1.1, above 1."),
    ],
)
def test_impossible_shares_are_refused(shares: dict[str, float], sentence: str) -> None:
    with pytest.raises(Refusal) as refusal:
        Alterations(**shares)
    assert sentence in str(refusal.value)


def test_images_are_shifted_blurred_and_inverted() -> None:
    x = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    x[0, 0, 3, 3] = 16
    before = x.clone()
    shifted = alter_images(x, "shifted")
    assert shifted.nonzero().tolist() == [[0, 0, 4, 4]]
    blurred = alter_images(x, "blurred")
    assert blurred[0, 0, 2:5, 2:5].tolist() == [[1, 2, 1], [2, 4, 2], [1, 2, 1]]
    assert blurred.sum() == 16
    inverted = alter_images(x, "inverted", white=16)
    assert inverted[0, 0, 3, 3] == 0 and inverted.sum() == 63 * 16
    assert alter_images(x, None) is x
    assert torch.equal(x, before), "the stored images stay as they are"


@pytest.mark.parametrize("kind", ["shifted", "blurred", "inverted"])
def test_altered_images_keep_shape_and_type_and_do_not_depend_on_their_neighbours(kind: Any) -> None:
    x = torch.from_numpy(generator(0).integers(0, 256, (6, 3, 32, 28), dtype=np.uint8))
    altered = alter_images(x, kind)
    assert altered.dtype == torch.uint8 and altered.shape == x.shape
    assert not torch.equal(altered, x)
    assert torch.equal(altered[2:4], alter_images(x[2:4], kind))


def test_a_blurred_white_image_stays_white() -> None:
    x = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    assert torch.equal(alter_images(x, "blurred"), x)


def test_what_is_not_an_image_cannot_be_blurred() -> None:
    with pytest.raises(Refusal, match="Only images can be blurred"):
        alter_images(torch.zeros(4, 20, dtype=torch.int64), "blurred")


@settings(max_examples=30)
@given(st.integers(1, 200), st.integers(2, 10), st.floats(0, 1), st.integers(0, 2**63))
def test_noise_makes_exactly_its_share_of_labels_wrong(count: int, classes: int, noise: float, key: int) -> None:
    y = torch.arange(count) % classes
    noisy = alter_labels(y, classes, noise, False, key)
    assert (noisy != y).sum() == int(noise * count + 0.5)
    assert noisy.min() >= 0 and noisy.max() < classes
    assert torch.equal(noisy, alter_labels(y, classes, noise, False, key))
    assert torch.equal(y, torch.arange(count) % classes)


def test_noise_reaches_every_other_class_alike_and_depends_on_the_key() -> None:
    y = torch.zeros(9000, dtype=torch.int64)
    noisy = alter_labels(y, 10, 1.0, False, key=5)
    counts = torch.bincount(noisy, minlength=10)
    assert counts[0] == 0 and counts[1:].min() > 850 and counts[1:].max() < 1150
    assert not torch.equal(noisy, alter_labels(y, 10, 1.0, False, key=6))


@pytest.mark.parametrize("classes", [2, 5, 10])
def test_a_poisoned_client_has_no_label_right(classes: int) -> None:
    y = torch.arange(50) % classes
    flipped = alter_labels(y, classes, 0.0, True, key=0)
    assert (flipped != y).all()
    assert torch.equal(torch.bincount(flipped), torch.bincount(y).roll(1))
