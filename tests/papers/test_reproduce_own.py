"""The comparison of Covey's own method: its plan, its page with and without results, and what sessions keep."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from covey.core.build import build_module, dataset_of
from covey.core.checkpoint import read_checkpoint
from covey.core.server_chain import served_model
from covey.model.layout import Layout
from papers import Request, Store, papers
from papers.branches import model_file
from papers.own.lines import FIRST, groups
from papers.own.page import make_page
from papers.own.results import OwnResults
from papers.own.scales import SCALES, TITLES
from papers.page import markdown
from papers.store import read_result
from tests.papers.small_papers import called, made_up, reproduced, rows_of, section, stored, ten_seconds_a_round

OWN = papers["own"]
SMOKE, FULL = SCALES["smoke"], SCALES["paper"]
PLAN = [run for group in OWN.plan(FULL, Request()) for run in group.runs]


def page(*results) -> str:
    return markdown(make_page(OWN, FULL, stored(*results)))


def planned(environment, method, variant="", seed=0):
    return next(
        run
        for run in PLAN
        if (run.environment, run.method, run.variant, run.seed) == (environment, method, variant, seed)
    )


def made(level, environment, method, variant="", seed=0, raw=None):
    """A run that rises to `level` within 200 rounds; its model before averaging ends at `raw`."""
    run = planned(environment, method, variant, seed)
    found = made_up(OWN, run, lambda t: level * min(1.0, t / 200))
    if raw is None:
        return found
    rounds = found.evaluated["round"]
    return replace(found, raw_accuracy=[round(raw * min(1.0, t / 200), 4) for t in rounds])


def test_every_run_of_the_plan_can_be_configured_and_has_a_name_of_its_own():
    everything = [run for group in groups(FULL, Request()) for run in group.runs]
    for name, count in Counter(run.name for run in PLAN).items():
        assert count == 1, name
    by_name: dict[str, Any] = {}
    for run in everything:
        assert by_name.setdefault(run.name, run.settings) == run.settings, run.name
    for run in PLAN:
        if run.seed == 0 and run.environment not in ("tweets", "blogs"):
            config = run.config({})
            assert config.rounds == run.rounds


def test_every_rival_also_has_momentum_and_averaging():
    for method, variant in FIRST[1:]:
        config = planned("few-class", method, variant).config({})
        assert (config.server.optimizer, config.server.rate, config.averaging.ema) == ("momentum", 0.3, 0.95)
    ours = planned("few-class", "covey").config({})
    assert (ours.server, ours.averaging) == (config.server, config.averaging)


def test_the_first_groups_fit_half_an_hour():
    seconds = 0.0
    first = list(groups(FULL, Request()))[:5]
    for group in first:
        speed = FULL.clustered.speed if group.runs[0].environment.startswith("ce") else FULL.skewed.speed
        seconds += group.cost / speed
    assert [group.runs[0].environment for group in first][:2] == ["few-class", "any"]
    assert 15 * 60 < seconds < 28 * 60


def test_without_a_run_the_page_says_so_and_claims_nothing():
    text = page()
    assert "Nothing of this page has been run at this scale yet" in text
    claims = section(text, "Claims")
    assert "**not tested**" in claims and "**holds" not in claims and "does not hold" not in claims
    assert "covey reproduce own --only must --minutes 28" in text


def test_verdicts_follow_the_runs():
    runs = []
    for seed in range(3):
        lift = 0.001 * seed
        runs.append(made(0.74 + lift, "few-class", "covey", seed=seed))
        for name, raw in (("fedavg", 0.66), ("fedacs", 0.69), ("feddrl-set", 0.66), ("nccb", 0.67)):
            runs.append(made(0.70, "few-class", name, "averaged", seed, raw=raw + 0.5 * lift))
        runs.append(made(0.76 + lift, "few-class", "oort", "plus", seed))
    text = page(*runs)
    (row,) = rows_of(text, "At least +4 over the papers' methods as printed (few classes)")
    assert row[1] == "**holds**"
    assert "FedACS: +5.0 ± 0.1" in row[2] or "FedACS: +5.1 ± 0.1" in row[2]
    (row,) = rows_of(text, "Not below Oort with momentum and averaging, in any of FedACS's environments")
    assert row[1] == "**does not hold**"
    assert "does not hold: the interval excludes it" in text
    (row,) = rows_of(text, "few classes", "random + averaged")
    assert row[2].startswith("70.0") and row[3].startswith("66.")


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [((0.70, 0.72, 0.71), "holds in part"), ((0.70, 0.78, 0.75), "open"), ((0.76, 0.77, 0.76), "does not hold")],
)
def test_not_being_below_is_judged_by_mean_and_interval(theirs, verdict):
    runs = [made(accuracy, "few-class", "oort", "plus", seed) for seed, accuracy in enumerate(theirs)]
    runs += [made(0.74, "few-class", "covey", seed=seed) for seed in range(3)]
    (row,) = rows_of(page(*runs), "Not below Oort with momentum and averaging, in any of FedACS's environments")
    assert row[1] == f"**{verdict}**"


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [((0.72, 0.73, 0.72), "holds in part"), ((0.70, 0.78, 0.71), "open"), ((0.70, 0.71, 0.69), "does not hold")],
)
def test_a_goal_of_points_is_open_where_its_interval_reaches_it(ours, verdict):
    runs = [made(accuracy, "few-class", "covey", seed=seed) for seed, accuracy in enumerate(ours)]
    runs += [made(0.70, "few-class", "fedavg", "averaged", seed, raw=0.70) for seed in range(3)]
    (row,) = rows_of(page(*runs), "At least +4 over the papers' methods as printed (few classes)")
    assert row[1] == f"**{verdict}**"


def test_rounds_to_randoms_accuracy_are_shares_of_its_rounds():
    runs = [made(0.7, "uniform", "covey"), made(0.6, "uniform", "fedavg", "averaged", raw=0.35)]
    results = OwnResults(FULL, stored(*runs), "", tuple(TITLES))
    share = results.rounds_against_random("uniform", "covey", "")
    # 0.35 is half of 0.7, reached after 100 of 1,000 rounds.
    assert share is not None and share.mean == pytest.approx(0.1)


@pytest.mark.slow
def test_a_part_runs_at_the_smoke_scale_resumes_and_ends_in_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["own", "--scale", "smoke", "--only", "few-class,clusters,on-demand,texts", "--json"]
    answer = json.loads(called(*arguments).stdout)
    assert answer["finished"] == answer["runs"] > 20
    text = (tmp_path / answer["page"]).read_text()
    assert "covey against it" in text and "Left out" not in text
    assert json.loads(called(*arguments).stdout)["rounds"] == 0


@pytest.mark.slow
def test_models_on_demand_start_from_the_average(tmp_path):
    reproduced(OWN, SMOKE, tmp_path, Request(only=("on-demand",), methods=("covey",)))
    folder = tmp_path / "work" / "ondemand-covey-seed0"
    done, state = read_checkpoint(folder)
    assert state is not None
    config = planned_smoke("ondemand", "covey").config({})
    layout = Layout.of(build_module(config, dataset_of(config)))
    kept = load_file(str(model_file(folder, done)))["model"]
    assert np.allclose(kept, served_model(state, config.averaging, layout))
    assert not np.allclose(kept, state["model"])


def planned_smoke(environment, method):
    runs = (run for group in OWN.plan(SMOKE, Request()) for run in group.runs)
    return next(run for run in runs if (run.environment, run.method) == (environment, method))


@pytest.mark.slow
def test_results_so_far_are_written_once_a_minute(tmp_path, monkeypatch):
    found = []
    tick = ten_seconds_a_round(monkeypatch)

    def on_round(record):
        tick(record)
        path = tmp_path / "results" / "few-class-covey-seed0.json"
        found.append(read_result(path).rounds if path.exists() else 0)

    wanted = Request(only=("few-class",), methods=("covey",), rounds=16)
    scale = replace(SMOKE, skewed=replace(SMOKE.skewed, rounds=16), rounds=16)
    reproduced(OWN, scale, tmp_path, wanted, on_round=on_round)
    assert len(found) == 16
    assert [value > 0 for value in found] == [False] * 6 + [True] * 10
    (stored_run,) = Store.read(tmp_path / "results")
    assert stored_run.rounds == 16 and len(stored_run.raw_accuracy) == 16
