"""Runs whose clients keep tensors: resumed at any round they end the same, and the folder holds what changed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey import Config, Refusal, Run, resume, run
from covey.core.checkpoint import read_checkpoint, write_checkpoint
from covey.core.one_model import OneModel
from covey.job.comparison.execution import resume_comparison
from covey.job.experiment import Experiment
from tests.conftest import SMALL, Answer, without_timings

GIVEN: dict[str, Any] = {**SMALL, "cohort": 3, "rounds": 6, "precision": "fp64"}


def files(folder: Path) -> dict[str, bytes]:
    """Return the state of a run folder: its checkpoint and segments."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.safetensors")}


def stopping_after(t: int) -> Callable[[dict[str, Any]], None]:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == t:
            raise KeyboardInterrupt

    return stop


def cut(given: dict[str, Any], folder: Path, t: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(given, out=folder, on_round=stopping_after(t))


@pytest.mark.parametrize("devices", [{}, {"dropout": 0.4}])
@pytest.mark.parametrize("runtime", ["local", "stacked"])
@pytest.mark.parametrize("method", ["scaffold", "moon", "feddyn"])
def test_a_run_that_is_resumed_again_and_again_ends_the_same(
    method: str, runtime: str, devices: dict[str, float], tmp_path: Path
) -> None:
    given = {**GIVEN, "method": method, "runtime": runtime, "device": "cpu", "devices": devices}
    whole = run(given, out=tmp_path / "whole")
    assert any(row["dropped"] for row in whole.metrics) == bool(devices)
    folder = tmp_path / "cut"
    cut(given, folder, 1)
    for t in (2, 4):
        with pytest.raises(KeyboardInterrupt):
            resume(folder, on_round=stopping_after(t))
    assert without_timings(resume(folder).metrics) == without_timings(whole.metrics)
    assert files(folder) == files(tmp_path / "whole")


@pytest.mark.parametrize("method", ["scaffold", "moon"])
def test_a_limit_on_host_memory_changes_no_result(method: str, tmp_path: Path) -> None:
    whole = run(GIVEN, method=method, out=tmp_path / "whole")
    limited = {**GIVEN, "method": method, "host_memory_limit": "1kB"}
    assert without_timings(run(limited, out=tmp_path / "limited").metrics) == without_timings(whole.metrics)
    cut(limited, tmp_path / "cut", 3)
    assert without_timings(resume(tmp_path / "cut").metrics) == without_timings(whole.metrics)
    states = [read_checkpoint(tmp_path / name)[1] or {} for name in ("whole", "limited", "cut")]
    assert all(torch.equal(state["model"], states[0]["model"]) for state in states)
    assert files(tmp_path / "cut") == files(tmp_path / "limited")


def test_memory_holds_no_more_rows_than_the_limit(tmp_path: Path) -> None:
    size = 8 * Experiment.of(Config.of(GIVEN)).module_size
    given = {**GIVEN, "clients": 12, "rounds": 8, "method": "scaffold"}
    highest = {}
    for limit in (None, f"{4 * size}B"):
        experiment = Experiment.of(Config.of(given, host_memory_limit=limit))
        method = experiment.method
        assert isinstance(method, OneModel) and method.trainer is not None
        store, highest[limit] = method.trainer.store, 0
        (tmp_path / str(limit)).mkdir()
        method.attach_folder(tmp_path / str(limit))
        for t in range(1, 9):
            order = method.order(t, experiment.runtime.available(t))
            method.absorb(t, experiment.runtime.execute(order))
            highest[limit] = max(highest[limit], store.bytes_in_memory)
        experiment.runtime.close()
        assert len(store) > 6
        method.attach_folder(tmp_path / str(limit), runs=2)
        assert store.limit == (0 if limit is None else 2 * size), "runs in lockstep share the limit"
    assert highest[None] > 6 * size
    assert highest[f"{4 * size}B"] <= 4 * size


def test_a_checkpoint_does_not_grow_with_what_clients_keep(tmp_path: Path) -> None:
    plain = run(GIVEN, out=tmp_path / "plain").folder
    kept = run(GIVEN, method="moon", out=tmp_path / "moon").folder
    sizes = [(folder / "checkpoint.safetensors").stat().st_size for folder in (plain, kept)]
    assert sizes[1] < sizes[0] + 2000
    assert not (plain / "kept").exists()
    state = (read_checkpoint(kept)[1] or {})["trainer"]["kept"]
    assert len(state["clients"]) == len({client for row in Run.open(kept).metrics for client in row["clients"]})


def test_a_hundred_thousand_clients_cost_what_the_seen_ones_cost(tmp_path: Path) -> None:
    given = {**GIVEN, "method": "scaffold", "rounds": 2, "environment": {"name": "uniform", "samples": 8, "reuse": 1e6}}
    sizes = []
    for clients in (100, 100_000):
        folder = run(given, clients=clients, out=tmp_path / str(clients)).folder
        sizes.append(sum(map(len, files(folder).values())))
    assert abs(sizes[1] - sizes[0]) < 500


def test_a_folder_can_be_copied_and_resumed_elsewhere(tmp_path: Path) -> None:
    given = {**GIVEN, "method": "scaffold"}
    whole = run(given, out=tmp_path / "whole")
    cut(given, tmp_path / "cut", 3)
    shutil.copytree(tmp_path / "cut", tmp_path / "far" / "away")
    shutil.rmtree(tmp_path / "cut")
    assert without_timings(resume(tmp_path / "far" / "away").metrics) == without_timings(whole.metrics)


def test_a_model_is_read_without_what_clients_kept(tmp_path: Path) -> None:
    made = run(GIVEN, method="scaffold", out=tmp_path / "run")
    with_rows = made.evaluate(["0=1"])
    shutil.rmtree(made.folder / "kept")
    again = Run.open(made.folder)
    assert again.finished
    assert again.evaluate(["0=1"]) == with_rows
    parameters = sum(values.numel() for values in again.model().parameters())
    assert again.export(tmp_path / "model.safetensors")["parameters"] == parameters
    assert covey.report([made.folder]).is_file()


def test_a_run_that_has_lost_a_segment_is_refused_and_left_alone(tmp_path: Path) -> None:
    cut({**GIVEN, "method": "scaffold"}, tmp_path / "run", 3)
    lost = max((tmp_path / "run" / "kept").iterdir())
    lost.unlink()
    before = files(tmp_path / "run")
    with pytest.raises(Refusal, match=rf"has lost kept/{lost.name}"):
        resume(tmp_path / "run")
    assert files(tmp_path / "run") == before


def test_a_segment_of_another_model_is_refused(tmp_path: Path) -> None:
    given = {**GIVEN, "method": "scaffold"}
    cut(given, tmp_path / "run", 1)
    cut({**given, "model": {"name": "mlp", "hidden": (4,)}}, tmp_path / "other", 1)
    name = "kept/00000000.safetensors"
    shutil.copyfile(tmp_path / "other" / name, tmp_path / "run" / name)
    with pytest.raises(Refusal, match=r"00000000\.safetensors is damaged .* has the shape"):
        resume(tmp_path / "run")


def test_each_run_of_a_comparison_has_its_own_segments(tmp_path: Path) -> None:
    given = {**GIVEN, "runtime": "stacked", "device": "cpu", "host_memory_limit": "2kB"}
    whole = covey.compare(["scaffold", "moon"], 2, given=given, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        covey.compare(["scaffold", "moon"], 2, given=given, out=tmp_path / "cut", on_round=stopping_after(4))
    again = resume_comparison(tmp_path / "cut")
    assert len(again.rows) == len(whole.rows) == 2
    runs = sorted(path.parent for path in whole.folder.rglob("metrics.jsonl"))
    assert len(runs) == 4
    for folder in runs:
        other = tmp_path / "cut" / folder.relative_to(tmp_path / "whole")
        assert without_timings(Run.open(other).metrics) == without_timings(Run.open(folder).metrics)
        states = [read_checkpoint(place)[1] or {} for place in (folder, other)]
        assert torch.equal(states[0]["model"], states[1]["model"])
        used = {f"{number:08}.safetensors" for number in states[0]["trainer"]["kept"]["segments"].tolist()}
        assert {path.name for path in (folder / "kept").iterdir()} == used


def test_a_base_run_is_fine_tuned_and_continued_with_what_its_clients_keep(tmp_path: Path) -> None:
    base = run(GIVEN, method="moon", out=tmp_path / "base")
    before = files(base.folder)
    asked: dict[str, Any] = {"estimator": "ground-truth", "rounds": 2, "continued": True}
    job = covey.ondemand(base.folder, ["0=1"], **asked, out=tmp_path / "job")
    longer = run(GIVEN, method="moon", rounds=8, out=tmp_path / "longer")
    assert job.continued is not None
    assert without_timings(job.continued.metrics) == without_timings(longer.metrics)
    assert files(job.continued.folder) == files(longer.folder)
    assert files(base.folder) == before
    tuned = job.tailored[0].run
    assert tuned.config.trainer is not None and tuned.config.trainer.name == "moon"
    assert (tuned.folder / "kept").is_dir()


def test_a_base_run_whose_index_is_damaged_is_refused(tmp_path: Path) -> None:
    base = run(GIVEN, method="moon", out=tmp_path / "base")
    done, state = read_checkpoint(base.folder)
    assert state is not None
    state["trainer"]["kept"]["rounds"] = "none"
    write_checkpoint(base.folder, done, state)
    with pytest.raises(Refusal, match=r"does not fit its settings \(its rounds of what clients keep are no whole"):
        covey.ondemand(base.folder, ["0=1"], estimator="ground-truth", rounds=2, out=tmp_path / "job")
    assert not (tmp_path / "job").exists()


def test_a_base_run_whose_trainer_needs_its_aggregator_is_not_fine_tuned(tmp_path: Path) -> None:
    base = run(GIVEN, method="scaffold", out=tmp_path / "base")
    with pytest.raises(Refusal, match="the trainer of 'scaffold' works with its own aggregator alone"):
        covey.ondemand(base.folder, ["0=1"], estimator="ground-truth", rounds=2, out=tmp_path / "job")
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("limit", ["much", "0", "-1GB", "8 TB"])
def test_an_impossible_limit_is_refused(limit: str) -> None:
    with pytest.raises(Refusal, match=r"^host_memory_limit must be a size such as 8GiB"):
        Config.of(host_memory_limit=limit)


def test_the_limit_is_a_flag(tmp_path: Path, covey_command: Callable[..., Answer]) -> None:
    words = ["--rounds", 1, "--clients", 4, "--cohort", 2, "--host-memory-limit", "1MiB"]
    answer = covey_command("run", "--method", "moon", *words, "--out", tmp_path / "run", "--json")
    assert answer.code == 0, answer.err
    assert Run.open(tmp_path / "run").config.host_memory_bytes == 2**20
    words += ["--methods", "fedavg", "--seeds", "1"]
    answer = covey_command("compare", *words, "--out", tmp_path / "compared", "--json")
    assert answer.code == 0, answer.err
    runs = [path.parent for path in (tmp_path / "compared").rglob("config.json")]
    assert [Run.open(folder).config.host_memory_limit for folder in runs] == ["1MiB"]
    answer = covey_command("run", "--host-memory-limit", "lots", "--out", tmp_path / "none")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "host_memory_limit must be a size" in answer.err
