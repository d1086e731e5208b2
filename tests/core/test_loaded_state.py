"""A checkpoint is loaded into a method of its kind, and of as many clients; anything else is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey import Refusal
from covey.arrays import IntArray, State
from tests.conftest import SMALL

SETTINGS: dict[str, Any] = {**SMALL, "cohort": 3, "rounds": 4}


class Stop(Exception):
    pass


def stopped(folder: Path, **settings: Any) -> Path:
    """Return the folder of a run that was stopped after its second round."""

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise Stop

    with pytest.raises(Stop):
        covey.run(SETTINGS, out=folder, on_round=stop, **settings)
    return folder


@pytest.mark.parametrize("clients", [7, 9])
@pytest.mark.parametrize("method", ["fedacs", "rexp3", "covey", "oort", "feddrl-set", "ondemand", "cfl"])
def test_a_checkpoint_of_other_clients_is_refused(method: str, clients: int, tmp_path: Path) -> None:
    path = stopped(tmp_path / "run", method=method) / "config.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "config": {**stored["config"], "clients": clients}}))
    with pytest.raises(Refusal, match="does not fit its settings"):
        covey.resume(path.parent)


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("feddrl", {"cohort": 4}),
        ("feddrl", {"aggregator": {"name": "feddrl", "hidden": 32}}),
        ("feddrl-set", {"cohort": 4}),
    ],
)
def test_an_agent_of_another_size_decides_nothing(method: str, change: Any, tmp_path: Path) -> None:
    path = stopped(tmp_path / "run", method=method) / "config.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "config": {**stored["config"], **change}}))
    with pytest.raises(Refusal, match="has learned with another cohort or with other layers"):
        covey.resume(path.parent)


def test_a_loaded_state_is_named_in_its_refusal(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", selector="uniform", aggregator={"name": "norm-bound", "around": "feddrl-set"})
    path = folder / "config.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "config": {**stored["config"], "clients": 9}}))
    with pytest.raises(Refusal, match=r"\(aggregator\.inner\.memory: of 8 clients, not 9\)"):
        covey.resume(folder)


class Once(covey.Selector):
    """Invites every client once, and keeps a list of those that are left."""

    def begin(self, setting: covey.Setting) -> None:
        super().begin(setting)
        self.left = np.arange(setting.clients)

    def select(self, t: int, candidates: IntArray) -> IntArray:
        chosen, self.left = self.left[:2], self.left[2:]
        return chosen

    def state_dict(self) -> State:
        return {"left": self.left}

    def load_state_dict(self, state: State) -> None:
        self.left = np.array(state["left"], dtype=np.int64)


def test_a_part_of_ones_own_may_keep_a_list_that_gets_shorter(tmp_path: Path) -> None:
    given: dict[str, Any] = {"method": None, "selector": f"{__name__}:Once", "aggregator": "average"}
    folder = stopped(tmp_path / "run", **given)
    assert [row["clients"] for row in covey.resume(folder, trust=True).metrics] == [[0, 1], [2, 3], [4, 5], [6, 7]]
