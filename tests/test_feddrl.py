"""FedDRL's agent, what it makes of clients' losses, and trained agents as files."""

import gc
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from covey import run
from covey.aggregation import agents_together, ddpg
from covey.aggregation.agents_together import Network, catch_up, wait
from covey.aggregation.by_agent import ByAgent
from covey.aggregation.ddpg import Agent, Learning, priorities_of, targets_of, train, update
from covey.aggregation.feddrl import FedDRL, FlatNetworks
from covey.aggregation.feddrl_set import FEATURES, FedDRLSet, SetNetworks
from covey.aggregation.impact import Reported
from covey.aggregation.loss_softmax import LossSoftmax
from covey.aggregation.replay import Experiences, Replay, prioritised
from covey.commands.agent import train_agent as train_agent_command
from covey.config import Config, Local
from covey.errors import Refusal
from covey.experiment import Experiment, Run, resume, run_together
from covey.layout import Layout
from covey.messages import Fault, Replies, checked
from covey.models.mlp import MLP
from covey.records import FORMAT, client_loss, read_checkpoint, write_json
from covey.report.tables import reproduced_by
from covey.roles import Setting
from covey.training_agent import Offline, train_agent
from tests.conftest import SMALL, without_timings

LAYOUT = Layout.of(MLP((1, 2, 2), 2, hidden=()))
LEARNING = Learning(0.9, 4, 8, 0.02, 1e-3, 1e-2, 1000, normalise=False)


def setting(clients=4, cohort=4, seed=0) -> Setting:
    return Setting(clients, cohort, 1000, 10, seed, LAYOUT, Local())


def begun(aggregator, **about):
    aggregator.begin(setting(**about))
    return aggregator


