"""Shared by all tests: fixtures, a small run, and access to what runs have saved."""

import gc
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from covey.arrays import State
from covey.cli.main import main
from covey.client.learner import Learner
from covey.core.build import build_module
from covey.core.checkpoint import read_checkpoint
from covey.core.round_record import TIMINGS
from covey.job.experiment import Experiment


def pytest_collection() -> None:
    """Collect without looking for garbage: there is none yet, and looking takes half of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what has been imported and collected out of later looks for garbage; it is here until the end."""
    gc.freeze()
    gc.enable()


LONGEST = (
    "integration/test_fleet.py",
    "integration/test_flower_apps.py",
    "integration/test_serve_browser.py",
    "integration/test_serve.py",
    "runtime/stacked/test_stacked_runtime.py",
    "integration/test_flower_simulation.py",
    "flower/test_flower.py",
    "test_reference.py",
    "integration/test_flower_quickstart.py",
    "integration/test_served_fleet.py",
    "docs/test_site.py",
    "integration/test_examples.py",
)
"""Files that begin first: whatever is left when they are done, no process is long alone with it at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder: those under `integration` start programs, those under `proof` take long.

    Files are in the order in which test processes take them: the longest, then those of most tests.
    """
    here = Path(__file__).parent
    tests = Counter(item.path for item in items)
    places = {here / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (places.get(item.path, len(places)), -tests[item.path], item.path))
    for item in items:
        for folder in ("integration", "proof"):
            if f"/tests/{folder}/" in item.path.as_posix():
                item.add_marker(folder)


@pytest.fixture(autouse=True, scope="session")
def local_by_default() -> Iterator[None]:
    """Tests that name no runtime are about the local one, on a machine with a GPU too."""
    # What asks for a GPU itself has been imported above, and still sees it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covey.config.runtime_choice.gpu_here", lambda: False)
        yield


@pytest.fixture(autouse=True, scope="session")
def state_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what a user's programs keep in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Every test computes on one thread, as workers do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def same_python_path() -> Iterator[None]:
    """Flower's engine writes this process's path into the environment; programs of later tests must not inherit it."""
    before = os.environ.get("PYTHONPATH")
    yield
    os.environ.pop("PYTHONPATH", None)
    if before is not None:
        os.environ["PYTHONPATH"] = before


@dataclass(frozen=True)
class Answer:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def covey_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Return a function that runs a command as a shell does: `covey_command("run", "--rounds", "2")`."""

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["covey", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        printed = capsys.readouterr()
        return Answer(int(exit_.value.code or 0), printed.out, printed.err)

    return call


SMALL: dict[str, Any] = {
    "clients": 8,
    "cohort": 4,
    "rounds": 3,
    "workers": 1,
    "environment": {"name": "uniform", "samples": 20},
    "local": {"epochs": 1, "batch": 8, "rate": 0.1},
    "model": {"name": "mlp", "hidden": (16,)},
}
"""A run of a fraction of a second."""


def small_for(method: str, given: Mapping[str, Any] = SMALL) -> dict[str, Any]:
    """Return a small run with what its method needs: FedBN normalisation, FedRep epochs for head and body."""
    needed: dict[str, Any] = {**given, "method": method}
    if method == "fedbn":
        needed["model"] = {**given["model"], "norm": "batch"}
    if method == "fedrep":
        needed["local"] = {**given["local"], "epochs": 2}
    return needed


def without_timings(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of rounds without their timings."""
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in metrics]


def saved_state(folder: Path) -> State:
    """Return the state in a folder's checkpoint."""
    _, state = read_checkpoint(folder)
    assert state is not None, f"there is no checkpoint in {folder}"
    return state


def learner_of(experiment: Experiment) -> Learner:
    """Return a learner like the one of the local runtime."""
    config, dataset = experiment.config, experiment.federation.dataset
    return Learner(build_module(config, dataset), dataset, config.precision)
