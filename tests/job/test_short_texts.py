"""Objects print as a line, and as a table in a notebook."""

import json
from pathlib import Path

import numpy as np
import pytest

import covey
from covey.job.comparison.row_text import difference
from covey.job.result_text import comparison_columns, run_summary
from tests.task.federations import regression

QUICK = {"clients": 6, "cohort": 3, "rounds": 2, "workers": 1, "local": {"epochs": 1}}


def test_a_run_says_in_a_line_how_far_it_came(tmp_path: Path) -> None:
    run = covey.run(QUICK, out=tmp_path / "run<b>")
    text = repr(run)
    assert text.startswith("Run(fedavg on digits, round 2 of 2, accuracy ") and len(text) < 300
    assert "&lt;b&gt;" in run._repr_html_() and "<b>/" not in run._repr_html_()
    (tmp_path / "run<b>" / "metrics.jsonl").write_text("3\n")
    assert "round 0 of 2" in repr(covey.Run.open(run.folder))


def test_a_comparison_and_an_analysis_do_too(tmp_path: Path) -> None:
    comparison = covey.compare(["fedavg", "iid"], seeds=2, given=QUICK, out=tmp_path / "both")
    assert repr(comparison) == f"Comparison(fedavg, iid; 2 seeds; {tmp_path / 'both'})"
    table = comparison._repr_html_()
    assert f"{comparison.rows[1]['terminal_accuracy']:.1%}" in table and "points against fedavg" in table
    assert f"<td>{difference(comparison.rows[1])}</td>" in table and "±" in difference(comparison.rows[1])
    first, second = str(comparison).splitlines()
    assert first.startswith("fedavg: terminal accuracy ") and " to " in first and "against" not in first
    assert f", {difference(comparison.rows[1])} points against fedavg" in second
    analysis = covey.analyze(clients=20, altered={"poison": 0.1})
    assert repr(analysis).startswith("Analysis(20 clients; ") and len(repr(analysis)) < 500
    assert analysis._repr_html_().count("<tr>") <= 22


def test_a_federation_and_its_data_say_how_large_they_are() -> None:
    x, y = np.random.default_rng(1).normal(size=(40, 3)), np.arange(40) % 2
    federation = covey.federation(x, y, ["<a>"] * 30 + ["b"] * 10, name="pumps <i>")
    assert repr(covey.describe({"clients": 10, "environment": "iid"})) == (
        "Description(digits, environment iid: 10 clients of 144 to 145 samples, mean skew 0.10)"
    )
    assert repr(federation) == "Federation(pumps <i>: 2 clients of 8 to 24 samples)"
    assert repr(federation.dataset) == "Dataset(pumps <i>: 32 samples of 3, 8 for tests)"
    assert federation._repr_html_() == "Federation(pumps &lt;i&gt;: 2 clients of 8 to 24 samples)"


@pytest.mark.filterwarnings("ignore:.*the task is regression")
def test_runs_and_comparisons_of_other_tasks_tell_their_metric(tmp_path: Path) -> None:
    comparison = covey.compare(
        ["fedavg", "fedprox"],
        seeds=2,
        federation=regression(6),
        given={"rounds": 2, "workers": 1},
        out=tmp_path / "both",
    )
    run = comparison.runs["fedavg"][0]
    last = f"{run.metrics[-1]['score']:.4g}"
    assert f"round 2 of 2, RMSE {last}; " in repr(run)
    assert "<th>RMSE</th>" in run._repr_html_() and f"<td>{last}</td>" in run._repr_html_()
    table = comparison._repr_html_()
    assert f"<td>{comparison.rows[0]['terminal_score']:.4g}</td>" in table
    assert "<th>terminal RMSE</th>" in table and "<th>RMSE against fedavg</th>" in table
    # Every metric, on the common test set and on clients' own tests, in the table, the report and a run's figures.
    ends = [one.metrics[-1] for one in comparison.runs["fedprox"]]
    row = comparison.rows[1]
    assert row["terminal_metrics"] == {
        name: pytest.approx(np.mean([end["metrics"][name] for end in ends])) for name in ("mae", "r2")
    }
    over = row["terminal_client_scores"]
    assert list(over) == ["rmse", "mae", "r2"]
    assert over["rmse"]["worst_decile"] == pytest.approx(np.mean([end["client_score"]["worst_decile"] for end in ends]))
    assert over["mae"]["mean"] == pytest.approx(np.mean([end["client_metrics"]["mae"]["mean"] for end in ends]))
    columns = comparison_columns(comparison.rows, comparison.target, "fedavg", comparison.metric)
    assert columns["terminal MAE"](row) == f"{row['terminal_metrics']['mae']:.4g}"
    assert columns["MAE on clients' own tests"](row) == f"{over['mae']['mean']:.4g}"
    assert columns["RMSE, worst decile of clients"](row) == f"{over['rmse']['worst_decile']:.4g}"
    page = covey.report([comparison.folder]).read_text(encoding="utf-8").replace("&#x27;", "'").replace("&#39;", "'")
    assert "MAE, worst decile of clients" in page
    assert f"MAE on clients' own tests {ends[0]['client_metrics']['mae']['mean']:.4g}, worst decile" in page
    assert run_summary(comparison.runs["fedprox"][0])["client_metrics"] == ends[0]["client_metrics"]


def test_records_from_before_metrics_over_clients_are_compared_as_ever(tmp_path: Path) -> None:
    comparison = covey.compare(["fedavg"], seeds=1, given=QUICK, out=tmp_path / "both")
    records = comparison.runs["fedavg"][0].folder / "metrics.jsonl"
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    kept = [{name: value for name, value in row.items() if name != "metrics"} for row in rows]
    records.write_text("".join(json.dumps(row) + "\n" for row in kept))
    (row,) = covey.Comparison.open(comparison.folder).rows
    assert row == {name: value for name, value in comparison.rows[0].items() if name != "terminal_metrics"}
