"""FedDRL's agent: its update, its replay, and agents that learn as one stack."""

import threading
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from covey import Refusal, run
from covey.aggregation import ddpg
from covey.aggregation.ddpg import Agent, AgentTraining, NetworkState, priorities_of, targets_of, train, update
from covey.aggregation.feddrl import FedDRL, FlatNetworks
from covey.aggregation.feddrl_set import FedDRLSet, SetNetworks
from covey.aggregation.replay_buffer import Experiences, Replay, prioritised
from covey.core.loop import perform_jointly
from tests.aggregation.agents import LEARNING, agent_run, experienced, one
from tests.conftest import saved_state


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


ALIKE_AND_NOT = [(LEARNING, 0.0), (LEARNING, 0.0), (LEARNING, 0.3), (replace(LEARNING, batch=5), 0.0)]


def test_an_update_is_the_one_worked_out_by_hand():
    actors = NetworkState(one([0.5]), one([0.25]), one([0.0]), one([0.0]))
    critics = NetworkState(one([2.0, -1.0]), one([1.0, 3.0]), one([0.0, 0.0]), one([0.0, 0.0]))
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
    stack = NetworkState.stack([agent.actor]), NetworkState.stack([agent.critic])
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
def test_agents_trained_as_a_stack_are_those_trained_alone(networks):
    learning = replace(LEARNING, normalise_rewards=True)

    def three():
        agents = [experienced(Agent(networks, learning, number, anchor=0.3), 20, number) for number in range(3)]
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
def test_agents_trained_on_a_gpu_are_those_trained_on_a_cpu(networks):
    here, there = ([experienced(Agent(networks, LEARNING, n), 20, n) for n in range(3)] for _ in range(2))
    for number, (one_, other) in enumerate(zip(here, there, strict=True)):
        other.to(torch.device("cuda"))
        one_.train_now(number, "replay")
        other.schedule_training(number, "replay")
    state = np.linspace(0.1, 1, networks.state_size)
    for one_, other in zip(here, there, strict=True):
        assert other.act(state) == pytest.approx(one_.act(state), rel=1e-6, abs=1e-9)
        assert other.steps == one_.steps


def test_scheduled_training_is_performed_jointly_or_when_the_agent_acts_but_once():
    agent, alone, none = (experienced(Agent(FlatNetworks(3, 2, 4), LEARNING, 0), count) for count in (8, 8, 2))
    for one_ in (agent, alone, none):
        one_.schedule_training(0, 1, "replay")
    assert none.pending is None
    work = AgentTraining(agent)
    assert agent.steps == 0 != agent.updates
    perform_jointly([work])
    assert agent.pending is None
    assert agent.steps == 2
    alone.act(np.zeros(3))
    assert torch.equal(agent.actor.main, alone.actor.main)
    perform_jointly([work, AgentTraining(alone)])
    assert agent.steps == alone.steps == 2


def test_agents_are_stacked_on_a_gpu_if_they_are_alike():
    agents = [Agent(FlatNetworks(3, 2, 4), learning, 0, anchor=anchor) for learning, anchor in ALIKE_AND_NOT]
    keys, without_identity = set(), set()
    for agent in agents:
        key = AgentTraining(agent).key
        assert isinstance(key, tuple)
        keys.add(key)
        # On a CPU, where each agent is trained alone, its identity is the last part of the key.
        without_identity.add(key[:-1])
    assert (len(keys), len(without_identity)) == (4, 3)


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
    stacks = NetworkState.stack([agent.actor]), NetworkState.stack([agent.critic])
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
    agent = experienced(Agent(FlatNetworks(3, 2, 5), FedDRL().options.learning, 0), 200)
    agent.train_now(0)
    assert agent.steps == 32 == FedDRLSet().options.updates


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
        agent = experienced(Agent(FlatNetworks(3, 2, 5), replace(LEARNING, normalise_rewards=normalise), 0), 12)
        agent.replay.rewards[:12] = scale * agent.replay.rewards[:12] + level
        agent.train_now(0)
        learned.append(agent.critic.main)
    plain, scaled = learned
    assert torch.allclose(plain, scaled, rtol=0, atol=1e-7) is normalise


def test_an_agent_trained_on_one_thread_and_on_two_is_the_same_to_the_bit():
    """Matrix products of these shapes differ in their last bits between one thread and two."""

    def became(threads):
        torch.set_num_threads(threads)
        agent = experienced(Agent(FlatNetworks(12, 8, 64), replace(LEARNING, batch=10), 0), 80)
        agent.train_now(0)
        assert torch.get_num_threads() == threads
        return agent.actor.main.clone(), agent.act(np.linspace(0.1, 1, 12))

    (one_, first), (two, second) = became(1), became(2)
    assert torch.equal(one_, two)
    assert first.tolist() == second.tolist()


def wait_for_side_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "agent":
            thread.join()


def test_the_side_thread_learns_while_the_agent_acts():
    agent, twin = (experienced(Agent(FlatNetworks(12, 8, 16), LEARNING, 0), 40) for _ in range(2))
    before = agent.actor.main.clone()
    agent.train_in_background(0, 1)
    agent.train_in_background(0, 2)
    wait_for_side_threads()
    agent.adopt_background()
    twin.train_now(0, 1)
    assert agent.steps == twin.steps == 8
    assert torch.equal(agent.actor.main, twin.actor.main)
    assert not torch.equal(agent.actor.main, before)


def test_a_failure_in_the_side_thread_is_raised():
    agent = experienced(Agent(FlatNetworks(12, 8, 16), LEARNING, 0), 40)
    agent.critic.main.fill_(float("nan"))
    agent.train_in_background(0, 1)
    wait_for_side_threads()
    with pytest.raises(Refusal, match="agent"):
        agent.act(np.linspace(0.1, 1, 12))


def test_a_checkpoint_does_not_wait_for_the_side_thread_and_does_not_lose_its_training(monkeypatch):
    go = threading.Event()
    learn = ddpg._train

    def slowly(*agents):
        go.wait(60)
        learn(*agents)

    agent, other, twin = (experienced(Agent(FlatNetworks(12, 8, 16), LEARNING, 0), 40) for _ in range(3))
    monkeypatch.setattr(ddpg, "_train", slowly)
    agent.train_in_background(0, 1)
    try:
        before = agent.act(np.linspace(0.1, 1, 12))
        saved = agent.state_dict()
        assert agent.steps == 0
        assert saved["pending"] == [0, 1]
    finally:
        go.set()
    monkeypatch.setattr(ddpg, "_train", learn)
    other.load_state_dict(saved)
    twin.train_now(0, 1)
    after = other.act(np.linspace(0.1, 1, 12))
    assert after.tolist() == twin.act(np.linspace(0.1, 1, 12)).tolist()
    assert after.tolist() != before.tolist()


def test_a_run_may_train_its_agent_beside_the_rounds(tmp_path):
    result = run(agent_run(batch=2, side_thread=True), rounds=8, out=tmp_path / "run")
    assert result.finished
    assert saved_state(result.folder)["aggregator"]["agent"]["steps"] > 0


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
