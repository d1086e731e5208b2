import json
import os
import shutil
import signal
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import covey
from covey import Config, Refusal, Run, resume, run
from covey.core import records
from covey.core.checkpoint import FORMAT, read_checkpoint, write_checkpoint
from covey.core.records import Records
from covey.core.round_record import RoundRecord
from tests.conftest import SMALL, without_timings


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "central", "iid", "local-only"])
def test_every_method_resumes_from_its_checkpoint_as_if_never_stopped(tmp_path, method):
    whole = run(SMALL, method=method, rounds=4, out=tmp_path / "whole")
    part = run(SMALL, method=method, rounds=2, out=tmp_path / "part")
    config = json.loads((part.folder / "config.json").read_text())
    config["config"]["rounds"] = 4
    (part.folder / "config.json").write_text(json.dumps(config))
    assert without_timings(resume(part.folder).metrics) == without_timings(whole.metrics)


def test_a_line_without_its_checkpoint_and_half_a_line_are_computed_again(tmp_path):
    whole = run(SMALL, rounds=4, out=tmp_path / "whole")
    result = run(SMALL, rounds=4, out=tmp_path / "run")
    lines = (result.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    run(SMALL, rounds=2, out=tmp_path / "two")
    (tmp_path / "two" / "checkpoint.safetensors").rename(result.folder / "checkpoint.safetensors")
    (result.folder / "metrics.jsonl").write_text("".join(lines[:3]) + lines[3][:40])
    assert without_timings(resume(result.folder).metrics) == without_timings(whole.metrics)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_run_that_has_lost_records_is_not_resumed(tmp_path, kept):
    result = run(SMALL, rounds=3, out=tmp_path / "run")
    lines = (result.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (result.folder / "metrics.jsonl").write_text("".join(lines[:kept]))
    with pytest.raises(Refusal, match=f"its checkpoint is of round 3, and metrics.jsonl has {kept} of its rounds"):
        resume(result.folder)
    assert (result.folder / "metrics.jsonl").read_text() == "".join(lines[:kept])


def test_a_run_whose_last_model_was_not_kept_is_not_finished(tmp_path):
    whole = run(SMALL, out=tmp_path / "run")
    last = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    before = run(SMALL, rounds=2, out=tmp_path / "before")
    kept = (tmp_path / "before" / "checkpoint.safetensors").read_bytes()
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(kept)
    cut = Run.open(tmp_path / "run")
    assert cut.recorded
    assert not cut.finished
    judged = cut.evaluate()
    assert (judged["round"], judged["loss"]) == (2, before.metrics[-1]["loss"])
    cut.export(tmp_path / "model.safetensors")
    with safe_open(str(tmp_path / "model.safetensors"), framework="pt") as file:
        assert file.metadata()["round"] == "2"
    again = resume(tmp_path / "run")
    assert again.finished
    assert without_timings(again.metrics) == without_timings(whole.metrics)
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == last
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    assert not Run.open(tmp_path / "run").finished


def test_a_run_is_recorded_up_to_its_last_line_though_rounds_that_reached_nobody_have_none(tmp_path):
    result = run(SMALL, out=tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "metrics.jsonl").write_text(lines[0] + lines[2])
    assert Run.open(result.folder).recorded
    (tmp_path / "run" / "metrics.jsonl").write_text(lines[0] + lines[1])
    assert not Run.open(result.folder).recorded


def test_a_comparison_resumes_a_run_whose_last_model_was_not_kept(tmp_path):
    settings: dict[str, Any] = {"given": SMALL, "seeds": 1, "out": tmp_path / "cmp"}
    before = covey.compare(["fedavg"], **settings).rows
    checkpoint = tmp_path / "cmp" / "fedavg" / "seed-0" / "checkpoint.safetensors"
    checkpoint.unlink()
    assert covey.Comparison.open(tmp_path / "cmp").rows == before, "what is compared is in the lines"
    assert covey.compare(["fedavg"], **settings).rows == before
    assert checkpoint.is_file()


def test_a_folder_whose_run_was_killed_before_it_had_a_configuration_can_be_used(tmp_path):
    for name in ("environment.json", "config.json.part"):
        (tmp_path / name).write_text("{}")
    assert run(SMALL, rounds=1, out=tmp_path).finished


def test_numbers_that_json_cannot_say_are_none_in_a_line_and_themselves_in_a_checkpoint(tmp_path):
    kept = Records.create(tmp_path, Config.of(SMALL))
    figures = {"objective": float("inf"), "each": [1.0, float("nan")]}
    plain: RoundRecord = {"clients": [], "dropped": [], "bytes_up": 0, "bytes_down": 0, "seconds": {}}
    record: RoundRecord = {"round": 1, "clock": 0.0, **plain, "figures": figures}
    kept.write(record, {"best": float("-inf"), "deep": {"x": [1.5]}})
    kept.close()
    assert records.read_metrics(tmp_path) == [{**record, "figures": {"objective": None, "each": [1.0, None]}}]
    assert read_checkpoint(tmp_path) == (1, {"best": float("-inf"), "deep": {"x": [1.5]}})


def test_a_file_in_place_of_the_output_folder_is_refused(tmp_path):
    (tmp_path / "own.py").write_text("")
    with pytest.raises(Refusal, match=r"The output folder .*own\.py is a file; choose another\."):
        run(SMALL, out=tmp_path / "own.py")


def test_a_run_whose_folder_is_removed_says_so(tmp_path):
    def remove(record):
        shutil.rmtree(tmp_path / "run")

    with pytest.raises(Refusal, match="run was removed while the run wrote to it"):
        run(SMALL, out=tmp_path / "run", on_round=remove)


def test_a_run_that_never_finished_a_round_starts_from_the_beginning(tmp_path):
    Records.create(tmp_path / "run", Config.of(SMALL)).close()
    whole = run(SMALL, out=tmp_path / "whole")
    assert without_timings(resume(tmp_path / "run").metrics) == without_timings(whole.metrics)


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    result = run(SMALL, out=tmp_path / "run")
    before = (result.folder / "metrics.jsonl").read_text()
    assert resume(result.folder).finished
    assert (result.folder / "metrics.jsonl").read_text() == before


def test_checkpoints_keep_nested_state_exactly_and_without_pickle(tmp_path):
    state: dict[str, Any] = {
        "model": torch.randn(5),
        "selector": {
            "wins": np.arange(4, dtype=np.float64),
            "history": [[1, 0.5], [2, -0.25]],
            "name": "x",
            "none": None,
        },
        "aggregator": {},
    }
    write_checkpoint(tmp_path, 7, state)
    done, again = read_checkpoint(tmp_path)
    assert done == 7
    assert again is not None
    assert torch.equal(again["model"], state["model"])
    assert isinstance(again["selector"]["wins"], np.ndarray)
    assert again["selector"]["wins"].tolist() == [0, 1, 2, 3]
    assert again["selector"]["history"] == [[1, 0.5], [2, -0.25]]
    assert again["selector"]["none"] is None
    assert again["aggregator"] == {}


def test_what_is_not_a_run_folder_is_refused(tmp_path):
    with pytest.raises(Refusal, match="is not a run folder: it has no config"):
        resume(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(Refusal, match=r"its config.json cannot be read"):
        Run.open(tmp_path)


def test_a_folder_of_a_newer_version_is_refused(tmp_path):
    result = run(SMALL, rounds=1, out=tmp_path / "run")
    config = json.loads((result.folder / "config.json").read_text())
    config["format"] = FORMAT + 1
    (result.folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(Refusal, match="was made by a newer version of Covey"):
        resume(result.folder)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    result = run(SMALL, rounds=1, out=tmp_path / "run")
    checkpoint = result.folder / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(Refusal, match="is damaged"):
        resume(result.folder)


def test_a_folder_with_something_in_it_is_not_written_to(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(Refusal, match="is not empty"):
        run(SMALL, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_interrupting_leaves_the_signal_handlers_as_they_were(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    covey.run(SMALL, rounds=1, out=tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("seconds", "share", "expected"),
    [
        (20.0, 0.1, [2, 12, 22, 32, 40]),
        (20.0, 1.0, [*range(2, 41, 2)]),
        (0.0, 0.1, [*range(1, 41)]),
        # However long checkpoints take, at most five minutes are lost.
        (20.0, 0.001, [2, 32, 40]),
    ],
)
def test_large_checkpoints_of_a_sweep_are_kept_less_often(tmp_path, monkeypatch, seconds, share, expected):
    """Rounds and checkpoints take ten seconds each; at 0 seconds, every round is kept."""
    now, kept = [0.0], []

    def slowly(folder, t, state):
        kept.append(t)
        now[0] += 10

    monkeypatch.setattr("covey.core.records.time.monotonic", lambda: now[0])
    monkeypatch.setattr(records, "write_checkpoint", slowly)
    log = Records.create(tmp_path / "run", Config.of(SMALL))
    log.checkpoint_seconds, log.checkpoint_share = seconds, share
    for t in range(1, 41):
        now[0] += 10
        log.write({"round": t, "clock": 0.0}, log.state_due(dict, now=t == 40))
    log.close()
    assert kept == expected
