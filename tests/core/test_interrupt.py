"""A file in the run folder asks a run to end after its round."""

import pytest

import covey
from covey.core.interrupt import STOP, request_stop
from tests.conftest import SMALL, without_timings


def test_a_run_that_is_asked_ends_after_its_round_and_resumes_to_the_same_records(tmp_path):
    def ask(record):
        if record["round"] == 2:
            request_stop(tmp_path / "run")

    run = covey.run(SMALL, rounds=6, out=tmp_path / "run", on_round=ask)
    assert len(run.metrics) == 3 and not run.finished
    assert not (tmp_path / "run" / STOP).exists()
    resumed = covey.resume(tmp_path / "run")
    whole = covey.run(SMALL, rounds=6, out=tmp_path / "whole")
    assert without_timings(resumed.metrics) == without_timings(whole.metrics)


def test_a_request_that_came_too_late_does_not_stop_the_resumed_run(tmp_path):
    covey.run(SMALL, rounds=4, out=tmp_path / "run", on_round=lambda record: request_stop(tmp_path / "run"))
    request_stop(tmp_path / "run")
    assert covey.resume(tmp_path / "run").finished


@pytest.mark.parametrize("runtime", ["local", "stacked"])
def test_a_comparison_ends_with_its_run(tmp_path, runtime):
    def ask(record):
        for folder in (tmp_path / "both").glob("*/seed-*"):
            request_stop(folder)

    given = {**SMALL, "runtime": runtime, "device": "cpu"}
    with pytest.raises(Exception, match="Stopped"):
        covey.compare(["fedavg", "iid"], 1, given=given, rounds=5, out=tmp_path / "both", on_round=ask)
    done = [len(covey.Run.open(one).metrics) for one in (tmp_path / "both").glob("*/seed-*")]
    assert set(done) <= {1, 2} and len(done) == (1 if runtime == "local" else 2)


def test_a_link_in_the_place_of_the_request_is_not_followed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / STOP).symlink_to(tmp_path / "elsewhere")
    request_stop(tmp_path / "run")
    assert not (tmp_path / "elsewhere").exists()
