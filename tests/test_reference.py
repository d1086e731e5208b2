"""Every method computes the same as when the reference was made, and folders of that time can still be read.

On the processor that made the reference the records are the same to the bit; elsewhere those in float64 agree to 1e-6,
and what predictors tell, which compute in float32, to 1e-3.
"""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

import covey
from tests.reference.make import (
    EXTRA,
    HERE,
    LATER,
    SMALL,
    TIMINGS,
    WAYS,
    first_settings_of,
    make,
    processor,
    settings_of,
)
from tests.reference.make import FIRST as FIRST_OPTIONS

REFERENCE = json.loads((HERE / "records.json").read_text(encoding="utf-8"))
SAME_MACHINE = REFERENCE["processor"] == processor()
FIRST = json.loads((HERE / "first_records.json").read_text(encoding="utf-8"))
FOLDERS = HERE / "folders"
# How far the error of a predictor may lie from the reference on another processor, as a share of it.
PREDICTED = 1e-3


def close(mine: Any, theirs: Any, within: float = 1e-6) -> bool:
    """Nested records that agree to 1e-6, and to 1e-3 in what predictors tell: those compute in single precision."""
    if isinstance(theirs, dict):
        bounds = {key: PREDICTED if key == "predictor_error" else within for key in theirs}
        return mine.keys() == theirs.keys() and all(close(mine[key], theirs[key], bounds[key]) for key in theirs)
    if isinstance(theirs, list):
        return len(mine) == len(theirs) and all(close(a, b, within) for a, b in zip(mine, theirs, strict=True))
    return bool(mine == (pytest.approx(theirs, rel=within, abs=1e-9) if isinstance(theirs, float) else theirs))


def test_the_reference_covers_every_method() -> None:
    assert set(WAYS) == {"local", "local-fp64", "stacked-fp64"}
    assert set(REFERENCE["runs"]) == {*covey.methods.names(), *EXTRA}


# The third way, local-fp64, is that of the next test: with the guard on, to the same records.
@pytest.mark.slow
@pytest.mark.parametrize("way", ["local", "stacked-fp64"])
@pytest.mark.parametrize("name", list(REFERENCE["runs"]))
def test_a_method_computes_what_it_computed(name: str, way: str, tmp_path: Path) -> None:
    found = made({**settings_of(name), "guard": {"on": False}}, way, tmp_path)
    expected = REFERENCE["runs"][name][way]
    if SAME_MACHINE:
        assert found == expected
    else:
        assert close(found["metrics"], expected["metrics"])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(REFERENCE["runs"]))
def test_the_guard_changes_no_honest_run(name: str, tmp_path: Path) -> None:
    assert covey.Config.of(settings_of(name)).guard.on
    found, expected = made(settings_of(name), "local-fp64", tmp_path), REFERENCE["runs"][name]["local-fp64"]
    assert close(found["metrics"], expected["metrics"])
    assert found["metrics"] == expected["metrics"] or not SAME_MACHINE


# Where no option has another default since, clients alone are numbered otherwise, which is the same in every way.
FIRST_WAYS = [(name, way) for name in FIRST["runs"] for way in WAYS if name in FIRST_OPTIONS or way == "local-fp64"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), FIRST_WAYS)
def test_with_the_settings_of_the_first_version_it_computes_what_it_did_then(
    name: str, way: str, tmp_path: Path
) -> None:
    found, expected = made(first_settings_of(name), way, tmp_path)["metrics"], FIRST["runs"][name][way]["metrics"]
    assert close(found, expected) and (found == expected or not SAME_MACHINE)


def made(settings: dict[str, Any], way: str, tmp_path: Path) -> dict[str, Any]:
    if not SAME_MACHINE and "fp64" not in way:
        pytest.skip("single precision is rounded otherwise on another processor")
    record: dict[str, Any] = json.loads(json.dumps(make(settings, way, tmp_path / "run")))
    return record


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A copy of the stored folders."""
    shutil.copytree(FOLDERS, tmp_path / "folders")
    job = tmp_path / "folders" / "ondemand" / "ondemand.json"
    job.write_text(job.read_text(encoding="utf-8").replace("/somewhere", str(tmp_path / "folders")), encoding="utf-8")
    return tmp_path / "folders"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["fedacs", "feddrl", "mocha", "nccb", "ondemand"])
def test_a_stored_run_that_was_stopped_resumes_to_the_same_end(name: str, folders: Path, tmp_path: Path) -> None:
    """The first rounds were computed by an earlier version, with the settings and defaults of its time."""
    resumed = covey.resume(folders / f"stopped-{name}")
    assert resumed.config.numbering == "environment"
    whole = covey.run(resumed.config, out=tmp_path / "whole")
    for mine, theirs in zip(resumed.metrics, whole.metrics, strict=True):
        for field in (*TIMINGS, *LATER):
            mine.pop(field, None), theirs.pop(field, None)
        assert close(mine, theirs) and (mine == theirs or not SAME_MACHINE)


def test_a_stored_comparison_resumes_with_the_settings_of_its_time(folders: Path) -> None:
    missing = folders / "comparison" / "fedacs" / "seed-1"
    stored = covey.Run.open(missing).metrics
    shutil.rmtree(missing)
    given = json.loads((folders / "comparison" / "compare.json").read_text(encoding="utf-8"))["given"]
    covey.compare(["fedavg", "fedacs", "iid"], 2, given=given, out=folders / "comparison")
    for mine, theirs in zip(covey.Run.open(missing).metrics, stored, strict=True):
        for field in (*TIMINGS, *LATER):
            mine.pop(field, None), theirs.pop(field, None)
        assert close(mine, theirs) and (mine == theirs or not SAME_MACHINE)


@pytest.mark.filterwarnings("ignore")
def test_what_an_earlier_comparison_has_not_run_yet_gets_the_defaults_of_its_time(tmp_path: Path) -> None:
    small = {**SMALL, "rounds": 1}
    methods = ["nccb", "k-linucb", "ondemand"]
    covey.compare(methods, seeds=1, out=tmp_path, **small)
    plan = json.loads((tmp_path / "compare.json").read_text(encoding="utf-8"))
    (tmp_path / "compare.json").write_text(json.dumps({**plan, "format": 1}), encoding="utf-8")
    for method in methods:
        shutil.rmtree(tmp_path / method / "seed-0")
    covey.compare(methods, seeds=1, out=tmp_path, **small)
    for method in methods:
        config = covey.Run.open(tmp_path / method / "seed-0").config
        assert config.numbering == "environment"
        for section, options in FIRST_OPTIONS[method].items():
            assert options.items() <= getattr(config, section).options.items()


def test_stored_folders_are_read_evaluated_exported_and_reported(folders: Path, tmp_path: Path) -> None:
    run = covey.Run.open(folders / "finished")
    assert run.finished
    assert run.evaluate()["accuracy"] == pytest.approx(run.metrics[-1]["accuracy"])
    assert run.export(tmp_path / "model.safetensors")["parameters"] == sum(p.numel() for p in run.model().parameters())
    comparison = covey.Comparison.open(folders / "comparison")
    assert [row["method"] for row in comparison.rows] == ["fedavg", "fedacs", "iid"]
    for folder in ("finished", "comparison", "stopped-mocha"):
        assert covey.report([folders / folder], tmp_path / f"{folder}.html").stat().st_size > 10_000


def test_a_stored_on_demand_job_is_read_and_drawn(folders: Path) -> None:
    from covey.job.on_demand import read_ondemand

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = read_ondemand(folders / "ondemand")
    assert len(job.tailored) == 1
