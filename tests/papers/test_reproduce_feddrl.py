"""FedDRL's reproduction: its runs, the agents trained for it, and its page."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from covey.aggregation.agent_file import agent_digest
from covey.environment.partition import client_order
from covey.job.comparison.statistics import best_accuracy
from papers import Request, Store, machine_settings, papers
from papers.agents import agent_file, missing_agents, train
from papers.curves import mean_curve
from papers.feddrl.results import rounds_to_lowest, usual_accuracy
from papers.feddrl.scales import METHODS, ONLINE, RULE, SCALES
from papers.grid import PlannedRun
from papers.page import Chart, markdown
from papers.store import CENTRAL, Result
from tests.conftest import without_timings
from tests.papers.small_papers import made_up, planned_run, reproduced, result_of, rising, rows_of, section, stored

FEDDRL = papers["feddrl"]
SMOKE, FULL = FEDDRL.scale("smoke"), FEDDRL.scale("paper")
MACHINE = machine_settings(SMOKE, None, None)


def plan(scale=FULL, **wanted):
    return FEDDRL.plan(scale, Request(**wanted))


def planned(environment="fashion-ce-100", method="fedavg", variant="", seed=0, scale=FULL) -> PlannedRun:
    return planned_run(FEDDRL, scale, environment, method, variant, Request(seeds=(seed,)))


def made(level, method="fedavg", environment="fashion-ce-100", variant="", seed=0, rise=100, **more) -> Result:
    """A run at the paper's scale that rises in a straight line to `level` within `rise` rounds, and stays there."""
    return made_up(FEDDRL, planned(environment, method, variant, seed), rising(level, rise), **more)


def page(*results: Result) -> str:
    return markdown(FEDDRL.page(FULL, stored(*results)))


def test_fashion_mnist_comes_first_with_five_seeds_and_all_methods():
    first, single, hard, _, rule, online = plan()[:6]
    assert {run.environment for run in first.runs} == {"fashion-ce-100", "fashion-cn-100"}
    assert {run.seed for run in first.runs} == {0, 1, 2, 3, 4}
    assert {run.method for run in first.runs} == set(METHODS) - {CENTRAL}
    assert [len(block) for block in first.blocks(12)] == [10] * 5
    for run in first.runs:
        assert run.settings["rounds"] == 1000
        assert run.settings["cohort"] == 10
        assert run.settings["environment"]["delta"] == 0.6
        assert run.settings["local"] == {"epochs": 5, "batch": 10, "rate": 0.01}
        assert run.cost == 10_000_000
    assert {run.method for run in single.runs} == {CENTRAL}
    assert {run.variant for run in online.runs} == {ONLINE}
    assert {(run.method, run.variant, run.seed, run.agent) for run in rule.runs} == {
        ("feddrl-set", RULE, seed, None) for seed in range(5)
    }
    assert {run.settings["aggregator"]["learn"] for run in rule.runs} == {False}
    assert {run.environment for run in hard.runs} == {"cifar100-ce-100", "cifar100-cn-100"}
    assert {run.seed for run in hard.runs} == {0}


def test_every_table_and_figure_can_be_asked_for_and_every_run_is_possible():
    names = {name for group in plan() for name in group.feeds}
    assert names == {"table-3", "table-4", RULE, ONLINE, *(f"figure-{number}" for number in range(5, 11))}
    environments = {run.environment for group in plan() for run in group.runs}
    assert len(environments) == 3 * 2 * 3 + 2 * 2
    for group in plan(seeds=(0,)):
        for run in group.runs:
            run.config({})
    assert {run.environment for group in plan(environments=("fashion",)) for run in group.runs} == {
        f"fashion-{split}-{clients}" for split in ("pa", "ce", "cn") for clients in (10, 100)
    }


