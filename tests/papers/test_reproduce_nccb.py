"""NCCB's reproduction on stand-ins for its data: its runs and its page."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey import Refusal, run
from papers import Request, Store, papers
from papers.export import result_of as export
from papers.grid import PlannedRun
from papers.nccb import made_up as made_up_texts
from papers.nccb import topics as topic_texts
from papers.nccb.scales import METHODS, SCALES
from papers.page import markdown
from papers.store import Result
from tests.papers.small_papers import called, made_up, planned_run, result_of, rising, rows_of, section, stored

NCCB = papers["nccb"]
SMOKE, FULL = NCCB.scale("smoke"), NCCB.scale("paper")
BOTH = ("tweets", "blogs")


def planned(environment="tweets", method="fedavg", variant="", seed=0, scale=FULL) -> PlannedRun:
    return planned_run(NCCB, scale, environment, method, variant, Request(seeds=(seed,)))


def selector_options(environment: str, variant: str) -> Mapping[str, Any]:
    """Return the options of NCCB's selector in a planned run."""
    selector = planned(environment, "nccb", variant).config({}).selector
    assert selector is not None
    return selector.options


def made(level, method="fedavg", environment="tweets", variant="", seed=0, rise=100, rounds=300) -> Result:
    """A run at the paper's scale that rises in a straight line to `level` within `rise` rounds, and stays there."""
    return made_up(NCCB, planned(environment, method, variant, seed), rising(level, rise), rounds)


@pytest.mark.slow
def test_everything_runs_at_the_smoke_scale_and_ends_in_a_page_without_gaps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("papers.page.can_draw", lambda: False)
    answer = json.loads(called("nccb", "--scale", "smoke", "--seeds", 1, "--json").stdout)
    planned_runs = sum(len(group.runs) for group in NCCB.plan(SMOKE, Request(seeds=(0,))))
    assert answer["finished"] == answer["runs"] == planned_runs >= 31
    page = Path(answer["page"]).read_text()
    assert "not run yet" not in page
    for number in (3, 4, 5):
        assert (tmp_path / f"runs/reproduce/nccb-smoke/figure-{number}-made-up.csv").is_file()
    results = Store.read(tmp_path / "runs/reproduce/results/nccb-smoke")
    whole, fewer = (result_of(results, f"made-up-nccb-seed0{variant}") for variant in ("", "-clients8"))
    assert (len(whole.hits), len(fewer.hits)) == (16, 8)
    again = json.loads(called("nccb", "--scale", "smoke", "--seeds", 1, "--json").stdout)
    assert again["rounds"] == 0
    assert Path(answer["page"]).read_text() == page


def test_made_up_users_write_about_one_topic_each():
    dataset = made_up_texts(None)
    assert dataset.group_names == tuple(f"user {user}" for user in range(16))
    assert dataset.groups is not None
    assert np.bincount(dataset.groups).tolist() == [20] * 16
    for user in (0, 5):
        words = {dataset.class_names[int(word)] for word in dataset.y[dataset.groups == user]}
        assert {word.partition("word")[0] for word in words} == {f"topic{user % 4}"}
    assert "the" in dataset.class_names
    assert "the" not in made_up_texts(None, stop_words="remove").class_names
    assert dataset.x.equal(made_up_texts(None).x)


def test_the_papers_settings_are_those_of_its_setup():
    for corpus, clients in (("tweets", 535), ("blogs", 466)):
        config = planned(corpus, "nccb").config({})
        assert (config.clients, config.cohort, config.rounds) == (clients, 5, 300)
        assert (config.environment.name, config.dataset.name) == ("natural", corpus)
        assert config.model.options == {"embedding": 200, "hidden": 200, "layers": 2, "dropout": 0.0}
        assert (config.local.epochs, config.local.batch, config.local.decay) == (5, 10, 0.9993)
        assert config.selector is not None
        assert (config.selector.options["bits"], config.selector.options["threshold"]) == (64, 10)
        assert (config.dataset.options["minimum"], config.dataset.options["samples"]) == (150, 300)
    assert selector_options("tweets", "bits16")["bits"] == 16
    assert selector_options("tweets", "threshold200")["threshold"] == 200
    assert planned("tweets", "fedavg", "remove").config({}).dataset.options["stop_words"] == "remove"
    assert planned("blogs", "nccb", "clients100").config({}).clients == 100


