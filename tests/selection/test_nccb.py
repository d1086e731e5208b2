"""NCCB: contexts asked for once, clusters explored, and then a reward estimator that chooses."""

import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import covey.selection.contexts
import covey.selection.nccb
from covey import Config, Refusal, resume, run
from covey.arrays import FloatArray, IntArray
from covey.config.sections import Local
from covey.core.checkpoint import write_checkpoint
from covey.core.interfaces import Selector, Setting
from covey.core.loop import perform_jointly
from covey.core.messages import Fault
from covey.core.replies import Replies
from covey.job.lockstep_runs import run_together
from covey.model.layout import Layout
from covey.probe.losses import Utility
from covey.probe.simhash import of_tokens, packed
from covey.randomness import generator
from covey.selection import Uniform
from covey.selection.context_clusters import cluster_centres, nearest_centre
from covey.selection.contexts import cohort_utility, highest, normalised
from covey.selection.estimators import LinearEstimator, NetworkEstimator, RewardSamples, fit_together
from covey.selection.k_linucb import KLinUCB
from covey.selection.nccb import NCCB
from covey.selection.oort_simple import OortSimple
from tests.conftest import SMALL, saved_state, without_timings

SINGLE = np.array([[0x01], [0x01], [0x02], [0x04], [0x08]], dtype=np.uint8)
"""Five clients' contexts of 8 bits, one bit each; the first two are the same."""


def setting(clients: int, cohort: int, seed: int = 0, rounds: int = 200) -> Setting:
    return Setting(clients, cohort, rounds, 10, seed, Layout((), (), ()), Local())


def hashes(clients, contexts, faults=()) -> Replies:
    """Replies to the survey for contexts."""
    count = len(clients)
    return Replies(
        np.array(clients, dtype=np.int64),
        torch.zeros(count, 0),
        torch.ones(count, dtype=torch.int64),
        torch.zeros(count, dtype=torch.float64),
        {"simhash": {"bits": torch.from_numpy(np.ascontiguousarray(contexts))}} if count else {},
        faults=tuple(faults),
    )


def trained(clients, rewards, samples=None) -> Replies:
    """Replies of clients with root mean squared losses `rewards` (NaN: the measurement was lost)."""
    values = torch.tensor(np.asarray(rewards, dtype=np.float64))
    count = len(clients)
    return Replies(
        np.array(clients, dtype=np.int64),
        torch.zeros(count, 1),
        torch.tensor([1] * count if samples is None else samples, dtype=torch.int64),
        values,
        {"utility": {"loss": values, "square": values**2}},
    )


def begun(contexts=None, cohort=2, seed=0, clients=None, **options) -> NCCB:
    """A selector that knows these contexts `[clients, bytes]`."""
    bits = 64 if contexts is None else 8 * contexts.shape[1]
    selector = NCCB(**{"bits": bits, "clusters": 4, "threshold": 0, **options})
    selector.begin(setting(clients or len(contexts), cohort, seed))
    if contexts is not None:
        asked = selector.survey(1, np.arange(len(contexts)))
        assert asked is not None
        selector.surveyed(1, hashes(asked[0], contexts))
    return selector


def survey_of(selector: NCCB, t: int, candidates: IntArray) -> tuple[list[int], list[str]]:
    """Return the clients asked before round `t` and the names of what they measure."""
    asked = selector.survey(t, candidates)
    assert asked is not None
    clients, probes = asked
    return clients.tolist(), [probe.name for probe in probes]