def test_every_seed_has_an_agent_of_its_own_trained_on_the_federation_of_that_seed():
    decided = [run for group in plan() for run in group.runs if run.agent]
    for run in decided:
        assert run.agent is not None
        assert run.agent.settings["seed"] == run.seed
        assert run.agent.name.endswith(f"-seed{run.seed}")
        assert run.settings["numbering"] == run.agent.settings["numbering"] == "shuffled"
    first = {run.agent.name for run in plan()[0].runs if run.agent}
    assert first == {
        f"fashion-{split}-100-{name}-2x300-seed{seed}"
        for split in ("ce", "cn")
        for name in ("feddrl", "feddrl-set")
        for seed in range(5)
    }
    larger = planned("cifar100-ce-100", "feddrl", "cohort50").agent
    assert larger is not None
    assert larger.settings["cohort"] == 50
    assert planned("cifar100-ce-100", "feddrl-set", "cohort50").agent == planned("cifar100-ce-100", "feddrl-set").agent
    assert planned("fashion-ce-100", "feddrl", ONLINE).agent is None


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a part of the smoke scale."""
    folder = tmp_path_factory.mktemp("feddrl")
    wanted = Request(seeds=(0,), environments=("digits-ce-20",), only=("table-3",))
    outcome = reproduced(FEDDRL, SMOKE, folder, wanted)
    assert outcome.finished == outcome.runs == len(METHODS)
    again = reproduced(FEDDRL, SMOKE, folder, wanted)
    assert (again.rounds, again.finished) == (0, again.runs)
    return folder


def test_runs_are_decided_by_the_agents_in_the_work_folder(played):
    store = Store.read(played / "results")
    run = planned("digits-ce-20", "feddrl", scale=SMOKE)
    assert run.agent is not None
    path = agent_file(played / "work", run.agent)
    with safe_open(str(path), framework="pt") as file:
        about = json.loads(file.metadata()["agent"])
    assert about["trained_on"]["workers"] == 2
    assert about["trained_on"]["seed"] == run.agent.settings["seed"]
    result = result_of(store, run.name)
    assert result.config["aggregator"]["agent"] == run.agent.name
    assert result.agent == {"digest": agent_digest(path), "seed": 0}
    assert result.config["aggregator"]["learn"] is False
    assert str(played) not in result.as_text()
    assert len(result.impact) == 20
    assert len(result.client_loss["variance"]) == len(result.evaluations) == 6
    first = result_of(store, planned("digits-ce-20", "fedavg", scale=SMOKE).name).client_loss["mean"][0]
    assert first is not None
    assert first > 0
    assert len(result_of(store, planned("digits-ce-20", CENTRAL, scale=SMOKE).name).skew) == 1


def test_the_page_is_made_of_what_was_run(played):
    text = markdown(FEDDRL.page(SMOKE, Store.read(played / "results")))
    assert "from the 6 runs in `feddrl-smoke`" in text
    assert len(rows_of(section(text, "Table 3"), "digits", "20", "CE")) == len(METHODS)
    assert "figure-5-digits-ce-20.csv" in text
    assert "figure-6-digits-ce-20-variance.csv" in text
    assert len(rows_of(section(text, "Impact factors"), "digits")) == 3
    assert "covey reproduce feddrl --scale smoke --only online" in text


def test_a_stopped_training_resumes_to_the_same_agent(tmp_path):
    runs = [planned("digits-ce-20", "feddrl-set", scale=SMOKE)]
    agents = missing_agents(runs, tmp_path / "cut")
    assert [agent.name for agent in agents] == ["digits-ce-20-feddrl-set-2x10-seed0"]
    configs = {agent.name: runs[0].config(MACHINE).of({**agent.settings, **MACHINE}) for agent in agents}
    rounds = []

    def told(number, record):
        rounds.append((number, record["round"]))

    assert not train(agents, configs, tmp_path / "cut", told, lambda: len(rounds) >= 7)
    assert missing_agents(runs, tmp_path / "cut")
    assert train(agents, configs, tmp_path / "cut", told)
    assert len(rounds) == 20
    assert train(agents, configs, tmp_path / "whole")
    one, other = (agent_file(tmp_path / place, agents[0]).read_bytes() for place in ("cut", "whole"))
    assert one == other
    assert not missing_agents(runs, tmp_path / "cut")


@pytest.mark.slow
def test_on_a_stack_agents_are_trained_together_and_runs_advance_together(tmp_path):
    said = []
    outcome = reproduced(
        FEDDRL,
        SMOKE,
        tmp_path,
        Request(seeds=(0,), environments=("digits-ce-20",), methods=("fedavg", "feddrl", "feddrl-set"), rounds=3),
        machine={"runtime": "stacked", "device": "cpu"},
        on_run=lambda label, seed, rounds: said.append((label, rounds)),
    )
    assert outcome.finished == outcome.runs
    assert said[0] == ("digits, 20 clients, CE and CN, agents are trained", 2 * 2 * 10)
    assert said[1] == ("digits, 20 clients, CE and CN, 3 runs in lockstep", 3 * 3)


def test_time_may_run_out_while_agents_are_trained(tmp_path):
    wanted = Request(seeds=(0,), environments=("digits-ce-20",), methods=("feddrl",), only=("table-3",))
    first = reproduced(FEDDRL, SMOKE, tmp_path, wanted, minutes=1e-6)
    assert (first.stopped, first.finished) == ("time", 0)
    assert reproduced(FEDDRL, SMOKE, tmp_path, wanted).finished == 1


def test_the_page_says_how_far_ahead_methods_are_and_what_the_paper_prints():
    runs = [made(0.84 + 0.01 * seed, "fedavg", seed=seed, rise=400) for seed in (0, 1, 2)]
    runs += [made(0.86 + 0.01 * seed, "feddrl-set", seed=seed, rise=200) for seed in (0, 1, 2)]
    runs += [made(0.85 + 0.01 * seed, "loss-softmax", seed=seed, rise=100) for seed in (0, 1, 2)]
    runs += [made(0.8, "feddrl")]
    text = page(*runs)
    opening = text.split("## Setup")[0]
    (over_fedavg,) = rows_of(opening, "CE", "FedDRL for sets", "FedAvg")
    assert over_fedavg[3:6] == ["-", "+2.00 ± 0.00", "yes"]
    (over_softmax,) = rows_of(opening, "CE", "FedDRL for sets", "loss softmax")
    assert over_softmax[3:6] == ["-", "+1.00 ± 0.00", "yes"]
    (ours,) = rows_of(opening, "CE", "FedDRL", "FedAvg")
    assert ours[3:6] == ["+1.83", "-4.00", "one seed"]
    (row,) = rows_of(section(text, "Table 3"), "Fashion-MNIST", "100", "CE", "FedDRL")
    assert row[4:6] == ["86.71", "80.00"]
    assert row[7:9] == ["+1.83", "-4.00"]
    assert "cifar100-ce-100" in section(text, "Table 3").split("Not run yet")[1]


def test_accuracy_at_any_time_is_the_mean_over_the_second_half():
    steady = made(0.8, rise=10)
    late = made(0.9, "feddrl-set", rise=1_000)
    assert usual_accuracy(steady) == pytest.approx(0.8)
    assert usual_accuracy(late) == pytest.approx(np.mean(late.accuracy[late.evaluations > 500]))
    assert usual_accuracy(late) < best_accuracy(late)
    assert usual_accuracy(late, 600) == pytest.approx(
        np.mean(late.accuracy[(late.evaluations > 300) & (late.evaluations <= 600)])
    )
    text = page(steady, made(0.8, seed=1, rise=10), late, made(0.9, "feddrl-set", seed=1, rise=1_000))
    (row,) = rows_of(section(text, "Accuracy at any time"), "Fashion-MNIST", "100", "CE", "FedDRL for sets")
    assert float(row[5].split()[0]) == pytest.approx(100 * (usual_accuracy(late) - 0.8), abs=0.011) and row[7] == "2"
    assert "the mean over the second half of the rounds" in text


def test_curves_are_means_over_the_last_evaluations():
    run = made(0.8, rise=500)
    rounds, plain = mean_curve({0: run})
    same, smooth = mean_curve({0: run}, smooth=10)
    assert rounds == same and rounds[-1] == 1_000
    at = rounds.index(500)
    inside = (run.evaluations <= 500) & (run.evaluations > 500 - 10 * run.evaluations[0])
    assert inside.sum() == 10 and smooth[at].mean == pytest.approx(run.accuracy[inside].mean())
    assert smooth[at].mean < plain[at].mean and smooth[0].mean <= plain[0].mean


def test_rounds_are_counted_to_the_lowest_of_the_best():
    fast, slow = {0: made(0.9, "fedavg", rise=100)}, {0: made(0.8, "fedprox", rise=200)}
    found = rounds_to_lowest({"fedavg": fast, "fedprox": slow})
    assert found is not None
    target, taken = found
    assert target.mean == 0.8
    assert (taken["fedavg"].mean, taken["fedprox"].mean) == (90, 200)
    assert rounds_to_lowest({"fedavg": fast}) is None
    assert best_accuracy(fast[0], 50) == pytest.approx(0.45)


def test_weights_of_the_main_group_are_set_against_the_others():
    impact = np.where(client_order(100, 0, "shuffled") < 60, 0.05, 0.175).tolist()
    (row,) = rows_of(section(page(made(0.8, "feddrl", impact=impact)), "Impact factors"), "Fashion-MNIST")
    assert row[4:] == ["0.50", "1.75"]


def test_losses_are_shown_relative_to_feddrls():
    def told(mean):
        count = 200
        return {"mean": [mean] * count, "variance": [mean / 10] * count, "gap": [mean] * count}

    runs = [made(0.8, "feddrl", client_loss=told(0.5)), made(0.8, "fedavg", client_loss=told(1.0))]
    shown = FEDDRL.page(FULL, stored(*runs))
    charts = (part for part in shown.parts if isinstance(part, Chart))
    chart = next(part for part in charts if part.name == "figure-6-fashion-ce-100-mean")
    assert chart.series[0].label == "FedAvg"
    assert np.allclose(chart.series[0].y, 2.0)


def test_how_evenly_clients_are_served_and_who_is_fast_is_said_in_words():
    def told(variance):
        # The first half does not count.
        return {"mean": [1.0] * 200, "variance": [9.0] * 100 + [variance] * 100, "gap": [1.0] * 200}

    runs = [made(0.80, client_loss=told(0.4 + 0.01 * seed), seed=seed) for seed in (0, 1)]
    runs += [made(0.82, "feddrl-set", client_loss=told(0.2 + 0.01 * seed), seed=seed, rise=50) for seed in (0, 1)]
    runs += [made(0.81, "loss-softmax", seed=seed) for seed in (0, 1)]
    even = section(page(*runs), "Figure 6")
    assert (
        "- Fashion-MNIST, 100 clients, CE: the variance of clients' losses, over the second half of the rounds, is "
        "0.51 times FedAvg's with FedDRL for sets (a difference clear of zero)."
    ) in even
    assert "with loss softmax" not in even
    assert "times FedAvg's with FedDRL for sets (one seed, no interval)." in section(page(runs[0], runs[2]), "Figure 6")
    # Against an unfinished run, the other's rounds count only as far as it got.
    short = made(
        0.82, "feddrl-set", rounds=500, client_loss={name: [3.0] * 100 for name in ("mean", "variance", "gap")}
    )
    assert "is 0.33 times FedAvg's with FedDRL for sets (one" in section(page(runs[0], short), "Figure 6")
    fast = section(page(*runs), "Figure 10")
    assert "CE: the fastest on average is FedDRL for sets (50 rounds); FedAvg takes 2.0 times as many." in fast
    assert "CE: the fastest on average is FedAvg (100 rounds).\n" in section(page(runs[0], runs[4]), "Figure 10")


def test_what_learning_adds_to_the_rule_that_an_agent_begins_as_is_shown():
    runs = [made(0.80, seed=seed) for seed in (0, 1)]
    runs += [made(0.84 + 0.01 * seed, "feddrl-set", seed=seed) for seed in (0, 1)]
    runs += [made(0.83, "feddrl-set", variant=RULE, seed=seed) for seed in (0, 1)]
    text = section(page(*runs), "FedDRL for sets without learning")
    begins, taught, adds = rows_of(text, "CE")
    assert begins[1:4] == ["untrained", "83.00 ± 0.00", "+3.00 ± 0.00"]
    assert taught[1:4] == ["two stages", "84.50 ± 6.35", "+4.50 ± 6.35"]
    assert adds[1:4] == ["difference", "-", "+1.50 ± 6.35"]
    moved = (
        "CE: learning in two stages moves the best accuracy by +1.50 ± 6.35 points (within the noise of these seeds)"
    )
    assert f"{moved} and the mean over the second half by +1.50 ± 6.35 points" in text
    assert "not run yet. To run it: `covey reproduce feddrl --only rule`" in page(*runs[:4])


def test_learning_in_the_run_is_held_against_two_stages_as_far_as_it_has_come():
    runs = [made(0.80, seed=seed) for seed in (0, 1)]
    runs += [made(0.81, "feddrl", seed=seed, rise=1000) for seed in (0, 1)]
    assert "not run yet" in section(page(*runs), "Agents without a first stage")
    runs += [made(0.81, "feddrl", variant=ONLINE, seed=seed, rise=1000, rounds=500) for seed in (0, 1)]
    text = section(page(*runs), "Agents without a first stage")
    two, live, *_ = rows_of(text, "CE")
    assert two[1:3] == ["FedDRL", "two stages"]
    assert live[1:3] == ["FedDRL", "online"]
    assert live[4].endswith("so far")
    assert live[-1] == "500 of 1,000"
    moved = "CE: learning in the run instead of two stages before it, with FedDRL, moves the best accuracy by"
    assert f"{moved} +0.00 ± 0.00 points" in text, "of the finished run, no more rounds count than the other has"
    assert text.rstrip().endswith("so far.")


def test_whether_the_papers_gain_is_reached_is_said_plainly():
    text = page(made(0.80), made(0.81, "feddrl"), made(0.83, "feddrl-set"))
    assert "CE: FedDRL does not reach the paper's gain over FedAvg (+1.83 points)." in text
    assert "CE: FedDRL for sets reaches the paper's gain over FedAvg (+1.83 points) on average, by the best" in text


def test_shards_are_asked_for_where_there_are_runs_of_them():
    known = {run.environment for group in plan() for run in group.runs}
    absent = section(page(), "Table 4").split("Not run yet: ")[1].split(". To run")[0]
    assert set(absent.replace(" and ", ", ").split(", ")) <= known


def test_a_result_with_columns_that_do_not_belong_together_is_refused(tmp_path):
    store = Store(tmp_path, [])
    assert store.write(made(0.9, CENTRAL))
    assert len(Store.read(tmp_path)) == 1
    store.write(made(0.8, "feddrl", impact=[0.1] * 7))
    with pytest.raises(ValueError, match="the impact of 7"):
        Store.read(tmp_path)


def test_one_run_of_the_reproduction_is_the_run_of_the_records(played):
    """A stored result agrees with the run folder."""
    from covey import Run

    run = Run.open(played / "work" / "digits-ce-20-feddrl-set-seed0")
    result = result_of(Store.read(played / "results"), "digits-ce-20-feddrl-set-seed0")
    rows = without_timings(run.metrics)
    assert result.client_loss["mean"] == pytest.approx([row["client_loss"]["mean"] for row in rows], rel=1e-3)
    for client, factor in enumerate(result.impact):
        own = [row["figures"]["impact_factors"][str(client)] for row in rows if client in row["clients"]]
        assert (factor is None and not own) or factor == pytest.approx(np.mean(own), rel=1e-3)


def test_the_short_scale_fills_the_same_tables():
    assert SCALES["short"].store == SCALES["paper"].store
    assert SCALES["smoke"].store != SCALES["paper"].store
