"""Fairness and impact factors on the report page."""

import numpy as np
import pytest

import covey
from covey.page.figures import Figure
from covey.page.impact_panel import _grouped, impact_factors
from covey.page.run_data import read_report_data
from covey.page.run_report import page_of
from tests.conftest import SMALL

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared") / "all"
    given = {**SMALL, "rounds": 5, "aggregator": {}}
    covey.compare(["fedavg", "loss-softmax", "feddrl-set"], 2, given=given, out=folder)
    return folder


def figures(folder):
    page = page_of(read_report_data([folder]))
    return {part.name: part for section in page.sections for part in section.content if isinstance(part, Figure)}


def test_the_figures_are_those_of_the_records(compared):
    run = covey.Run.open(compared / "feddrl-set/seed-0")
    factors = impact_factors(run)
    for column, row in enumerate(run.metrics):
        assert np.flatnonzero(np.isfinite(factors[:, column])).tolist() == row["clients"]
        assert np.nansum(factors[:, column]) == pytest.approx(1)
        assert set(row["client_loss"]) == {"mean", "variance", "gap"}
    shown = figures(compared)
    assert [chart.title for chart in shown["impact"].charts] == ["loss-softmax", "feddrl-set"]
    cells = shown["impact"].charts[1].data[0]["z"]
    assert cells[run.metrics[0]["clients"][0]][0] == pytest.approx(
        100 * factors[run.metrics[0]["clients"][0], 0], rel=5e-3
    )
    left_out = next(client for client in range(8) if client not in run.metrics[0]["clients"])
    assert cells[left_out][0] is None
    two = [covey.Run.open(compared / f"feddrl-set/seed-{seed}").metrics[-1]["client_loss"] for seed in (0, 1)]
    for name, figure in (("client-loss", "mean"), ("client-loss-variance", "variance"), ("client-loss-gap", "gap")):
        lines = [trace for trace in shown[name].charts[0].data if trace.get("name")]
        assert [trace["name"] for trace in lines] == ["loss-softmax", "feddrl-set"]
        assert lines[1]["y"][-1] == pytest.approx(np.mean([one[figure] for one in two]), rel=1e-4)
        assert "Only methods whose clients report it" in shown[name].caption


def test_of_a_large_federation_those_are_drawn_who_took_part(tmp_path):
    given = {"dataset": {"name": "synthetic", "train": 1_500, "test": 20}, "environment": {"name": "iid", "samples": 4}}
    more = {"method": "loss-softmax", "clients": 300, "cohort": 2, "rounds": 1, "workers": 1}
    run = covey.run({**given, **more}, out=tmp_path / "run")
    (chart,) = figures(tmp_path / "run")["impact"].charts
    assert chart.data[0]["y"] == sorted(run.metrics[0]["clients"])
    assert all(cell is not None for row in chart.data[0]["z"] for cell in row)


def test_a_page_without_such_methods_has_no_such_section(tmp_path):
    covey.run(SMALL, out=tmp_path / "run")
    assert not {name for name in figures(tmp_path / "run") if "impact" in name or "client-loss" in name}


def test_fedavg_can_report_how_evenly_it_serves(tmp_path):
    plain = covey.run(SMALL, out=tmp_path / "plain")
    told = covey.run(SMALL, aggregator={"name": "average", "fairness": True}, out=tmp_path / "told")
    assert [row["accuracy"] for row in told.metrics] == [row["accuracy"] for row in plain.metrics]
    assert "client_loss" not in plain.metrics[0]
    mean, gap = told.metrics[-1]["client_loss"]["mean"], told.metrics[-1]["client_loss"]["gap"]
    assert 0 < mean < told.metrics[0]["client_loss"]["mean"]
    assert gap > 0
    assert set(told.metrics[0]["probe_bytes"]) == {"utility"}


def test_many_rounds_are_shown_as_means_of_groups():
    factors = np.arange(2 * 250, dtype=np.float64).reshape(2, 250)
    ends, shown = _grouped(factors)
    assert ends == [*range(3, 250, 3), 250]
    assert shown[0, 0] == 1
    assert shown[1, -1] == factors[1, 249:].mean()
    assert shown.shape == (2, len(ends))
