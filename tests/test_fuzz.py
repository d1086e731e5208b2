"""Damaged inputs: settings, TOML, targets, tables, agents and folders; `tests/proof` tries ten thousand."""

import json
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey import Refusal, Run
from covey.core.client_names import read_names
from covey.data.class_mix import parse_targets
from covey.job.comparison.plan import read_plan
from covey.job.on_demand.on_demand_folder import read_job
from covey.page.tensorboard import _values as event_values
from covey.storage import misfit, read_json
from tests.conftest import SMALL, Answer
from tests.fuzz import assert_all_are_results_or_sentences


@pytest.mark.slow
def test_damaged_inputs_run_or_are_refused_with_a_sentence(tmp_path: Path) -> None:
    assert_all_are_results_or_sentences(tmp_path, seed=1, count=300)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("3", "its content is no mapping"),
        ("{}", "its content has no bytes_down"),
        ("[" * 100_000, "nested too deeply"),
        ("nothing", "Expecting value"),
        ('{"round": NaN}', "NaN is no number"),
        ('{"round": 1e999}', "1e999 is no number"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str, fault: str) -> None:
    run = covey.run(SMALL, out=tmp_path / "run")
    path = run.folder / "metrics.jsonl"
    first, second, third = path.read_text().splitlines()
    path.write_text(f"{first}\n{line}\n{third}\n")
    for action in (lambda: Run.open(run.folder).metrics, lambda: covey.report([run.folder])):
        with pytest.raises(Refusal, match="line 2 is no record of a round") as refused:
            action()
        assert fault in str(refused.value)
    before = path.read_text()
    with pytest.raises(Refusal, match="line 2 is no record"):
        covey.resume(run.folder)
    assert path.read_text() == before
    # A line that was cut off by a kill is no damage.
    path.write_text(f"{first}\n{second}\n{third[:40]}")
    assert [row["round"] for row in Run.open(run.folder).metrics] == [1, 2]


@pytest.mark.parametrize("text", ["3", "[1]", '{"a": "b"}', "[", '["a", null]'])
def test_garbled_names_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "names.json").write_text(text)
    with pytest.raises(Refusal, match=r"names of the clients in .*names\.json cannot be read"):
        read_names(tmp_path)


def test_more_seeds_than_any_comparison_has_are_refused(tmp_path: Path, covey_command: Callable[..., Answer]) -> None:
    for seeds in ("9223372036854775808", "10001"):
        answer = covey_command("compare", "--methods", "fedavg", "--seeds", seeds, "--out", tmp_path / "all")
        assert (answer.code, answer.err.count("\n")) == (2, 1)
        assert f"seeds must be at most 10,000, not {seeds}" in answer.err
    answer = covey_command(
        "compare", "--methods", "fedavg", "--seeds", "9223372036854775808,", "--out", tmp_path / "all"
    )
    assert answer.code == 2
    assert "seed must be a whole number from 0 to 2^63 - 1" in answer.err


@pytest.mark.parametrize("change", [{"seeds": 3}, {"methods": [None]}, {"vary": []}, {"given": "x"}, {"seeds": []}])
def test_a_plan_that_is_none_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    plan = {"format": 2, "methods": ["fedavg"], "seeds": [0], "vary": {}, "given": {}, "target": None}
    (tmp_path / "compare.json").write_text(json.dumps(plan))
    assert read_plan(tmp_path) == plan
    (tmp_path / "compare.json").write_text(json.dumps({**plan, **change}))
    with pytest.raises(Refusal, match="is not a comparison"):
        read_plan(tmp_path)


@pytest.mark.parametrize("change", [{"plan": []}, {"composed": []}, {"composed": [{}]}, {"bytes_up": "x"}])
def test_a_job_that_is_none_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    stored = Path(__file__).parent / "reference" / "folders" / "ondemand" / "ondemand.json"
    job = json.loads(stored.read_text())
    (tmp_path / "ondemand.json").write_text(json.dumps({**job, **change}))
    with pytest.raises(Refusal, match="is not an on-demand job"):
        read_job(tmp_path)


def test_a_damaged_npz_and_one_without_features_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((6, 0), np.float32), y=np.arange(6) % 2)
    given: dict[str, Any] = {**SMALL, "dataset": {"name": "npz", "path": str(path)}, "environment": "iid", "clients": 2}
    given |= {"cohort": 1, "out": tmp_path / "run"}
    with pytest.raises(Refusal, match="samples hold no values"):
        covey.run(**given)
    np.savez(path, x=np.zeros((6, 2), np.float32), y=np.arange(6) % 2)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with suppress(Refusal):
            covey.describe(covey.Config.of({key: value for key, value in given.items() if key != "out"}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("target", [None, 3, 0.5, True, [None], [["0=1"]], np.zeros((2, 2))])
def test_a_target_that_is_none_is_refused(target: Any) -> None:
    with pytest.raises(Refusal):
        parse_targets(target, ["0", "1"])


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    run = covey.run(SMALL, out=tmp_path / "run")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A page is some megabytes, and a file may not grow beyond this.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(Refusal, match=r"The page .*report.html cannot be written: File too large"):
            covey.report([run.folder])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.rglob("*.part"))
    assert not list(tmp_path.rglob("*.html"))


def test_a_start_that_is_no_time_is_left_out(tmp_path: Path) -> None:
    run = covey.run(SMALL, out=tmp_path / "run")
    (run.folder / "environment.json").write_text('{"started": "once"}')
    assert {time for _, time, _, _ in event_values(run)} == {None}


def test_json_is_compared_with_a_type() -> None:
    assert misfit([1, 2], list[int], "x") is None
    assert misfit([1, True], list[int], "x") == "x.1 is True"
    assert misfit({"a": 1}, dict[str, float | None], "x") is None
    assert misfit({"a": "1"}, dict[str, float | None], "x") == "x.a is '1'"
    assert misfit(2**63, int, "x") == f"x is {2**63}"
    assert misfit(False, bool, "x") is None
    with pytest.raises(ValueError, match="Infinity"):
        read_json("[Infinity]")
