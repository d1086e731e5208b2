"""A run that is extended ends as one that was planned for as many rounds."""

from pathlib import Path
from typing import Any

import pytest

import covey
from covey.errors import Refusal
from tests.conftest import without_timings

SMALL: dict[str, Any] = {
    "clients": 8,
    "cohort": 3,
    "workers": 1,
    "evaluate_every": 3,
    "local": {"epochs": 1, "batch": 8, "rate": 0.1},
    "model": {"name": "mlp", "hidden": (8,)},
}


@pytest.mark.parametrize("method", ["fedavg", "fedacs", "scaffold", "cfl", "feddrl-set"])
def test_an_extended_run_is_the_one_that_was_planned_as_long(method: str, tmp_path: Path) -> None:
    covey.run(SMALL, method=method, rounds=4, out=tmp_path / "short")
    longer = covey.resume(tmp_path / "short", rounds=7)
    planned = covey.run(SMALL, method=method, rounds=7, out=tmp_path / "planned")
    assert longer.finished
    assert longer.config == planned.config
    assert without_timings(longer.metrics) == without_timings(planned.metrics)
    models = [(tmp_path / name / "checkpoint.safetensors").read_bytes() for name in ("short", "planned")]
    assert models[0] == models[1]


def test_a_run_that_is_not_finished_is_extended_too(tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        covey.run(SMALL, rounds=4, out=tmp_path / "run", on_round=stop)
    longer = covey.resume(tmp_path / "run", rounds=6)
    planned = covey.run(SMALL, rounds=6, out=tmp_path / "planned")
    assert without_timings(longer.metrics) == without_timings(planned.metrics)


@pytest.mark.parametrize(
    ("given", "rounds", "sentence"),
    [
        ({}, 2, "only made longer"),
        ({"local": {"schedule": "cosine"}}, 6, "follows a schedule"),
        ({"selector": {"name": "rexp3", "variation": 2.0}}, 6, "tunes itself for the number of rounds"),
    ],
)
def test_what_depends_on_the_number_of_rounds_is_refused(
    given: dict[str, Any], rounds: int, sentence: str, tmp_path: Path
) -> None:
    local = {**SMALL["local"], **given.get("local", {})}
    covey.run({**SMALL, **given, "local": local}, rounds=3, out=tmp_path / "run")
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(Refusal, match=sentence):
        covey.resume(tmp_path / "run", rounds=rounds)
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    assert covey.Run.open(tmp_path / "run").finished