def test_the_plan_names_the_options_that_tell_its_runs_from_those_with_other_defaults():
    chosen = selector_options("tweets", "")
    assert (chosen["covariance"], chosen["gamma"], chosen["stop_words"]) == ("own", 1.0, "ignore")
    assert [selector_options("blogs", "shared")[name] for name in ("covariance", "gamma")] == ["diagonal", 0.1]
    theirs = selector_options("tweets", "authors")
    assert (theirs["estimator"], theirs["schedule"], theirs["window"], theirs["train"]) == (
        "authors", "authors", 11, "reward"
    )  # fmt: skip
    assert (theirs["covariance"], theirs["ridge"], theirs["rate"], theirs["reward"]) == ("own", 1.0, 0.01, "total")
    assert selector_options("tweets", "hashed")["stop_words"] == "hash"
    for variant, model in (("", "disjoint"), ("shared", "shared")):
        linear = planned("blogs", "k-linucb", variant).config({}).selector
        assert linear is not None and linear.options["model"] == model
    # A run with the defaults of another version stays out of the tables, and the page says why.
    before = made(0.2, "nccb")
    options = {**before.config["selector"], "covariance": "diagonal", "gamma": 0.1}
    text = markdown(NCCB.page(FULL, stored(replace(before, config={**before.config, "selector": options}))))
    assert rows_of(section(text, "Table 1"), "tweets", "NCCB")[0][3] == "not run yet"
    assert "selector.covariance is 'diagonal' and not 'own'" in text


def test_regret_is_recorded_by_runs_that_decide_as_those_without(tmp_path):
    assert selector_options("tweets", "regret") == {**selector_options("tweets", ""), "regret": True}
    recorded = planned("digits", "fedavg", scale=SMOKE)
    plain = {**recorded.settings, "method": "fedavg"}
    del plain["selector"], plain["aggregator"]
    both = [run(given, workers=1, out=tmp_path / name) for name, given in (("a", plain), ("b", recorded.settings))]
    assert both[0].metrics[-1]["accuracy"] == both[1].metrics[-1]["accuracy"]
    assert [row["clients"] for row in both[0].metrics] == [row["clients"] for row in both[1].metrics]
    result = export(NCCB.name, recorded, tmp_path / "b")
    assert len(result.regret["regret"]) == 4 and (result.regret["regret"][-1] or 0) > 0
    assert all(loss is not None and loss > 0 for loss in result.regret["cohort_loss"])
    assert export(NCCB.name, recorded, tmp_path / "a").regret == {}


def test_the_most_valuable_runs_come_first_and_cost_what_the_setup_says():
    plan = NCCB.plan(FULL, Request())
    assert [run.name for run in plan[0].runs[:3]] == [
        "tweets-fedavg-seed0",
        "tweets-nccb-seed0",
        "tweets-oort-simple-seed0",
    ]
    assert plan[0].runs[0].cost == 300 * 5 * 300 * 5
    # Both corpora with all methods come first: 81 million samples.
    assert [(group.title, len(group.runs)) for group in plan[:2]] == [("tweets", 18), ("blogs", 18)]
    assert sum(group.cost for group in plan[:2]) == 81_000_000
    assert {run.method for group in plan if "table-1" in group.feeds for run in group.runs} == set(METHODS)
    figure = [run.settings["selector"]["threshold"] for run in NCCB.plan(FULL, Request(only=("figure-3",)))[0].runs]
    assert sorted({*figure, 10}) == [0, 5, 10, 15, 20, 100, 200]
    names = [run.name for group in plan for run in group.runs]
    assert len(set(names)) == len(names)