def random_contexts(count: int, bits: int = 64, seed: int = 0) -> np.ndarray:
    return generator(seed, "contexts").integers(0, 256, (count, bits // 8), dtype=np.uint8)


def some_contexts(count: int, seed: int) -> np.ndarray:
    return (generator(seed, "bits").random((count, 64)) < 0.5).astype(np.float64)


def played(selector: Selector, rounds: int, rewards: np.ndarray, first: int = 1) -> list[list[int]]:
    """Return the cohorts of some rounds in which client i has the reward rewards[i]."""
    cohorts = []
    for t in range(first, first + rounds):
        cohort = np.sort(selector.select(t, np.arange(len(rewards))))
        selector.observe(t, trained(cohort, rewards[cohort]))
        cohorts.append(cohort.tolist())
    return cohorts


# --- contexts


def test_clients_are_asked_for_their_bits_once():
    selector = begun(clients=6)
    assert survey_of(selector, 1, np.arange(6)) == (list(range(6)), ["simhash"])
    contexts = random_contexts(6)
    selector.surveyed(1, hashes(range(6), contexts))
    assert selector.survey(2, np.arange(6)) is None
    assert [probe.name for probe in selector.probes(2)] == [Utility.name]
    assert (selector.contexts == contexts).all()


def test_clients_that_were_away_or_whose_bits_did_not_arrive_are_asked_when_they_can_be_reached():
    selector = begun(clients=6, clusters=2)
    contexts = random_contexts(6)
    selector.survey(1, np.arange(4))
    # Client 3 did not answer, and client 2 answered without its bits, which are then a row of zeros.
    answered = contexts[:3] * np.array([[1], [1], [0]], dtype=np.uint8)
    selector.surveyed(1, hashes([0, 1, 2], answered, [Fault(2, "its simhash is missing", "simhash")]))
    assert selector.known.tolist() == [True, True, False, False, False, False]
    assert survey_of(selector, 2, np.array([0, 2, 3, 5])) == ([2, 3, 5], ["simhash"])
    selector.surveyed(2, hashes([2, 3, 5], contexts[[2, 3, 5]]))
    assert (selector.contexts[[0, 1, 2, 3, 5]] == contexts[[0, 1, 2, 3, 5]]).all()
    assert selector.survey(3, np.array([0, 2, 3, 5])) is None


def test_clients_of_unknown_context_take_places_that_are_left():
    selector = begun(clients=6, cohort=4, clusters=2)
    selector.survey(1, np.arange(6))
    selector.surveyed(1, hashes([0, 1], random_contexts(2)))
    cohort = selector.select(1, np.arange(6)).tolist()
    assert sorted(cohort[:2]) == [0, 1]
    assert len(set(cohort)) == 4
    selector.surveyed(2, hashes([], np.empty((0, 8), dtype=np.uint8)))
    assert len(set(selector.select(2, np.arange(6)).tolist())) == 4
    # A reward without a context teaches nothing, and is no error.
    selector.observe(2, trained([4, 5], [1.0, 2.0]))
    assert selector.seen == 0


def test_rewards_are_root_mean_square_losses_over_the_greatest_so_far():
    selector = begun(SINGLE)
    selector.select(1, np.arange(5))
    selector.observe(1, trained([1, 2], [2.0, math.nan], samples=[10, 10]))
    selector.select(2, np.arange(5))
    selector.observe(2, trained([3, 4], [0.5, 4.0], samples=[10, 30]))
    assert selector.rewarded.tolist() == [1, 3, 4]
    assert selector.scaled(selector.rewards).tolist() == [0.5, 0.125, 1.0]
    # Equation 3: U(B) = √ΣU(i)² with U(i) = |D_i|·√(mean loss²).
    assert selector.figures()["utility"] == pytest.approx(math.hypot(10 * 0.5, 30 * 4.0))
    by_size = begun(SINGLE, reward="total")
    by_size.select(1, np.arange(5))
    by_size.observe(1, trained([3, 4], [0.5, 4.0], samples=[240, 60]))
    assert by_size.scaled(by_size.rewards).tolist() == [0.5, 1.0]


def test_regret_is_what_cohorts_fall_short_of_the_best_of_their_size():
    utilities = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    selector = begun(clients=5, cohort=2, bits=8, clusters=2, regret=True)
    assert survey_of(selector, 1, np.arange(5)) == ([0, 1, 2, 3, 4], ["simhash", "utility"])
    total = 0.0
    for t in (1, 2, 3):
        told = trained(range(5), utilities * t, samples=[10] * 5)
        # Client 4 does not answer in the third round, so its utility is unknown.
        told = told.take(np.arange(5 if t < 3 else 4))
        bits = {"simhash": {"bits": torch.from_numpy(SINGLE)}} if t == 1 else {}
        selector.surveyed(t, replace(told, probes={**told.probes, **bits}))
        cohort = selector.select(t, np.arange(5))
        best = math.hypot(4, 5) if t < 3 else math.hypot(3, 4)
        worth = np.where(told.clients.max() >= cohort, utilities[cohort], 0.0)
        total += 10 * t * (best - math.hypot(*worth))
        selector.observe(t, trained(cohort, utilities[cohort] * t, samples=[10, 10]))
        figures = selector.figures()
        assert figures["best_utility"] == pytest.approx(10 * t * best)
        invited = utilities[cohort[cohort <= told.clients.max()]]
        assert figures["cohort_loss"] == pytest.approx(t * invited.mean())
        assert figures["population_loss"] == pytest.approx(t * utilities[: len(told.clients)].mean())
        assert figures["regret"] == pytest.approx(total)
        assert survey_of(selector, t + 1, np.arange(5)) == ([0, 1, 2, 3, 4], ["utility"])
    assert total > 0
    again = begun(clients=5, cohort=2, bits=8, clusters=2, regret=True)
    again.load_state_dict(selector.state_dict())
    assert again.regret == selector.regret
    assert "regret" not in begun(SINGLE).figures()


def test_the_estimator_is_the_same_whenever_its_state_is_asked_for():
    # Training is postponed until it is needed, and the greatest reward may have grown by then.
    rewards = np.linspace(1, 12, 12)
    kept, waiting = (begun(random_contexts(12), cohort=2, clusters=4, threshold=3) for _ in range(2))
    for t in range(1, 15):
        cohorts = []
        for selector in (kept, waiting):
            cohort = np.sort(selector.select(t, np.arange(12)))
            selector.observe(t, trained(cohort, t * rewards[cohort]))
            cohorts.append(cohort.tolist())
        kept.state_dict()
        assert cohorts[0] == cohorts[1], t
    states = [selector.state_dict() for selector in (kept, waiting)]
    for name in ("parameters", "diagonal"):
        assert np.array_equal(states[0][name], states[1][name])


def test_a_round_without_rewards_is_survived():
    selector = begun(SINGLE)
    before = selector.function.parameters.copy()
    cohort = selector.select(1, np.arange(5))
    selector.observe(1, trained([], []))
    assert selector.figures()["utility"] is None
    assert (selector.function.parameters == before).all()
    assert selector.plays[cohort].tolist() == [1, 1]


# --- clusters


def test_clusters_are_the_topics():
    rng = generator("topics")
    topics = rng.random((5, 64)) < 0.5
    topic = np.arange(100) % 5
    contexts = topics[topic] ^ (rng.random((100, 64)) < 0.08)
    selector = begun(packed(contexts), clusters=5)
    assert [len(set(selector.cluster[topic == one].tolist())) for one in range(5)] == [1] * 5
    assert len(set(selector.cluster.tolist())) == 5


def test_there_are_no_more_clusters_than_different_contexts_and_that_is_said():
    with pytest.warns(
        UserWarning, match="clusters is 9, but the 5 clients known so far have only 4 different contexts"
    ):
        selector = begun(SINGLE, clusters=9)
    assert selector.cluster.tolist() == [0, 0, 1, 2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(begun(SINGLE, clusters=4).centres) == 4


def test_newcomers_join_the_nearest_cluster_and_twice_as_many_clients_are_clustered_anew():
    selector = begun(clients=10, clusters=2)
    far = np.zeros((10, 8), dtype=np.uint8)
    far[1::2] = 0xFF
    far[:, 0] ^= np.arange(10, dtype=np.uint8)
    selector.surveyed(1, hashes([0, 1, 2, 3], far[:4]))
    assert selector.clustered == 4
    centres = selector.centres
    selector.surveyed(2, hashes([4, 5, 6], far[4:7]))
    assert selector.clustered == 4 and selector.centres is centres
    assert selector.cluster[0] == selector.cluster[2] == selector.cluster[4] == selector.cluster[6]
    assert selector.cluster[1] == selector.cluster[3] == selector.cluster[5] != selector.cluster[0]
    selector.plays[:] = np.arange(10)
    selector.surveyed(3, hashes([7, 8, 9], far[7:]))
    assert selector.clustered == 10
    # Invitations stay with the clients: 0 + 2 + 4 + 6 + 8 and 1 + 3 + 5 + 7 + 9.
    assert sorted(selector.counters().tolist()) == [20, 25]


def test_many_contexts_are_clustered_from_a_sample(monkeypatch):
    monkeypatch.setattr("covey.selection.context_clusters._GROUPED", 3000)
    rng = generator("many")
    centres = rng.random((4, 64)) < 0.5
    topic = rng.integers(4, size=8000)
    contexts = packed(centres[topic] ^ (rng.random((8000, 64)) < 0.05))
    selector = begun(contexts, clusters=4)
    assert (selector.cluster >= 0).all()
    assert [len(set(selector.cluster[topic == one].tolist())) for one in range(4)] == [1] * 4


def test_a_tie_between_centres_goes_to_the_first():
    assert nearest_centre(np.array([[1.0, 0.0]]), np.array([[0.0, 0.0], [1.0, 1.0]])).tolist() == [0]
    contexts = np.eye(3)
    assert (cluster_centres(contexts, np.ones(3, dtype=np.int64), 3, 0) == contexts).all()


# --- exploration


@pytest.mark.parametrize(("clusters", "threshold", "cohort"), [(10, 3, 5), (7, 2, 3), (4, 0, 4), (6, 1, 9)])
def test_exploration_lasts_at_least_so_many_rounds(clusters, threshold, cohort):
    contexts = random_contexts(60)
    selector = begun(contexts, clusters=clusters, threshold=threshold, cohort=cohort, steps=1)
    exploring = []
    for t in range(1, 60):
        exploring.append(int((selector.counters() <= threshold).sum()))
        played(selector, 1, np.ones(60), first=t)
        if not selector.figures()["exploring"]:
            break
    assert exploring[0] == clusters
    least = math.ceil(clusters * (threshold + 1) / cohort) if cohort < clusters else threshold + 1
    assert least <= len(exploring) <= 3 * least
    assert (selector.counters() >= threshold + 1).all()


def test_each_unexplored_cluster_sends_one_client():
    selector = begun(random_contexts(60), clusters=10, threshold=5, cohort=4)
    for t in range(1, 8):
        cohort = selector.select(t, np.arange(60))
        assert len(set(selector.cluster[cohort].tolist())) == 4
        selector.observe(t, trained(cohort, np.ones(4)))


def test_a_hand_traced_run():
    selector = begun(SINGLE, seed=1, estimator="linear", gamma=2.0, ridge=1.0, covariance="diagonal")
    rewards = np.array([0.5, 0.5, 1.0, 0.8, 0.2])
    # Clusters are {0, 1}, {2}, {3}, {4}. In round 1 the generator draws the last and then the first, and of that
    # client 1; two are left for round 2.
    # With one bit each, f = Σr/(1 + n) and U = f + 2/√(1 + n) after n rewards of that context. After two rounds all
    # have n = 1: U = 1.66 (0 and 1), 1.91, 1.81, 1.51.
    expected = [
        [1, 4],
        [2, 3],
        [2, 3],  # n = 2: 1.82 and 1.69 against 1.66
        [2, 3],  # n = 3: 1.75 and 1.60
        [1, 2],  # 2, and one of 0 and 1, equal at 1.66: then 1.69 and 1.49
        [2, 3],  # 1.69 and 1.60; then 1.65 and 1.53
        [2, 3],  # 1.53 against 1.51; then 1.61 and 1.48
        [2, 4],  # 1.61 and 1.51
    ]
    assert played(selector, 8, rewards) == expected


def test_clusters_without_a_client_in_reach_wait():
    selector = begun(SINGLE, cohort=2)
    assert sorted(selector.select(1, np.array([3, 4])).tolist()) == [3, 4]
    selector.observe(1, trained([3, 4], [1.0, 1.0]))
    assert selector.figures()["exploring"] == 2
    assert sorted(selector.select(2, np.array([3, 4])).tolist()) == [3, 4]
    assert selector.select(3, np.array([4])).tolist() == [4]


def test_clusters_whose_clients_never_answer_do_not_block_their_place():
    selector = begun(SINGLE, cohort=2, threshold=1)
    for t in range(1, 9):
        cohort = np.sort(selector.select(t, np.arange(5)))
        answering = cohort[cohort < 4]
        selector.observe(t, trained(answering, np.ones(len(answering))))
    assert selector.figures()["exploring"] == 0
    assert 4 not in selector.rewarded


# --- the estimator and its bounds


def test_a_bound_by_hand():
    contexts = np.array([[0b11000000], [0b00010000]], dtype=np.uint8)
    selector = begun(contexts, width=2, clusters=1, gamma=0.5, covariance="diagonal")
    function = selector.function
    assert isinstance(function, NetworkEstimator)
    first, second, _ = function._parts(function.parameters)
    first[:], second[:] = 0, (0.5, -1.0)
    first[0, 0, :2], first[0, 1, :2], first[1, 0, 0] = 1.0, 0.5, -3.0
    selector.diagonal[:] = 0.25
    # x = [c; c]/√4 for two ones. Unit 0: 2·(1 + ½)/2 = 1.5, unit 1 is off. f = √2·0.5·1.5; ∂f/∂W₂ = √2·(1.5, 0);
    # ∂f/∂W₁ of unit 0 is √2·0.5·½ at four places. Σg²/Z = (2·2.25 + 4·2·0.0625)/0.25 = 20, over w = 2: √10.
    assert selector.bounds(np.array([0])) == pytest.approx([math.sqrt(2) * 0.75 + 0.5 * math.sqrt(10)])
    # The other context reaches no unit.
    assert selector.bounds(np.array([1])).tolist() == [0.0]


def test_the_papers_start_is_zero_for_every_context():
    network = NetworkEstimator(generator(5), 64, 16, plain=False)
    contexts = (generator(6).random((50, 64)) < 0.5).astype(float)
    assert network.value(contexts) == pytest.approx(np.zeros(50), abs=1e-12)
    assert len(network.parameters) == 16 * 128 + 16
    first, second, _ = network._parts(network.initial)
    assert (first[:8, 0] == first[8:, 1]).all() and not first[:8, 1].any() and not first[8:, 0].any()
    assert (second[:8] == -second[8:]).all()
    large = NetworkEstimator(generator(7), 64, 2000, plain=False)
    first, second, _ = large._parts(large.initial)
    assert first[:1000, 0].var() == pytest.approx(4 / 2000, rel=0.05)
    assert second[:1000].var() == pytest.approx(2 / 2000, rel=0.15)


def test_the_authors_network_has_biases_and_torchs_start():
    network = NetworkEstimator(generator(5), 64, 16, plain=True)
    assert len(network.parameters) == 1057
    first, second, biases = network._parts(network.initial)
    assert 0.1 < np.abs(first).max() <= 1 / 8 and 0.1 < np.abs(second).max() <= 1 / 4
    assert np.abs(biases[:16]).max() <= 1 / 8 and abs(biases[16]) <= 1 / 4


def by_torch(network: NetworkEstimator, contexts: np.ndarray, parameters: torch.Tensor) -> torch.Tensor:
    """f as the paper (or the authors' code) has it, written out."""
    x = torch.from_numpy(contexts)
    width = network.width
    if not network.plain:
        x = torch.cat([x, x], dim=1)
        x = x / x.norm(dim=1, keepdim=True)
    first = parameters[: width * x.shape[1]].view(width, x.shape[1])
    second = parameters[width * x.shape[1] :][:width]
    if network.plain:
        biases = parameters[-width - 1 :]
        return torch.relu(x @ first.T + biases[:width]) @ second + biases[width]
    return math.sqrt(width) * (torch.relu(x @ first.T) @ second)


@pytest.mark.parametrize("plain", [False, True])
def test_values_gradients_and_spreads_are_those_of_automatic_differentiation(plain):
    rng = generator("gradients", int(plain))
    network = NetworkEstimator(rng, 16, 6, plain=plain)
    network.parameters += 0.3 * rng.standard_normal(len(network.parameters))
    contexts = (rng.random((7, 16)) < 0.5).astype(float)
    parameters = torch.from_numpy(network.parameters.copy()).requires_grad_()
    values = by_torch(network, contexts, parameters)
    gradients = torch.stack([torch.autograd.grad(value, parameters, retain_graph=True)[0] for value in values]).numpy()
    weights = rng.random(len(network.parameters))
    assert network.value(contexts) == pytest.approx(values.detach().numpy(), rel=1e-12)
    assert network.gradients(contexts) == pytest.approx(gradients, rel=1e-12)
    found, spreads = network.with_spread(contexts, weights)
    assert found == pytest.approx(values.detach().numpy(), rel=1e-12)
    assert spreads == pytest.approx((gradients**2) @ weights, rel=1e-12)


@pytest.mark.parametrize("plain", [False, True])
def test_training_is_adam_on_all_rewards_with_a_pull_to_the_start(plain):
    rng = generator("training", int(plain))
    network = NetworkEstimator(rng, 16, 6, plain=plain)
    contexts = (rng.random((5, 16)) < 0.5).astype(float)
    place = np.array([0, 1, 1, 2, 3, 4, 1])
    rewards = rng.random(7)
    start = torch.from_numpy(network.parameters.copy())
    parameters = start.clone().requires_grad_()
    adam = torch.optim.Adam([parameters], lr=0.05)
    for _ in range(20):
        adam.zero_grad()
        errors = by_torch(network, contexts[place], parameters) - torch.from_numpy(rewards)
        (errors.square().sum() / 2 + 0.7 / 2 * (parameters - start).square().sum()).backward()
        adam.step()
    counts = np.bincount(place).astype(float)
    seen = RewardSamples(contexts, np.bincount(place, weights=rewards) / counts, counts)
    network.fit(seen, pull=0.7, steps=20, rate=0.05)
    assert network.parameters == pytest.approx(parameters.detach().numpy(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("plain", [False, True])
def test_networks_fitted_as_one_stack_are_those_fitted_alone(plain):
    seen = [
        RewardSamples(some_contexts(count, seed), generator(seed, "rewards").random(count), np.ones(count) + (seed % 2))
        for seed, count in enumerate((40, 7, 25))
    ]
    alone, stacked = ([NetworkEstimator(generator(seed), 64, 16, plain=plain) for seed in range(3)] for _ in range(2))
    for _ in range(2):
        for network, samples in zip(alone, seen, strict=True):
            network.fit(samples, 0.3, 100, 0.01)
        fit_together(stacked, seen, 0.3, 100, 0.01, "cpu")
    for one, other in zip(alone, stacked, strict=True):
        assert not np.allclose(one.parameters, one.initial)
        assert other.parameters == pytest.approx(one.parameters, abs=1e-9)


def test_runs_in_lockstep_train_their_estimators_together_and_decide_as_alone(tmp_path, monkeypatch):
    given = {**DIGITS, "runtime": "stacked", "device": "cpu", "precision": "fp64", "rounds": 6}
    given["selector"] = {"name": "nccb", "clusters": 3, "threshold": 0}
    alone = [run(given, seed=seed, out=tmp_path / f"alone{seed}") for seed in range(3)]
    stacks = []

    def counted(networks, *rest):
        stacks.append(len(networks))
        fit_together(networks, *rest)

    monkeypatch.setattr(covey.selection.nccb, "fit_together", counted)
    monkeypatch.setattr(covey.selection.nccb, "stack_device", lambda: "cpu")
    pending = [(Config.of({**given, "seed": seed}), tmp_path / f"together{seed}") for seed in range(3)]
    for one, other in zip(alone, run_together(pending), strict=True):
        assert [row["clients"] for row in one.metrics] == [row["clients"] for row in other.metrics]
        mine, theirs = (saved_state(result.folder)["selector"] for result in (one, other))
        assert theirs["parameters"] == pytest.approx(mine["parameters"], abs=1e-9)
        assert theirs["diagonal"] == pytest.approx(mine["diagonal"], abs=1e-9)
    assert stacks == [3] * 6


def test_joint_work_is_the_pending_training_and_is_done_once(monkeypatch):
    monkeypatch.setattr(covey.selection.nccb, "stack_device", lambda: "cpu")
    mine, other, alone = (begun(SINGLE, steps=5) for _ in range(3))
    assert mine.joint_work() == ()
    for selector in (mine, alone):
        selector.learn(1, np.array([0, 2]), np.array([1.0, 0.5]))
    before = mine._function.parameters.copy()
    (work,) = mine.joint_work()
    # A selector that trains by itself leaves the others alone.
    other.learn(1, np.array([1, 3]), np.array([0.2, 0.7]))
    other.train_pending()
    assert np.array_equal(mine._function.parameters, before)
    perform_jointly([work])
    trained_once = mine._function.parameters.copy()
    assert not np.array_equal(trained_once, before)
    perform_jointly([work])
    assert np.array_equal(mine.function.parameters, trained_once)
    assert np.array_equal(alone.function.parameters, trained_once)
    assert np.array_equal(mine.diagonal, alone.diagonal)
    assert mine.joint_work() == alone.joint_work() == ()


def test_the_estimator_learns_what_is_not_linear_in_the_context():
    # The reward is the exclusive or of two bits.
    contexts = np.array([[a, b, 1, 0, 1, 0, 1, 0] for a in (0, 1) for b in (0, 1)], dtype=float)
    rewards = np.array([0.0, 1.0, 1.0, 0.0])
    seen = RewardSamples(contexts, rewards, np.full(4, 10.0))
    network, linear = NetworkEstimator(generator(0), 8, 16, plain=False), LinearEstimator(8)
    for one in (network, linear):
        one.fit(seen, pull=1e-3, steps=1000, rate=0.01)
    assert np.abs(network.value(contexts) - rewards).max() < 0.1
    assert np.abs(linear.value(contexts) - rewards).max() > 0.4


def test_a_context_without_any_bit_is_a_context():
    for estimator in ("paper", "authors", "linear"):
        selector = begun(np.array([[0], [3], [0xFF]], dtype=np.uint8), clusters=3, estimator=estimator)
        played(selector, 4, np.array([0.0, 0.5, 1.0]))
        assert np.isfinite(selector.bounds(np.arange(3))).all()


def test_diagonal_and_full_agree_on_orthogonal_contexts():
    contexts = np.array([[0x01], [0x02], [0x04], [0x08], [0x10]], dtype=np.uint8)
    rewards = np.array([0.9, 0.2, 0.5, 0.7, 0.1])
    pair = [begun(contexts, estimator="linear", gamma=0.6, covariance=one, clusters=5) for one in ("diagonal", "full")]
    assert played(pair[0], 15, rewards) == played(pair[1], 15, rewards)
    assert pair[0].bounds(np.arange(5)) == pytest.approx(pair[1].bounds(np.arange(5)), rel=1e-12)
    # And they do not where contexts share bits.
    contexts = contexts | np.uint8(0x80)
    pair = [begun(contexts, estimator="linear", gamma=0.6, covariance=one, clusters=5) for one in ("diagonal", "full")]
    for one in pair:
        played(one, 3, rewards)
    assert not np.allclose(pair[0].bounds(np.arange(5)), pair[1].bounds(np.arange(5)), rtol=1e-3)


@pytest.mark.parametrize("estimator", ["paper", "authors"])
def test_full_is_the_inverse_of_all_outer_products(estimator):
    contexts = random_contexts(12, bits=16)
    selector = begun(contexts, estimator=estimator, covariance="full", width=4, gamma=0.3, ridge=0.5)
    gradients = []
    for t in range(1, 6):
        cohort = played(selector, 1, np.linspace(0, 1, 12), first=t)[0]
        gradients.append(selector.function.gradients(selector.bits_of(np.array(cohort))))
    g = np.concatenate(gradients)
    z = 0.5 * np.eye(g.shape[1]) + g.T @ g / 4
    assert selector.diagonal == pytest.approx(np.diag(z))
    mine = selector.function.gradients(selector.bits_of(np.arange(12)))
    bonus = 0.3 * np.sqrt(np.einsum("np,np->n", mine @ np.linalg.inv(z), mine) / 4)
    values = selector.function.value(selector.bits_of(np.arange(12)))
    assert selector.bounds(np.arange(12)) == pytest.approx(values + bonus, rel=1e-9)


def test_a_confidence_of_its_own_is_moved_by_a_clients_own_invitations_alone():
    contexts = np.array([[0x03], [0x03], [0x0C]], dtype=np.uint8)
    rewards = np.array([0.5, 0.5, 0.5])
    bonus = {}
    for kind in ("diagonal", "own"):
        selector = begun(contexts, cohort=1, clusters=1, estimator="linear", gamma=1.0, ridge=0.5, covariance=kind)
        selector._cohort = np.array([0])
        selector.observe(0, trained(np.array([0]), rewards[:1]))
        bonus[kind] = selector.bounds(np.arange(3)) - selector.function.value(selector.bits_of(np.arange(3)))
    # x has length 1, so gᵀg is 1: 1/(λ + 1) with one invitation and 1/λ without; x = (1, 1)/√2 shares its two bits.
    assert bonus["own"] ** 2 == pytest.approx([2 / 3, 2, 2])
    assert bonus["diagonal"] ** 2 == pytest.approx([1, 1, 2])


@pytest.mark.parametrize("estimator", ["linear", "paper", "authors"])
def test_a_confidence_of_its_own_is_that_of_a_matrix_for_each_client(estimator):
    contexts = random_contexts(6, bits=16)
    selector = begun(contexts, cohort=2, estimator=estimator, width=4, gamma=1.0, ridge=0.5, covariance="own")
    times = np.zeros(6)
    for cohort in played(selector, 5, np.linspace(0, 1, 6)):
        times[cohort] += 1
    g = selector.function.gradients(selector.bits_of(np.arange(6)))
    w = selector.function.width
    z = [0.5 * np.eye(g.shape[1]) + n * np.outer(one, one) / w for n, one in zip(times, g, strict=True)]
    spreads = [one @ np.linalg.solve(matrix, one) / w for one, matrix in zip(g, z, strict=True)]
    bonus = selector.bounds(np.arange(6)) - selector.function.value(selector.bits_of(np.arange(6)))
    assert bonus == pytest.approx(np.sqrt(spreads), rel=1e-9)


def test_full_with_a_linear_estimator_is_linucb():
    contexts = random_contexts(40)
    rewards = generator("rewards").random(40)
    options = {"estimator": "linear", "covariance": "full", "gamma": 0.7, "ridge": 2.0, "window": 0}
    selector = begun(contexts, cohort=4, clusters=1, threshold=0, **options)
    linear = KLinUCB(model="shared", alpha=0.7, ridge=2.0, normalise=True)
    linear.begin(setting(40, 4))
    linear.surveyed(1, hashes(np.arange(40), contexts))
    for t in range(1, 20):
        cohort = np.sort(selector.select(t, np.arange(40)))
        for one in (selector, linear):
            one.observe(t, trained(cohort, rewards[cohort]))
        assert selector.bounds(np.arange(40)) == pytest.approx(linear.bounds(np.arange(40)), rel=1e-9)
        if t > 1:
            assert sorted(linear.select(t + 1, np.arange(40)).tolist()) == sorted(
                selector.select(t + 1, np.arange(40)).tolist()
            )


def test_places_beyond_exploration_go_to_the_highest_bounds_of_those_not_chosen():
    contexts = random_contexts(30)
    selector = begun(contexts, clusters=3, threshold=2, cohort=8)
    for t in range(1, 10):
        unexplored = int((selector.counters() <= 2).sum())
        cohort = selector.select(t, np.arange(30))
        assert len(set(cohort.tolist())) == 8
        bounds = selector.bounds(np.arange(30))
        others = np.setdiff1d(np.arange(30), cohort)
        chosen = cohort[unexplored:]
        assert bounds[chosen].min() >= bounds[others].max() - 1e-9
        assert (np.diff(bounds[chosen]) <= 1e-9).all()
        selector.observe(t, trained(cohort, np.linspace(0, 1, 30)[cohort]))
    assert unexplored == 0


def test_equal_bounds_are_drawn_at_random_and_equal_contexts_have_equal_bounds(monkeypatch):
    scores = np.array([0.5, 1.0, 0.5, 2.0, 0.5])
    met = {tuple(highest(generator(seed), scores, 3).tolist()) for seed in range(40)}
    assert met == {(3, 1, 0), (3, 1, 2), (3, 1, 4)}
    assert highest(generator(0), scores[:2], 5).tolist() == [1, 0]
    assert len(highest(generator(0), np.empty(0), 3)) == 0
    monkeypatch.setattr(covey.selection.contexts, "_TOGETHER", 7)
    selector = begun(np.repeat(random_contexts(3), 13, axis=0), cohort=1, clusters=3, covariance="diagonal")
    played(selector, 4, np.linspace(0.1, 1, 39))
    bounds = np.round(selector.bounds(np.arange(39)), 9).reshape(3, 13)
    assert (bounds == bounds[:, :1]).all()


def test_only_the_window_is_trained_on():
    contexts = random_contexts(20)
    rewards = generator("window").random(20)
    short, long = begun(contexts, window=3), begun(contexts, window=0)
    for at in range(0, 10, 2):
        for one in (short, long):
            one.observe(1 + at, trained([at, at + 1], rewards[[at, at + 1]]))
    assert short.rewarded.tolist() == [7, 8, 9]
    assert short.rewards == pytest.approx(rewards[7:10])
    assert long.rewarded.tolist() == list(range(10))
    assert short.seen == long.seen == 10
    assert not np.allclose(short.function.parameters, long.function.parameters)


def test_training_after_every_reward_takes_them_one_after_another():
    contexts, rewards = random_contexts(10), np.linspace(0.1, 1, 10)
    together, apart = begun(contexts, cohort=3, steps=5), begun(contexts, cohort=3, steps=5, train="reward")
    one_by_one = begun(contexts, cohort=3, steps=5)
    cohort = np.array([2, 5, 9])
    for selector in (together, apart):
        selector.observe(1, trained(cohort, rewards[cohort]))
    one_by_one.greatest = 1.0
    for client in cohort:
        one_by_one.observe(1, trained([client], rewards[[client]]))
    assert apart.function.parameters == pytest.approx(one_by_one.function.parameters, rel=1e-12)
    assert apart.diagonal == pytest.approx(one_by_one.diagonal, rel=1e-12)
    assert not np.allclose(apart.function.parameters, together.function.parameters)


def test_gamma_is_constant_or_the_authors_schedule():
    contexts = random_contexts(10)
    most = int(np.unpackbits(contexts, axis=1).sum(axis=1).max())
    plain = begun(contexts, gamma=0.3)
    assert plain.scale() == 0.3
    scheduled = begun(contexts, gamma=0.3, schedule="authors", estimator="authors", ridge=1.0)
    scheduled.seen = 100
    # p = 1057 parameters: about 15 to 60 in the first 500 rewards, for gamma = 1.
    expected = math.sqrt(1057 * math.log(1 + 100 * most / 1057) + 2 * math.log(10))
    assert scheduled.scale() == pytest.approx(0.3 * expected)
    assert 15 < expected < 60
    paper = begun(contexts, gamma=0.3, schedule="authors", ridge=1.0)
    paper.seen = 100
    assert paper.scale() == pytest.approx(0.3 * math.sqrt(2064 * math.log(1 + 100 / 2064) + 2 * math.log(10)))


# --- behaviour: simulated clients in six topics


def texts(seed: int, topics=6, each=50, words=300, vocabulary=1000) -> tuple[np.ndarray, np.ndarray]:
    """Topics `[clients]` and contexts `[clients, 8]` of clients who write Zipf's words in their topic's order."""
    rng = generator(seed, "texts")
    popularity = 1 / np.arange(1, vocabulary + 1)
    popularity /= popularity.sum()
    ranked = [rng.permutation(topics * vocabulary)[:vocabulary] for _ in range(topics)]
    topic = np.arange(topics * each) % topics
    said = [ranked[one][rng.choice(vocabulary, size=words, p=popularity)] for one in topic]
    return topic, packed(np.stack([of_tokens(torch.from_numpy(tokens)) for tokens in said]))


def simulated(make: Callable[[], Selector], seed: int, topic: np.ndarray, contexts: np.ndarray) -> tuple[float, float]:
    """The mean utility of all invited in 200 rounds of 5, where a topic's losses stay what they are; and the regret.

    Losses of a language model differ by less than a factor of 2 between topics; measurements err by 5 %.
    """
    clients = len(topic)
    utilities = generator(seed, "utilities").permutation(np.linspace(0.55, 1, 6))[topic]
    selector = make()
    selector.begin(setting(clients, 5, seed))
    found = []
    for t in range(1, 201):
        if (survey := selector.survey(t, np.arange(clients))) is not None:
            selector.surveyed(t, hashes(survey[0], contexts[survey[0]]))
        cohort = np.sort(selector.select(t, np.arange(clients)))
        noise = 1 + 0.05 * generator(seed, t, "noise").standard_normal(5)
        selector.observe(t, trained(cohort, utilities[cohort] * noise))
        found.append(utilities[cohort])
    best = np.sort(utilities)[-5:]
    return float(np.mean(found)), sum(cohort_utility(best) - cohort_utility(cohort) for cohort in found)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, pytest.param(5, marks=pytest.mark.proof)])
def test_with_shared_models_mean_utility_orders_the_methods_as_the_paper_does(seeds):
    methods: dict[str, Callable[[], Selector]] = {
        "nccb": lambda: NCCB(clusters=10, threshold=3, covariance="diagonal", gamma=0.1),
        "oort": OortSimple,
        "k-linucb": lambda: KLinUCB(model="shared"),
        "random": Uniform,
    }
    found = []
    for seed in range(seeds):
        topic, contexts = texts(seed)
        found.append([simulated(make, seed, topic, contexts) for make in methods.values()])
    (nccb, oort, linear, random), regrets = np.array(found).transpose(2, 1, 0)
    assert (nccb > oort + 0.03).all() and (oort > linear).all() and (linear > random + 0.05).all()
    assert nccb.mean() > 0.96
    assert oort.mean() > linear.mean() + 0.015
    # The cumulative regret (equation 4) has the same order.
    assert (np.diff(regrets, axis=0) > 0).all()


def trained_down(selector: NCCB, seed: int, rounds: int = 120) -> tuple[FloatArray, IntArray, float]:
    """Bonuses and invitations of clients whose losses fall by 6 % with each invitation, and a little with every round.

    The third value is the mean loss of the last 20 cohorts over that of all clients.
    """
    topic, contexts = texts(seed, each=25)
    clients = len(topic)
    losses = 7 * generator(seed, "losses").permutation(np.linspace(0.8, 1, 6))[topic]
    selector.begin(setting(clients, 5, seed))
    selector.surveyed(1, hashes(np.arange(clients), contexts))
    plays = np.zeros(clients, dtype=np.int64)
    ratios = []
    for t in range(1, rounds + 1):
        cohort = np.sort(selector.select(t, np.arange(clients)))
        present = losses * 0.94**plays * (0.6 + 0.4 * 0.98**t)
        selector.observe(t, trained(cohort, present[cohort]))
        plays[cohort] += 1
        ratios.append(present[cohort].mean() / present.mean())
    bonus = selector.bounds(np.arange(clients)) - selector.function.value(selector.bits_of(np.arange(clients)))
    return bonus, plays, float(np.mean(ratios[-20:]))


def test_a_confidence_for_each_client_spreads_invitations_and_follows_the_losses():
    own, shared = NCCB(), NCCB(covariance="diagonal", gamma=0.1)
    bonus, plays, ratio = trained_down(own, 0)
    assert (plays > 0).all()
    assert np.corrcoef(plays, bonus)[0, 1] < -0.5
    assert ratio > 1
    # One Z for all: the bonus is higher for clients invited often, and some are never invited.
    bonus, plays, ratio = trained_down(shared, 0)
    assert (plays == 0).sum() > 10
    assert np.corrcoef(plays, bonus)[0, 1] > 0
    assert ratio < 1


# --- state, size and refusals


def test_a_checkpoint_continues_to_the_same_cohorts(tmp_path):
    contexts, rewards = random_contexts(20), generator("state").random(20)
    kinds: list[dict[str, Any]] = [
        {},
        {"covariance": "full", "width": 4},
        {"covariance": "diagonal", "gamma": 0.1},
        {"estimator": "authors", "window": 5},
    ]
    for number, options in enumerate(kinds):
        folder = tmp_path / str(number)
        folder.mkdir()
        selector = begun(contexts, cohort=3, **options)
        played(selector, 6, rewards)
        write_checkpoint(folder, 6, selector.state_dict())
        again = NCCB(clusters=4, threshold=0, **options)
        again.begin(setting(20, 3))
        again.load_state_dict(saved_state(folder))
        assert again.survey(7, np.arange(20)) is None
        assert played(again, 8, rewards, first=7) == played(selector, 8, rewards, first=7)
        assert (again.bounds(np.arange(20)) == selector.bounds(np.arange(20))).all()
        assert again.figures() == selector.figures()


def test_seeds_decide():
    contexts, rewards = random_contexts(40), generator("seeds").random(40)
    runs = [played(begun(contexts, cohort=3, seed=seed, clusters=10), 8, rewards) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_a_million_clients_are_chosen_from_in_a_second_with_a_few_bytes_each():
    count = 1_000_000
    contexts = generator("million").integers(0, 256, (count, 8), dtype=np.uint8)
    for selector in (NCCB(), KLinUCB()):
        selector.begin(setting(count, 5))
        selector.contexts, selector.known = contexts, np.ones(count, dtype=bool)
        if isinstance(selector, NCCB):
            selector.cluster[:], selector.centres = 0, np.zeros((1, 64))
            selector.plays[0] = 100
        own = [one for one in vars(selector).values() if isinstance(one, np.ndarray) and one.shape[:1] == (count,)]
        assert sum(array.nbytes for array in own) / count < 24
        everyone = np.arange(count)
        begin = time.process_time()
        assert len(selector.select(1, everyone)) == 5
        assert time.process_time() - begin < 1.0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bits": 63}, "selector.bits must be a multiple of 8 from 8 to 256, not 63."),
        ({"form": "words"}, "selector.form is auto, tokens, quantised or projection, not 'words'."),
        ({"quantisation": 0.0}, "selector.quantisation must be above 0, not 0."),
        ({"stop_words": "keep"}, "selector.stop_words is ignore or hash, not 'keep'."),
        ({"reward": "loss"}, "selector.reward is per-sample or total, not 'loss'."),
        ({"clusters": 0}, "selector.clusters must be at least 1, not 0."),
        ({"threshold": -1}, "selector.threshold is a number of invitations, 0 or more, not -1."),
        ({"estimator": "deep"}, "selector.estimator is paper, authors or linear, not 'deep'."),
        ({"width": 0}, "selector.width must be at least 1, not 0."),
        ({"width": 5}, "selector.width must be even for the paper's symmetric start, not 5."),
        ({"gamma": -1.0}, "selector.gamma must not be negative, not -1."),
        ({"schedule": "root"}, "selector.schedule is constant or authors, not 'root'."),
        ({"delta": 1.0}, "selector.delta is a probability in \\(0, 1\\), not 1."),
        ({"ridge": 0.0}, "selector.ridge must be above 0, not 0."),
        ({"covariance": "none"}, "selector.covariance is own, diagonal or full, not 'none'."),
        ({"steps": 0}, "selector.steps must be at least 1, not 0."),
        ({"rate": 0.0}, "selector.rate must be above 0, not 0."),
        ({"window": -1}, "selector.window must be at least 1, or 0 for all rewards, not -1."),
        ({"train": "never"}, "selector.train is round or reward, not 'never'."),
    ],
)
def test_impossible_options_are_refused(options, sentence):
    with pytest.raises(Refusal, match=sentence):
        NCCB(**options)


@pytest.mark.parametrize("name", ["nccb", "k-linucb"])
def test_folders_from_before_the_option_hash_stop_words(name):
    given = Config.of({**SMALL, "selector": name}).as_mapping()
    del given["selector"]["stop_words"]
    stored, fresh = Config.stored(given).selector, Config.of({**SMALL, "selector": name}).selector
    assert stored is not None and fresh is not None
    assert (stored.options["stop_words"], fresh.options["stop_words"]) == ("hash", "ignore")


def test_an_odd_width_suits_the_authors_network():
    assert NCCB(width=5, estimator="authors").width == 5


def test_contexts_have_length_one():
    contexts = np.array([[1.0, 1.0, 0.0, 0.0], [1.0] * 4, [0.0] * 4])
    assert normalised(contexts) == pytest.approx(np.array([[0.5**0.5, 0.5**0.5, 0, 0], [0.5] * 4, [0.0] * 4]))


# --- real runs

DIGITS = {**SMALL, "clients": 12, "environment": {"name": "dirichlet", "alpha": 0.3}}
CHOICES = [
    {"name": "nccb", "clusters": 3, "threshold": 0},
    {"name": "nccb", "clusters": 3, "threshold": 1, "form": "quantised", "estimator": "authors", "train": "reward"},
    {"name": "nccb", "clusters": 3, "threshold": 0, "covariance": "diagonal", "gamma": 0.1},
    {"name": "k-linucb", "model": "shared"},
    {"name": "k-linucb", "alpha": 0.5},
]


@pytest.mark.parametrize("choice", CHOICES, ids=lambda one: "-".join(map(str, one.values())))
def test_a_run_that_is_cut_off_and_resumed_is_the_whole_run(choice, tmp_path):
    settings = {"selector": choice, "devices": {"dropout": 0.2, "availability": 0.7}, "rounds": 7}
    whole = run(DIGITS, out=tmp_path / "whole", **settings)

    def stop(record):
        if record["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(DIGITS, out=tmp_path / "cut", on_round=stop, **settings)
    assert without_timings(resume(tmp_path / "cut").metrics) == without_timings(whole.metrics)


@pytest.mark.parametrize("choice", CHOICES, ids=lambda one: "-".join(map(str, one.values())))
def test_both_runtimes_choose_the_same_cohorts(choice, tmp_path):
    given = {**DIGITS, "selector": choice, "precision": "fp64", "rounds": 6}
    local = run(given, out=tmp_path / "local")
    stacked = run(given, runtime="stacked", device="cpu", out=tmp_path / "stacked")
    assert [row["clients"] for row in local.metrics] == [row["clients"] for row in stacked.metrics]
    for mine, theirs in zip(local.metrics, stacked.metrics, strict=True):
        assert mine["figures"]["utility"] == pytest.approx(theirs["figures"]["utility"], rel=1e-9)
        assert mine["bytes_up"] == theirs["bytes_up"]


def test_a_run_records_the_bits_once_the_utility_and_what_is_explored(tmp_path):
    result = run(DIGITS, selector={"name": "nccb", "clusters": 4, "threshold": 0}, rounds=4, out=tmp_path / "run")
    assert [row["probe_bytes"].get("simhash", 0) for row in result.metrics] == [12 * 8, 0, 0, 0]
    assert all(row["figures"]["utility"] > 0 for row in result.metrics)
    exploring = [row["figures"]["exploring"] for row in result.metrics]
    assert exploring == [0, 0, 0, 0]  # four clusters, a cohort of four
    assert set(result.metrics[0]["probe_bytes"]) == {"simhash", "utility"}


@pytest.mark.parametrize("selector", ["nccb", "k-linucb"])
def test_a_run_records_its_regret_and_decides_as_it_would_without(selector, tmp_path):
    options = {"name": selector, **({"clusters": 3, "threshold": 0} if selector == "nccb" else {})}
    plain = run(DIGITS, selector=options, rounds=4, out=tmp_path / "plain")
    judged = run(DIGITS, selector={**options, "regret": True}, rounds=4, out=tmp_path / "judged")
    assert [row["clients"] for row in judged.metrics] == [row["clients"] for row in plain.metrics]
    assert [row["accuracy"] for row in judged.metrics] == [row["accuracy"] for row in plain.metrics]
    total = 0.0
    for row in judged.metrics:
        figures = row["figures"]
        total += figures["best_utility"] - figures["utility"]
        assert figures["best_utility"] >= figures["utility"] - 1e-9
        assert figures["regret"] == pytest.approx(total, rel=1e-6)
    # All 12 clients report their utility, and the cohort once more.
    assert judged.metrics[1]["probe_bytes"]["utility"] == 4 * plain.metrics[1]["probe_bytes"]["utility"]


def test_a_run_on_texts_tells_topics_apart(tmp_path):
    rng = generator("corpus")
    popularity = 1 / np.arange(1, 31)
    popularity /= popularity.sum()
    with (tmp_path / "corpus.jsonl").open("w") as file:
        for user in range(26):
            for _ in range(6):
                words = [f"topic{user % 2}word{word}" for word in rng.choice(30, size=8, p=popularity)]
                file.write(json.dumps({"user": f"u{user}", "text": " ".join(words)}) + "\n")
    options = {"minimum": 4, "samples": 30, "test_users": 2, "test_samples": 20, "length": 5}
    given = {
        "dataset": {"name": "text", "path": str(tmp_path / "corpus.jsonl"), **options},
        "environment": "natural",
        "model": {"name": "lstm", "embedding": 8, "hidden": 16, "layers": 1},
        "selector": {"name": "nccb", "clusters": 2, "threshold": 0},
        "local": {"epochs": 1, "batch": 10, "rate": 0.5},
        "numbering": "environment",
        "cohort": 4,
        "rounds": 3,
        "workers": 1,
    }
    result = run(given, out=tmp_path / "run")
    cluster = saved_state(tmp_path / "run")["selector"]["cluster"].tolist()
    assert cluster == cluster[:2] * 12 and cluster[0] != cluster[1]
    assert result.metrics[0]["probe_bytes"]["simhash"] == 24 * 8
