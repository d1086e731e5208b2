import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import covey
from covey import Config, Dataset, Refusal, Run, run
from covey.arrays import State
from covey.client.learner import Learner
from covey.core.build import build_federation
from covey.core.checkpoint import write_checkpoint
from covey.core.one_model import OneModel
from covey.core.records import Records
from covey.core.scores import Scores, on_mix
from covey.core.stall_warning import warn_of_stall
from covey.data import digits
from covey.job.experiment import build_runtime
from covey.job.lockstep_runs import run_together
from covey.runtime.local import LocalRuntime
from tests.conftest import SMALL, without_timings

DIVERGENT: dict[str, Any] = {"local.rate": 1e30}
"""A rate at which every client's loss becomes NaN."""


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path):
    first, again, other = (run(SMALL, seed=seed, out=tmp_path / name) for name, seed in (("a", 3), ("b", 3), ("c", 4)))
    assert without_timings(first.metrics) == without_timings(again.metrics)
    assert (
        first.metrics[0]["clients"] != other.metrics[0]["clients"]
        or first.metrics[1]["clients"] != (other.metrics[1]["clients"])
    )
    assert first.metrics[-1]["loss"] != other.metrics[-1]["loss"]


def test_the_seed_decides_data_initialisation_and_batches_each(tmp_path):
    a, b = (covey.Experiment.of(Config.of({**SMALL, "seed": seed})) for seed in (0, 1))
    assert not all(torch.equal(x, y) for x, y in zip(a.federation.parts, b.federation.parts, strict=True))
    assert not torch.equal(a.method.models(), b.method.models())
    replies = []
    for experiment in (a, b):
        # The same order on the same data: only the order of batches depends on the seed.
        order = a.method.order(1, np.arange(4))
        runtime = build_runtime(a.federation, experiment.module, experiment.config)
        replies.append(runtime.execute(order))
        runtime.close()
        experiment.runtime.close()
    assert not torch.equal(replies[0].states, replies[1].states)


def test_global_generators_do_not_change_a_run(tmp_path):
    first = run(SMALL, out=tmp_path / "a")
    torch.manual_seed(99)
    np.random.seed(99)
    torch.rand(10)
    assert without_timings(run(SMALL, out=tmp_path / "b").metrics) == without_timings(first.metrics)


@pytest.mark.slow
def test_fedavg_learns_and_every_field_of_a_record_is_there(tmp_path):
    result = run(SMALL, rounds=25, local={"epochs": 5}, out=tmp_path / "run")
    last = result.metrics[-1]
    assert last["accuracy"] > 0.75
    assert len(last["class_accuracy"]) == 10
    assert len(last["clients"]) == 4
    assert set(last["seconds"]) == {"selection", "clients", "aggregation", "evaluation"}
    parameters = 64 * 16 + 16 + 16 * 10 + 10
    assert last["bytes_up"] > 4 * 4 * parameters
    assert last["bytes_down"] > 4 * 4 * parameters
    assert last["bytes_up"] < 4 * 4 * parameters + 4 * 500
    assert [row["round"] for row in result.metrics] == list(range(1, 26))
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["versions"]["torch"] == torch.__version__


def test_central_trains_on_everybodys_samples_once(tmp_path):
    experiment = covey.Experiment.of(Config.of({**SMALL, "method": "central"}))
    experiment.runtime.close()
    everything = covey.Experiment.of(Config.of(SMALL))
    everything.runtime.close()
    held = torch.unique(torch.cat(list(everything.federation.parts)))
    assert experiment.federation.clients == 1
    assert torch.equal(experiment.federation.parts[0], held)
    result = run(SMALL, method="central", out=tmp_path / "run")
    assert result.metrics[-1]["clients"] == [0]
    assert result.metrics[-1]["bytes_up"] < 1000


def test_iid_reference_keeps_sizes_and_loses_skew():
    given = {**SMALL, "environment": {"name": "uniform", "samples": 100}}
    skewed, plain = (covey.Experiment.of(Config.of({**given, "method": name})) for name in ("fedavg", "iid"))
    skewed.runtime.close()
    plain.runtime.close()
    assert skewed.federation.sizes.tolist() == plain.federation.sizes.tolist()
    assert plain.federation.truth.shares.max() < 0.3
    assert skewed.federation.truth.shares.max() > 0.6


def test_local_only_sends_nothing_and_serves_each_client_its_own_mix(tmp_path):
    given = {**SMALL, "environment": {"name": "uniform", "samples": 60}, "rounds": 5}
    alone = run(given, method="local-only", out=tmp_path / "alone")
    last = alone.metrics[-1]
    assert last["clients"] == list(range(8))
    assert last["bytes_up"] + last["bytes_down"] < 8 * 1000
    assert last["own_accuracy"] > last["accuracy"] + 0.05