def test_the_page_says_plainly_that_these_are_not_the_papers_data():
    text = markdown(NCCB.page(FULL, stored()))
    assert "**These are not the paper's data.** Super User and Yelp were not available" in text
    assert (
        "tweets of accounts of the US Congress for Super User and posts of the Blog Authorship Corpus for Yelp" in text
    )
    assert "accuracies and rounds are not comparable with the paper's" in text
    assert rows_of(section(text, "Table 1"), "tweets", "NCCB")[0][2:] == [
        "11.78", "not run yet", "-", "-", "-", "+17.4", "-", "0", "0"
    ]  # fmt: skip
    assert rows_of(section(text, "Table 2"), "blogs", "IID")[0][2:] == ["98", "not run yet", "-", "50.0", "-", "0"]
    assert "Figure 3: not run yet. To run it: `covey reproduce nccb --only figure-3`" in text


def test_tables_show_improvements_and_rounds_to_the_best_of_random_selection():
    results = []
    for seed, extra in ((0, 0.0), (1, 0.01)):
        results.append(made(0.10 + extra, seed=seed, rise=200))
        results.append(made(0.12 + extra, "nccb", seed=seed, rise=120))
        results.append(made(0.09 + extra, "oort-simple", seed=seed, rise=120))
    text = markdown(NCCB.page(FULL, stored(*results)))
    (random,), (ours,), (oort,) = (
        rows_of(section(text, "Table 1"), "tweets", name) for name in ("random", "NCCB", "Oort (as compared)")
    )
    assert random[2:] == ["10.04", "10.50 ± 6.35", "10.50", "-", "-", "+0.0", "-", "2", "300"]
    # 2 points of 10.5 are 19 %.
    assert ours[2:] == [
        "11.78",
        "12.50 ± 6.35",
        "12.50",
        "+2.00 ± 0.00",
        "+0.000 ± 0.000",
        "+17.4",
        "+19.0",
        "2",
        "300",
    ]
    assert oort[5] == "-1.00 ± 0.00"
    speed = section(text, "Table 2")
    # 0.10 of 0.12 at round 100, 0.11 of 0.13 at 102 (every other round is evaluated).
    assert rows_of(speed, "tweets", "random")[0][2:] == ["283", "200 ± 0", "200", "0.0", "-", "2"]
    assert rows_of(speed, "tweets", "NCCB")[0][2:] == ["134", "101 ± 13", "101", "52.7", "49.5", "2"]
    assert rows_of(speed, "tweets", "Oort (as compared)")[0][3] == "not reached"
    assert "tweets: NCCB ends +2.00 ± 0.00 points from random selection (clear of zero; 2 seeds; in the paper" in text
    claims = {row[0]: row[1:] for row in rows_of(text.split("## Setup")[0])}
    assert claims["More accurate than random (Table 1)"] == [
        "**holds**",
        "tweets: +2.00 ± 0.00 (paper +1.75); not tested: blogs",
    ]
    assert claims["More accurate than Oort (as compared) (Table 1)"][1].startswith("tweets: +3.00 ± 0.00")
    assert claims["More accurate than k-LinUCB (Table 1)"] == ["**not tested**", "-"]
    assert claims["Fewer rounds to the best accuracy of random selection (Table 2)"] == [
        "**holds**",
        "tweets: 50 % saved, fewer with 2 of 2 seeds (paper 53 %)",
    ]
    assert claims["64 bits above 8 (Fig. 5)"] == ["**not tested**", "-"]


def test_a_claim_holds_if_it_does_on_all_corpora_and_not_if_on_none():
    results = [made(0.10 + seed / 100, environment=corpus, seed=seed) for corpus in BOTH for seed in (0, 1)]
    results += [made(0.12 + seed / 100, "nccb", corpus, seed=seed) for corpus in BOTH for seed in (0, 1)]
    results += [made(0.12 + seed / 50, "oort-simple", corpus, seed=seed) for corpus in BOTH for seed in (0, 1)]
    better = {row[0]: row[1:] for row in rows_of(markdown(NCCB.page(FULL, stored(*results))).split("## Setup")[0])}
    assert better["More accurate than random (Table 1)"][0] == "**holds**"
    assert better["More accurate than Oort (as compared) (Table 1)"][0] == "**open**"


