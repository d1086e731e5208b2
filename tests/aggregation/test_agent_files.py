"""Agents in two stages, as files, and on the command line."""

import json
import time
import warnings
from typing import Any

import pytest
import torch
import typer
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import CliRunner

from covey import run
from covey.aggregation import FedDRL
from covey.aggregation.agent_file import agent_digest
from covey.cli.agent_command import train_agent as train_agent_command
from covey.config.schema import Config
from covey.core.one_model import OneModel
from covey.errors import Refusal
from covey.job.agent_training import Offline, train_agent
from covey.job.experiment import Experiment
from covey.job.runs import Run, resume
from covey.page.tables import reproduced_by
from tests.aggregation.agents import agent_run, small_agent
from tests.conftest import SMALL, saved_state, without_timings


def feddrl(**options: Any) -> FedDRL:
    """Return the aggregator of a run before its first round."""
    method = Experiment.of(Config.of(agent_run(**options))).method
    assert isinstance(method, OneModel)
    assert isinstance(method.aggregator, FedDRL)
    return method.aggregator


def test_workers_differ_in_their_noise_alone(tmp_path):
    made = [feddrl(worker=number) for number in (0, 1)]
    assert torch.equal(made[0].policy.agent.actor.main, made[1].policy.agent.actor.main)
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
    assert torch.equal(saved_state(result.folder)["aggregator"]["agent"]["actor"]["main"], trained)
    assert not torch.equal(feddrl().policy.agent.actor.main, trained)


def test_the_first_record_says_which_agent_decides(tmp_path):
    path = small_agent(tmp_path / "agent.safetensors")
    rows = run(agent_run(agent=str(path), learn=False), rounds=2, out=tmp_path / "run").metrics
    assert rows[0]["figures"]["agent"] == {"digest": agent_digest(path), "seed": 0}
    assert "agent" not in rows[1]["figures"]
    rows = run(agent_run(), rounds=1, out=tmp_path / "untrained").metrics
    assert "agent" not in rows[0]["figures"]


def test_an_agent_whose_places_are_clients_of_another_seed_is_warned_of(tmp_path):
    all_of_four = {**agent_run(), "clients": 4, "cohort": 4}
    path = train_agent(all_of_four, rounds=12, out=tmp_path / "agent.safetensors", offline=Offline(epochs=1, batch=4))
    decided = {
        **all_of_four,
        "rounds": 1,
        "aggregator": {**agent_run()["aggregator"], "agent": str(path), "learn": False},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(decided, out=tmp_path / "same")
    for changed, sentence in (
        ({"seed": 1}, "with clients numbered by the seed 0, and here they are numbered by the seed 1"),
        ({"numbering": "environment"}, "numbered by the seed 0, and here they are numbered in their"),
    ):
        with pytest.warns(UserWarning, match=sentence):
            run(decided, **changed, out=tmp_path / "-".join(changed))
    # A file of an earlier version does not say how clients were numbered.
    with safe_open(str(path), framework="pt") as file:
        about = json.loads(file.metadata()["agent"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del about["trained_on"]["numbering"]
    save_file(tensors, str(path), {"agent": json.dumps(about)})
    with pytest.warns(UserWarning, match="numbered in their environment's order, and here they are numbered by"):
        run(decided, out=tmp_path / "earlier")


def test_an_agent_with_a_slot_for_each_client_is_refused_for_another_number(tmp_path):
    path = small_agent(tmp_path / "agent.safetensors")
    with pytest.raises(Refusal, match="trained for 4 clients a round, and here there are 3"):
        run(agent_run(agent=str(path)), cohort=3, out=tmp_path / "run")
    with pytest.raises(Refusal, match=r"other options; set aggregator\.order=authors"):
        run(agent_run(agent=str(path), order="paper"), out=tmp_path / "run")
    with pytest.raises(Refusal, match="trained for the aggregator 'feddrl', not 'feddrl-set'"):
        run({**SMALL, "aggregator": {"name": "feddrl-set", "agent": str(path)}}, out=tmp_path / "run")


def test_an_agent_is_refused_for_another_encoding_of_actions_unless_its_file_does_not_name_it(tmp_path):
    path = small_agent(tmp_path / "agent.safetensors")
    other = agent_run(agent=str(path), renormalise=False)
    with pytest.raises(Refusal, match=r"other options; set aggregator\.renormalise=True\.$"):
        run(other, out=tmp_path / "refused")
    with safe_open(str(path), "pt") as file:
        about, tensors = json.loads(file.metadata()["agent"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del about["meaning"]["renormalise"]
    save_file(tensors, str(path), {"agent": json.dumps(about)})
    assert run(other, rounds=1, out=tmp_path / "older").finished


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
    with pytest.raises(Refusal, match=r"other\.safetensors holds no agent"):
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
def test_a_run_resumes_without_its_agents_file(learn, tmp_path):
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


def test_an_agent_keeps_learning_only_for_the_reward_that_it_knows(tmp_path):
    path = small_agent(tmp_path / "agent.safetensors")
    with pytest.raises(Refusal, match=r"learned for another reward.*set aggregator\.reward=paper, or"):
        run(agent_run(agent=str(path), reward="relative"), out=tmp_path / "run")
    with pytest.raises(Refusal, match=r"set aggregator\.discount=0\.99"):
        run(agent_run(agent=str(path), discount=0.5), out=tmp_path / "run")
    assert run(agent_run(agent=str(path), reward="relative", learn=False), out=tmp_path / "frozen").finished
    assert run(agent_run(agent=str(path)), out=tmp_path / "learning").finished


def test_impossible_and_repeated_trainings_are_refused(tmp_path):
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
    begin = time.process_time()
    assert small_agent(path).is_file()
    assert time.process_time() - begin < 5


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


@pytest.mark.slow
def test_the_flag_gives_a_run_its_agent(covey_command, tmp_path):
    path = small_agent(tmp_path / "agent.safetensors")
    small = ["--clients", "8", "--rounds", "2", "--workers", "1", "--agent", path]
    flags = [*small, "--cohort", "4", "--set", "aggregator.hidden=16", "--json"]
    answer = covey_command("run", *flags, "--out", tmp_path / "a")
    assert answer.code == 0, answer.err
    aggregator = Run.open(tmp_path / "a").config.aggregator
    assert aggregator is not None
    assert aggregator.options["agent"] == str(path)
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


@pytest.mark.slow
def test_a_comparison_gives_the_agent_to_the_methods_that_it_is_for(covey_command, tmp_path):
    given = {**SMALL, "aggregator": "feddrl-set"}
    path = train_agent(given, rounds=10, out=tmp_path / "agent.safetensors", offline=Offline(epochs=1, batch=8))
    flags = ["--seeds", "1", "--clients", "8", "--cohort", "4", "--rounds", "2", "--workers", "1", "--agent", path]
    out = tmp_path / "all"
    kept = ["--set", "aggregator.learn=false"]
    answer = covey_command("compare", "--methods", "fedavg,feddrl-set", *flags, *kept, "--out", out, "--json")
    assert answer.code == 0, answer.err
    aggregator = Run.open(out / "feddrl-set/seed-0").config.aggregator
    assert aggregator is not None
    assert (aggregator.options["agent"], aggregator.options["learn"]) == (str(path), False)
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

    monkeypatch.setattr("covey.job.agent_training.train_agent", train)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.toml").write_text("rounds = 50\n")
    app = typer.Typer()
    app.command()(train_agent_command)
    answer = CliRunner().invoke(app, ["--method", "feddrl", *flags, "--out", "agent.safetensors"])
    assert answer.exit_code == 0, answer.output
    assert asked == [(rounds, rounds)]
