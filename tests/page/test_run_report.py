import base64
import itertools
import json
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey import Config, Refusal
from covey.job.comparison.statistics import Estimate
from covey.job.federation_summary import describe
from covey.job.result_text import EPSILON, comparison_columns
from covey.job.trackers import scalars
from covey.page import packed_script, palette
from covey.page.federation_page import participation_figure
from covey.page.figures import Figure, spread
from covey.page.packed_script import unpacked
from covey.page.run_data import read_report_data
from covey.page.run_report import page_of, report
from covey.page.tables import made_by, reproduced_by
from covey.page.tensorboard import tensorboard
from tests.browsers import chromium
from tests.conftest import SMALL

plotly = pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("compared") / "all"
    covey.compare(["fedavg", "iid", "local-only"], 2, given=SMALL, out=folder)
    return folder


@pytest.fixture(scope="module")
def faulty(tmp_path_factory) -> Path:
    """A run in which every reply is dropped."""
    folder: Path = tmp_path_factory.mktemp("faulty") / "run"
    covey.run({**SMALL, "local": {"rate": 1e30}}, out=folder)
    return folder


def figures(*folders: Path) -> dict[str, Figure]:
    page = page_of(read_report_data(folders))
    return {part.name: part for section in page.sections for part in section.content if isinstance(part, Figure)}


def text_of(path: Path) -> str:
    """Return the text of a page without its scripts."""
    return re.sub(r"<script.*?</script>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def rewrite(folder: Path, change) -> None:
    """Change every record of a run."""
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(change(row)) + "\n" for row in rows))