def reported(before, after=None, samples=None, usable=None) -> Reported:
    before = np.asarray(before, dtype=np.float64)
    seats = np.arange(len(before))
    return Reported(
        seats,
        seats,
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


def experienced(agent: Agent, count: int, seed=0) -> Agent:
    rng = np.random.default_rng(seed)
    size, actions = agent.architecture.state_size, agent.architecture.action_size
    for _ in range(count):
        # As features of the set agent these are four clients that are all there.
        states = rng.random((2, size)) + 0.1
        agent.replay.push(states[0], rng.random(actions), rng.standard_normal(), states[1])
    return agent


# --- the agent


@dataclass(frozen=True)
class Linear:
    """π(s) = p·s and Q(s, a) = q₀·s + q₁·a, for numbers that can be worked out by hand."""

    state_size: int = 1
    action_size: int = 1

    def initial(self):
        return torch.tensor([0.5], dtype=torch.float64), torch.tensor([2.0, -1.0], dtype=torch.float64)

    def act(self, actor, states):
        return actor[:, None] * states

    def value(self, critic, states, actions):
        return critic[:, :1] * states[..., 0] + critic[:, 1:] * actions[..., 0]


def one(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_an_update_is_the_one_worked_out_by_hand():
    actors = Network(one([0.5]), one([0.25]), one([0.0]), one([0.0]))
    critics = Network(one([2.0, -1.0]), one([1.0, 3.0]), one([0.0, 0.0]), one([0.0, 0.0]))
    batch = Experiences(one([[2.0]]), one([[1.0]]), one([-3.0]), one([[4.0]]))
    learning = replace(LEARNING, discount=0.5, actor_rate=0.01, critic_rate=0.1, soft=0.02)
    # y = r + γ Q'(s', π'(s')) = -3 + 0.5·(1·4 + 3·(0.25·4)) = 0.5, and Q(s, a) = 2·2 - 1·1 = 3.
    assert targets_of(Linear(), learning, actors, critics, batch).tolist() == [[0.5]]
    assert priorities_of(Linear(), learning, actors, critics, batch).tolist() == [[pytest.approx(2.5, abs=1e-5)]]
    update(Linear(), learning, actors, critics, batch, one([1.0]))
    # ∂(3 - 0.5)²/∂q = 2·2.5·(s, a) = (10, 5): Adam's first step is the rate, against the sign.
    assert critics.main[0].tolist() == pytest.approx([1.9, -1.1])
    # Q rises with -1.1·p·s, so p falls.
    assert actors.main[0].tolist() == pytest.approx([0.49])
    assert actors.target[0].tolist() == pytest.approx([0.98 * 0.25 + 0.02 * 0.49])
    assert critics.target[0].tolist() == pytest.approx([0.98 * 1 + 0.02 * 1.9, 0.98 * 3 - 0.02 * 1.1])


def test_updates_are_those_of_torch_modules_and_optimisers():
    networks = FlatNetworks(3, 2, 5)
    agent = experienced(Agent(networks, LEARNING, 0), 12)
    actor, critic = nn.Sequential(), nn.Sequential()
    for module, widths, parameters in (
        (actor, (3, 5, 5, 2), agent.actor.main),
        (critic, (5, 5, 5, 1), agent.critic.main),
    ):
        at = 0
        for number, (rows, columns) in enumerate(pairwise(widths)):
            layer = nn.Linear(rows, columns, dtype=torch.float64)
            layer.weight.data = parameters[at : at + rows * columns].view(rows, columns).t().clone()
            layer.bias.data = parameters[at + rows * columns : at + rows * columns + columns].clone()
            at += rows * columns + columns
            module.append(layer)
            module.append(nn.LeakyReLU() if number < 2 else nn.Tanh() if module is actor else nn.Identity())
    optimisers = torch.optim.Adam(actor.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-2)
    stack = Network.stack([agent.actor]), Network.stack([agent.critic])
    everything = Experiences.stack([agent.replay.experiences()])
    targets = [{name: value.clone() for name, value in module.state_dict().items()} for module in (actor, critic)]
    for step in range(3):
        batch = everything.between(4 * step, 4 * step + 4)
        update(networks, LEARNING, *stack, batch, one([step + 1.0]))
        s, a, r, following = (tensor[0] for tensor in (batch.states, batch.actions, batch.rewards, batch.next_states))
        with torch.no_grad():
            action = torch.func.functional_call(actor, targets[0], following)
            y = r + 0.9 * torch.func.functional_call(critic, targets[1], torch.cat([following, action], 1))[:, 0]
        optimisers[1].zero_grad()
        nn.functional.mse_loss(critic(torch.cat([s, a], 1))[:, 0], y).backward()
        optimisers[1].step()
        optimisers[0].zero_grad()
        (-critic(torch.cat([s, actor(s)], 1)).mean()).backward()
        optimisers[0].step()
        for target, module in zip(targets, (actor, critic), strict=True):
            for name, value in module.state_dict().items():
                target[name].lerp_(value, 0.02)
    for mine, module in ((agent.actor, actor), (agent.critic, critic)):
        flat = [(p.t() if p.dim() == 2 else p).flatten() for p in module.parameters()]
        torch.testing.assert_close(mine.main, torch.cat(flat).detach(), rtol=1e-9, atol=1e-12)


def test_networks_have_the_papers_sizes():
    actor, critic = FlatNetworks(30, 20, 256).initial()
    assert (len(actor), len(critic)) == (78_868, 79_105)
    for parameters, last in ((actor, 256 * 20 + 20), (critic, 256 + 1)):
        assert parameters[-last:].abs().max() <= 0.1
        assert parameters[-last:].abs().max() > 0.09


def architectures():
    return [FlatNetworks(12, 8, 32), SetNetworks(4, 8, 2.0, 0.0, 3.0)]


@pytest.mark.parametrize("networks", architectures(), ids=["flat", "set"])
def test_agents_trained_as_a_stack_become_what_they_become_alone(networks):
    learning = replace(LEARNING, anchor=0.3, normalise=True)

    def three():
        agents = [experienced(Agent(networks, learning, number), 20, number) for number in range(3)]
        agents[1].steps = 7
        for number, agent in enumerate(agents):
            agent.pending = [number, "replay"]
        return agents

    together, alone = three(), three()
    before = together[0].actor.main.clone()
    train(together)
    for agent in alone:
        train([agent])
    assert not torch.equal(before, together[0].actor.main)
    for one_, other in zip(together, alone, strict=True):
        assert one_.steps == other.steps
        for mine, theirs in zip(
            one_.actor.tensors + one_.critic.tensors, other.actor.tensors + other.critic.tensors, strict=True
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("networks", architectures(), ids=["flat", "set"])
def test_agents_become_on_a_gpu_what_they_become_on_a_cpu(networks):
    here, there = ([experienced(Agent(networks, LEARNING, n), 20, n) for n in range(3)] for _ in range(2))
    for number, (one_, other) in enumerate(zip(here, there, strict=True)):
        other.to(torch.device("cuda"))
        one_.train_now(number, "replay")
        other.train_later(number, "replay")
    state = np.linspace(0.1, 1, networks.state_size)
    for one_, other in zip(here, there, strict=True):
        assert other.act(state) == pytest.approx(one_.act(state), rel=1e-6, abs=1e-9)
        assert other.steps == one_.steps


@dataclass(eq=False)
class Pupil:
    likeness: int


def test_whoever_is_needed_is_trained_with_all_that_wait_and_are_like_it():
    pupils = [Pupil(1), Pupil(2), Pupil(1), Pupil(1)]
    for pupil in pupils[:3]:
        wait(pupil)
    trained = []
    catch_up(pupils[3], trained.append)
    assert trained == []
    catch_up(pupils[2], trained.append)
    catch_up(pupils[0], trained.append)
    assert trained == [[pupils[0], pupils[2]]]
    catch_up(pupils[1], trained.append)
    assert trained[1:] == [[pupils[1]]]


def test_an_agent_that_is_gone_waits_no_longer():
    gc.collect()
    before = len(agents_together._waiting.pupils)
    agent = experienced(Agent(FlatNetworks(3, 2, 4), LEARNING, 0), 8)
    agent.train_later(0, 1, "replay")
    assert len(agents_together._waiting.pupils) == before + 1
    del agent
    gc.collect()
    assert len(agents_together._waiting.pupils) == before


def test_an_agent_learns_which_action_is_rewarded():
    """Rewards are -(a - 0.6)² whatever the state: after training the action is near 0.6."""
    learning = replace(LEARNING, discount=0.0, updates=400, batch=16, actor_rate=1e-3)
    agent = Agent(FlatNetworks(2, 1, 16), learning, 0)
    rng = np.random.default_rng(0)
    for _ in range(300):
        state, action = rng.random(2), rng.uniform(-1, 1, 1)
        agent.replay.push(state, action, -float((action[0] - 0.6) ** 2), rng.random(2))
    for epoch in range(40):
        agent.train_now(epoch)
    assert agent.act(np.array([0.3, 0.7])) == pytest.approx([0.6], abs=0.1)


def test_experiences_are_replayed_by_their_priorities(monkeypatch):
    agent = experienced(Agent(FlatNetworks(3, 2, 5), LEARNING, 0), 12)
    stacks = Network.stack([agent.actor]), Network.stack([agent.critic])
    memory = Experiences.stack([agent.replay.experiences()])
    expected = priorities_of(agent.architecture, LEARNING, *stacks, memory)[0].tolist()
    given = []

    def seen(rng, priorities, shape):
        given.append((priorities.tolist(), shape))
        return prioritised(rng, priorities, shape)

    monkeypatch.setattr(ddpg, "prioritised", seen)
    agent.train_now(0)
    assert given == [(pytest.approx(expected), (3 * LEARNING.batch,))]
    assert max(expected) > 2 * min(expected)


def test_a_round_of_learning_is_bounded():
    agent = experienced(Agent(FlatNetworks(3, 2, 5), FedDRL().learning, 0), 200)
    agent.train_now(0)
    assert agent.steps == 32 == FedDRLSet().learning.updates


def test_an_agent_acts_by_its_network_and_not_by_the_target():
    agent = experienced(Agent(FlatNetworks(3, 2, 5), LEARNING, 0), 40)
    agent.train_now(0)
    state = np.array([0.2, 0.3, 0.5])
    asked = [
        agent.architecture.act(network[None], torch.from_numpy(state)[None, None])[0, 0].numpy()
        for network in (agent.actor.main, agent.actor.target)
    ]
    assert agent.act(state) == pytest.approx(asked[0], abs=1e-15)
    assert agent.act(state) != pytest.approx(asked[1], abs=1e-6)


@pytest.mark.parametrize("normalise", [True, False])
def test_scaled_rewards_have_neither_level_nor_unit(normalise):
    learned = []
    for scale, level in ((1.0, 0.0), (10.0, 5.0)):
        agent = experienced(Agent(FlatNetworks(3, 2, 5), replace(LEARNING, normalise=normalise), 0), 12)
        agent.replay.rewards[:12] = scale * agent.replay.rewards[:12] + level
        agent.train_now(0)
        learned.append(agent.critic.main)
    assert torch.allclose(*learned, rtol=0, atol=1e-7) is normalise


def test_an_agent_becomes_the_same_to_the_bit_on_one_thread_and_on_two():
    """These shapes are ones whose products differ in their last bits between one thread and two."""

    def became(threads):
        torch.set_num_threads(threads)
        agent = experienced(Agent(FlatNetworks(12, 8, 64), replace(LEARNING, batch=10), 0), 80)
        agent.train_now(0)
        assert torch.get_num_threads() == threads
        return agent.actor.main.clone(), agent.act(np.linspace(0.1, 1, 12))

    (one_, first), (two, second) = became(1), became(2)
    assert torch.equal(one_, two)
    assert first.tolist() == second.tolist()


def test_the_side_thread_learns_while_the_agent_acts():
    agent, twin = (experienced(Agent(FlatNetworks(12, 8, 16), LEARNING, 0), 40) for _ in range(2))
    before = agent.actor.main.clone()
    agent.train_aside(0, 1)
    agent.train_aside(0, 2)
    agent._aside[0].join()
    agent.adopt()
    twin.train_now(0, 1)
    assert agent.steps == twin.steps == 8
    assert torch.equal(agent.actor.main, twin.actor.main)
    assert not torch.equal(agent.actor.main, before)


def test_a_checkpoint_does_not_wait_for_the_side_thread_and_what_is_under_way_is_not_lost(monkeypatch):
    go = threading.Event()
    learn = ddpg._learn

    def slowly(*agents):
        go.wait(60)
        learn(*agents)

    agent, other, twin = (experienced(Agent(FlatNetworks(12, 8, 16), LEARNING, 0), 40) for _ in range(3))
    monkeypatch.setattr(ddpg, "_learn", slowly)
    agent.train_aside(0, 1)
    try:
        before = agent.act(np.linspace(0.1, 1, 12))
        saved = agent.state_dict()
        assert agent.steps == 0
        assert saved["pending"] == [0, 1]
    finally:
        go.set()
    monkeypatch.setattr(ddpg, "_learn", learn)
    other.load_state_dict(saved)
    twin.train_now(0, 1)
    after = other.act(np.linspace(0.1, 1, 12))
    assert after.tolist() == twin.act(np.linspace(0.1, 1, 12)).tolist()
    assert after.tolist() != before.tolist()


def test_a_run_may_train_its_agent_beside_the_rounds(tmp_path):
    result = run(agent_run(batch=2, side_thread=True), rounds=8, out=tmp_path / "run")
    assert result.finished
    _, state = read_checkpoint(result.folder)
    assert state["aggregator"]["agent"]["steps"] > 0


# --- replay


def test_experiences_are_drawn_as_often_as_their_priorities_say():
    rng = np.random.default_rng(0)
    drawn = prioritised(rng, np.array([1.0, 2.0, 5.0, 2.0]), (20_000,))
    assert np.bincount(drawn, minlength=4) / 20_000 == pytest.approx([0.1, 0.2, 0.5, 0.2], abs=0.01)


def test_a_full_buffer_forgets_the_oldest_and_survives_saving():
    replay = Replay(5, 1, 1)
    for number in range(12):
        replay.push(np.array([number]), np.array([0.0]), float(number), np.array([0.0]))
    assert sorted(replay.rewards) == [7, 8, 9, 10, 11]
    again = Replay(5, 1, 1)
    again.load_state_dict(replay.state_dict())
    for buffer in (replay, again):
        buffer.push(np.array([12]), np.array([0.0]), 12.0, np.array([0.0]))
    assert again.rewards.tolist() == replay.rewards.tolist()
    assert sorted(again.rewards) == [8, 9, 10, 11, 12]


# --- impact factors


losses = st.lists(st.floats(0, 50), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    before=losses,
    after=losses,
    usable=st.lists(st.booleans(), min_size=4, max_size=4).filter(any),
    which=st.sampled_from(["authors", "paper", "set", "loss-softmax"]),
    round=st.integers(1, 1000),
)
def test_impact_factors_are_shares_of_those_who_can_be_used(before, after, usable, which, round):
    aggregator = {
        "authors": lambda: FedDRL(hidden=8, noise=1.0, beta=1.0, floor=0.5),
        "paper": lambda: FedDRL(hidden=8, noise=1.0, order="paper"),
        "set": lambda: FedDRLSet(noise=1.0),
        "loss-softmax": lambda: LossSoftmax(),
    }[which]()
    factors = begun(aggregator).impact_factors(round, reported(before, after, usable=usable), torch.device("cpu"))
    assert (factors >= 0).all()
    assert factors.sum() == pytest.approx(1)
    assert (factors[~np.array(usable)] == 0).all()


def test_without_renormalising_the_factors_jitter_about_one():
    aggregator = begun(FedDRL(hidden=8, renormalise=False, floor=0.02))
    sums = [aggregator.impact_factors(t, reported([1, 2, 3, 4]), torch.device("cpu")).sum() for t in range(1, 30)]
    assert np.mean(sums) == pytest.approx(1, abs=0.03)
    assert 0.001 < np.std(sums) < 0.1


def test_the_deviation_is_bounded_by_beta_and_from_below():
    """α ~ N(μ, σ) with σ = clip(spread/100, floor, β μ): over many rounds the deviations are those."""
    aggregator = begun(FedDRL(hidden=8, renormalise=False, floor=0.001, beta=0.1))
    action = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.05, 1.0])
    draws = np.stack([aggregator.factors(t, action, reported([1, 1, 1, 1])) for t in range(1, 4000)])
    assert draws.mean(axis=0) == pytest.approx([0.25] * 4, abs=1e-3)
    assert draws.std(axis=0) == pytest.approx([0.001, 0.01, 0.001, 0.01], rel=0.05)
    bounded = begun(FedDRL(hidden=8, renormalise=False, floor=0.001, beta=0.02))
    draws = np.stack([bounded.factors(t, action, reported([1, 1, 1, 1])) for t in range(1, 4000)])
    assert draws.std(axis=0)[1] == pytest.approx(0.02 * 0.25, rel=0.05)


def test_in_the_papers_order_beta_bounds_the_deviation_before_the_softmax():
    aggregator = begun(FedDRL(hidden=8, order="paper", beta=0.1))
    # Of means 1, and spreads of which the second is above β times that.
    action = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.5, 0.02, 0.0])
    drawn = np.log(np.stack([aggregator.factors(t, action, reported([1, 1, 1, 1])) for t in range(1, 4000)]))
    relative = drawn - drawn[:, :1]
    assert relative.mean(axis=0) == pytest.approx([0.0] * 4, abs=0.01)
    assert relative.std(axis=0) == pytest.approx([0.0, 0.1, 0.02, 0.0], rel=0.05, abs=1e-12)