def test_local_only_is_the_same_as_each_client_run_alone(tmp_path):
    """In each round, a client trains the model that it had after the round before."""
    experiment = covey.Experiment.of(Config.of({**SMALL, "method": "local-only"}))
    method, runtime = experiment.method, experiment.runtime
    start = method.models()[2].clone()
    for t in (1, 2):
        method.absorb(t, runtime.execute(method.order(t, np.arange(8))))
    learner, samples = Learner(experiment.module, experiment.federation.dataset), experiment.federation.samples(2)
    for t in (1, 2):
        start, _ = learner.fit(start, samples, experiment.config.local, t, covey.randomness.key(0, t, 2))
    runtime.close()
    assert torch.equal(method.models()[2], start)


def spoiled(data_dir, /) -> Dataset:
    """Digits of which one sample has the largest values that float32 can hold."""
    clean = digits(None)
    x = clean.x.float()
    x[17] = torch.finfo(torch.float32).max
    return Dataset("spoiled", x, clean.y, clean.test_x.float(), clean.test_y, clean.class_names)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_whose_loss_becomes_nan_is_dropped_named_and_counted(tmp_path, workers):
    given: dict[str, Any] = {"dataset": "tests.job.test_runs:spoiled", "environment": "iid", "clients": 6, "cohort": 6}
    rate: dict[str, Any] = {"local.rate": 0.01}
    result = run(given, rounds=2, workers=workers, out=tmp_path / "run", **rate)
    spoilt = [client for client, part in enumerate(build_federation(result.config).parts) if 17 in part.tolist()]
    assert len(spoilt) == 1
    for row in result.metrics:
        assert row["dropped"] == [{"client": spoilt[0], "reason": "its loss became NaN or infinite"}]
        assert row["accuracy"] > 0.3
        assert np.isfinite(row["loss"])


def test_a_run_that_stands_still_warns_once_and_continues(tmp_path):
    with pytest.warns(UserWarning, match="stands still") as said:
        result = run(SMALL, rounds=23, evaluate_every=23, workers=1, out=tmp_path / "stuck", **DIVERGENT)
    (sentence,) = [str(one.message) for one in said if "stands still" in str(one.message)]
    assert sentence.startswith("The run stuck stands still: 10 rounds in a row no reply could be used")
    last = result.metrics[9]["dropped"][-1]
    assert sentence.endswith(f"of round 0. The last one: client {last['client']}: its loss became NaN or infinite.")
    assert result.finished


def test_rounds_without_a_reply_count_in_a_row_and_those_that_ask_nobody_not_at_all(tmp_path):
    gone = [{"client": 1, "reason": "gone"}]
    lost: dict[str, Any] = {"clients": [1], "dropped": gone, "train_loss": None}
    some: dict[str, Any] = {"clients": [1, 2], "dropped": gone, "train_loss": 0.5}
    kept_back: dict[str, Any] = {"clients": [1], "dropped": [], "withheld": [1], "train_loss": None}
    survey_lost: dict[str, Any] = {"clients": [1], "dropped": gone, "train_loss": 0.5}
    nobody: dict[str, Any] = {"clients": [], "dropped": [], "train_loss": None}
    rounds = [*[lost] * 9, some, *[lost] * 9, kept_back, *[lost] * 9, survey_lost, *[lost] * 5, nobody, *[lost] * 4]
    seen: list[dict[str, Any]] = []
    told = warn_of_stall(tmp_path, seen.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, record in enumerate(rounds, 1):
            told({"round": number, **record})
    assert len(seen) == 40
    with pytest.warns(UserWarning, match="that of round 30. The last one: client 1: gone."):
        told({"round": 41, **lost})
    (tmp_path / "names.json").write_text('["kiel", "bremen"]')
    named = warn_of_stall(tmp_path, None)
    for number in range(1, 10):
        named({"round": number, **lost})
    with pytest.warns(UserWarning, match="The last one: bremen: gone."):
        named({"round": 10, **lost})


def test_a_round_in_which_every_client_fails_leaves_the_model_as_it_was(tmp_path):
    result = run(SMALL, rounds=2, out=tmp_path / "run", **DIVERGENT)
    first, second = result.metrics
    assert len(first["dropped"]) == 4
    assert first["train_loss"] is None
    assert first["loss"] == second["loss"]
    assert np.isfinite(second["loss"])


def test_evaluation_every_few_rounds_and_always_at_the_end(tmp_path):
    result = run(SMALL, rounds=5, evaluate_every=2, out=tmp_path / "run")
    assert [row["round"] for row in result.metrics if "accuracy" in row] == [2, 4, 5]


def test_evaluate_and_export_give_the_model_of_the_last_round(tmp_path):
    result = run(SMALL, out=tmp_path / "run")
    again = Run.open(tmp_path / "run")
    assert again.evaluate()["accuracy"] == result.metrics[-1]["accuracy"]
    assert again.evaluate()["loss"] == result.metrics[-1]["loss"]
    again.export(tmp_path / "model.safetensors")
    module = again.model()
    tensors = load_file(tmp_path / "model.safetensors")
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, tensors[name])
    data = digits(None)
    x = (data.test_x.float() - data.mean[0]) / data.deviation[0]
    accuracy = (module(x).argmax(1) == data.test_y).double().mean().item()
    assert accuracy == pytest.approx(result.metrics[-1]["accuracy"])