def test_the_page_tells_if_cohorts_have_the_losses_that_the_method_is_after():
    def recorded(method: str, variant: str, ratio: float, regret: float, seed: int = 0) -> Result:
        plain = made(0.1, method, variant=variant, seed=seed)
        count = len(plain.evaluations)
        return replace(
            plain,
            regret={"cohort_loss": [6 * ratio] * count, "population_loss": [6.0] * count, "regret": [regret] * count},
        )

    text = markdown(
        NCCB.page(
            FULL,
            stored(
                recorded("fedavg", "regret", 1.0, 200.0),
                recorded("nccb", "regret", 1.1, 150.0),
                recorded("nccb", "regret", 1.12, 150.0, seed=1),
                recorded("nccb", "shared-regret", 0.7, 300.0),
            ),
        )
    )
    table = section(text, "Regret")
    assert rows_of(table, "tweets", "NCCB")[0][2:] == ["1.11 ± 0.13", "0.75", "2"]
    assert rows_of(table, "tweets", "NCCB, one shared Z")[0][2:] == ["0.70", "1.50", "1"]
    assert rows_of(table, "blogs", "random")[0][2:] == ["not run yet", "-", "0"]
    claims = {row[0]: row[1:] for row in rows_of(text.split("## Setup")[0])}
    assert claims["Cohorts have a higher loss than all clients (eqs. 2 and 3)"] == [
        "**open**",
        "tweets: above that of all clients by +11 ± 13 %; not tested: blogs",
    ]


def test_the_page_says_where_oort_ends_with_a_lower_test_loss():
    def lost(method: str, seed: int, loss: float) -> Result:
        plain = made(0.1, method, seed=seed)
        return replace(plain, evaluated={**plain.evaluated, "loss": [loss] * len(plain.evaluations)})

    levels = (("fedavg", 6.0), ("oort-simple", 5.8))
    apart = [lost(method, seed, level + seed) for method, level in levels for seed in (0, 1)]
    text = markdown(NCCB.page(FULL, stored(*apart)))
    assert "tweets: selection has something to win there" in text
    assert "the test loss of Oort (as compared) ends -0.200 ± 0.000 from random selection's (clear of zero)" in text
    assert rows_of(section(text, "Table 1"), "tweets", "Oort (as compared)")[0][6] == "-0.200 ± 0.000"
    same = [lost(method, seed, 6 + seed) for method in ("fedavg", "oort-simple") for seed in (0, 1)]
    assert "something to win there" not in markdown(NCCB.page(FULL, stored(*same)))


def test_runs_on_uneven_clients_have_rounds_of_their_own():
    runs = [made(0.9, "fedavg", "digits", rounds=60, rise=20), made(0.93, "nccb", "digits", rounds=60, rise=20)]
    text = markdown(NCCB.page(FULL, stored(*runs)))
    assert rows_of(section(text, "Something to win"), "digits", "NCCB")[0][2:] == [
        "93.00", "+3.00", "-", "-", "1", "60"
    ]  # fmt: skip
    assert rows_of(section(text, "Runs"), "digits", "nccb")[0][4] == "60"
    assert "digits: NCCB ends +3.00 points from random selection (one seed, no interval; 1 seed)." in text
    group = NCCB.plan(FULL, Request(only=("something-to-win",)))
    assert [(one.title, len(one.runs)) for one in group] == [
        ("digits: something to win", 60), ("made-up topics: something to win", 60)
    ]  # fmt: skip


def test_the_rarer_a_topic_the_harder_and_test_users_are_spread_over_topics():
    dataset = topic_texts(None)
    assert dataset.groups is not None
    told = [name.partition("word")[0] for name in dataset.class_names]

    def topic_of(labels):
        return next(told[int(one)] for one in labels if told[int(one)].startswith("topic"))

    users = [topic_of(dataset.y[dataset.groups == user]) for user in range(100)]
    assert [users.count(f"topic{one}") for one in range(6)] == [40, 25, 15, 10, 6, 4]
    tests = [topic_of(labels) for labels in dataset.test_y.view(24, 40)]
    assert [tests.count(f"topic{one}") for one in range(6)] == [4] * 6
    assert len(dataset.stop_words) == 10
    words = [told.count(f"topic{one}") for one in range(6)]
    assert words == sorted(words) and words[-1] > 8 * words[0]


