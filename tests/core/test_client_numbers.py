"""Clients' numbers and places carry no information about what the clients hold."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import covey
from covey.aggregation.impact_factors import LossReports
from covey.arrays import FloatArray, IntArray
from covey.config.schema import Config
from covey.core.build import build_federation
from covey.environment.federated_data import Federation
from covey.fleet.fleet_folder import Fleet
from covey.fleet.samples import settings
from covey.registries import environments
from tests.aggregation.agents import replies, setting

CLIENTS, SEEDS = 40, 120
SPLITS = sorted(set(environments.names()) - {"given", "natural"})
OPTIONS: dict[str, dict[str, object]] = {
    "clustered-equal": {"groups": "overlapping"},
    "clustered-unequal": {"groups": "overlapping"},
    "uniform-observed": {"group": 5},
    "shards-unequal": {"shards": 3, "spread": 2},
}


def federations(name: str, numbering: str = "shuffled") -> Iterator[Federation]:
    chosen = {"name": name, **OPTIONS.get(name, {})}
    for seed in range(SEEDS):
        yield build_federation(Config.of(environment=chosen, clients=CLIENTS, seed=seed, numbering=numbering))


def groups(federation: Federation) -> FloatArray:
    """Return answers to questions about clients `[questions, clients]`: much skew, many samples, much of class c."""
    known = [federation.truth.skew, federation.sizes, *federation.truth.shares.T]
    return np.stack([one > np.median(one) for one in known])


def area(answers: NDArray[Any], numbers: IntArray) -> float:
    """Area under the ROC curve of numbers as a predictor of answers; 0.5 says nothing."""
    inside = answers > 0
    if inside.all() or not inside.any():
        return 0.5
    return float(stats.mannwhitneyu(numbers[inside], numbers[~inside]).statistic / inside.sum() / (~inside).sum())


def areas_of_numbers(name: str, numbering: str = "shuffled") -> list[float]:
    found = [groups(federation) for federation in federations(name, numbering)]
    numbers = np.tile(np.arange(CLIENTS), SEEDS)
    return [area(np.concatenate(answers), numbers) for answers in zip(*found, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLITS)
def test_a_number_tells_nothing_about_a_client(name):
    assert all(0.45 < one < 0.55 for one in areas_of_numbers(name))


@pytest.mark.parametrize("name", ["clustered-equal", "clustered-unequal", "uniform-observed"])
def test_a_number_in_the_order_of_the_environment_does(name):
    areas = areas_of_numbers(name, numbering="environment")
    assert max(abs(one - 0.5) for one in areas) > 0.1


def places(cohort: IntArray, t: int, seed: int) -> IntArray:
    """Places of a cohort among ten of the clients."""
    losses = [1.0] * len(cohort)
    return LossReports.of(
        t, replies(losses, clients=cohort, size=len(cohort)), setting(CLIENTS, len(cohort), seed)
    ).slots


def test_a_place_in_the_cohort_tells_nothing_even_where_numbers_do():
    main = np.arange(CLIENTS) < 24
    answers, found = [], []
    for t in range(1, 401):
        cohort = np.sort(np.random.default_rng(t).choice(CLIENTS, 10, replace=False))
        answers.append(main[cohort])
        found.append(places(cohort, t, seed=3))
        assert sorted(found[-1].tolist()) == list(range(10))
    assert 0.45 < area(np.concatenate(answers).astype(float), np.concatenate(found)) < 0.55
    assert found[0].tolist() != found[1].tolist()
    assert found[0].tolist() == places(np.arange(10), 1, seed=3).tolist()


def test_natural_clients_keep_their_names_and_samples(tmp_path):
    owners = np.repeat([f"user {number:02}" for number in range(12)], 5)
    path = tmp_path / "own.npz"
    np.savez(
        path, x=np.arange(60.0)[:, None], y=np.arange(60) % 3, client=owners, test_x=np.zeros((3, 1)), test_y=[0, 1, 2]
    )
    given = {"dataset": {"name": "npz", "path": str(path)}, "environment": "natural", "seed": 1}
    held = []
    for numbering in ("environment", "shuffled"):
        federation = build_federation(Config.of(given, numbering=numbering))
        held.append({name: part.tolist() for name, part in zip(federation.names, federation.parts, strict=True)})
    assert held[0] == held[1]
    assert list(held[0]) == sorted(held[0])
    assert list(held[1]) != sorted(held[1])


def test_a_federation_that_is_passed_in_keeps_its_numbers(tmp_path):
    x, y = np.arange(60.0)[:, None], np.arange(60) % 3
    federation = covey.federation(x, y, np.repeat(np.arange(12), 5), test=(x[:3], y[:3]))
    run = covey.run(federation=federation, rounds=1, cohort=12, workers=1, out=tmp_path / "run")
    assert run.config.numbering == "shuffled"
    assert federation.parts[3].tolist() == [15, 16, 17, 18, 19]


def test_a_folder_without_the_setting_keeps_the_order_of_its_environment():
    stored = Config.of(environment="clustered-equal", clients=10, seed=2).as_mapping()
    del stored["numbering"]
    before = build_federation(Config.stored(stored))
    assert Config.stored(stored).numbering == "environment"
    assert before.truth.shares[:6, :2].sum(axis=1).tolist() == [1.0] * 6
    assert build_federation(Config.of(stored)).truth.shares[:6, :2].sum() < 6


@pytest.mark.parametrize("about", ['classes = ["ok", "worn"]', "targets = 1"])
def test_sites_of_a_live_fleet_keep_the_order_in_which_they_answer(about, tmp_path):
    """`covey analyze --fleet` and `covey ondemand --fleet` name a site by its number, whatever the seed."""
    sites = ("harbour", "mill", "quarry", "dam", "lock")
    task = '\ntask = {name = "regression", centre = [0.0], scale = [1.0]}' if "targets" in about else ""
    data = f"[data]\nshape = [4]\n{about}\n"
    run = f'address = "127.0.0.1:8443"\nsites = {list(sites)}\n[run]\nmethod = "fedavg"{task}\n'
    (tmp_path / "fleet.toml").write_text(run + data)
    chosen = settings(Fleet.read(tmp_path))
    for seed in range(3):
        federation = build_federation(Config.of({**chosen, "seed": seed}))
        assert federation.names == sites
        assert federation.dataset.groups is not None
        held = [federation.dataset.groups[federation.parts[client]].unique().tolist() for client in range(len(sites))]
        assert held == [[client] for client in range(len(sites))]