def test_actions_with_noise_are_brought_back_to_what_is_allowed():
    wild = np.array([-3.0, -0.5, 0.5, 3.0])
    assert FedDRL().limited(wild).tolist() == [0.0, 0.0, 0.5, 1.0]
    assert FedDRL(order="paper").limited(wild).tolist() == [-1.0, -0.5, 0.5, 1.0]
    assert FedDRLSet(limit=2.0).limited(wild).tolist() == [-2.0, -0.5, 0.5, 2.0]
    aggregator = begun(FedDRLSet(limit=0.1, noise=1.0))
    for t in range(1, 30):
        factors = aggregator.impact_factors(t, reported([1, 2, 3, 4]), torch.device("cpu"))
        assert factors.max() / factors.min() <= np.exp(0.2) + 1e-9


def test_the_noise_remembers_as_an_ornstein_uhlenbeck_process_does():
    aggregator = begun(FedDRL(hidden=8, updates=0, noise=0.1, reversion=0.1))
    noise = []
    for t in range(1, 3001):
        aggregator.impact_factors(t, reported([1, 2, 3, 4]), torch.device("cpu"))
        noise.append(aggregator.deviation)
    series = np.stack(noise)
    correlation = np.mean([np.corrcoef(one[:-1], one[1:])[0, 1] for one in series.T])
    assert correlation == pytest.approx(0.9, abs=0.02)
    assert series.std() == pytest.approx(0.1 / np.sqrt(1 - 0.9**2), rel=0.1)


