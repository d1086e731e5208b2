"""Trackers follow a run while it goes on; tested against the libraries themselves, offline."""

import sys
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.errors import Refusal
from covey.job.trackers import scalars

QUICK: dict[str, Any] = {"clients": 4, "cohort": 2, "rounds": 3, "workers": 1, "local": {"epochs": 1}}


def _stopped(tmp_path: Path, track: str) -> Path:
    """Return the folder of a run that was stopped after round 2."""

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        covey.run(QUICK, out=tmp_path / "run", track=track, on_round=stop)
    return tmp_path / "run"


def test_tensorboard_sees_every_round_over_a_resume(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = covey.resume(_stopped(tmp_path, "tensorboard"), track="tensorboard")
    events = accumulator.EventAccumulator(str(run.folder / "tensorboard")).Reload()
    found = {event.step: event.value for event in events.Scalars("accuracy")}
    assert found == pytest.approx({row["round"]: row["accuracy"] for row in run.metrics})


@pytest.mark.slow
def test_mlflow_has_settings_rounds_and_how_the_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = _stopped(tmp_path, "mlflow")
    client = mlflow.tracking.MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("covey")
    (begun,) = client.search_runs([experiment.experiment_id])
    assert begun.info.status == "KILLED"
    run = covey.resume(folder, track="mlflow")
    (ended,) = client.search_runs([experiment.experiment_id])
    assert (ended.info.run_id, ended.info.status, ended.info.run_name) == (begun.info.run_id, "FINISHED", "run")
    assert ended.data.params["local.epochs"] == "1"
    history = client.get_metric_history(ended.info.run_id, "accuracy")
    assert {one.step: one.value for one in history} == {row["round"]: row["accuracy"] for row in run.metrics}


@pytest.mark.slow
def test_wandb_follows_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = covey.run(QUICK, out=tmp_path / "run", track="wandb")
    assert run.finished
    (written,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    content = written.read_bytes()
    assert b"class_accuracy/9" in content and b"train_loss" in content


def test_a_tracker_that_is_unknown_or_not_installed_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refusal, match=r"no tracker 'neptune'. Trackers: tensorboard, mlflow, wandb"):
        covey.run(QUICK, out=tmp_path / "run", track="neptune")
    assert not (tmp_path / "run").exists()
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(Refusal, match=r"'.\[track\]'"):
        covey.run(QUICK, out=tmp_path / "run", track=["wandb"])
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_fails_costs_its_curve_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")

    def broken(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("covey.job.trackers.TensorBoardTracker.log", broken)
    with pytest.warns(UserWarning, match="'tensorboard' failed and is left out: OSError: disk full"):
        assert covey.run(QUICK, out=tmp_path / "run", track="tensorboard").finished


def test_trackers_that_have_started_are_ended_when_another_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    ended = []

    def broken(*arguments: object) -> None:
        raise ValueError("No key.")

    monkeypatch.setattr("covey.job.trackers.TensorBoardTracker.end", lambda tracker, finished: ended.append(finished))
    monkeypatch.setattr("covey.job.trackers.WandbTracker.__init__", broken)
    with pytest.raises(Refusal, match=r"'wandb' did not start: ValueError: No key\.$"):
        covey.run(QUICK, out=tmp_path / "run", track="tensorboard,wandb")
    assert ended == [False]


def test_every_run_of_a_comparison_is_followed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    runtime = {"runtime": "stacked", "device": "cpu"}
    for name, more in (("one", {}), ("lockstep", runtime)):
        covey.compare(["fedavg", "iid"], seeds=1, given={**QUICK, **more}, out=tmp_path / name, track="tensorboard")
        assert len(list((tmp_path / name).rglob("events.out.tfevents*"))) == 2


def test_numbers_are_named_by_their_path() -> None:
    found = scalars(
        {"round": 3, "dropped": [1], "clients": [1, 2], "figures": {"a": {"b": 2}}, "class_accuracy": [0.5]}
    )
    assert found == {"dropped": 1.0, "cohort": 2.0, "figures/a/b": 2.0, "class_accuracy/0": 0.5}
