"""Pages, figures and events tell the main metric of every task."""

import warnings

import pytest

import covey
from covey.serve.job_events import JobEvents
from covey.serve.round_stream import shortened
from tests.serve.conftest import client_of
from tests.task.federations import SETTINGS, regression


@pytest.fixture(scope="module")
def served_regression(tmp_path_factory):
    folder = tmp_path_factory.mktemp("regression")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        covey.run(SETTINGS, federation=regression(), out=folder / "amounts")
    return folder


def test_pages_figures_and_events_tell_the_main_metric_of_other_tasks(served_regression):
    run = covey.Run.open(served_regression / "amounts")
    score, asked = run.metrics[-1]["score"], client_of(served_regression)
    listed = asked.get("/").text
    assert ">RMSE</a>" in listed and f">{score:.4g}</td>" in listed and ">accuracy</a>" not in listed
    live = asked.get("/live/amounts").text
    assert f'<dt>RMSE</dt><dd><span id="accuracy">{score:.4g}</span>' in live and "<h2>RMSE</h2>" in live
    # Models on demand are for mixes of classes, of which it has none.
    assert "/mix?base=" not in live and "no run with a finished round" in asked.get("/mix").text
    assert (
        f'covey_run_score{{run="amounts",kind="run",name="fedavg",metric="rmse"}} {score}' in asked.get("/metrics").text
    )
    sent = shortened(run.metrics[-1])
    assert (sent["score"], sent["label"], sent["share"]) == (score, "RMSE", False)
    assert [line["score"] for line in asked.get("/runs?order=score").json()] == [score]
    assert len(asked.get("/runs?kind=run&state=finished").json()) == 1 and asked.get("/runs?kind=fleet").json() == []
    for unknown in ("kind=nonsense", "state=done", "order=luck"):
        assert asked.get(f"/runs?{unknown}").status_code == 422


def test_the_events_of_a_job_have_the_main_metric_of_other_tasks(served_regression, tmp_path):
    events = JobEvents(lambda job: tmp_path)
    events.follow("job", served_regression / "amounts", last=True)
    rows = covey.Run.open(served_regression / "amounts").metrics
    found = [event for _, event in events.of("job")]
    assert [event["score"] for event in found] == [row["score"] for row in rows] and found[0]["metric"] == "rmse"
