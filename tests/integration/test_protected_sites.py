"""A fleet whose sites add noise: runs go on, and records tell what sites decline."""

import json
import stat
from collections.abc import Callable
from typing import Any

import pytest

import covey
from covey.fleet import fleet_runtime
from covey.fleet.fleet_folder import Fleet
from covey.fleet.samples import settings as run_settings
from covey.job.result_text import run_summary
from tests.integration.test_fleet import own_data

__all__ = ["own_data"]

NOISE = {"update-clip": 1.0, "update-privacy": "4,1e-5", "budget": "6,1e-5", "classes": "ok,worn,broken"}


@pytest.fixture
def protected(own_data, monkeypatch) -> Callable[..., Fleet]:
    """`protected(unprotected="evaluation")`: a fleet of three sites with data and noise of their own."""

    def made(**options: Any) -> Fleet:
        fleet: Fleet = own_data()
        entered = fleet_runtime._Session.enter

        def with_noise(*arguments: Any) -> Any:
            session: Any = entered(*arguments)
            for context in session.grid.contexts.values():
                place = fleet.site(str(context.node_config["client"]))
                context.node_config = {**context.node_config, "memory": str(place / "memory"), **NOISE, **options}
            return session

        monkeypatch.setattr("covey.fleet.fleet_runtime._Session.enter", with_noise)
        return fleet

    return made


def test_sites_with_noise_train_until_their_budget_is_spent_and_do_not_evaluate(protected, tmp_path):
    fleet = protected()
    run = covey.run({**run_settings(fleet), "rounds": 4}, out=tmp_path / "run")
    answered = [3 - len(row["dropped"]) for row in run.metrics]
    assert answered == [3, 3, 0, 0]
    assert all("privacy budget (ε = 6" in fault["reason"] for fault in run.metrics[2]["dropped"])
    for row in run.metrics:
        assert "accuracy" not in row
        assert [fault["client"] for fault in row["unscored"]] == [0, 1, 2]
        assert all("none for this: evaluation" in fault["reason"] for fault in row["unscored"])
    for name in fleet.sites:
        ledger = fleet.site(name) / "privacy.json"
        assert stat.S_IMODE(ledger.stat().st_mode) == 0o600
        assert json.loads(ledger.read_text())["answers"] == 2
    summary = run_summary(run)
    assert summary["accuracy"] is None
    assert len(summary["unscored"]) == 12
    with pytest.raises(covey.Refusal, match="if clients decline to evaluate"):
        covey.report([run.folder])


def test_sites_that_may_evaluate_do(protected, tmp_path):
    run = covey.run(run_settings(protected(unprotected="evaluation")), out=tmp_path / "run")
    assert all(0 <= row["accuracy"] <= 1 and "unscored" not in row for row in run.metrics)
    assert covey.report([run.folder]).exists()