def test_states_are_shares_and_can_keep_the_level():
    seen = begun(FedDRL(hidden=8)).state_of(reported([1, 2, 3, 4], [4, 3, 2, 1], [10, 10, 20, 40]))
    assert seen.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.3, 0.2, 0.1, 0.125, 0.125, 0.25, 0.5])
    kept = begun(FedDRL(hidden=8, append_mean_loss=True)).state_of(reported([1, 2, 3, 4]))
    assert kept[-1] == 2.5


def test_loss_softmax_is_its_formula():
    factors = begun(LossSoftmax(sharpness=8.0)).impact_factors(1, reported([1, 1, 2, 4]), torch.device("cpu"))
    powers = np.exp([1.0, 1.0, 2.0, 4.0])
    assert factors == pytest.approx(powers / powers.sum())
    assert begun(LossSoftmax(sharpness=0.0)).impact_factors(
        1, reported([1, 1, 2, 4]), torch.device("cpu")
    ) == pytest.approx([0.25] * 4)
    assert begun(LossSoftmax()).impact_factors(1, reported([0, 0, 0, 0]), torch.device("cpu")) == pytest.approx(
        [0.25] * 4
    )


def test_rewards_punish_high_and_uneven_losses():
    paper, relative = begun(FedDRL(hidden=8)), begun(FedDRLSet())
    even, high, uneven = reported([1, 1, 1, 1]), reported([2, 2, 2, 2]), reported([0.5, 1, 1, 1.5])
    assert paper.reward_of(3.0, even.cost) == -1
    assert paper.reward_of(3.0, high.cost) == -2
    assert paper.reward_of(3.0, uneven.cost) == -2
    assert relative.reward_of(1.0, even.cost) == 0 > relative.reward_of(1.0, high.cost) == -np.log(2)
    assert relative.reward_of(2.0, even.cost) == np.log(2)


# --- the set agent


def set_state(rows):
    return torch.tensor(rows, dtype=torch.float64).view(1, 1, -1)


