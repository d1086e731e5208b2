"""FedDRL's impact factors from clients' losses, alone and in runs."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import run
from covey.aggregation import ddpg
from covey.aggregation.ddpg import AgentTraining
from covey.aggregation.feddrl import FedDRL
from covey.aggregation.feddrl_set import FEATURES, FedDRLSet, SetNetworks
from covey.aggregation.impact_factors import LossReports
from covey.aggregation.loss_softmax import LossSoftmax
from covey.config.schema import Config
from covey.core.checkpoint import FORMAT
from covey.core.messages import Fault
from covey.core.round_record import client_loss
from covey.job.lockstep_runs import run_together
from covey.job.runs import resume
from covey.storage import write_json
from tests.aggregation.agents import agent_run, begun, one, replies, reported, setting
from tests.conftest import SMALL, saved_state, without_timings

# --- impact factors


losses = st.lists(st.floats(0, 50), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    before=losses,
    after=losses,
    usable=st.lists(st.booleans(), min_size=4, max_size=4).filter(any),
    which=st.sampled_from(["authors", "paper", "set", "loss-softmax"]),
    t=st.integers(1, 1000),
)
def test_impact_factors_are_shares_of_the_usable_clients(before, after, usable, which, t):
    aggregator = {
        "authors": lambda: FedDRL(hidden=8, noise=1.0, beta=1.0, floor=0.5),
        "paper": lambda: FedDRL(hidden=8, noise=1.0, order="paper"),
        "set": lambda: FedDRLSet(noise=1.0),
        "loss-softmax": lambda: LossSoftmax(),
    }[which]()
    factors = begun(aggregator).impact_factors(t, reported(before, after, usable=usable), torch.device("cpu"))
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
    # Means are 1; the second spread is above β times the mean.
    action = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.5, 0.02, 0.0])
    drawn = np.log(np.stack([aggregator.factors(t, action, reported([1, 1, 1, 1])) for t in range(1, 4000)]))
    relative = drawn - drawn[:, :1]
    assert relative.mean(axis=0) == pytest.approx([0.0] * 4, abs=0.01)
    assert relative.std(axis=0) == pytest.approx([0.0, 0.1, 0.02, 0.0], rel=0.05, abs=1e-12)


def test_actions_with_noise_are_clipped_to_their_bounds():
    wild = np.array([-3.0, -0.5, 0.5, 3.0])
    for made, bounded in (
        (FedDRL(hidden=8, learn=False), [0.0, 0.0, 0.5, 1.0]),
        (FedDRL(hidden=8, learn=False, order="paper"), [-1.0, -0.5, 0.5, 1.0]),
        (FedDRLSet(learn=False, limit=2.0), [-2.0, -0.5, 0.5, 2.0]),
    ):
        policy = begun(made).policy
        policy.agent.act = lambda state: wild
        assert policy.act(1, np.zeros(1), 1.0, torch.device("cpu")).tolist() == bounded
    aggregator = begun(FedDRLSet(limit=0.1, noise=1.0))
    for t in range(1, 30):
        factors = aggregator.impact_factors(t, reported([1, 2, 3, 4]), torch.device("cpu"))
        assert factors.max() / factors.min() <= np.exp(0.2) + 1e-9


def test_the_noise_is_an_ornstein_uhlenbeck_process():
    aggregator = begun(FedDRL(hidden=8, updates=0, noise=0.1, reversion=0.1))
    noise = []
    for t in range(1, 3001):
        aggregator.impact_factors(t, reported([1, 2, 3, 4]), torch.device("cpu"))
        noise.append(aggregator.policy.deviation)
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
    assert paper.policy.reward(3.0, even.cost) == -1
    assert paper.policy.reward(3.0, high.cost) == -2
    assert paper.policy.reward(3.0, uneven.cost) == -2
    assert relative.policy.reward(1.0, even.cost) == 0 > relative.policy.reward(1.0, high.cost) == -np.log(2)
    assert relative.policy.reward(2.0, even.cost) == np.log(2)


# --- the set agent


def set_state(rows):
    return torch.tensor(rows, dtype=torch.float64).view(1, 1, -1)


def test_the_set_agent_does_not_depend_on_the_slots_of_clients():
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
    # Empty slots change nothing.
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
def test_a_client_without_usable_loss_is_left_out_and_harms_nobody(make, loss):
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


def test_unknown_losses_are_the_mean_of_the_others():
    seen = LossReports.of(1, replies([1.0, float("nan"), 3.0], clients=[0, 1, 3]), setting())
    assert seen.before.tolist() == [1, 2, 2, 3]
    assert seen.samples.tolist() == [10, 10, 0, 10]
    assert seen.usable.tolist() == [True, False, False, True]


def test_slots_are_clients_if_all_are_invited_and_shuffled_otherwise():
    assert LossReports.of(1, replies([1.0, 2.0], clients=[1, 3]), setting()).slots.tolist() == [1, 3]
    lost = [Fault(4, "it dropped out")]
    seen = set()
    for t in range(1, 50):
        some = LossReports.of(t, replies([1.0, 2.0], clients=[2, 7], faults=lost), setting(clients=9, cohort=3))
        assert some.usable.sum() == 2
        assert some.before[some.slots].tolist() == [1.0, 2.0]
        seen.add(tuple(some.slots.tolist()))
    assert seen == {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)}


def test_slots_of_older_runs_are_in_the_order_of_numbers():
    before = replace(setting(clients=9, cohort=3), shuffled=False)
    lost = [Fault(4, "it dropped out")]
    some = LossReports.of(1, replies([1.0, 2.0], clients=[2, 7], faults=lost), before)
    assert some.slots.tolist() == [0, 2]
    assert some.usable.tolist() == [True, False, True]


def test_the_raw_state_is_losses_and_samples_as_they_are():
    reports = reported([1.0, 3.0], samples=[20, 60])
    raw = begun(FedDRL(hidden=8, state="raw"), clients=2, cohort=2).state_of(reports)
    assert raw.tolist() == [1.0, 3.0, 0.5, 1.5, 20, 60]
    normalised = begun(FedDRL(hidden=8), clients=2, cohort=2).state_of(reports)
    assert normalised.tolist() == [0.25, 0.75, 0.25, 0.75, 0.25, 0.75]


def test_without_reports_models_are_averaged_and_nothing_is_learned():
    aggregator = begun(FedDRL(hidden=8))
    aggregator.combine(1, torch.zeros(6), replies([1.0, 2.0, 3.0, 4.0]))
    model = aggregator.combine(2, torch.zeros(6), replies([float("nan")] * 4))
    assert model.tolist() == pytest.approx([0.25] * 4 + [0, 0])
    aggregator.combine(3, torch.zeros(6), replies([1.0, 2.0, 3.0, 4.0]))
    assert len(aggregator.policy.agent.replay) == 0
    aggregator.combine(4, torch.zeros(6), replies([1.0, 2.0, 3.0, 4.0]))
    assert len(aggregator.policy.agent.replay) == 1


# --- in runs


def test_rewards_are_of_the_round_after_and_figures_are_in_the_records(tmp_path):
    result = run(agent_run(), rounds=6, out=tmp_path / "run")
    costs = [row["client_loss"]["mean"] + row["client_loss"]["gap"] for row in result.metrics]
    held = saved_state(result.folder)["aggregator"]["agent"]["replay"]
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


def test_a_restored_aggregator_continues_as_the_saved_one():
    first, second = (begun(FedDRL(hidden=8, batch=2)) for _ in range(2))
    rng = np.random.default_rng(0)
    rounds = [replies(rng.uniform(0.5, 3, 4).tolist()) for _ in range(12)]
    for t in range(8):
        first.combine(t + 1, torch.zeros(6), rounds[t])
    second.load_state_dict(first.state_dict())
    assert second.policy.agent.pending is not None
    for t in range(8, 12):
        mine, theirs = (each.combine(t + 1, torch.zeros(6), rounds[t]) for each in (first, second))
        assert torch.equal(mine, theirs)
    assert torch.equal(first.policy.agent.actor.main, second.policy.agent.actor.main)
    assert first.policy.agent.steps > 8


def test_runs_in_lockstep_are_the_runs_alone(tmp_path):
    configs = [Config.of({**agent_run(batch=2, updates=4), "rounds": 8, "seed": seed}) for seed in range(3)]
    together = run_together([(config, tmp_path / f"t{number}") for number, config in enumerate(configs)])
    for config, one_ in zip(configs, together, strict=True):
        alone = run(config, out=tmp_path / f"a{config.seed}")
        assert without_timings(one_.metrics) == without_timings(alone.metrics)


@pytest.mark.parametrize("name", ["feddrl", "feddrl-set"])
def test_runs_in_lockstep_whose_agents_learn_as_one_stack_are_the_runs_alone(name, tmp_path, monkeypatch):
    """As on a GPU: a CPU trains agents one by one unless their keys are equal."""
    stacks = []
    shape = property(lambda work: (work.agent.architecture, len(work.agent.replay)))
    monkeypatch.setattr(AgentTraining, "key", shape)
    train = ddpg._train

    def counted(*agents: ddpg.Agent) -> None:
        stacks.append(len(agents))
        train(*agents)

    monkeypatch.setattr(ddpg, "_train", counted)
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
def test_a_run_extended_beyond_its_last_round_is_the_longer_run(name, tmp_path):
    given = {**SMALL, "aggregator": {"name": name, "hidden": 8, "batch": 2, "noise": 0.3}}
    whole = run(given, rounds=10, out=tmp_path / "whole")
    part = run(given, rounds=5, out=tmp_path / "part")
    longer = replace(part.config, rounds=10)
    write_json(part.folder / "config.json", {"format": FORMAT, "config": longer.as_mapping()})
    assert without_timings(resume(part.folder).metrics) == without_timings(whole.metrics)


def test_a_checkpoint_is_no_larger_than_the_agent_needs(tmp_path):
    result = run({**SMALL, "clients": 10, "cohort": 10, "aggregator": "feddrl"}, rounds=3, out=tmp_path / "run")
    networks = 8 * 4 * (78_868 + 79_105)
    # Moments that are still zero take no room.
    assert networks / 3 < (result.folder / "checkpoint.safetensors").stat().st_size < 1.01 * networks


def test_a_decision_takes_less_than_three_milliseconds():
    aggregator = begun(FedDRL(learn=False), clients=10, cohort=10)
    told = reported(np.linspace(0.5, 2, 10))
    taken = []
    for t in range(20):
        begin = time.thread_time()
        aggregator.impact_factors(t + 1, told, torch.device("cpu"))
        taken.append(time.thread_time() - begin)
    assert min(taken) < 0.003


def test_a_frozen_agent_neither_explores_nor_learns():
    aggregator = begun(FedDRL(hidden=8, learn=False, noise=1.0, beta=0.0))
    before = aggregator.policy.agent.actor.main.clone()
    factors = [aggregator.impact_factors(t, reported([1, 2, 3, 4]), torch.device("cpu")) for t in range(1, 20)]
    assert np.std(factors, axis=0) == pytest.approx(0)
    assert len(aggregator.policy.agent.replay) == 0
    assert torch.equal(aggregator.policy.agent.actor.main, before)