def test_where_every_client_has_a_model_export_asks_whose(tmp_path):
    result = run(SMALL, method="local-only", rounds=1, out=tmp_path / "run")
    with pytest.raises(Refusal, match="has a model for each client: say which, 0 to 7"):
        result.export(tmp_path / "model.safetensors")
    with pytest.raises(Refusal, match="There is no client 8"):
        result.export(tmp_path / "model.safetensors", client=8)
    result.export(tmp_path / "a.safetensors", client=0)
    result.export(tmp_path / "b.safetensors", client=1)
    assert (tmp_path / "a.safetensors").read_bytes() != (tmp_path / "b.safetensors").read_bytes()


def test_results_are_ready_for_pandas(tmp_path):
    frame = run(SMALL, out=tmp_path / "run").frame()
    assert list(frame["round"]) == [1, 2, 3]
    assert frame["accuracy"].between(0, 1).all()


def test_parts_combine_by_name(tmp_path):
    given = {**SMALL, "selector": "uniform", "aggregator": {"name": "average", "weighted": False}}
    plain = run({**given, "environment": {"name": "dirichlet", "alpha": 0.3}}, out=tmp_path / "plain")
    weighted = run({**SMALL, "environment": {"name": "dirichlet", "alpha": 0.3}}, out=tmp_path / "weighted")
    assert plain.config.method == "uniform+average"
    assert plain.metrics[0]["clients"] == weighted.metrics[0]["clients"]
    assert plain.metrics[0]["loss"] != weighted.metrics[0]["loss"]


def test_a_mix_is_scored_on_the_classes_that_have_tests_and_over_clients():
    scores = Scores(np.zeros(2), np.array([[10, 0, 0], [0, 10, 0]]), np.array([10, 10, 0]))
    accuracy, untested = on_mix(scores, np.array([0, 0, 1]), np.array([0.5, 0.25, 0.25]))
    assert accuracy == pytest.approx((2 / 3) * (2 / 3) + (1 / 3) * (1 / 3))
    assert untested == pytest.approx(0.25)
    assert on_mix(scores, np.array([0]), np.array([0.0, 0.0, 1.0])) == (None, 1.0)


def test_runs_of_a_sweep_share_the_time_that_checkpoints_may_take(tmp_path, monkeypatch):
    shares: list[float] = []
    monkeypatch.setattr(
        "covey.job.lockstep_runs.run_in_lockstep",
        lambda runs, *_: shares.extend(one.records.checkpoint_share for one in runs),
    )
    pending = [(Config.of({**SMALL, "seed": seed}), tmp_path / str(seed)) for seed in range(4)]
    run_together(pending)
    assert shares == [0.05 / 4] * 4


@pytest.mark.parametrize("runtime", ["local", "stacked"])
def test_a_single_run_writes_a_checkpoint_after_every_round_however_short(tmp_path, monkeypatch, runtime):
    written: list[int] = []

    def noted(folder: Path, t: int, state: State) -> None:
        written.append(t)
        write_checkpoint(folder, t, state)

    monkeypatch.setattr("covey.core.records.time.monotonic", lambda: 0.0)
    monkeypatch.setattr("covey.core.records.write_checkpoint", noted)
    run(SMALL, rounds=6, runtime=runtime, device="cpu", out=tmp_path / "run")
    assert written == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("broken", ["not empty", "damaged checkpoint"])
def test_a_sweep_that_is_refused_closes_every_run_that_it_has_built(tmp_path, monkeypatch, broken):
    """The second folder is refused after its runtime was built; for a damaged one, with its records open."""
    config = Config.of(SMALL)
    if broken == "not empty":
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "notes.txt").write_text("mine")
    else:
        run(config, out=tmp_path / "b")
        monkeypatch.setattr(OneModel, "load_state_dict", refuse)
    built: list[object] = []
    closed: list[object] = []
    for kind in (LocalRuntime, Records):
        monkeypatch.setattr(kind, "__init__", listing(kind.__init__, built))
        monkeypatch.setattr(kind, "close", listing(kind.close, closed))
    with pytest.raises(Refusal):
        run_together([(config, tmp_path / "a"), (config, tmp_path / "b")])
    assert len(built) == (3 if broken == "not empty" else 4)
    assert set(map(id, closed)) == set(map(id, built))


def refuse(*given: object) -> None:
    raise Refusal("No.")


def listing(function: Callable[..., Any], listed: list[object]) -> Callable[..., Any]:
    """Return the method with a note in `listed` of each object that it is called on."""

    def listing_function(self: object, *given: Any, **settings: Any) -> Any:
        listed.append(self)
        return function(self, *given, **settings)

    return listing_function


def test_a_folder_with_something_in_it_is_refused_before_anything_is_built(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setattr(covey.Experiment, "of", None)
    with pytest.raises(Refusal, match="is not empty"):
        run(SMALL, out=tmp_path)