def test_the_set_agent_treats_clients_alike_wherever_they_sit():
    networks = SetNetworks(5, 8, 2.0, 0.4, 1.0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        actor, critic = (parameters + 0.3 * torch.randn_like(parameters) for parameters in networks.initial())
    rows = np.random.default_rng(0).random((5, FEATURES))
    order = [3, 1, 4, 0, 2]
    logits = networks.act(actor[None], set_state(rows))[0, 0]
    assert logits.std() > 0.01
    torch.testing.assert_close(networks.act(actor[None], set_state(rows[order]))[0, 0], logits[order])
    value = networks.value(critic[None], set_state(rows), logits[None, None])
    torch.testing.assert_close(networks.value(critic[None], set_state(rows[order]), logits[order][None, None]), value)
    # Empty seats change nothing.
    empty = np.concatenate([rows, np.zeros((2, FEATURES))])
    larger = SetNetworks(7, 8, 2.0, 0.4, 1.0)
    torch.testing.assert_close(larger.act(actor[None], set_state(empty))[0, 0, :5], logits)
    seven = torch.cat([logits, one(5.0, -5.0)])[None, None]
    torch.testing.assert_close(larger.value(critic[None], set_state(empty), seven), value)


def test_the_set_agent_can_begin_as_loss_softmax():
    told = reported([1, 1.2, 2, 0.7, 1, 0.9, 1.4, 0.4, 1, 1.3])
    about = {"clients": 10, "cohort": 10}
    rule = begun(LossSoftmax(), **about).impact_factors(1, told, torch.device("cpu"))
    agent = begun(FedDRLSet(gain=0.8, memory_gain=0.0, limit=1e3, learn=False), **about)
    assert agent.impact_factors(1, told, torch.device("cpu")) == pytest.approx(rule, rel=1e-4)


def test_the_set_agent_remembers_clients_between_the_rounds_they_take_part_in():
    aggregator = begun(FedDRLSet(learn=False, keep=0.5), clients=6, cohort=2)
    for t, clients in enumerate(([0, 1], [2, 3], [0, 1]), start=1):
        aggregator.combine(t, torch.zeros(6), replies([1.0, 3.0], clients))
    assert aggregator.memory.tolist() == pytest.approx([-0.375, 0.375, -0.25, 0.25, 0, 0])
    factors = aggregator.figures()["impact_factors"]
    assert factors["1"] > factors["0"]


# --- clients that report nothing usable


@pytest.mark.parametrize(
    "make", [lambda: FedDRL(hidden=8), FedDRLSet, LossSoftmax], ids=["flat", "set", "loss-softmax"]
)
@pytest.mark.parametrize("loss", [float("nan"), 1e30, -1e30])
def test_a_client_whose_loss_says_nothing_is_left_out_and_harms_nobody(make, loss):
    aggregator = begun(make())
    for t in (1, 2, 3):
        model = aggregator.combine(t, torch.zeros(6), replies([1.0, loss, 3.0, 2.0]))
        factors = aggregator.figures()["impact_factors"]
        assert factors["1"] == 0
        assert sum(factors.values()) == pytest.approx(1)
        assert model.tolist() == pytest.approx([*factors.values(), 0, 0])
    assert client_loss(replies([1.0, float("nan"), 3.0, 2.0])) == pytest.approx(
        {"mean": 2, "variance": 2 / 3, "gap": 2}
    )


def test_what_is_unknown_sits_on_the_mean_of_the_others():
    seen = Reported.of(replies([1.0, float("nan"), 3.0], clients=[0, 1, 3]), setting())
    assert seen.before.tolist() == [1, 2, 2, 3]
    assert seen.samples.tolist() == [10, 10, 0, 10]
    assert seen.usable.tolist() == [True, False, False, True]


def test_seats_are_clients_where_all_are_invited_and_the_invited_in_order_elsewhere():
    assert Reported.of(replies([1.0, 2.0], clients=[1, 3]), setting()).seats.tolist() == [1, 3]
    lost = [Fault(4, "it dropped out")]
    some = Reported.of(replies([1.0, 2.0], clients=[2, 7], faults=lost), setting(clients=9, cohort=3))
    assert some.seats.tolist() == [0, 2]
    assert some.usable.tolist() == [True, False, True]


def test_where_nobody_says_anything_models_are_averaged_and_nothing_is_learned_from_it():
    aggregator = begun(FedDRL(hidden=8))
    aggregator.combine(1, torch.zeros(6), replies([1.0, 2.0, 3.0, 4.0]))
    model = aggregator.combine(2, torch.zeros(6), replies([float("nan")] * 4))
    assert model.tolist() == pytest.approx([0.25] * 4 + [0, 0])
    aggregator.combine(3, torch.zeros(6), replies([1.0, 2.0, 3.0, 4.0]))
    assert len(aggregator.agent.replay) == 0
    aggregator.combine(4, torch.zeros(6), replies([1.0, 2.0, 3.0, 4.0]))
    assert len(aggregator.agent.replay) == 1


# --- in runs


def agent_run(**options):
    return {**SMALL, "aggregator": {"name": "feddrl", "hidden": 16, **options}}


def test_rewards_are_of_the_round_after_and_figures_are_in_the_records(tmp_path):
    result = run(agent_run(), rounds=6, out=tmp_path / "run")
    costs = [row["client_loss"]["mean"] + row["client_loss"]["gap"] for row in result.metrics]
    _, state = read_checkpoint(result.folder)
    held = state["aggregator"]["agent"]["replay"]
    assert held["rewards"].tolist() == pytest.approx([-cost for cost in costs[1:]])
    assert held["states"][1].tolist() == held["next_states"][0].tolist()
    for row in result.metrics:
        assert list(row["figures"]["impact_factors"]) == [str(client) for client in row["clients"]]
        assert sum(row["figures"]["impact_factors"].values()) == pytest.approx(1)
        assert set(row["probe_bytes"]) == {"losses"}


@pytest.mark.parametrize(
    "options",
    [{"name": "feddrl", "hidden": 16, "updates": 4}, {"name": "feddrl-set", "batch": 2}, {"name": "loss-softmax"}],
)
def test_a_run_that_is_cut_off_and_resumed_is_the_whole_run(options, tmp_path):
    given = {**SMALL, "aggregator": options}
    whole = run(given, rounds=12, out=tmp_path / "whole")

    def stop(record):
        if record["round"] == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(given, rounds=12, out=tmp_path / "cut", on_round=stop)
    assert without_timings(resume(tmp_path / "cut").metrics) == without_timings(whole.metrics)
    plain = (
        run({**SMALL, "aggregator": {**options, "learn": False}}, rounds=12, out=tmp_path / "p")
        if "batch" in options
        else None
    )
    if plain is not None:
        assert plain.metrics[-1]["figures"] != whole.metrics[-1]["figures"]


def test_runs_are_the_same_whatever_the_threads_the_worker_processes_and_the_order_of_hashes(tmp_path):
    given = {**SMALL, "rounds": 8, "aggregator": {"name": "feddrl", "hidden": 64, "batch": 2}}
    here = run(given, out=tmp_path / "here")
    program = (
        "import json, sys, torch, covey; torch.set_num_threads(2); given, out = sys.argv[1:]; "
        "covey.run(json.loads(given), workers=2, out=out)"
    )
    subprocess.run(
        [sys.executable, "-c", program, json.dumps(given), str(tmp_path / "there")],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "1234"},
    )
    there = Run.open(tmp_path / "there")
    assert without_timings(there.metrics) == without_timings(here.metrics)
    files = [(folder / "checkpoint.safetensors").read_bytes() for folder in (here.folder, there.folder)]
    assert files[0] == files[1]


