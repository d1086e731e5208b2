"""Rounds that are written while the device computes the next one: same records, same checkpoints, in order."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey import Refusal, Run, resume, run
from covey.core.checkpoint import checkpoint_round
from covey.core.records import Records
from covey.job.lockstep_runs import run_together
from covey.registries import selectors
from covey.runtime.devices import OnDevices
from covey.runtime.stacked.engine import Engine, LaunchKind, _terms
from covey.runtime.stacked.launcher import Launcher
from covey.runtime.stacked.stacked_runtime import StackedRuntime
from covey.selection import Uniform
from tests.conftest import SMALL, without_timings
from tests.runtime.stacked.segments import segment

GIVEN: dict[str, Any] = {**SMALL, "cohort": 3, "rounds": 6, "runtime": "stacked", "device": "cpu", "evaluate_every": 2}


@selectors.add("test-counting")
class Counting(Uniform):
    """Counts each client's invitations in an array that it changes in place as soon as it chooses."""

    def begin(self, setting):
        super().begin(setting)
        self.counts = np.zeros(setting.clients, dtype=np.int64)

    def select(self, t, candidates):
        chosen = candidates[np.argsort(self.counts[candidates], kind="stable")[: self.setting.cohort]]
        self.counts[chosen] += 1
        return chosen

    def state_dict(self):
        return {**super().state_dict(), "counts": self.counts}

    def load_state_dict(self, state):
        self.counts = state["counts"].copy()


@pytest.fixture
def overlapping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the stack on the CPU write rounds as on a GPU: once the next one's steps are launched."""
    monkeypatch.setattr(StackedRuntime, "overlaps", True)


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.safetensors")}


METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "fedacs": {"method": "fedacs", "attack": {"kind": "scale", "attackers": 0.3}},
    "feddrl": {"method": "feddrl-set", "devices": {"dropout": 0.3}},
    "scaffold": {"method": "scaffold", "host_memory_limit": "1KiB"},
    "mocha": {"method": "mocha"},
    "momentum": {"method": "fedavgm", "averaging": {"ema": 0.9}},
    "nccb": {"method": "nccb", "selector.clusters": 4},
    "counting": {"selector": "test-counting"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_records_and_checkpoints_are_those_of_rounds_that_are_written_at_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {**GIVEN, **METHODS[name]}
    run(given, out=tmp_path / "whole")
    monkeypatch.setattr(StackedRuntime, "overlaps", True)
    run(given, out=tmp_path / "later")
    rows = [without_timings(Run.open(tmp_path / place).metrics) for place in ("whole", "later")]
    assert json.dumps(rows[0]) == json.dumps(rows[1])
    assert files(tmp_path / "whole") == files(tmp_path / "later")


@pytest.mark.usefixtures("overlapping")
@pytest.mark.parametrize("runs", [1, 2])
def test_a_round_is_written_once_the_next_one_is_launched_and_before_its_replies_are_there(
    runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    launch, execute = Launcher.run, Engine.execute

    def launched(launcher: Launcher, *given: Any) -> Any:
        losses = launch(launcher, *given)
        events.append("launched")
        return losses

    def executed(engine: Engine, *given: Any) -> Any:
        found = execute(engine, *given)
        events.append("replies")
        return found

    monkeypatch.setattr(Launcher, "run", launched)
    monkeypatch.setattr(Engine, "execute", executed)
    pending = [(covey.Config.of({**GIVEN, "rounds": 3, "seed": seed}), tmp_path / f"{seed}") for seed in range(runs)]
    run_together(pending, lambda number, record: events.append(f"round {record['round']} of {number}"))

    def written(t: int) -> list[str]:
        return [f"round {t} of {number}" for number in range(runs)]

    launched_first = ["launched", "replies", "launched", *written(1), "replies", "launched", *written(2), "replies"]
    assert events == [*launched_first, *written(3)]


@pytest.mark.usefixtures("overlapping")
@pytest.mark.parametrize("name", ["counting", "scaffold"])
def test_a_folder_as_a_kill_leaves_it_after_any_round_is_resumed_to_the_same_bits(name: str, tmp_path: Path) -> None:
    given = {**GIVEN, **METHODS[name]}
    whole = tmp_path / "whole"

    def copied(record: dict[str, Any]) -> None:
        shutil.copytree(whole, tmp_path / str(record["round"]), ignore=shutil.ignore_patterns(".lock"))

    rows = without_timings(run(given, out=whole, on_round=copied).metrics)
    for t in range(1, 7):
        assert checkpoint_round(tmp_path / str(t)) == t
        assert without_timings(resume(tmp_path / str(t)).metrics) == rows
        assert files(tmp_path / str(t)) == files(whole)


def failing_at(t: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have the launch of round `t` fail; return what undoes that."""
    launch, launches = Launcher.run, []

    def failing(launcher: Launcher, *given: Any) -> Any:
        launches.append(launcher)
        if len(launches) == t:
            raise error
        return launch(launcher, *given)

    monkeypatch.setattr(Launcher, "run", failing)
    return lambda: monkeypatch.setattr(Launcher, "run", launch)


@pytest.mark.usefixtures("overlapping")
def test_a_round_is_kept_even_if_the_next_one_cannot_be_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = failing_at(4, KeyboardInterrupt(), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(GIVEN, out=tmp_path / "run")
    assert [row["round"] for row in Run.open(tmp_path / "run").metrics] == [1, 2, 3]
    assert checkpoint_round(tmp_path / "run") == 3
    undo()
    resume(tmp_path / "run")
    run(GIVEN, out=tmp_path / "whole")
    assert files(tmp_path / "run") == files(tmp_path / "whole")


@pytest.mark.usefixtures("overlapping")
def test_a_full_disk_ends_the_run_with_a_sentence_and_nothing_is_written_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def full(records: Records, record: Any, state: Any) -> None:
        written.append(record["round"])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Records, "_write", full)
        with pytest.raises(Refusal, match=r"cannot be written: .*No space left on device.* covey resume"):
            run(GIVEN, out=tmp_path / "run")
    assert written == [1]
    resume(tmp_path / "run")
    run(GIVEN, out=tmp_path / "whole")
    assert files(tmp_path / "run") == files(tmp_path / "whole")


@pytest.mark.usefixtures("overlapping")
def test_a_run_that_is_asked_to_stop_ends_after_its_round_which_is_kept(tmp_path: Path) -> None:
    asked: list[int] = []
    pending = [(covey.Config.of({**GIVEN, "seed": seed}), tmp_path / f"{seed}") for seed in range(2)]
    run_together(pending, lambda number, record: asked.append(record["round"]), stop=lambda: len(asked) >= 4)
    assert asked == [1, 1, 2, 2, 3, 3]
    assert [checkpoint_round(folder) for _, folder in pending] == [3, 3]


def test_rounds_are_written_before_a_step_is_compiled_which_takes_minutes() -> None:
    experiment = covey.Experiment.of(covey.Config.of({**GIVEN, "precision": "fp64"}))
    assert isinstance(experiment.runtime, OnDevices)
    assert isinstance(experiment.runtime.runtime, StackedRuntime)
    engine, calls = experiment.runtime.runtime.engine, []
    clients = [segment(0, place, place, 20, experiment.config.local, 1, 0) for place in range(3)]
    shape, kind = clients[0].shape, LaunchKind(clients[0].shape, _terms(clients))
    # As on a GPU, where launchers are compiled.
    engine.device = torch.device("cuda")
    lanes = engine._lanes_for(shape, clients, [], lambda: calls.append("compiling"))
    assert calls == ["compiling"]
    engine._launchers[kind, lanes] = None  # type: ignore[assignment]
    assert engine._lanes_for(shape, clients, [], lambda: calls.append("again")) == lanes
    assert calls == ["compiling"]
