"""Folders, environments, alterations, own losses, Flower clients and pages keep the task."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import covey
from covey.config.schema import Config
from covey.core.build import build_federation
from covey.job.comparison.compared_runs import Comparison
from covey.job.comparison.statistics import best_accuracy
from covey.page.run_data import read_report_data
from covey.page.run_report import page_of
from covey.task import named_task
from tests.task.federations import FEDERATIONS, SETTINGS, diabetes, multilabel, regression

pytestmark = pytest.mark.filterwarnings("ignore")
HERE = "tests.task.federations"


def run(tmp_path, name="run", federation=None, **more):
    return covey.run({**SETTINGS, **more}, federation=federation or regression(), out=tmp_path / name)


def csv_of(tmp_path, clients=4):
    x, y = diabetes()
    rows = np.column_stack([x, y, np.arange(len(y)) % clients])
    names = ",".join([*"abcdefghij", "y", "client"])
    np.savetxt(tmp_path / "d.csv", rows, delimiter=",", header=names, comments="", fmt="%.5f")
    return {"name": "csv", "path": str(tmp_path / "d.csv"), "label": "y"}


def stopped(tmp_path, settings):
    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        covey.run(settings, out=tmp_path / "stopped", on_round=stop)


def test_a_folder_keeps_its_task_over_resume_evaluate_and_export(tmp_path):
    settings = {**SETTINGS, "dataset": csv_of(tmp_path), "environment": "natural", "rounds": 4}
    whole = covey.run(settings, out=tmp_path / "whole")
    stopped(tmp_path, settings)
    resumed = covey.resume(tmp_path / "stopped")
    for mine, theirs in zip(resumed.metrics, whole.metrics, strict=True):
        assert mine["metrics"] == theirs["metrics"]
    found = whole.evaluate()
    assert found["metrics"] == whole.metrics[-1]["metrics"]
    assert (found["metric"], found["class_names"]) == ("rmse", [])
    with pytest.raises(covey.Refusal, match="mixes of classes, and the task of 'd' is regression"):
        whole.evaluate(["0=1"])
    with pytest.raises(covey.Refusal, match="mixes of classes"):
        covey.ondemand(whole, "0=1", out=tmp_path / "job")
    whole.export(tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        task = named_task(json.loads(file.metadata()["task"]))
    assert task.outputs == 1
    # The model of the folder, used by hand in plain PyTorch, has the same error.
    data = build_federation(whole.config).dataset
    x = (data.test_x - torch.tensor(data.mean)) / torch.tensor(data.deviation)
    with torch.no_grad():
        assert task.score(whole.model()(x), data.test_y)["rmse"] == pytest.approx(found["score"], rel=1e-4)


def test_folders_from_before_there_were_tasks_keep_classes(tmp_path):
    settings = {**SETTINGS, "dataset": csv_of(tmp_path), "environment": "natural", "task": "classification"}
    made = covey.run(settings, out=tmp_path / "run")
    about = json.loads((tmp_path / "run" / "config.json").read_text())
    del about["config"]["task"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(about))
    again = covey.Run.open(tmp_path / "run")
    assert again.config.task.name == "classification"
    assert again.evaluate()["accuracy"] == made.metrics[-1]["accuracy"]


@pytest.mark.parametrize(
    "environment", [name for name in covey.environments.names() if name not in ("given", "natural")]
)
@pytest.mark.parametrize("task", list(FEDERATIONS))
def test_environments_deal_groups_of_samples_in_place_of_classes(environment, task, tmp_path):
    data = FEDERATIONS[task]().dataset
    y = data.learns.original(data.y) if task == "regression" else data.y
    np.savez(tmp_path / "d.npz", x=data.x.numpy(), y=y.numpy())
    dataset = {"name": "npz", "path": str(tmp_path / "d.npz")}
    few = {"group": 1} if environment == "uniform-observed" else {}
    given = {"dataset": dataset, "environment": {"name": environment, **few}, "clients": 8}
    federation = build_federation(Config.of(given))
    assert federation.truth.shares.shape == (8, federation.dataset.bin_count)
    np.testing.assert_allclose(federation.truth.shares.sum(axis=1), 1)
    assert covey.describe(Config.of(given)).task == task


def test_skew_of_the_target_is_skew(tmp_path):
    x, y = diabetes()
    sorted_by_target = np.argsort(np.argsort(y)) * 4 // len(y)
    apart = covey.federation(x, y, sorted_by_target)
    assert apart.truth.skew.min() > 2 * regression(4).truth.skew.max()
    told = covey.describe(apart)
    assert told.groups == "quantile bins of the target"
    assert told.class_names[0].startswith("25 to ")


def test_poisoned_targets_are_mirrored_and_labels_turned(tmp_path):
    for task, turned in (("regression", lambda y: -y), ("multilabel", lambda y: 1 - y)):
        whole = FEDERATIONS[task]()
        config = Config.of({**SETTINGS, "altered": {"poison": 0.5}, "clients": whole.clients})
        altered = covey.Experiment.of(config).federation  # Which clients are poisoned depends on the seed alone.
        from covey.core.build import altered_federation

        mine = altered_federation(whole, config)
        assert mine.altered is not None
        assert altered.altered is not None
        assert mine.altered.poisoned == altered.altered.poisoned
        for client, poisoned in enumerate(mine.altered.poisoned):
            expected = turned(whole.labels(client)) if poisoned else whole.labels(client)
            assert torch.equal(mine.labels(client), expected)
        assert any(mine.altered.poisoned)
    worse = run(tmp_path, "poisoned", altered={"poison": 0.5}, rounds=4, local={"epochs": 3, "rate": 0.05})
    better = run(tmp_path, "clean", rounds=4, local={"epochs": 3, "rate": 0.05})
    assert worse.metrics[-1]["score"] > better.metrics[-1]["score"]


# A loss and metrics of one's own


def custom(**more):
    return {"name": "custom", "loss": f"{HERE}:squared", **more}


def test_a_loss_and_metrics_of_ones_own(tmp_path):
    task = custom(metrics=f"{HERE}:median_error", better="lower")
    slow = {"precision": "fp64", "local": {"epochs": 1, "rate": 1e-5}}
    local = run(tmp_path, "local", task=task, **slow)
    stacked = run(
        tmp_path,
        "stacked",
        task=task,
        precision="fp64",
        runtime="stacked",
        device="cpu",
        local={"epochs": 1, "rate": 1e-5},
    )
    last = local.metrics[-1]
    assert (last["metric"], last["better"], list(last["metrics"])) == (
        "median_error", "lower", ["median_error", "largest_error"],
    )  # fmt: skip
    assert last["metrics"] == pytest.approx(stacked.metrics[-1]["metrics"], rel=1e-7)
    # Without metrics the loss is the metric.
    plain = run(tmp_path, "plain", task=custom(), **slow)
    assert plain.metrics[-1]["score"] == pytest.approx(plain.metrics[-1]["loss"], rel=1e-6)
    assert plain.metrics[-1]["loss"] == pytest.approx(last["loss"], rel=1e-9)


def test_squared_error_as_a_loss_of_ones_own_trains_as_regression_without_a_unit(tmp_path):
    unscaled = {"name": "regression", "centre": (0.0,), "scale": (1.0,)}
    first = run(tmp_path, "one", task=custom(), local={"epochs": 1, "rate": 1e-5})
    second = run(tmp_path, "two", task=unscaled, local={"epochs": 1, "rate": 1e-5})
    assert [row["train_loss"] for row in first.metrics] == [row["train_loss"] for row in second.metrics]


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (f"{HERE}:branching", "cannot be computed for many clients at once"),
        (f"{HERE}:averaged", "must return one number for each sample"),
        (f"{HERE}:nowhere", "cannot be imported"),
        ("nowhere", "task.loss=package.module:name"),
    ],
)
def test_a_loss_that_does_not_do_is_refused_before_anything_is_written(loss, says, tmp_path):
    with pytest.raises(covey.Refusal, match=says):
        run(tmp_path, task={"name": "custom", "loss": loss})
    assert not (tmp_path / "run").exists()


def test_a_folder_imports_no_loss_unless_trusted(tmp_path):
    settings = {**SETTINGS, "dataset": csv_of(tmp_path), "environment": "natural", "task": custom(), "rounds": 1}
    covey.run(settings, out=tmp_path / "run")
    with pytest.raises(covey.Refusal, match="trust"):
        covey.Run.open(tmp_path / "run").evaluate()
    assert covey.Run.open(tmp_path / "run", trust=True).evaluate()["metric"] == "loss"


def test_a_model_with_another_number_of_outputs_is_refused(tmp_path):
    with pytest.raises(covey.Refusal, match="its last layer needs 1 output"):
        run(tmp_path, model={"name": f"{__name__}:three_outputs"})


def three_outputs(shape: tuple[int, ...], classes: int) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(10, 3))
    model.head = "1"  # type: ignore[assignment]
    return model


# Comparisons and pages


def test_lower_is_better_in_comparisons(tmp_path):
    found = covey.compare(
        ["fedavg", "fedprox", "iid"], 2, federation=regression(), out=tmp_path / "c",
        **{**SETTINGS, "rounds": 6, "local": {"epochs": 2, "batch": 16, "rate": 0.05}},
    )  # fmt: skip
    first, curve = found.rows[0], found.curves["fedavg"][0]
    scores = [float(row["score"]) for row in found.runs["fedavg"][0].metrics]
    assert best_accuracy(curve) == min(scores)
    assert first["best_score"] == pytest.approx(np.mean([min(one.accuracy) for one in found.curves["fedavg"]]))
    assert first["terminal_score"] == pytest.approx(np.mean([one.accuracy[-1] for one in found.curves["fedavg"]]))
    assert (first["metric"], first["better"], "terminal_accuracy" in first) == ("rmse", "lower", False)
    worst_best = max(min(one.accuracy) for curves in found.curves.values() for one in curves)
    assert found.target == pytest.approx(worst_best)
    assert first["reached"] == 2
    assert Comparison.open(tmp_path / "c", regression()).rows == found.rows
    easy = covey.compare(
        ["fedavg"], 1, federation=regression(), out=tmp_path / "easy", target=1e6, **{**SETTINGS, "rounds": 2}
    )
    assert easy.rows[0]["rounds_to_target"] == 1.0
    page = page_of(read_report_data([tmp_path / "c"]))
    headings = {part.heading for section in page.sections for part in section.content if hasattr(part, "heading")}
    assert {"Test RMSE over rounds", "Terminal RMSE", "RMSE against bytes sent"} <= headings
    assert "RMSE" in page.headline
    assert "%" not in page.headline.replace("95 %", "")
    covey.report([tmp_path / "c"])


def test_a_target_of_accuracy_stays_a_fraction(tmp_path):
    with pytest.raises(covey.Refusal, match=r"fraction in \(0, 1\], as the accuracy is"):
        covey.compare(["fedavg"], 1, target=1.5, out=tmp_path / "c", **{**SETTINGS, "clients": 4})


def test_runs_of_different_tasks_are_not_compared(tmp_path):
    with pytest.raises(covey.Refusal, match="measured by accuracy and by rmse: compare runs of one task"):
        covey.compare(
            ["fedavg"], 1, federation=regression(), vary={"task": ["regression", "classification"]}, out=tmp_path / "c",
            **SETTINGS,
        )  # fmt: skip


def test_a_federation_may_say_its_task(tmp_path):
    x, y = diabetes()
    federation = covey.federation(x, y.astype(int), np.arange(len(y)) % 4, task="regression")
    assert run(tmp_path, federation=federation).metrics[-1]["metric"] == "rmse"
    scaled = covey.federation(x, y, np.arange(len(y)) % 4, task={"name": "regression", "centre": 0.0, "scale": 100.0})
    assert scaled.dataset.learns.as_mapping()["scale"] == [100.0]


def test_the_terminal_shows_every_metric(tmp_path, covey_command, capsys):
    from covey.cli.result_tables import show_run

    show_run(run(tmp_path, federation=multilabel()))
    said = capsys.readouterr().out
    assert "test mean average precision" in said
    assert "F1" in said


def test_analysis_finds_sites_with_other_targets_without_classes():
    x, y = diabetes()
    sites = np.random.default_rng(0).integers(0, 9, len(y))
    sites[np.argsort(y)[-110:]] = 9 + np.arange(110) % 2
    sites[np.argsort(y)[:40]] = 11
    found = covey.analyze(federation=covey.federation(x, y, sites), workers=1)
    assert found.outlier.tolist() == [False] * 9 + [True] * 3
    assert set(np.argsort(found.skew)[-3:]) == {9, 10, 11}
    assert found.confidence is None
    assert "The task has no classes" in found.notes[0]


def test_wrong_labels_of_a_task_of_ones_own_are_not_known(tmp_path):
    with pytest.raises(covey.Refusal, match="wrong for the task 'custom' is not known"):
        run(tmp_path, task=custom(), altered={"noise": 0.1})