def test_what_is_restored_acts_and_goes_on_as_what_was_saved():
    first, second = (begun(FedDRL(hidden=8, batch=2)) for _ in range(2))
    rng = np.random.default_rng(0)
    rounds = [replies(rng.uniform(0.5, 3, 4).tolist()) for _ in range(12)]
    for t in range(8):
        first.combine(t + 1, torch.zeros(6), rounds[t])
    second.load_state_dict(first.state_dict())
    assert second.agent.pending is not None
    for t in range(8, 12):
        mine, theirs = (each.combine(t + 1, torch.zeros(6), rounds[t]) for each in (first, second))
        assert torch.equal(mine, theirs)
    assert torch.equal(first.agent.actor.main, second.agent.actor.main)
    assert first.agent.steps > 8


def test_runs_in_lockstep_are_the_runs_alone(tmp_path):
    configs = [Config.of({**agent_run(batch=2, updates=4), "rounds": 8, "seed": seed}) for seed in range(3)]
    together = run_together([(config, tmp_path / f"t{number}") for number, config in enumerate(configs)])
    for config, one_ in zip(configs, together, strict=True):
        alone = run(config, out=tmp_path / f"a{config.seed}")
        assert without_timings(one_.metrics) == without_timings(alone.metrics)


@pytest.mark.parametrize("name", ["feddrl", "feddrl-set"])
def test_runs_in_lockstep_whose_agents_learn_as_one_stack_are_the_runs_alone(name, tmp_path, monkeypatch):
    """As on a GPU: a CPU trains agents one by one unless it is told that they are alike."""
    stacks = []
    monkeypatch.setattr(Agent, "likeness", property(lambda agent: (agent.architecture, len(agent.replay))))
    learn = ddpg._learn
    monkeypatch.setattr(ddpg, "_learn", lambda *agents: (stacks.append(len(agents)), learn(*agents)))
    given = {**SMALL, "rounds": 10, "selector": {"name": "fedacs", "pool": 0.75}}
    given["aggregator"] = {"name": name, "hidden": 8, "batch": 2, "updates": 4, "noise": 0.3}
    configs = [Config.of({**given, "seed": seed}) for seed in range(3)]
    together = run_together([(config, tmp_path / f"t{config.seed}") for config in configs])
    assert set(stacks) == {3}
    for config, one_ in zip(configs, together, strict=True):
        alone = run(config, out=tmp_path / f"a{config.seed}")
        for mine, other in zip(one_.metrics, alone.metrics, strict=True):
            assert mine["clients"] == other["clients"]
            assert mine["loss"] == pytest.approx(other["loss"], rel=1e-5)
            assert mine["figures"]["impact_factors"] == pytest.approx(other["figures"]["impact_factors"], rel=1e-6)


def test_a_draw_below_zero_for_every_client_falls_back_to_the_means():
    aggregator = begun(FedDRL(hidden=8, beta=1.0, floor=10.0), clients=4, cohort=1)
    for t in range(1, 60):
        assert aggregator.factors(t, np.array([0.5, 0.5]), reported([1.0])) == pytest.approx([1.0])


@pytest.mark.parametrize("selector", ["fedacs", "oort", "power-of-choice", "rexp3"])
def test_any_selector_goes_with_the_agent(selector, tmp_path):
    choice = {"name": selector, "pool": 0.75} if selector == "fedacs" else selector
    result = run(
        {**SMALL, "selector": choice, "aggregator": {"name": "feddrl", "hidden": 16}}, rounds=6, out=tmp_path / "run"
    )
    assert result.finished
    assert all(sum(row["figures"]["impact_factors"].values()) == pytest.approx(1) for row in result.metrics)


@pytest.mark.parametrize("name", ["feddrl", "feddrl-set", "loss-softmax"])
def test_clients_that_drop_out_leave_their_weight_to_the_others(name, tmp_path):
    given = {**SMALL, "cohort": 8, "aggregator": {"name": name}, "devices": {"dropout": 0.3}}
    result = run(given, rounds=10, out=tmp_path / "run")
    assert any(row["dropped"] for row in result.metrics)
    for row in result.metrics:
        lost = {fault["client"] for fault in row["dropped"]}
        factors = row["figures"]["impact_factors"]
        assert {int(client) for client in factors} == set(row["clients"]) - lost
        assert sum(factors.values()) == pytest.approx(1)
    assert np.isfinite(result.metrics[-1]["loss"])


def test_a_round_without_replies_has_no_impact_factors(tmp_path):
    given = {**SMALL, "cohort": 1, "aggregator": "loss-softmax", "devices": {"dropout": 0.5}}
    result = run(given, rounds=10, out=tmp_path / "run")
    lost = [bool(row["dropped"]) for row in result.metrics]
    assert 0 < sum(lost) < 10
    assert ["impact_factors" not in row.get("figures", {}) for row in result.metrics] == lost


@pytest.mark.parametrize("name", ["feddrl", "feddrl-set"])
def test_a_run_that_goes_on_past_its_last_round_is_the_longer_run(name, tmp_path):
    given = {**SMALL, "aggregator": {"name": name, "hidden": 8, "batch": 2, "noise": 0.3}}
    whole = run(given, rounds=10, out=tmp_path / "whole")
    part = run(given, rounds=5, out=tmp_path / "part")
    longer = replace(part.config, rounds=10)
    write_json(part.folder / "config.json", {"format": FORMAT, "config": longer.as_mapping()})
    assert without_timings(resume(part.folder).metrics) == without_timings(whole.metrics)


def test_a_checkpoint_is_no_larger_than_the_agent_needs(tmp_path):
    result = run({**SMALL, "clients": 10, "cohort": 10, "aggregator": "feddrl"}, rounds=3, out=tmp_path / "run")
    networks = 8 * 4 * (78_868 + 79_105)
    assert networks < (result.folder / "checkpoint.safetensors").stat().st_size < 1.01 * networks


def test_a_decision_takes_less_than_three_milliseconds():
    aggregator = begun(FedDRL(learn=False), clients=10, cohort=10)
    told = reported(np.linspace(0.5, 2, 10))
    taken = []
    for t in range(20):
        begin = time.perf_counter()
        aggregator.impact_factors(t + 1, told, torch.device("cpu"))
        taken.append(time.perf_counter() - begin)
    assert min(taken) < 0.003


def test_a_frozen_agent_neither_explores_nor_learns():
    aggregator = begun(FedDRL(hidden=8, learn=False, noise=1.0, beta=0.0))
    before = aggregator.agent.actor.main.clone()
    factors = [aggregator.impact_factors(t, reported([1, 2, 3, 4]), torch.device("cpu")) for t in range(1, 20)]
    assert np.std(factors, axis=0) == pytest.approx(0)
    assert len(aggregator.agent.replay) == 0
    assert torch.equal(aggregator.agent.actor.main, before)


