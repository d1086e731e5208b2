"""What is said of a model on demand: above all, what is differentially private in it."""

import covey
from covey.job.on_demand.on_demand_job import resume_ondemand
from covey.serve.job_record import Job
from covey.serve.model_facts import model_facts, spent_by_base
from tests.conftest import SMALL


def facts(base, out, **options):
    made = covey.ondemand(base, {"0": 1.0}, estimator="analytic", rounds=1, out=out, **options)
    job = Job("id", 1, {"kind": "ondemand", "base": "base"}, state="done", result=made.as_mapping())
    # The folder says the same when it is read again.
    assert resume_ondemand(out).as_mapping()["base_privacy"] == job.result["base_privacy"]
    return model_facts(job, spent_by_base([job]))


def test_no_budget_is_named_where_there_is_no_differential_privacy(served_runs, tmp_path):
    found = facts(served_runs / "first", tmp_path / "plain")
    assert (
        found["epsilon"] is found["epsilon_of_all_models"] is found["base_epsilon"] is found["tuning_epsilon"] is None
    )
    assert found["privacy"] == "No differential privacy: the model may reveal what it was trained on."
    found = facts(served_runs / "first", tmp_path / "noisy", insight_dp="2,1e-5")
    assert found["epsilon"] == found["epsilon_of_all_models"] == 2 and found["base_epsilon"] is None
    assert "answers: ε = 2 at δ = 1e-05, the fine-tuning: no differential privacy." in found["privacy"]


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