def test_runs_that_are_under_way_do_not_end_and_may_yet_reach_what_they_have_not():
    text = markdown(NCCB.page(FULL, stored(made(0.10, rise=50), made(0.09, "nccb", rise=50, rounds=100))))
    assert "tweets: NCCB stands, after 100 of 300 rounds, -1.00 points from random selection" in text
    assert rows_of(section(text, "Table 2"), "tweets", "NCCB")[0][3] == "not reached so far"


def test_the_page_tells_how_widely_invitations_were_spread():
    few = [4] * 10 + [2] * 5 + [0] * 520
    results = [
        made(0.1),
        replace(made(0.08, "nccb"), hits=few),
        replace(made(0.11, "nccb", variant="shared"), hits=few),
    ]
    text = section(markdown(NCCB.page(FULL, stored(*results))), "Invited clients")
    (everyone,) = rows_of(text, "tweets", "random")
    assert everyone[2:5] == ["535", "535", "535"]
    # 50² / (10 · 16 + 5 · 4)
    (bandit,) = rows_of(text, "tweets", "NCCB")
    assert bandit[2:7] == ["535", "15", "14", "8.00", "-2.00"]
    (shared,) = rows_of(text, "tweets", "NCCB, one shared Z")
    assert shared[4:7] == ["14", "11.00", "+1.00"]
    # On the other corpus it has not been run.
    assert "--only shared" in text and "--only authors" in text


def test_adam_runs_have_the_papers_rate_and_layers():
    for corpus, layers in (("tweets", 2), ("blogs", 5)):
        config = planned(corpus, "nccb", "adam").config({})
        assert config.model.options["layers"] == layers
        assert (config.local.rate, config.local.decay, config.local.optimizer) == (0.002, 0.9993, "adam")
    text = section(
        markdown(NCCB.page(FULL, stored(made(0.1, variant="adam"), made(0.12, "nccb", variant="adam")))), "Adam"
    )
    assert rows_of(text, "tweets", "2", "NCCB")[0][3:5] == ["12.00", "+2.00"]
    assert "--only adam" in text


def test_a_sweep_is_over_the_seeds_that_all_of_its_values_have():
    results = [made(0.10, seed=seed) for seed in range(3)]
    results += [made(0.11 + seed / 100, "nccb", seed=seed) for seed in range(3)]
    results += [made(0.10 + bits / 10_000, "nccb", variant=f"bits{bits}", seed=0) for bits in (8, 16, 32)]
    text = markdown(NCCB.page(FULL, stored(*results)))
    table = section(text, "Figure 5")
    assert [row[1:4] for row in rows_of(table, "tweets")] == [
        ["8", "10.08", "+0.08"],
        ["16", "10.16", "+0.16"],
        ["32", "10.32", "+0.32"],
        ["64", "11.00", "+1.00"],
    ]
    assert "figure-5-tweets.csv" in table


def test_the_page_asks_for_other_rates_until_all_of_them_are_there():
    rates = sorted(SCALES["paper"].rates)
    results = [made(0.1, variant=f"rate{rate:g}") for rate in rates]
    asked = "Other rates: not run yet"
    assert len(rates) > 1
    assert asked in section(markdown(NCCB.page(FULL, stored(*results[:-1]))), "Learning rate")
    assert asked not in section(markdown(NCCB.page(FULL, stored(*results))), "Learning rate")


def test_without_its_data_the_paper_scale_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refusal, match=r"needs the file tweets.jsonl"):
        called("nccb", "--environments", "tweets", "--data-dir", "nowhere")
    with pytest.raises(Refusal, match="There is no method 'nothing'"):
        called("nccb", "--scale", "smoke", "--methods", "fedavg,nothing")
    assert list(tmp_path.iterdir()) == []


def test_results_made_with_another_rate_stay_out_of_the_tables():
    other = made(0.2)
    other = replace(other, config={**other.config, "local": {**other.config["local"], "rate": 0.01}})
    text = markdown(NCCB.page(FULL, stored(other)))
    assert rows_of(section(text, "Table 1"), "tweets", "random")[0][3] == "not run yet"
    rate = SCALES["paper"].local["rate"]
    assert f"tweets-fedavg-seed0 was made with other settings: local.rate is 0.01 and not {rate}." in text