# --- two stages, and agents as files


def small_agent(path, **options):
    given = agent_run(**options)
    return train_agent(given, rounds=12, out=path, offline=Offline(epochs=3, batch=8))


def test_workers_differ_in_their_noise_alone(tmp_path):
    made = [Experiment.of(Config.of(agent_run(worker=number))).method.aggregator for number in (0, 1)]
    assert torch.equal(made[0].agent.actor.main, made[1].agent.actor.main)
    small_agent(tmp_path / "agent.safetensors")
    rows = [
        json.loads((tmp_path / f"agent-workers/worker-{n}/metrics.jsonl").read_text().splitlines()[0]) for n in (0, 1)
    ]
    assert rows[0]["client_loss"] == rows[1]["client_loss"]
    assert rows[0]["figures"]["impact_factors"] != rows[1]["figures"]["impact_factors"]


def test_a_trained_agent_says_what_it_was_trained_on_and_drives_another_federation(tmp_path):
    path = small_agent(tmp_path / "agent.safetensors")
    with safe_open(str(path), framework="pt") as file:
        about = json.loads(file.metadata()["agent"])
        trained = file.get_tensor("actor.main")
    assert about["kind"] == "feddrl"
    assert about["meaning"]["cohort"] == 4
    assert about["trained_on"]["experiences"] == 2 * 11
    assert about["trained_on"]["environment"]["name"] == "uniform"
    other = {**agent_run(agent=str(path), learn=False), "clients": 12, "environment": {"name": "iid", "samples": 15}}
    result = run(other, out=tmp_path / "run")
    _, state = read_checkpoint(result.folder)
    assert torch.equal(state["aggregator"]["agent"]["actor"]["main"], trained)
    fresh = Experiment.of(Config.of(agent_run())).method.aggregator
    assert isinstance(fresh, ByAgent)
    assert not torch.equal(fresh.agent.actor.main, trained)


def test_an_agent_with_a_place_for_each_client_is_refused_for_another_number(tmp_path):
    path = small_agent(tmp_path / "agent.safetensors")
    with pytest.raises(Refusal, match="trained for 4 clients a round, and here there are 3"):
        run(agent_run(agent=str(path)), cohort=3, out=tmp_path / "run")
    with pytest.raises(Refusal, match=r"other options; set aggregator\.order=authors"):
        run(agent_run(agent=str(path), order="paper"), out=tmp_path / "run")
    with pytest.raises(Refusal, match="trained for the aggregator 'feddrl', not 'feddrl-set'"):
        run({**SMALL, "aggregator": {"name": "feddrl-set", "agent": str(path)}}, out=tmp_path / "run")


def test_a_set_agent_is_accepted_for_any_number_of_clients(tmp_path):
    given = {**SMALL, "aggregator": {"name": "feddrl-set", "noise": 0.3}}
    path = train_agent(given, rounds=12, out=tmp_path / "agent.safetensors", offline=Offline(epochs=3, batch=8))
    for cohort in (1, 3, 8):
        chosen = {"name": "feddrl-set", "agent": str(path), "learn": False}
        result = run({**SMALL, "cohort": cohort, "aggregator": chosen}, out=tmp_path / f"run{cohort}")
        assert len(result.metrics[-1]["figures"]["impact_factors"]) == cohort


def test_what_is_not_an_agent_is_refused(tmp_path):
    with pytest.raises(Refusal, match=r"nothing\.safetensors cannot be read"):
        run(agent_run(agent=str(tmp_path / "nothing.safetensors")), out=tmp_path / "run")
    save_file({"x": torch.zeros(1)}, str(tmp_path / "other.safetensors"))
    with pytest.raises(Refusal, match="Give a file that covey train-agent has written"):
        run(agent_run(agent=str(tmp_path / "other.safetensors")), out=tmp_path / "run")
    path = small_agent(tmp_path / "agent.safetensors")
    with safe_open(str(path), framework="pt") as file:
        about = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    spoilt = {
        "cut": {"actor.main": torch.zeros(3)},
        "short": {name: tensor[:1].clone() for name, tensor in tensors.items()},
        "rounded": {name: tensor.to(torch.int8) for name, tensor in tensors.items()},
        "not-a-number": {**tensors, "critic.target": torch.full_like(tensors["critic.target"], torch.nan)},
    }
    for name, holds in spoilt.items():
        save_file(holds, str(tmp_path / f"{name}.safetensors"), about)
        with pytest.raises(Refusal, match=r"is damaged: '(actor|critic)\.\w+' is not [\d,]+ finite numbers"):
            run(agent_run(agent=str(tmp_path / f"{name}.safetensors")), out=tmp_path / "run")


@pytest.mark.parametrize("options", [{"name": "feddrl", "normalise_rewards": True}, {"name": "feddrl-set"}], ids=str)
def test_an_agent_may_learn_from_one_experience_at_a_time(options, tmp_path):
    result = run({**SMALL, "aggregator": {**options, "batch": 1}}, out=tmp_path / "run")
    assert result.finished


def test_an_agent_that_diverges_says_so(tmp_path):
    with pytest.raises(Refusal, match="The agent's networks have diverged in training"):
        run(agent_run(batch=1, critic_rate=1e150), rounds=8, out=tmp_path / "run")
    wild = Offline(epochs=3, batch=8, critic_rate=1e300, actor_rate=1e300)
    with pytest.raises(Refusal, match="have diverged in training"):
        train_agent(agent_run(), rounds=12, out=tmp_path / "agent.safetensors", offline=wild)


@pytest.mark.parametrize("learn", [True, False])
def test_a_run_goes_on_without_the_file_that_its_agent_came_from(learn, tmp_path):
    path = small_agent(tmp_path / "agent.safetensors")
    given = {**agent_run(agent=str(path), learn=learn), "rounds": 5}
    whole = run(given, out=tmp_path / "whole")

    def cut(record):
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(given, out=tmp_path / "cut", on_round=cut)
    path.unlink()
    assert without_timings(resume(tmp_path / "cut").metrics) == without_timings(whole.metrics)
    assert Run.open(tmp_path / "cut").model(0) is not None
    with pytest.raises(Refusal, match="cannot be read"):
        run(given, out=tmp_path / "again")


