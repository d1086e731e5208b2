"""Methods with many models under attack: what the guard drops, what it believes, and what it takes back."""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from covey import resume, run
from covey.config.sections import GuardLimits, Local
from covey.core.interfaces import Setting
from covey.core.replies import Replies, checked
from covey.model.factory import build_model
from covey.model.layout import Layout
from covey.personalization import CFL
from covey.personalization.per_client import ManyModel
from covey.personalization.shared_and_own import fedper
from tests.conftest import saved_state, without_timings

GIVEN: dict[str, Any] = {
    "clients": 8,
    "cohort": 8,
    "rounds": 3,
    "environment": "iid",
    "workers": 1,
    "model": {"name": "mlp", "hidden": (16,)},
    "evaluate_every": 3,
}


def hostile(kind: str, factor: float = 0.0) -> dict[str, Any]:
    return {"attack": {"kind": kind, "attackers": 0.1, "factor": factor}}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cfl", "fedbn", "fedper", "fedrep", "ditto", "mocha-deep"])
def test_one_client_does_not_decide_what_the_others_learn(method: str, tmp_path: Path) -> None:
    given = {**GIVEN, "model": {**GIVEN["model"], "norm": "batch"}} if method == "fedbn" else GIVEN
    clean = run(given, method=method, out=tmp_path / "clean")
    assert not any(row["dropped"] for row in clean.metrics)
    for factor in (1000.0, 1e30):
        found = run({**given, **hostile("scale", factor)}, method=method, out=tmp_path / f"{factor:g}")
        dropped = [fault for row in found.metrics for fault in row["dropped"]]
        assert {fault["client"] for fault in dropped} == set(found.metrics[0]["attackers"])
        assert all("times as large as updates are here" in fault["reason"] for fault in dropped)
        assert found.metrics[-1]["accuracy"] > clean.metrics[-1]["accuracy"] - 0.1


def test_a_billion_samples_are_not_believed(tmp_path: Path) -> None:
    """Nor is the turned update of who claims them worth more than another."""
    given = {**GIVEN, "rounds": 2, "evaluate_every": 2, **hostile("count-flip")}
    on, off = (
        run({**given, "guard": {"on": on}}, method="cfl", out=tmp_path / f"{on}").metrics[-1]["accuracy"]
        for on in (True, False)
    )
    assert off < 0.2 < 0.5 < on


def test_who_sends_huge_updates_again_and_again_rests_and_a_resume_knows_it(tmp_path: Path) -> None:
    given = {**GIVEN, "rounds": 4, "evaluate_every": 4, **hostile("scale")}

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    whole = run(given, method="fedper", out=tmp_path / "whole")
    (liar,) = whole.metrics[0]["attackers"]
    assert [liar in row["clients"] for row in whole.metrics] == [True, True, False, True]
    with pytest.raises(KeyboardInterrupt):
        run(given, method="fedper", out=tmp_path / "cut", on_round=stop)
    assert len(saved_state(tmp_path / "cut")["guard"]["norms"]) == 2
    assert without_timings(resume(tmp_path / "cut").metrics) == without_timings(whole.metrics)


LAYOUT = Layout.of(build_model("mlp", {"hidden": (4,)}, (1, 8, 8), 10, 0))


def replies(clients: list[int], states: torch.Tensor) -> Replies:
    count = len(clients)
    losses = torch.ones(count, dtype=torch.float64)
    return checked(Replies(np.array(clients, dtype=np.int64), states, torch.tensor([10] * count), losses))


def setting(**limits: Any) -> Setting:
    return Setting(4, 4, 9, 10, 0, LAYOUT, Local(), limits=GuardLimits(**limits))


def test_a_clients_own_layers_are_not_compared() -> None:
    """What FedPer's clients keep of their own may differ as it likes."""
    method = fedper(setting(), torch.zeros(LAYOUT.size))
    states = torch.ones(4, LAYOUT.size)
    head = LAYOUT.head[0]
    states[3, head.start : head.start + head.size] = 1e9
    assert method.screened(1, replies([0, 1, 2, 3], states)).clients.tolist() == [0, 1, 2, 3]
    states[3, 0] = 1e9
    assert method.screened(2, replies([0, 1, 2, 3], states)).clients.tolist() == [0, 1, 2]


def test_a_client_is_compared_with_the_model_of_its_own_cluster() -> None:
    method = CFL(setting(), torch.zeros(LAYOUT.size))
    method.cluster = np.array([0, 0, 1, 1])
    method.centres = torch.stack([torch.zeros(LAYOUT.size), torch.full((LAYOUT.size,), 1e6)])
    states = method.centres[torch.from_numpy(method.cluster)] + 1
    assert len(method.screened(1, replies([0, 1, 2, 3], states))) == 4
    states[0] = states[3]
    assert method.screened(2, replies([0, 1, 2, 3], states)).clients.tolist() == [1, 2, 3]


@pytest.mark.parametrize("build", [CFL, fedper])
@pytest.mark.parametrize("on", [True, False])
def test_a_shared_model_that_leaves_nothing_finite_is_rolled_back(build: Any, on: bool) -> None:
    method: ManyModel = build(setting(on=on), torch.ones(LAYOUT.size))
    method.absorb(1, replies([0, 1, 2, 3], torch.full((4, LAYOUT.size), 1e20)))
    leapt = method.models()[0].clone()
    again: ManyModel = build(setting(on=on), torch.ones(LAYOUT.size))
    again.load_state_dict(method.state_dict())
    lost = replies([0, 1, 2, 3], torch.full((4, LAYOUT.size), math.nan))
    for one in (method, again):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            one.absorb(2, lost)
        assert any("the model is back at the one before" in str(warning.message) for warning in seen) == on
        assert one.figures().get("rolled_back", False) == on
        place = 0 if build is CFL else LAYOUT.parameters[0].start
        assert bool(one.models()[0][place] == 1.0) == on
        assert torch.equal(one.models()[0], leapt) != on