class Outline(HTMLParser):
    """Headings, cells and references of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.cells: list[str] = []
        self.references: list[str] = []
        self.unlabelled = 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.references += [named[key] or "" for key in ("src", "href", "action") if key in named]
        self.unlabelled += named.get("role") == "img" and not named.get("aria-label")
        if tag in ("h1", "h2", "h3", "h4"):
            self.headings.append(tag)
        if tag in ("th", "td"):
            self.cells.append("")
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if "th" in self.open or "td" in self.open:
            self.cells[-1] += data


def test_the_page_holds_the_figures_of_the_comparison(compared, tmp_path):
    page = report([compared], tmp_path / "page.html")
    result = covey.compare(["fedavg", "iid", "local-only"], 2, given=SMALL, out=compared)
    outline = Outline(text_of(page))
    for row in result.rows:
        assert row["name"] in outline.cells
        assert f"{row['terminal_accuracy']:.1%}" in outline.cells
    assert any("±" in cell for cell in outline.cells)


@pytest.mark.parametrize("kind", [str, Path])
def test_one_folder_is_given_as_it_is(compared, tmp_path, kind):
    page = report(kind(compared), kind(tmp_path / "one.html"))
    assert text_of(page) == text_of(report([compared], tmp_path / "list.html"))


def test_the_headline_says_what_skew_costs(tmp_path):
    covey.compare(["fedavg", "iid"], 2, given=SMALL, out=tmp_path)
    headline = page_of(read_report_data([tmp_path])).headline
    rows = {row["name"]: row for row in read_report_data([tmp_path]).groups[0].rows}
    points = 100 * (rows["iid"]["terminal_accuracy"] - rows["fedavg"]["terminal_accuracy"])
    assert headline.startswith(f"Skew costs fedavg {points:.1f} points" if points > 0 else "Skew costs fedavg nothing")
    assert f"{rows['fedavg']['terminal_accuracy']:.1%}" in headline


def test_the_headline_does_not_take_seeds_that_agree_to_the_sample_for_certainty(compared, tmp_path):
    folder = Path(shutil.copytree(compared, tmp_path / "same"))
    for name, accuracy in (("fedavg", 0.5), ("iid", 0.51), ("local-only", 0.503)):
        for seed in (0, 1):
            rewrite(folder / name / f"seed-{seed}", lambda row, accuracy=accuracy: {**row, "accuracy": accuracy})
    headline = page_of(read_report_data([folder])).headline
    assert "0.3 points above fedavg (the same in every seed, which gives no interval)" in headline


def compared_at(folder: Path, scores: dict[str, list[float]]) -> str:
    """Return the headline of a comparison whose runs end at these accuracies."""
    covey.compare(list(scores), len(next(iter(scores.values()))), given={**SMALL, "rounds": 1}, out=folder)
    for name, values in scores.items():
        for seed, accuracy in enumerate(values):
            rewrite(folder / name / f"seed-{seed}", lambda row, accuracy=accuracy: {**row, "accuracy": accuracy})
    return page_of(read_report_data([folder])).headline


def test_a_tie_is_called_one(tmp_path):
    assert compared_at(tmp_path / "tie", {"fedavg": [0.8, 0.9], "fedprox": [0.8001, 0.9001]}) == (
        "fedavg and fedprox end level, at 85.0% test accuracy."
    )
    three = {"fedavg": [0.8, 0.9], "fedprox": [0.8, 0.9], "oort": [0.7, 0.8]}
    assert compared_at(tmp_path / "two", three) == ("fedavg and fedprox end level, highest at 85.0% test accuracy.")


def test_the_first_method_is_not_called_highest_without_its_certainty(tmp_path):
    headline = compared_at(tmp_path / "all", {"fedavg": [0.8, 0.9], "fedprox": [0.82, 0.86]})
    assert headline == (
        "fedavg ends highest, at 85.0% test accuracy, 1.0 points above fedprox (within the noise of these seeds)."
    )


def test_the_headline_of_one_run_is_its_accuracy(faulty):
    accuracy = covey.Run.open(faulty).metrics[-1]["accuracy"]
    assert (
        page_of(read_report_data([faulty])).headline == f"fedavg ends at {accuracy:.1%} test accuracy after 3 rounds."
    )


def test_the_page_refers_to_nothing_outside_itself(compared, tmp_path):
    path = report([compared], tmp_path / "page.html")
    outline = Outline(text_of(path))
    assert outline.references
    assert all(reference.startswith(("#", "data:")) for reference in outline.references)
    assert "default-src 'none'" in path.read_text(encoding="utf-8")


def test_the_page_can_be_read_without_seeing_it(compared, tmp_path):
    outline = Outline(text_of(report([compared], tmp_path / "page.html")))
    assert outline.headings[0] == "h1"
    assert outline.headings.count("h1") == 1
    levels = [int(heading[1]) for heading in outline.headings]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert outline.unlabelled == 0
    assert "fedavg" in figures(compared)["accuracy"].charts[0].alt


def test_every_chart_is_one_that_plotly_knows_and_every_axis_has_a_name(compared, faulty):
    from plotly.graph_objects import Figure as PlotlyFigure

    drawn = [chart for figure in (*figures(compared).values(), *figures(faulty).values()) for chart in figure.charts]
    assert len(drawn) > 15
    for chart in drawn:
        PlotlyFigure({"data": chart.data, "layout": chart.layout})
        axes = [axis for name, axis in chart.layout.items() if re.fullmatch(r"[xy]axis\d*", name)]
        assert len(axes) >= 2
        assert all(axis["title"]["text"] for axis in axes)


def test_a_line_has_the_same_colour_in_all_charts(compared):
    colours: dict[str, set[str]] = {}
    for figure in figures(compared).values():
        for trace in (trace for chart in figure.charts for trace in chart.data if "legendgroup" in trace):
            mark = trace.get("marker") or {"color": trace["fillcolor"].replace("band", "line")}
            colours.setdefault(trace["legendgroup"], set()).add(mark["color"])
    assert len(colours) == 3
    assert all(len(found) == 1 for found in colours.values())
    assert len(set.union(*colours.values())) == 3


def test_charts_without_data_are_left_out(compared, faulty, tmp_path):
    assert "dropped" not in figures(compared)
    assert "terminal" not in figures(faulty)
    told = figures(faulty)
    assert told["dropped"].charts[0].data[0]["y"][-1] == 3 * SMALL["cohort"]
    assert "training-loss" not in told
    assert "Why replies were dropped" in text_of(report([faulty], tmp_path / "page.html"))


def test_simulated_time_is_drawn_where_records_have_it(faulty, tmp_path):
    timed, timeless = (Path(shutil.copytree(faulty, tmp_path / name)) for name in ("timed", "timeless"))
    rewrite(timed, lambda row: {**row, "clock": 100.0 * row["round"]})
    rewrite(timeless, lambda row: {key: value for key, value in row.items() if key != "clock"})
    chart = figures(timed)["clock"].charts[0]
    assert chart.layout["xaxis"]["title"]["text"] == "simulated time, minutes"
    assert chart.data[0]["x"] == pytest.approx([100 / 60, 200 / 60, 300 / 60], rel=1e-4)
    assert "clock" not in figures(timeless)


def test_bytes_are_summed_in_both_directions(compared):
    run = covey.Run.open(compared / "fedavg" / "seed-0")
    total = sum(row["bytes_up"] + row["bytes_down"] for row in run.metrics)
    chart = figures(compared)["bytes"].charts[0]
    assert chart.layout["xaxis"]["title"]["text"] == "bytes sent, kB"
    assert chart.data[0]["x"][-1] == pytest.approx(total / 1000, rel=1e-4)


def test_long_runs_are_thinned_to_what_a_screen_shows(faulty, tmp_path):
    folder = Path(shutil.copytree(faulty, tmp_path / "long"))
    row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    (folder / "metrics.jsonl").write_text("".join(json.dumps({**row, "round": t}) + "\n" for t in range(1, 5001)))
    rounds = figures(folder)["accuracy"].charts[0].data[0]["x"]
    assert 100 < len(rounds) <= 1000
    assert (rounds[0], rounds[-1]) == (1, 5000)
    assert rounds == sorted(set(rounds))


def test_bands_are_both_of_two_seeds_and_students_interval_of_more():
    values = np.array([[1.0, 5.0], [3.0, 6.0], [8.0, 7.0]])
    assert spread(values[:1]) is None
    two = spread(values[:2])
    assert two is not None
    assert [bound.tolist() for bound in two] == [[1, 5], [3, 6]]
    band = spread(values)
    assert band is not None
    low, high = band
    for place in range(2):
        expected = Estimate.of(values[:, place].tolist())
        assert (low[place], high[place]) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_participation_is_the_share_of_rounds_in_which_a_client_was_invited(compared):
    study = read_report_data([compared])
    group = study.groups[0]
    run = group.lines[0].runs[0]
    described = {group: {0: describe(run.config)}}
    figure = participation_figure(study, described)
    assert figure is not None
    assert [key.label for key in figure.keys] == ["fedavg"]
    dots, trend = figure.charts[0].data
    invited = [client for row in run.metrics for client in row["clients"]]
    for client, (skew, share) in enumerate(zip(dots["x"], dots["y"], strict=True)):
        assert share == pytest.approx(100 * invited.count(client) / 3, rel=1e-4)
        assert skew == pytest.approx(described[group][0].skew[client], rel=1e-4)
    assert np.mean(trend["y"]) == pytest.approx(100 * SMALL["cohort"] / SMALL["clients"])


def test_runs_that_differ_in_the_seed_only_are_one_line(tmp_path):
    for seed in (0, 1):
        covey.run(SMALL, out=tmp_path / f"s{seed}", seed=seed, rounds=1)
    covey.run({**SMALL, "local.rate": 0.01}, out=tmp_path / "slow", rounds=1)
    study = read_report_data([tmp_path / name for name in ("s1", "slow", "s0")])
    assert {line.label: line.seeds for line in study.lines} == {
        "fedavg local.rate=0.1": (0, 1),
        "fedavg local.rate=0.01": (0,),
    }
    rows = study.groups[0].rows
    assert rows[1]["difference"] is None
    assert rows[1]["speed_up"] is None, "nobody to be faster than"
    assert rows[0]["seeds"] == 2


def test_the_bar_of_an_interval_that_is_cut_at_a_hundred_percent_ends_there(tmp_path):
    for seed, accuracy in enumerate((0.9, 1.0)):
        covey.run(SMALL, out=tmp_path / f"s{seed}", seed=seed, rounds=1)
        rewrite(tmp_path / f"s{seed}", lambda row, accuracy=accuracy: {**row, "accuracy": accuracy})
    covey.run({**SMALL, "local.rate": 0.01}, out=tmp_path / "slow", rounds=1)
    folders = [tmp_path / name for name in ("s0", "s1", "slow")]
    trace, _ = figures(*folders)["terminal"].charts[0].data
    row, _ = read_report_data(folders).groups[0].rows
    bar = trace["error_x"]
    assert trace["x"][0] + bar["array"][0] == pytest.approx(100)
    assert trace["x"][0] - bar["arrayminus"][0] == pytest.approx(100 * row["terminal_low"], abs=0.01)
    assert bar["symmetric"] is False


@pytest.mark.slow
def test_federations_do_not_share_axes(tmp_path):
    vary = {"environment": ["uniform", "dirichlet"]}
    covey.compare(["fedavg", "iid"], 1, given={**SMALL, "environment": None}, rounds=1, vary=vary, out=tmp_path)
    study = read_report_data([tmp_path])
    assert [group.title for group in study.groups] == ["environment=uniform", "environment=dirichlet"]
    assert [[line.label for line in group.lines] for group in study.groups] == [["fedavg", "iid"]] * 2
    assert [row["difference"] is None for group in study.groups for row in group.rows] == [True, False] * 2
    assert [chart.title for chart in figures(tmp_path)["accuracy"].charts] == [group.title for group in study.groups]


def test_the_same_run_twice_makes_two_lines_told_apart_by_folder(faulty, tmp_path):
    twin = Path(shutil.copytree(faulty, tmp_path / "<b>twin"))
    study = read_report_data([faulty, twin])
    assert len({line.label for line in study.lines}) == 2
    text = text_of(report([faulty, twin], tmp_path / "page.html"))
    assert "&lt;b&gt;twin" in text
    assert "<b>twin" not in text


def test_names_cannot_break_out_of_the_data_of_the_charts(faulty, tmp_path):
    twin = Path(shutil.copytree(faulty, tmp_path / "x<" / "script><!--"))
    page = report([faulty, twin], tmp_path / "page.html").read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert any("&lt;/script" in trace.get("name", "") for chart in json.loads(data[1]) for trace in chart["data"])


def test_an_unfinished_comparison_is_reported_with_what_is_missing(compared, tmp_path):
    folder = Path(shutil.copytree(compared, tmp_path / "part"))
    shutil.rmtree(folder / "local-only" / "seed-1")
    metrics = folder / "iid" / "seed-0" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    page = page_of(read_report_data([folder]))
    assert any("local-only, seed 1, was not started" in notice for notice in page.notices)
    assert any("iid, seed 0, stopped after round 2 of 3" in notice for notice in page.notices)
    rows = read_report_data([folder]).groups[0].rows
    assert [row["difference"] is None for row in rows] == [True, False, True]


def test_a_federation_that_cannot_be_built_again_costs_its_charts_only(faulty, tmp_path):
    folder = Path(shutil.copytree(faulty, tmp_path / "moved"))
    data = json.loads((folder / "config.json").read_text())
    data["config"]["environment"]["samples"] = 0
    (folder / "config.json").write_text(json.dumps(data))
    page = page_of(read_report_data([folder]))
    assert any("could not be rebuilt" in notice for notice in page.notices)
    names = {part.name for section in page.sections for part in section.content if isinstance(part, Figure)}
    assert "accuracy" in names
    assert "mix" not in names


def test_folders_without_anything_to_show_are_refused(faulty, tmp_path):
    with pytest.raises(Refusal, match="nothing to report on"):
        report([])
    with pytest.raises(Refusal, match="is not a folder"):
        report([tmp_path / "none"])
    with pytest.raises(Refusal, match=r"is not a run folder: it has no config.json"):
        report([tmp_path])
    empty = Path(shutil.copytree(faulty, tmp_path / "empty"))
    (empty / "metrics.jsonl").unlink()
    with pytest.raises(Refusal, match=r"no evaluated round yet.*covey resume"):
        report([empty])


def test_runs_with_private_models_show_epsilon_beside_their_accuracy(compared, tmp_path):
    private = {**SMALL, "aggregator": {"name": "dp-fedavg", "noise": 5.0}}
    run = covey.run(private, out=tmp_path / "private")
    epsilon = run.metrics[-1]["figures"]["epsilon"]
    shown = Outline(text_of(report([tmp_path / "private"])))
    assert f"{epsilon:.3g} at δ = 1e-05" in shown.cells
    assert shown.cells.count(EPSILON) == 2
    assert EPSILON not in Outline(text_of(report([compared], tmp_path / "open.html"))).cells


def test_comparisons_with_private_models_show_epsilon(tmp_path, covey_command):
    options = {"aggregator": {"noise": 5.0}}
    found = covey.compare(["fedavg", "uniform+dp-fedavg"], 1, given={**SMALL, **options}, out=tmp_path / "all")
    epsilon = found.runs["uniform+dp-fedavg"][0].metrics[-1]["figures"]["epsilon"]
    open_, private = found.rows
    assert (private["epsilon"], private["delta"]) == (epsilon, 1e-5)
    assert "epsilon" not in open_
    assert comparison_columns(found.rows, 0.5, "fedavg")["ε of its models"](open_) == "-"
    assert "ε of its models" not in comparison_columns(found.rows[:1], 0.5, "fedavg")
    cells = Outline(text_of(report([tmp_path / "all"]))).cells
    assert "ε of its models" in cells and cells.count(f"{epsilon:.3g} at δ = 1e-05") == 2
    assert "ε of its models" in covey_command("resume", tmp_path / "all").out


@pytest.mark.parametrize("said", ["much", None, [1], {}])
def test_epsilon_that_is_no_number_is_not_shown(tmp_path, said):
    folder = covey.run({**SMALL, "aggregator": {"name": "dp-fedavg", "noise": 5.0}}, out=tmp_path / "run").folder
    *rows, last = (folder / "metrics.jsonl").read_text().splitlines()
    row = json.loads(last)
    row["figures"]["epsilon"] = said
    (folder / "metrics.jsonl").write_text("\n".join([*rows, json.dumps(row), ""]))
    assert EPSILON not in Outline(text_of(report([folder]))).cells


def test_the_page_lands_where_it_is_wanted(faulty, tmp_path, monkeypatch):
    run = Path(shutil.copytree(faulty, tmp_path / "run"))
    assert report([run]) == run / "report.html"
    assert report([run], tmp_path) == tmp_path / "report.html"
    assert report([run], tmp_path / "new" / "page.html").is_file()
    monkeypatch.chdir(tmp_path / "new")
    assert report([run, faulty]).resolve() == tmp_path / "new" / "report.html"
    assert not list(tmp_path.rglob("*.part"))
    with pytest.raises(Refusal, match="cannot be written"):
        report([run], run / "config.json" / "page.html")


def test_the_same_folders_make_the_same_page(compared, tmp_path):
    one, other = (report([compared], tmp_path / name) for name in ("one.html", "other.html"))
    assert one.read_bytes() == other.read_bytes()


def test_the_command_that_reproduces_a_run_makes_the_same_run(faulty, tmp_path, covey_command):
    command = shlex.split(reproduced_by(faulty))
    assert command[:2] == ["covey", "run"]
    assert covey_command(*command[1:], "--out", tmp_path / "again").code == 0
    one, again = covey.Run.open(faulty), covey.Run.open(tmp_path / "again")
    assert one.config == again.config
    assert [row["accuracy"] for row in one.metrics] == [row["accuracy"] for row in again.metrics]
    assert made_by(tmp_path / "again") == shlex.join([*command, "--out", str(tmp_path / "again")])


def test_the_command_that_reproduces_a_comparison_makes_the_same_one(tmp_path, covey_command):
    given = {**SMALL, "rounds": 1, "environment": "uniform", "local": {"epochs": 1, "batch": 0}}
    made = covey.compare(
        ["fedprox"], [7], given=given, vary={"local.rate": [0.1, 0.5]}, target=0.05, fairness=True, out=tmp_path / "a"
    )
    command = shlex.split(reproduced_by(tmp_path / "a"))
    assert covey_command(*command[1:], "--out", tmp_path / "b").code == 0
    again = read_report_data([tmp_path / "b"])
    assert [run.config for line in again.lines for run in line.runs] == [
        config for contender in made.contenders for config in contender.configs
    ]
    assert again.groups[0].wanted_target == 0.05


def test_a_run_on_ones_own_data_is_reproduced_from_python(tmp_path):
    features = np.random.default_rng(0).normal(size=(90, 4))
    own = covey.federation(features, features[:, 0] > 0, np.repeat(["kiel", "bremen"], 45))
    made = covey.run(federation=own, cohort=2, rounds=2, workers=1, out=tmp_path / "run")
    call = reproduced_by(tmp_path / "run").replace("federation=...", "federation=own, out=out")
    again = eval(call, {"covey": covey, "own": own, "out": tmp_path / "again"})
    assert again.config == made.config
    assert [row["accuracy"] for row in again.metrics] == [row["accuracy"] for row in made.metrics]
    page = page_of(read_report_data([tmp_path / "run"]))
    assert any("passed in from Python" in notice for notice in page.notices)


def test_composed_methods_are_reproduced_by_their_parts(tmp_path):
    config = Config.of(selector="uniform", aggregator={"name": "average", "weighted": False}, rounds=1)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"format": 1, "config": config.as_mapping()}))
    command = reproduced_by(folder)
    assert "--selector uniform --aggregator average" in command
    assert "--set aggregator.weighted=false" in command
    assert "--method" not in command


def test_colours_stay_apart_for_the_colour_blind():
    # Simulations after Machado, Oliveira and Fernandes 2009 (severity 1), in linear RGB.
    kinds = {
        "normal": np.eye(3),
        "protanopia": [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        "deuteranopia": [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.01182, 0.04294, 0.968881],
        ],
        "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
    }
    for theme in (0, 1):
        colours = [linear(pair[theme]) for pair in palette.LINES]
        for kind, matrix in kinds.items():
            seen = [lab(np.asarray(matrix) @ colour) for colour in colours]
            closest = min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2))
            assert closest > 15, (kind, theme)
        ground = linear(palette.SURFACES["card"][theme])
        assert min(contrast(colour, ground) for colour in colours) > 3


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(colour: np.ndarray) -> np.ndarray:
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    xyz = np.asarray(to_xyz) @ np.clip(colour, 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    light = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ colour) for colour in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


def test_without_plotly_the_page_is_refused_with_a_remedy(faulty, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(Refusal, match=r"pip install '.\[report\]'"):
        report([faulty], tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_without_tensorboard_event_files_are_refused_with_a_remedy(faulty, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(Refusal, match="pip install tensorboard"):
        tensorboard(faulty, tmp_path / "events")


def test_event_files_hold_every_number_however_deep_and_nothing_else():
    deep = {"figures": {"impact_factors": {"3": 0.25}, "utility": None, "model_kept": True, "regret": 2}}
    found = scalars({"round": 1, "dropped": [], "clients": [1, 2], "train_loss": None, **deep})
    assert found == {"dropped": 0.0, "cohort": 2.0, "figures/impact_factors/3": 0.25, "figures/regret": 2.0}


def test_event_files_hold_the_metrics(compared, tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    written = tensorboard(compared, tmp_path)
    found = 0
    for run in read_report_data([compared]).lines[0].runs:
        events = reader.EventAccumulator(str(tmp_path / compared.name / "fedavg" / f"seed-{run.config.seed}"))
        events.Reload()
        assert [event.step for event in events.Scalars("accuracy")] == [1, 2, 3]
        assert [event.value for event in events.Scalars("accuracy")] == pytest.approx(
            [row["accuracy"] for row in run.metrics], rel=1e-6
        )
        found += sum(len(events.Scalars(name)) for name in events.Tags()["scalars"])
    assert 0 < found < written


DRAWN_OR_NOT = """(async () => {
  if (!document.getElementById("charts")) return;
  while (!document.documentElement.dataset.charts) await new Promise((done) => setTimeout(done, 10));
})()"""


class Browser:
    """Chromium without a window, spoken to over a pipe in the DevTools protocol."""

    FLAGS = (
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    )

    def __init__(self, program: str, profile: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Chromium reads descriptor 3 and writes descriptor 4; a shell puts the pipes there.
        wire = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        command = [program, *self.FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", wire, "chromium", *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._read, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        pages = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def open(self, path: Path, dark: bool = False) -> None:
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        while not self.named("Page.loadEventFired"):
            self.events.append(self._next())
        self.ask(DRAWN_OR_NOT)

    def ask(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == name]

    def complaints(self) -> list[str]:
        """Exceptions, errors and warnings on the console."""
        spoken = [
            one for one in self.named("Runtime.consoleAPICalled") if one["type"] in ("error", "warning", "assert")
        ]
        return [
            json.dumps(one) for one in (*self.named("Runtime.exceptionThrown"), *self.named("Log.entryAdded"), *spoken)
        ]

    def requests(self) -> list[str]:
        return [one["request"]["url"] for one in self.named("Network.requestWillBeSent")]

    def picture(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        self._session = None
        os.write(self._out, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        self._process.wait(timeout=120)
        os.close(self._out)
        os.close(self._in)

    def _next(self) -> dict[str, Any]:
        give_up = time.monotonic() + 300
        while b"\0" not in self._read:
            assert select.select([self._in], [], [], max(0.0, give_up - time.monotonic()))[0], "the browser is silent"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser ended"
            self._read += data
        message, self._read = self._read.split(b"\0", 1)
        return dict(json.loads(message))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = chromium()
    if program is None:
        pytest.skip("there is no Chromium to open the page in")
    driven = Browser(program, tmp_path_factory.mktemp("profile"))
    yield driven
    driven.close()


MARKS = ".scatterlayer .js-line, .scatterlayer .points path, .barlayer .point path, .heatmaplayer image"
DRAWN = f"[...document.querySelectorAll('.chart')].map(chart => chart.querySelectorAll({json.dumps(MARKS)}).length)"


@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_draws_every_chart_and_has_nothing_to_complain_about(browser, compared, faulty, tmp_path, dark):
    path = report([compared, faulty], tmp_path / "page.html")
    browser.open(path, dark)
    marks = browser.ask(DRAWN)
    assert len(marks) > 12
    assert all(count > 0 for count in marks), marks
    assert browser.complaints() == []
    assert {url.partition(":")[0] for url in browser.requests()} <= {"file", "data", "blob"}
    assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
    assert browser.picture().startswith(b"\x89PNG")
    offered = browser.ask("[...document.querySelectorAll('.modebar-btn')].map(button => button.dataset.title)")
    assert set(offered) == {"Download plot as a PNG", "Zoom", "Pan", "Reset axes"}
    ground = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


def test_a_page_has_all_of_plotly_in_less_than_two_megabytes(compared, tmp_path):
    path = report([compared], tmp_path / "page.html")
    assert path.stat().st_size < 2_000_000
    found = re.search(r'id="plotly" data-bytes="(\d+)">([^<]*)</script>', path.read_text(encoding="utf-8"))
    assert found is not None
    assert unpacked(int(found[1]), found[2]) == packed_script.plotly()


def test_a_browser_that_cannot_unpack_the_charts_says_so_and_shows_the_tables(browser, compared, tmp_path):
    path = report([compared], tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("<head>", "<head><script>delete window.DecompressionStream</script>", 1))
    browser.open(path)
    assert "cannot draw the charts" in browser.ask("document.getElementById('undrawn').innerText")
    assert browser.ask("document.querySelectorAll('main table').length") > 0
    browser.ask("document.getElementById('theme').click()")
    assert browser.ask("document.getElementById('theme').textContent") == "Light"
    assert browser.complaints() == []


def test_where_the_charts_are_drawn_nothing_is_said_of_browsers(browser, compared, tmp_path):
    browser.open(report([compared], tmp_path / "page.html"))
    assert browser.ask("document.getElementById('undrawn').checkVisibility()") is False


def test_charts_follow_the_theme_and_the_legend(browser, compared, tmp_path):
    browser.open(report([compared], tmp_path / "page.html"))
    stroke = "document.querySelector('#figure-accuracy .js-line').style.stroke"
    lines = "document.querySelectorAll('#figure-accuracy .lines .js-line').length"
    light = browser.ask(stroke)
    browser.ask("document.getElementById('theme').click()")
    assert browser.ask(stroke) != light
    assert browser.ask("document.getElementById('theme').textContent") == "Light"
    browser.ask("document.getElementById('theme').click()")
    assert browser.ask(stroke) == light
    before = browser.ask(lines)
    browser.ask("document.querySelector('#figure-loss .legend button').click()")
    assert browser.ask(lines) < before
    assert browser.ask("document.querySelector('#figure-accuracy .legend button').ariaPressed") == "false"
    assert browser.complaints() == []


def test_on_paper_charts_are_light_and_as_wide_as_a_sheet(browser, compared, tmp_path):
    browser.open(report([compared], tmp_path / "page.html"), dark=True)
    widest = "Math.max(...[...document.querySelectorAll('.chart svg')].map(svg => svg.clientWidth))"
    browser.ask(f"addEventListener('beforeprint', () => {{ window.onPaper = {widest} }})")
    browser.call("Page.printToPDF")
    assert 500 < browser.ask("onPaper") <= 700
    assert browser.ask(widest) > 700
    assert browser.ask("document.documentElement.dataset.theme") is None
    assert browser.complaints() == []


def test_on_a_phone_captions_are_read_whole_and_cells_numbers_stand_out(browser, compared, tmp_path):
    browser.open(report([compared], tmp_path / "page.html"))
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    right = browser.ask(
        "[...document.querySelectorAll('.scroll > table > caption')].map(one => one.getBoundingClientRect().right)"
    )
    assert right and max(right) <= 390
    inks = browser.ask(
        "[...document.querySelectorAll('#figure-classes .heatmap-label text')].map(one => getComputedStyle(one).fill)"
    )
    assert set(inks) <= {"rgb(11, 23, 34)", "rgb(255, 255, 255)"} and len(set(inks)) == 2