def test_an_agent_goes_on_learning_for_the_reward_that_it_knows(tmp_path):
    path = small_agent(tmp_path / "agent.safetensors")
    with pytest.raises(Refusal, match=r"learned for another reward.*set aggregator\.reward=paper, or"):
        run(agent_run(agent=str(path), reward="relative"), out=tmp_path / "run")
    with pytest.raises(Refusal, match=r"set aggregator\.discount=0\.99"):
        run(agent_run(agent=str(path), discount=0.5), out=tmp_path / "run")
    assert run(agent_run(agent=str(path), reward="relative", learn=False), out=tmp_path / "frozen").finished
    assert run(agent_run(agent=str(path)), out=tmp_path / "learning").finished


def test_training_is_refused_where_it_cannot_be_or_was_done(tmp_path):
    with pytest.raises(Refusal, match="'average' has no agent to train"):
        train_agent(SMALL, rounds=20, out=tmp_path / "agent.safetensors")
    with pytest.raises(Refusal, match=r"collect 4 experiences at most.*batches of 16: let there be more rounds"):
        train_agent(agent_run(), rounds=3, out=tmp_path / "agent.safetensors")
    path = small_agent(tmp_path / "agent.safetensors")
    with pytest.raises(Refusal, match="exists already"):
        small_agent(path)
    path.unlink()
    with pytest.raises(Refusal, match="worker-0 is a run with other settings"):
        small_agent(path, noise=0.2)
    begin = time.perf_counter()
    assert small_agent(path).is_file()
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"discount": 1.0}, "aggregator.discount is from 0 to below 1, not 1"),
        ({"batch": 0}, "aggregator.batch must be at least 1, not 0"),
        ({"soft": 0.0}, "aggregator.soft is a fraction"),
        ({"beta": 2.0}, "aggregator.beta is a fraction"),
        ({"capacity": 2}, "do not fill a batch of 4"),
        ({"order": "mine"}, "aggregator.order must be one of authors, paper"),
        ({"noise": -1.0}, "aggregator.noise must not be negative"),
    ],
)
def test_impossible_options_are_refused(options, sentence, tmp_path):
    with pytest.raises(Refusal, match=sentence):
        run(agent_run(**options), out=tmp_path / "run")


def test_the_flag_gives_a_run_its_agent(covey_command, tmp_path):
    path = small_agent(tmp_path / "agent.safetensors")
    small = ["--clients", "8", "--rounds", "2", "--workers", "1", "--agent", path]
    flags = [*small, "--cohort", "4", "--set", "aggregator.hidden=16", "--json"]
    answer = covey_command("run", *flags, "--out", tmp_path / "a")
    assert answer.code == 0, answer.err
    assert Run.open(tmp_path / "a").config.aggregator.options["agent"] == str(path)
    answer = covey_command("run", "--selector", "oort", *flags, "--out", tmp_path / "b")
    assert answer.code == 0, answer.err
    assert Run.open(tmp_path / "b").config.method == "oort+feddrl"
    for cohort, method, sentence in (
        (3, "feddrl", "trained for 4 clients a round, and here there are 3"),
        (4, "feddrl-set", "trained for the aggregator 'feddrl', not 'feddrl-set'"),
        (4, "loss-softmax", "is for the aggregator 'feddrl', and 'loss-softmax' has another one"),
    ):
        answer = covey_command("run", *small, "--cohort", cohort, "--method", method, "--out", tmp_path / "c")
        assert answer.code == 2
        assert sentence in answer.err
    answer = covey_command("run", "--agent", tmp_path / "none", "--out", tmp_path / "c")
    assert "Give a file that covey train-agent has written" in answer.err


def test_a_comparison_gives_the_agent_to_the_methods_that_it_is_for(covey_command, tmp_path):
    given = {**SMALL, "aggregator": "feddrl-set"}
    path = train_agent(given, rounds=10, out=tmp_path / "agent.safetensors", offline=Offline(epochs=1, batch=8))
    flags = ["--seeds", "1", "--clients", "8", "--cohort", "4", "--rounds", "2", "--workers", "1", "--agent", path]
    out = tmp_path / "all"
    answer = covey_command("compare", "--methods", "fedavg,feddrl-set", *flags, "--out", out, "--json")
    assert answer.code == 0, answer.err
    assert Run.open(out / "feddrl-set/seed-0").config.aggregator.options["agent"] == str(path)
    assert f"--agent {path}" in reproduced_by(out)
    assert covey_command("resume", out, "--json").code == 0
    answer = covey_command("compare", "--methods", "fedavg,feddrl", *flags, "--out", tmp_path / "other")
    assert "is for the aggregator 'feddrl-set', which none of fedavg, feddrl has" in answer.err


def test_the_command_trains_an_agent(tmp_path):
    app = typer.Typer()
    app.command()(train_agent_command)
    out = tmp_path / "agent.safetensors"
    flags = ["--aggregator", "feddrl-set", "--clients", "6", "--cohort", "3", "--rounds", "10", "--epochs", "2"]
    flags += ["--environment", "iid", "--workers", "1", "--set", "local.epochs=1", "--set", "environment.samples=20"]
    answer = CliRunner().invoke(app, [*flags, "--out", str(out), "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["file"] == str(out)
    assert out.is_file()


@pytest.mark.parametrize(
    ("flags", "rounds"),
    [([], 100), (["--rounds", "30"], 30), (["--set", "rounds=40"], 40), (["--config", "settings.toml"], 50)],
)
def test_rounds_of_agents_may_come_from_anywhere(tmp_path, monkeypatch, flags, rounds):
    asked = []

    def train(config, *, rounds, out, **_):
        asked.append((config.rounds, rounds))
        out.write_bytes(b"")
        return out

    monkeypatch.setattr("covey.commands.agent.train", train)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.toml").write_text("rounds = 50\n")
    app = typer.Typer()
    app.command()(train_agent_command)
    answer = CliRunner().invoke(app, ["--method", "feddrl", *flags, "--out", "agent.safetensors"])
    assert answer.exit_code == 0, answer.output
    assert asked == [(rounds, rounds)]
