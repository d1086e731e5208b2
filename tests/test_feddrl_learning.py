"""FedDRL learns what it is meant to: where most clients hold the same classes, the others come to count more.

Ten clients, all of them in every round: six hold digits 0 and 1, the others two classes each that nobody else has.
Settings differ from the paper's defaults in what an agent needs that has a hundred rounds and not a thousand: a short
horizon, strong noise that is new in each round, scaled rewards and the level of losses in the state, and means drawn
in the paper's order, since the authors' one lets no client count more than e times another.
"""

from types import SimpleNamespace

import numpy as np
import pytest

import covey
from covey.aggregation import feddrl, feddrl_set, loss_softmax  # noqa: F401 (their names)
from covey.aggregation.by_agent import write_agent
from covey.training_agent import Offline, agent_aggregator, experiences, train_agent, train_offline

SEEDS = (0, 1, 2)
MAIN = 6
GIVEN = {
    "dataset": "digits",
    "environment": {"name": "clustered-equal", "delta": MAIN / 10},
    "clients": 10,
    "cohort": 10,
    "rounds": 60,
    "workers": 1,
    "local": {"epochs": 1, "batch": 10, "rate": 0.05},
}
AGENT = {
    "name": "feddrl",
    "order": "paper",
    "append_mean_loss": True,
    "normalise_rewards": True,
    "discount": 0.5,
    "actor_rate": 3e-4,
    "updates": 16,
    "noise": 0.5,
    "reversion": 1.0,
}
"""Begins as loss-softmax does."""


def figures(run):
    """Of the last ten rounds: accuracy, mean weight of a client of either group, and what rewards punish."""
    last = [row["figures"] for row in run.metrics[-10:]]
    factors = np.array([list(each["impact_factors"].values()) for each in last]).mean(axis=0)
    return SimpleNamespace(
        accuracy=np.mean([row["accuracy"] for row in run.metrics[-10:]]),
        main=factors[:MAIN].mean(),
        minority=factors[MAIN:].mean(),
        cost=np.mean([each["client_loss_mean"] + each["client_loss_gap"] for each in last]),
        variance=np.mean([each["client_loss_variance"] for each in last]),
    )


def means(runs):
    """The figures of runs over seeds."""
    each = [vars(figures(run)) for run in runs]
    return SimpleNamespace(**{name: float(np.mean([one[name] for one in each])) for name in each[0]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("feddrl")


@pytest.fixture(scope="module")
def plain(folder):
    """FedAvg, whose clients hold as many samples each, with the losses reported."""
    choice = {"name": "loss-softmax", "sharpness": 0.0}
    return means([covey.run(GIVEN, seed=seed, aggregator=choice, out=folder / f"plain{seed}") for seed in SEEDS])


def driven(path, agent, seed, out):
    """A run that a trained agent decides, without exploring."""
    return covey.run(GIVEN, seed=seed, aggregator={**agent, "agent": str(path), "learn": False}, out=out)


@pytest.fixture(scope="module")
def two_stages(folder):
    """With the rewards that were earned, and with the same ones dealt at random to what was done."""
    offline = Offline(epochs=30, critic_rate=3e-4)
    earned, shuffled = [], []
    for seed in SEEDS:
        given = {**GIVEN, "seed": seed, "aggregator": AGENT, "evaluate_every": 80}
        path = train_agent(given, rounds=80, out=folder / f"agent{seed}.safetensors", offline=offline)
        earned.append(driven(path, AGENT, seed, folder / f"earned{seed}"))
        workers = [covey.Run.open(folder / f"agent{seed}-workers/worker-{number}") for number in (0, 1)]
        replays = [experiences(worker) for worker in workers]
        rewards = np.random.default_rng(seed).permutation(np.concatenate([replay.rewards for replay in replays]))
        for replay, some in zip(replays, np.split(rewards, [len(replays[0])]), strict=True):
            replay.rewards[:] = some
        aggregator = agent_aggregator(workers[0].config)
        agent = train_offline(aggregator, replays, offline)
        path = write_agent(folder / f"shuffled{seed}.safetensors", aggregator, agent, {})
        shuffled.append(driven(path, AGENT, seed, folder / f"shuffled{seed}"))
    return means(earned), means(shuffled)


def test_the_trained_agent_beats_fedavg(two_stages, plain):
    earned, _ = two_stages
    assert earned.accuracy > plain.accuracy
    assert earned.cost < plain.cost
    assert earned.variance < plain.variance


def test_it_gives_clients_of_small_groups_more_weight(two_stages):
    earned, _ = two_stages
    assert earned.minority > 1.2 * earned.main


def test_with_shuffled_rewards_the_advantage_is_gone(two_stages, plain):
    earned, shuffled = two_stages
    assert shuffled.accuracy < plain.accuracy + 0.25 * (earned.accuracy - plain.accuracy)
    assert shuffled.minority - shuffled.main < 0.5 * (earned.minority - earned.main)
