"""What is said of a model on demand: above all, what is differentially private in it."""

import covey
from covey.cli import terminal as display
from covey.job.on_demand.on_demand_job import resume_ondemand
from covey.job.run_index import RunIndex
from covey.serve.job_record import Job
from covey.serve.model_facts import model_facts, spent_by_base
from tests.conftest import SMALL
from tests.serve.conftest import client_of


def facts(base, out, **options):
    made = covey.ondemand(base, {"0": 1.0}, estimator="analytic", rounds=1, out=out, **options)
    job = Job("id", 1, {"kind": "ondemand", "base": "base"}, state="done", result=made.as_mapping())
    # The folder says the same when it is read again.
    assert resume_ondemand(out).as_mapping()["base_privacy"] == job.result["base_privacy"]
    return model_facts(job, spent_by_base([job]))


def listed(folder):
    (line,) = RunIndex(folder).all()
    return line


def test_no_budget_is_named_where_there_is_no_differential_privacy(served_runs, tmp_path):
    found = facts(served_runs / "first", tmp_path / "plain")
    assert (
        found["epsilon"] is found["epsilon_of_all_models"] is found["base_epsilon"] is found["tuning_epsilon"] is None
    )
    assert found["privacy"] == "No differential privacy: the model may reveal what it was trained on."
    found = facts(served_runs / "first", tmp_path / "noisy", insight_dp="2,1e-5")
    assert found["epsilon"] == found["epsilon_of_all_models"] == 2 and found["base_epsilon"] is None
    assert "answers: ε = 2 at δ = 1e-05, the fine-tuning: no differential privacy." in found["privacy"]


def test_lists_say_what_a_model_on_demand_is(served_runs, tmp_path, covey_command, monkeypatch):
    found = facts(served_runs / "first", tmp_path / "runs" / "made", insight_dp="2,1e-5")
    line = listed(tmp_path / "runs")
    assert (line.mix_accuracy, line.used, line.epsilon) == (found["accuracy"], len(found["clients"]), 2)
    words = f"{found['accuracy']:.1%} on the mix, {line.used} clients, answers with ε = 2"
    assert line.on_demand == words
    assert words in client_of(tmp_path / "runs").get("/").text
    assert f"{words}." in " ".join(covey_command("show", tmp_path / "runs" / "made").out.split())
    monkeypatch.setattr(display.console, "width", 300)
    assert "answers with ε" in " ".join(covey_command("runs", tmp_path / "runs").out.split())
    (tmp_path / "runs" / "made" / "mix_scores.json").unlink()
    assert listed(tmp_path / "runs").on_demand == f"{line.used} clients, answers with ε = 2"


def test_a_private_base_does_not_make_the_fine_tuning_private(tmp_path):
    aggregator = {"name": "dp-fedavg", "noise": 2.0, "delta": 1e-3}
    base = covey.run(SMALL, aggregator=aggregator, rounds=2, out=tmp_path / "base")
    epsilon = base.metrics[1]["figures"]["epsilon"]
    found = facts(base.folder, tmp_path / "model")
    assert (found["epsilon"], found["base_epsilon"], found["tuning_epsilon"]) == (None, epsilon, None)
    assert found["privacy"] == (
        f"The base model: ε = {epsilon:.3g} at δ = 0.001, the clients' answers: no differential privacy, the "
        "fine-tuning: no differential privacy. The model may reveal what it was fine-tuned on."
    )


def test_fine_tuning_with_a_private_trainer_has_a_budget_of_its_own(tmp_path):
    trainer = {"name": "dp-sgd", "noise": 2.0, "delta": 1e-3}
    base = covey.run(SMALL, trainer=trainer, rounds=1, out=tmp_path / "base")
    found = facts(base.folder, tmp_path / "model")
    assert found["tuning_epsilon"] >= found["base_epsilon"] > 0
    assert "reveal" not in found["privacy"]
