"""Helpers of FedDRL's tests: loss reports, replies, agents with experiences, and runs with an agent."""

import numpy as np
import torch

from covey.aggregation.ddpg import Agent, Learning
from covey.aggregation.impact_factors import LossReports
from covey.config.sections import Local
from covey.core.interfaces import Setting
from covey.core.replies import Replies, checked
from covey.job.agent_training import Offline, train_agent
from covey.model.layout import Layout
from covey.model.mlp import MLP
from tests.conftest import SMALL

LAYOUT = Layout.of(MLP((1, 2, 2), 2, hidden=()))
LEARNING = Learning(discount=0.9, batch=4, updates=8, actor_rate=1e-3, critic_rate=1e-2, capacity=1000)


def setting(clients=4, cohort=4, seed=0) -> Setting:
    return Setting(clients, cohort, 1000, 10, seed, LAYOUT, Local())


def begun(aggregator, **about):
    aggregator.begin(setting(**about))
    return aggregator


def reported(before, after=None, samples=None, usable=None) -> LossReports:
    before = np.asarray(before, dtype=np.float64)
    slots = np.arange(len(before))
    return LossReports(
        slots,
        slots,
        np.ones(len(before), dtype=bool) if usable is None else np.asarray(usable),
        before,
        before / 2 if after is None else np.asarray(after, dtype=np.float64),
        np.full(len(before), 10.0) if samples is None else np.asarray(samples, dtype=np.float64),
    )


def replies(before, clients=None, after=None, faults=(), size=6) -> Replies:
    k = len(before)
    measured = {
        "before": torch.tensor(before, dtype=torch.float64),
        "after": torch.tensor(after or before, dtype=torch.float64),
    }
    return checked(
        Replies(
            clients=np.arange(k) if clients is None else np.asarray(clients, dtype=np.int64),
            states=torch.eye(k, size),
            samples=torch.full((k,), 10),
            losses=torch.ones(k, dtype=torch.float64),
            probes={"losses": measured},
            faults=tuple(faults),
        )
    )


def one(*values):
    return torch.tensor(values, dtype=torch.float64)


def experienced(agent: Agent, count: int, seed=0) -> Agent:
    rng = np.random.default_rng(seed)
    size, actions = agent.architecture.state_size, agent.architecture.action_size
    for _ in range(count):
        # As features of the set agent, these are four clients that are all present.
        states = rng.random((2, size)) + 0.1
        agent.replay.push(states[0], rng.random(actions), rng.standard_normal(), states[1])
    return agent


def agent_run(**options):
    return {**SMALL, "aggregator": {"name": "feddrl", "hidden": 16, **options}}


def small_agent(path, **options):
    given = agent_run(**options)
    return train_agent(given, rounds=12, out=path, offline=Offline(epochs=3, batch=8))
