"""The command `covey analyze`, its files, and the page that it draws."""

import csv
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor, nn

from covey import Analysis, analyze
from covey.job.result_text import CLIENT_FIGURES
from covey.page.analysis_page import by_skew

# --- the command


QUICK = ["--clients", 24, "--set", "workers=1", "--set", "environment.samples=80"]


class Headless(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(math.prod(shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = 2 * self.last(x.flatten(1))
        return scaled


def test_the_command_prints_json_and_writes_csv_with_the_same_figures(covey_command, tmp_path):
    answer = covey_command("analyze", *QUICK, "--poison", "0.1", "--json", "--csv", tmp_path / "new" / "clients.csv")
    assert answer.code == 0
    found = answer.json
    assert found["spearman"] > 0.8
    assert found["agreement"] > 0.8
    assert found["clients"] == len(found["each"]) == 24
    assert found["bytes_up"] > 0
    assert found["seconds"] > 0
    with (tmp_path / "new" / "clients.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["client"]) for row in rows] == [one["client"] for one in found["each"]]
    assert [float(row["skew"]) for row in rows] == [one["skew"] for one in found["each"]]
    assert [row["outlier"] == "True" for row in rows] == [one["client"] in found["outliers"] for one in found["each"]]


def test_the_command_tells_people_who_is_odd_and_how_many_are_not_shown(covey_command):
    said = covey_command("analyze", "--set", "workers=1", "--poison", "0.1", "--rounds", 1).out
    assert "40 clients between them are not shown." in said
    assert re.search(r"\d+ of 60 clients have an odd class mix \(chance of any false alarm at most 0.05\)", said)
    assert re.search(r"Outliers, labels or inputs unlike the others': \d+(, \d+){5}\.", said)
    assert "They are exactly the 6 poisoned clients." in said
    assert "sent up / down" in said
    assert max(map(len, said.split("Findings first, then the most skewed")[1].splitlines()[:20])) <= 80


def test_the_command_runs_stacked_and_from_a_run(covey_command, tmp_path):
    stacked = covey_command("analyze", *QUICK, "--runtime", "stacked", "--device", "cpu", "--json").json
    assert stacked["spearman"] > 0.8
    covey_command("run", *QUICK, "--rounds", 2, "--set", "local.epochs=1", "--out", tmp_path / "run", "--json")
    found = covey_command("analyze", "--from", tmp_path / "run", "--json").json
    assert (found["model_of"], found["clients"]) == (str(tmp_path / "run"), 24)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--rounds 0", "rounds must be at least 1, not 0."),
        ("--rounds few", "rounds must be a whole number, not 'few'."),
        ("--level 1.5", "level is a probability between 0 and 1, not 1.5."),
        ("--level high", "level must be a number, not 'high'."),
        ("--insight heads", "insight is head, full, or a function of yours"),
        ("--insight no.such:thing", "The insight 'no.such:thing' cannot be imported"),
        ("--environment nowhere", "There is no environment 'nowhere'."),
        ("--clients 1", "an analysis needs at least two."),
        ("--from absent", "is not a run folder"),
        (
            "--model tests.job.analysis.test_analyze_command:Headless",
            "does not end in a linear layer. Give the model an attribute head",
        ),
        ("--set colour=red", "There is no setting 'colour'."),
        ("--clients 4 --rounds 1 --set workers=1 --csv /dev/null/a.csv", "cannot be written"),
    ],
)
def test_wrong_input_is_a_sentence(covey_command, tmp_path, monkeypatch, flags, sentence):
    monkeypatch.chdir(tmp_path)
    answer = covey_command("analyze", *flags.split())
    assert answer.code == 2
    assert answer.err.startswith("covey: ")
    assert sentence in answer.err
    assert answer.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# --- the page


def test_the_page_draws_skew_certainty_outliers_and_truth(tmp_path):
    pytest.importorskip("plotly")
    analysis = analyze(clients=24, altered={"poison": 0.1}, workers=1, rounds=1)
    text = analysis.draw(tmp_path / "deep" / "analysis.html").read_text(encoding="utf-8")
    assert f"<h1>{analysis.finding}.</h1>" in text
    assert "24 clients with digits, environment uniform. " in text
    embedded = re.search(r'id="charts">(.*?)</script>', text, re.DOTALL)
    assert embedded is not None
    charts = json.loads(embedded[1])
    assert len(charts) == 2
    skew, truth = charts
    bars = [trace for trace in skew["data"] if trace["type"] == "bar"]
    np.testing.assert_allclose(bars[0]["y"], analysis.skew[analysis.order], rtol=1e-5)
    axis = skew["layout"]["xaxis"]
    assert axis["ticktext"] == [str(client) for client in analysis.clients[analysis.order]]
    assert axis["tickvals"] == bars[0]["x"]
    assert set(CLIENT_FIGURES.values()) == set(
        re.findall(r'<th scope="col">([^<]*)</th>', text.split("All figures")[-1])
    )
    limits = [trace for trace in skew["data"] if trace["type"] == "scatter"]
    assert analysis.confidence is not None
    np.testing.assert_allclose(limits[0]["y"], analysis.confidence.limit[analysis.order], rtol=1e-5)
    assert bars[0]["marker"]["color"].count("var(--line-1)") == analysis.outlier.sum()
    assert sum(len(trace["x"]) for trace in truth["data"]) == 24
    assert f"{analysis.spearman:.2f}" in text
    assert [item.name for item in (tmp_path / "deep").iterdir()] == ["analysis.html"]


def test_the_axis_of_many_clients_names_the_outliers():
    pytest.importorskip("plotly")
    analysis = analyze(clients=120, altered={"poison": 0.05}, workers=1, rounds=1)
    axis = by_skew(analysis).charts[0].layout["xaxis"]
    assert sorted(map(int, axis["ticktext"])) == analysis.clients[analysis.outlier].tolist()
    assert [int(analysis.clients[analysis.order[place - 1]]) for place in axis["tickvals"]] == [
        int(name) for name in axis["ticktext"]
    ]


def compared_with_poisoned(analysis: Analysis, outliers: list[int], poisoned: list[int]) -> Analysis:
    """Return the analysis with these clients as outliers and as poisoned ones."""
    strange = np.where(np.isin(analysis.clients, outliers), 99.0, 0.0)
    return replace(analysis, strangeness=strange, poisoned=np.isin(analysis.clients, poisoned))


def test_outliers_are_compared_with_the_poisoned_clients_where_these_are_known():
    analysis = analyze(clients=24, workers=1, rounds=1)
    assert "poisoned" not in analysis.verdict
    assert analysis.as_mapping()["poisoned"] == []
    for outliers, poisoned, sentence, finding in (
        ([1, 5], [1, 5], "They are exactly the 2 poisoned clients.", "2 outliers (exactly the poisoned clients)"),
        ([5], [5], "It is the one poisoned client.", "1 outlier (the poisoned client)"),
        ([1, 5], [5], "Of the 1 poisoned client, 1 is among the outliers; 1 of them is not poisoned.", "(1 of the 1"),
        (
            [1],
            [5, 6],
            "Of the 2 poisoned clients, none is among the outliers; 1 of them is not",
            "(0 of the 2 poisoned",
        ),
        ([5, 6], [5, 6, 7], "Of the 3 poisoned clients, 2 are among the outliers.", "(2 of the 3 poisoned clients)"),
        ([], [5], "There are no outliers, labels or inputs unlike the others'. Of the 1 poisoned", "No outliers;"),
    ):
        found = compared_with_poisoned(analysis, outliers, poisoned)
        assert sentence in found.verdict
        assert finding in found.finding
    by_name = replace(analysis, names=tuple(f"site {client}" for client in range(24)))
    strange = np.where(np.isin(analysis.clients, [1, 5]), [float(client) for client in analysis.clients], 0.0) * 9
    assert (
        "Outliers, labels or inputs unlike the others': site 5, site 1."
        in replace(by_name, strangeness=strange).verdict
    )
    unknown = replace(compared_with_poisoned(analysis, [1], [1]), poisoned=None)
    assert "poisoned" not in unknown.verdict + unknown.finding
    assert unknown.as_mapping()["poisoned"] is None


def test_findings_come_first_and_the_words_say_how_sure_they_are():
    analysis = analyze(clients=24, workers=1, rounds=1)
    assert analysis.confidence is not None
    least = analysis.clients[analysis.order[-2:]].tolist()
    strange = np.zeros(24)
    strange[np.searchsorted(analysis.clients, least)] = 4.0, 13.3
    found = replace(analysis, strangeness=strange)
    assert [one["client"] for one in found.findings_first()][:2] == least[::-1]
    assert [one["skew"] for one in found.findings_first()[2:]] == [one["skew"] for one in analysis.each()[:-2]]
    assert f"Less sure, below 7 deviations: {least[0]}; of 24 clients that are alike" in found.verdict
    assert "in about 1 of 10 analyses" in found.verdict
    p_values = np.ones(24)
    p_values[least[0]] = 0.06 / 24
    nearly = replace(analysis, confidence=replace(analysis.confidence, p_values=p_values))
    assert "0 of 24 clients have an odd class mix" in nearly.verdict
    assert f"The nearest is {least[0]}: 94.0% sure, and 95% counts as odd." in nearly.verdict
    p_values[least[0]] = 1
    assert "The nearest" not in nearly.verdict


def test_the_page_of_a_trained_models_view_says_what_is_missing(tmp_path):
    pytest.importorskip("plotly")
    analysis = analyze(
        clients=6, environment="iid", insight="tests.job.analysis.test_outliers:brightness", workers=1, rounds=1
    )
    text = analysis.draw(tmp_path / "analysis.html").read_text(encoding="utf-8")
    assert "<h2>Notes</h2>" in text
    assert "odd class mix</span>" not in text
