import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from covey import Refusal, methods
from covey.core.records import read_metrics
from covey.job.comparison.statistics import (
    Estimate,
    accuracy_at,
    paired_difference,
    paired_values,
    rounds_to_target,
    share_of_gap,
    terminal_accuracy,
)
from papers import Paper, Request, Store, find_paper, machine_settings, papers, pictures, reproduce
from papers.export import true_skew
from papers.fedacs.scales import METHODS, SCALES
from papers.grid import Group, PlannedRun, differences
from papers.page import Chart, Page, Series, Table, markdown, write_page
from papers.sentences import made_by
from papers.store import Result, read_result
from papers.wording import spread
from tests.papers.small_papers import (
    called,
    made_up,
    planned_run,
    reproduced,
    result_of,
    results_of,
    rising,
    rows_of,
    runs_together,
    section,
    stored,
    ten_seconds_a_round,
)

REPOSITORY = Path(__file__).resolve().parents[2]
FEDACS = papers["fedacs"]
SMOKE, FULL = FEDACS.scale("smoke"), FEDACS.scale("paper")
AVAILABLE = [name for name in METHODS if name in methods.names()]


def smoke(folder: Path, methods=("fedavg",), rounds=4, environments=("uniform",), machine=None, **more):
    """Reproduce a small part into `folder`."""
    seeds, only = more.pop("seeds", (0,)), more.pop("only", ("table-2",))
    wanted = Request(seeds=seeds, environments=environments, methods=tuple(methods), rounds=rounds, only=only)
    return reproduced(FEDACS, SMOKE, folder, wanted, machine=machine, **more)


def planned(environment="uniform", method="fedavg", variant="", scale=FULL, seed=0) -> PlannedRun:
    wanted = Request(seeds=(seed,), methods=tuple(dict.fromkeys((*METHODS, method))))
    return planned_run(FEDACS, scale, environment, method, variant, wanted)


def made(level, environment="uniform", method="fedavg", seed=0, variant="", rounds=1000, rise=200) -> Result:
    """A run at the paper's scale that rises in a straight line to `level` within `rise` rounds, and stays there.

    Its columns take as many characters as real ones.
    """
    generator = np.random.default_rng(seed)
    run = planned(environment, method, variant, seed=seed)
    clients = run.settings["clients"]
    result = made_up(
        FEDACS,
        run,
        rising(level, rise),
        rounds,
        cohort_skew=generator.random(rounds).round(3).tolist(),
        skew=generator.random(clients).round(3).tolist(),
        hits=generator.integers(100, 200, clients).tolist(),
        seconds={"clients": 1234.5, "probes": 12.3, "total": 2345.6},
    )
    at = result.evaluated["round"]
    columns = {
        "loss": [1.2345] * len(at),
        "bytes_up": [10_000_000_000 + 2_500_000 * t for t in at],
        "bytes_down": [10_000_000_000 + 2_500_000 * t for t in at],
        "probe_bytes": [34_000 * t if method == "fedacs" else 0 for t in at],
    }
    return replace(result, evaluated={**result.evaluated, **columns})


def data_of(result: Result) -> tuple:
    """Return the fields that do not depend on when and where a run was made."""
    return result.rounds, result.finished, result.evaluated, result.cohort_skew, result.hits, result.measurements


# Running


@pytest.mark.slow
def test_everything_runs_at_the_smoke_scale_and_ends_in_a_page_without_gaps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["fedacs", "--scale", "smoke", "--methods", ",".join(AVAILABLE), "--rounds", 2, "--seeds", 1]
    answer = json.loads(called(*arguments, "--json").stdout)
    assert answer["finished"] == answer["runs"]
    assert answer["stopped"] == ""
    page = Path(answer["page"]).read_text()
    if set(METHODS) <= set(AVAILABLE):
        assert "not run yet" not in page
    for number in (2, 5, 7, 9, 10):
        assert (tmp_path / f"runs/reproduce/fedacs-smoke/figure-{number}.csv").is_file()
    again = json.loads(called(*arguments, "--json").stdout)
    assert again["rounds"] == 0
    assert Path(answer["page"]).read_text() == page


def test_iid_runs_once_for_all_environments(tmp_path):
    outcome = smoke(tmp_path, ("iid", "fedavg"), rounds=1, environments=("uniform", "pareto"))
    names = sorted(path.stem for path in (tmp_path / "results").iterdir())
    assert names == ["any-iid-seed0", "inverse-pareto-fedavg-seed0", "uniform-fedavg-seed0"]
    assert outcome.runs == outcome.finished == 3


def test_a_stored_run_says_what_its_records_say(tmp_path):
    smoke(tmp_path)
    (result,) = Store.read(tmp_path / "results")
    rows = read_metrics(tmp_path / "work" / result.name)
    assert result.finished
    assert result.accuracy.tolist() == pytest.approx([row["accuracy"] for row in rows], abs=1e-4)
    assert result.evaluated["bytes_up"][-1] == sum(row["bytes_up"] for row in rows)
    assert result.cohort_skew == pytest.approx([row["cohort_skew"] for row in rows], abs=1e-3)
    assert result.hits == [sum(client in row["clients"] for row in rows) for client in range(20)]
    assert result.skew == pytest.approx(true_skew(tmp_path / "work" / result.name), abs=1e-3)
    assert "data_dir" not in result.config


def test_when_the_time_is_over_everything_is_kept_and_the_next_call_resumes(tmp_path, monkeypatch):
    smoke(tmp_path / "whole", ("fedavg", "iid"), rounds=6)
    on_round = ten_seconds_a_round(monkeypatch)
    first = smoke(tmp_path / "parts", ("fedavg", "iid"), rounds=6, minutes=0.5, on_round=on_round)
    (partial,) = Store.read(tmp_path / "parts/results")
    assert (first.stopped, first.finished, first.rounds) == ("time", 0, 4)
    assert (partial.finished, partial.rounds) == (False, 4)
    second = smoke(tmp_path / "parts", ("fedavg", "iid"), rounds=6, on_round=on_round)
    assert (second.stopped, second.finished, second.rounds) == ("", 2, 12 - 4)
    for whole, parts in results_of(tmp_path, "whole", "parts"):
        assert data_of(whole) == data_of(parts)


def test_ctrl_c_finishes_the_round_and_keeps_it(tmp_path):
    def interrupt(record):
        if record["round"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    outcome = smoke(tmp_path, rounds=6, on_round=interrupt)
    (result,) = Store.read(tmp_path / "results")
    assert outcome.stopped == "interrupt"
    assert result.rounds == 3
    assert not result.finished


def test_a_begun_run_keeps_the_numbers_of_its_clients(tmp_path):
    def die(record):
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        smoke(tmp_path, rounds=6, on_round=die)
    path = tmp_path / "work/uniform-fedavg-seed0/config.json"
    written = json.loads(path.read_text())
    assert written["config"]["numbering"] == "shuffled"
    written["config"]["numbering"] = "environment"
    path.write_text(json.dumps(written))
    shutil.rmtree(tmp_path / "results")
    smoke(tmp_path, rounds=6)
    (result,) = Store.read(tmp_path / "results")
    assert (result.rounds, result.config["numbering"]) == (6, "environment")


def test_what_a_killed_call_left_in_the_work_folder_reaches_the_store(tmp_path):
    def die(record):
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        smoke(tmp_path, rounds=6, on_round=die)
    shutil.rmtree(tmp_path / "results")
    (tmp_path / "work/any-iid-seed0").mkdir()
    (tmp_path / "work/any-iid-seed0/environment.json").write_text("{}")
    smoke(tmp_path, ("fedavg", "iid"), rounds=3)
    assert {result.name: result.rounds for result in Store.read(tmp_path / "results")} == {
        "uniform-fedavg-seed0": 3,
        "any-iid-seed0": 3,
    }


def test_a_run_is_extended_to_more_rounds_and_a_finished_one_needs_no_folder(tmp_path):
    smoke(tmp_path / "whole", rounds=4)
    smoke(tmp_path / "parts", rounds=2)
    assert smoke(tmp_path / "parts", rounds=4).rounds == 2
    (whole,), (parts,) = (Store.read(tmp_path / name / "results") for name in ("whole", "parts"))
    assert data_of(whole) == data_of(parts)
    shutil.rmtree(tmp_path / "parts/work")
    assert smoke(tmp_path / "parts", rounds=3).rounds == 0
    assert result_of(Store.read(tmp_path / "parts/results"), "uniform-fedavg-seed0").rounds == 4


def test_runs_of_a_block_advance_in_lockstep_on_the_stack(tmp_path, monkeypatch):
    together = runs_together(monkeypatch)
    machine = {"runtime": "stacked", "device": "cpu", "precision": "fp32"}
    outcome = smoke(tmp_path / "stack", ("fedavg", "iid"), rounds=2, seeds=(0, 1), machine=machine)
    assert outcome.finished == 4
    assert together == [4]
    smoke(tmp_path / "local", ("fedavg", "iid"), rounds=2, seeds=(0, 1))
    assert together == [4, 1, 1, 1, 1]
    for stack, local in results_of(tmp_path, "stack", "local"):
        assert stack.hits == local.hits
        assert stack.accuracy == pytest.approx(local.accuracy, abs=0.02)


@pytest.mark.skipif("fedacs" not in methods.names(), reason="FedACS is not there")
def test_measuring_all_clients_does_not_change_a_run_and_ranks_them_by_skew(tmp_path):
    smoke(tmp_path, rounds=6, environments=("uniform-observed",), only=("figure-4",))
    (result,) = Store.read(tmp_path / "results")
    assert [one["round"] for one in result.measurements] == [1, 5]
    assert all(len(one["scores"]) == 20 for one in result.measurements)
    assert np.corrcoef(result.skew, result.measurements[-1]["scores"])[0, 1] < -0.5
    run = planned("uniform-observed", "fedavg", scale=SMOKE)
    plain = replace(run, settings={**run.settings, "rounds": 6}, measured=())
    paper = replace(FEDACS, groups=lambda scale, wanted: [Group("plain", ("figure-4",), (plain,))])
    machine = machine_settings(SMOKE, None, None)
    where = {"results": tmp_path / "plain", "work": tmp_path / "plain-work", "machine": machine}
    reproduce(paper, SMOKE, Request(), **where)
    (other,) = Store.read(tmp_path / "plain")
    assert (other.evaluated, other.hits) == (result.evaluated, result.hits)


def test_a_group_is_cut_into_blocks_of_whole_seeds():
    runs = tuple(planned(method=method, seed=seed) for seed in range(5) for method in ("fedavg", "fedacs", "rexp3"))
    blocks = list(Group("some", (), runs).blocks(12))
    assert [len(block) for block in blocks] == [6, 9]
    assert [run for block in blocks for run in block] == list(runs)
    assert [len(block) for block in Group("some", (), runs).blocks(1)] == [3] * 5


def test_the_most_valuable_runs_come_first_and_cost_what_the_paper_says():
    plan = FEDACS.plan(FULL, Request())
    first = [run.name for run in plan[0].runs[:3]]
    assert first == ["any-iid-seed0", "uniform-fedavg-seed0", "uniform-fedacs-seed0"]
    names = [run.name for group in plan for run in group.runs]
    assert len(set(names)) == len(names)
    assert plan[0].runs[0].cost == 1000 * 10 * 2000 * 5
    assert FEDACS.plan(FEDACS.scale("short"), Request())[0].cost == 6 * 300 * 10 * 2000 * 5


def test_the_papers_settings_are_those_of_section_seven():
    config = planned("uniform", "fedavg").config({})
    local = config.local
    assert (config.clients, config.cohort, config.rounds) == (200, 10, 1000)
    assert config.environment.options["samples"] == 2000
    assert (local.epochs, local.batch, local.rate, local.decay) == (5, 400, 0.1, 0.9993)
    assert (local.momentum, local.weight_decay, local.crop, local.flip) == (0.5, 5e-4, 4, True)
    assert config.model.name == "tutorial-cnn"
    printed = planned("uniform", "fedavg", "printed").config({}).local
    assert (printed.momentum, printed.weight_decay, printed.crop, printed.flip) == (0.0, 0.0, 0, False)
    for name in SCALES:
        assert SCALES[name].small_pool in SCALES[name].pools


def test_a_machine_without_a_gpu_computes_in_fp32_on_the_local_runtime(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine_settings(FULL, None, "data") == {"runtime": "local", "precision": "fp32", "data_dir": "data"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert machine_settings(FULL, None, None) == {"runtime": "stacked", "precision": "bf16"}
    assert machine_settings(FULL, "local", None)["precision"] == "fp32"


# Refusals


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], "There is no paper 'nothing' to reproduce. Papers: fedacs"),
        (["fedacs", "--scale", "huge"], "There is no scale 'huge' of fedacs. Scales: smoke, short, paper"),
        (["fedacs", "--scale", "smoke", "--methods", "fedavg,nothing"], "There is no method 'nothing'"),
        (["fedacs", "--scale", "smoke", "--environments", "mars"], "There is no environment 'mars' in fedacs"),
        (["fedacs", "--scale", "smoke", "--only", "figure-99"], "'figure-99' is nothing to reproduce of fedacs"),
        (["fedacs", "--scale", "smoke", "--only", "figure-7,tables"], "goes with nothing else"),
        (["fedacs", "--scale", "smoke", "--methods", "iid", "--only", "figure-5"], "Nothing of fedacs is left to run"),
        (["fedacs", "--scale", "smoke", "--seeds", "few"], "--seeds takes a number"),
        (["fedacs", "--scale", "smoke", "--seeds", "0"], "at least one seed"),
        (["fedacs", "--scale", "smoke", "--seeds", "1,1"], "not all different"),
        (["fedacs", "--scale", "smoke", "--rounds", "0"], "rounds must be at least 1"),
        (["fedacs", "--scale", "smoke", "--methods", "fedavg", "--minutes", "0"], "minutes must be above 0"),
        (["fedacs", "--scale", "smoke", "--methods", "fedavg", "--runtime", "cloud"], "There is no runtime 'cloud'"),
        (["fedacs", "--methods", "fedavg,iid", "--data-dir", "nowhere"], "needs the files"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_the_impossible_is_refused_before_anything_is_written(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refusal, match=sentence):
        called(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_other_settings_under_the_same_name_are_refused_before_anything_runs(tmp_path):
    smoke(tmp_path, rounds=1)
    run = planned(scale=SMOKE)
    changed = replace(run, settings={**run.settings, "cohort": 5})
    paper = replace(FEDACS, groups=lambda scale, wanted: [Group("changed", ("table-2",), (changed,))])
    machine = machine_settings(SMOKE, None, None)
    with pytest.raises(Refusal, match=r"other settings .cohort is 4 and not 5.*--results"):
        reproduce(paper, SMOKE, Request(), results=tmp_path / "results", work=tmp_path / "new", machine=machine)
    with pytest.raises(Refusal, match=r"other settings .cohort is 4 and not 5.*--work"):
        reproduce(paper, SMOKE, Request(), results=tmp_path / "new", work=tmp_path / "work", machine=machine)
    assert not (tmp_path / "new").exists()


# The store


def test_a_result_comes_back_as_it_was_written(tmp_path):
    result = made(0.7)
    assert Store(tmp_path, []).write(result)
    (back,) = Store.read(tmp_path)
    assert back.as_text() == result.as_text()
    assert data_of(back) == data_of(result)


def test_a_thousand_rounds_take_less_than_thirty_kilobytes():
    scores = (-np.random.default_rng(0).random(200) * 10).round(2).tolist()
    measured = [{"round": at, "cohort": list(range(190, 200)), "scores": scores} for at in SCALES["paper"].measured]
    result = replace(made(0.71234, method="fedacs"), measurements=measured)
    assert len(result.as_text()) < 30_000
    assert len(made(0.71234, method="fedacs").as_text()) < 22_000


def test_a_longer_run_is_never_replaced_by_a_shorter_one(tmp_path):
    store = Store(tmp_path, [])
    assert store.write(made(0.7, rounds=300))
    assert not store.write(made(0.9, rounds=200))
    assert not store.write(made(0.9, rounds=300))
    assert result_of(Store.read(tmp_path), "uniform-fedavg-seed0").accuracy.max() == 0.7
    assert store.write(made(0.7, rounds=1000))
    assert result_of(Store.read(tmp_path), "uniform-fedavg-seed0").finished


def test_a_run_with_other_settings_does_not_replace_a_result(tmp_path):
    store = Store(tmp_path, [made(0.7, rounds=300)])
    longer = made(0.7)
    other = replace(longer, config={**longer.config, "cohort": 20})
    with pytest.raises(Refusal, match=r"holds a run with other settings .cohort is 10 and not 20"):
        store.write(other)
    grown = replace(longer, config={**longer.config, "selector": {**longer.config["selector"], "new": 1}})
    assert store.write(grown)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda data: data["evaluated"]["accuracy"].pop(), "different lengths"),
        (lambda data: data["cohort_skew"].pop(), "1000 rounds but 999 cohort skews"),
        (lambda data: data["hits"].pop(), "200 clients but the hits of 199"),
        (lambda data: data["evaluated"]["round"].reverse(), "do not ascend"),
        (lambda data: data["evaluated"]["accuracy"].__setitem__(3, 70.1), "not a fraction"),
        (lambda data: data.__setitem__("rounds", 900), "evaluations beyond them"),
        (lambda data: data.__setitem__("finished", False), "not as finished as it says"),
        (lambda data: data.__setitem__("format", 99), "newer version"),
        (lambda data: data.__setitem__("seed", 3), "it holds the run uniform-fedavg-seed3"),
        (lambda data: data.pop("device"), "device"),
        (lambda data: data.__setitem__("evaluated", None), "cannot be used"),
        (lambda data: data["evaluated"].pop("loss"), "its columns are"),
    ],
)
def test_a_damaged_result_is_refused_with_a_sentence(tmp_path, damage, sentence):
    result = made(0.7)
    path = tmp_path / f"{result.name}.json"
    data = json.loads(result.as_text())
    damage(data)
    path.write_text(json.dumps(data))
    with pytest.raises(Refusal, match=f"The result .*uniform-fedavg-seed0.json is damaged.*{sentence}"):
        read_result(path)


def test_half_a_file_is_refused_before_anything_runs(tmp_path):
    smoke(tmp_path, rounds=1)
    path = tmp_path / "results/uniform-fedavg-seed0.json"
    path.write_text(path.read_text()[:300])
    with pytest.raises(Refusal, match="is damaged and cannot be read"):
        smoke(tmp_path, rounds=2)


def test_settings_that_a_machine_may_choose_make_no_difference():
    run = planned()
    found = run.config({"runtime": "stacked", "precision": "bf16", "workers": 3}).as_mapping()
    assert differences(run.settings, json.loads(json.dumps(found))) == []
    assert differences({**run.settings, "clients": 100}, found) == ["clients is 200 and not 100"]
    changed = {**run.settings, "local": {**run.settings["local"], "rate": 0.2}}
    assert differences(changed, found) == ["local.rate is 0.1 and not 0.2"]


# Statistics of runs


def test_terminal_accuracy_and_rounds_to_a_target_of_a_line():
    result = made(0.8, rise=400)
    assert terminal_accuracy(result, window=50) == pytest.approx(0.8)
    assert terminal_accuracy(result, 200, 50) == pytest.approx(np.mean([0.002 * t for t in range(155, 201, 5)]))
    assert rounds_to_target(result, 0.5) == 250
    assert rounds_to_target(result, 0.81) is None
    assert accuracy_at(result, 100) == pytest.approx(0.2)
    assert accuracy_at(made(0.8, rounds=300), 500) is None


def test_partial_runs_are_compared_at_the_round_that_both_have_reached():
    slow, fast = {0: made(0.8, rise=400)}, {0: made(0.8, rise=200, rounds=200)}
    gain = paired_difference(terminal_accuracy, fast, slow)
    assert gain is not None
    assert gain.mean == pytest.approx(terminal_accuracy(fast[0]) - terminal_accuracy(slow[0], 200))
    assert gain.mean > 0.3
    assert paired_difference(terminal_accuracy, fast, {1: made(0.7, seed=1)}) is None


def test_the_gap_has_no_shares_where_it_may_be_none():
    def line(*levels):
        return {seed: made(level, seed=seed) for seed, level in enumerate(levels)}

    def share(*lines):
        return share_of_gap(*paired_values(terminal_accuracy, *lines))

    assert share(line(0.73, 0.75), line(0.70, 0.72), line(0.74, 0.76)) == pytest.approx(0.75)
    assert share(line(0.73, 0.75), line(0.70, 0.72), line(0.76, 0.71)) is None
    assert share(line(0.73, 0.75), {}, line(0.74, 0.76)) is None


def test_a_spread_is_the_mean_and_half_the_interval():
    assert spread(Estimate(0.712, 0.7, 0.702, 0.722)) == "71.2 ± 1.0"
    assert spread(Estimate(0.712, 0.7, None, None)) == "71.2"
    assert spread(Estimate(-0.0001, 0.0, -0.01, 0.01), "{:+.1f}") == "+0.0 ± 1.0"


# Tables and pages


def seeds_of(levels, **about):
    return [made(level, seed=seed, **about) for seed, level in enumerate(levels)]


def test_tables_show_the_runs_results_beside_the_papers_figures():
    store = stored(
        *seeds_of([0.74, 0.76], environment="any", method="iid", rise=100),
        *seeds_of([0.70, 0.72], rise=400),
        *seeds_of([0.73, 0.75], method="fedacs", rise=200),
    )
    text = markdown(FEDACS.page(FULL, store))
    table = section(text, "Table II")
    (iid,), (random,), (ours,) = (
        rows_of(table, *names) for names in (("all", "IID"), ("uniform", "random"), ("uniform", "FedACS"))
    )
    assert iid[2:6] == ["74.0", "75.0 ± 12.7", "75.0", "-"]
    assert random[2:] == ["70.8", "71.0 ± 12.7", "71.0", "-", "0.0", "-", "2", "1,000"]
    assert ours[2:] == ["73.3", "74.0 ± 12.7", "74.0", "+3.0 ± 0.0", "78.2", "75.0", "2", "1,000"]
    speed = section(text, "Table III")
    # 0.70 of 0.70 at round 400, of 0.72 at 390: the mean is 395; FedACS: 195 and 190.
    (random,), (ours,) = (rows_of(speed, "uniform", "70", name) for name in ("random", "FedACS"))
    assert random[3:6] == ["490", "395 ± 64", "395"]
    assert ours[3:] == ["245", "192 ± 32", "192", "-202 ± 32", "2.0x", "2.05x", "2", "1,000"]
    assert rows_of(speed, "all", "IID")[0][2:] == ["82 ± 32", "90 ± 0", "92 ± 32", "95 ± 0", "2", "1,000"]
    assert "uniform: FedACS ends +3.0 ± 0.0 points from random selection (clear of zero; 2 seeds; in the paper" in text


def test_the_summary_says_when_runs_are_short_and_how_the_rival_does():
    store = stored(
        *seeds_of([0.70, 0.72], rounds=500, rise=100),
        *seeds_of([0.73, 0.75], method="fedacs", rounds=500, rise=100),
        *seeds_of([0.74, 0.75], method="oort-simple", rounds=500, rise=100),
    )
    text = markdown(FEDACS.page(FULL, store))
    assert "uniform: FedACS stands, after 500 of 1,000 rounds, +3.0 ± 0.0 points from random selection" in text
    assert "Against Oort as compared: -0.5 ± 6.4 (within the noise of these seeds; in the paper +1.0)." in text


def test_missing_and_partial_cells_say_so():
    store = stored(*seeds_of([0.70, 0.72], rise=400), made(0.73, method="fedacs", rounds=300))
    text = markdown(FEDACS.page(FULL, store))
    table = section(text, "Table II")
    assert rows_of(table, "uniform", "Rexp3")[0][2:] == ["71.3", "not run yet", "-", "-", "15.1", "-", "0", "0"]
    ours = rows_of(table, "uniform", "FedACS")[0]
    assert ours[3] == "73.0 so far"
    assert ours[-2:] == ["1", "300 of 1,000"]
    assert rows_of(section(text, "Table III"), "uniform", "70", "random")[0][4] == "395 ± 64"
    assert rows_of(section(text, "Table III"), "inverse Pareto", "68", "FedACS")[0][4] == "not run yet"
    assert "Figure 7: not run yet. To run it: `covey reproduce fedacs --only figure-7`" in text
    assert "`covey reproduce fedacs --only table-2 --environments inverse-pareto`" in text
    never = markdown(FEDACS.page(FULL, stored(made(0.5), made(0.5, method="fedacs", rounds=300))))
    speeds = section(never, "Table III")
    assert rows_of(speeds, "uniform", "70", "random")[0][4] == "not reached"
    assert rows_of(speeds, "uniform", "70", "FedACS")[0][4] == "not reached so far"


def test_seeds_that_are_at_their_end_are_not_mixed_with_others():
    levels = {0: (0.72, 1000), 1: (0.74, 1000), 2: (0.50, 215)}
    ours = [made(level, method="fedacs", seed=seed, rounds=rounds) for seed, (level, rounds) in levels.items()]
    text = markdown(FEDACS.page(FULL, stored(*seeds_of([0.70, 0.72]), *ours)))
    row = rows_of(section(text, "Table II"), "uniform", "FedACS")[0]
    assert row[3:6] == ["73.0 ± 12.7", "73.0", "+2.0 ± 0.0"]
    assert row[-2:] == ["2 (1 under way)", "1,000"]
    assert rows_of(section(text, "Table III"), "uniform", "70", "FedACS")[0][-2:] == ["2 (1 under way)", "1,000"]
    # One finished run and one unfinished: both are shown.
    text = markdown(FEDACS.page(FULL, stored(*ours[1:])))
    row = rows_of(section(text, "Table II"), "uniform", "FedACS")[0]
    assert row[3].endswith("so far")
    assert row[-2:] == ["2", "215 to 1,000 of 1,000"]


def test_early_stop_saves_four_fifths_of_the_bytes():
    whole = made(0.7, method="fedacs")
    early = made(0.7, method="fedacs", variant="early200")
    early.evaluated["probe_bytes"][:] = [min(34_000 * at, 34_000 * 200) for at in early.evaluated["round"]]
    for result in (whole, early):
        # The model once up and once down, 62,006 numbers each, for ten clients.
        result.evaluated["bytes_down"][:] = [2_480_240 * at for at in result.evaluated["round"]]
        plain = [2_480_240 * at for at in result.evaluated["round"]]
        result.evaluated["bytes_up"][:] = np.add(plain, result.evaluated["probe_bytes"]).tolist()
    rows = rows_of(section(markdown(FEDACS.page(FULL, stored(whole, early))), "Figure 10"), "FedACS")
    assert rows[0][3:7] == ["0.69", "0.69", "< 20", "20.0"]
    rows = rows_of(
        section(markdown(FEDACS.page(FULL, stored(whole, early))), "Figure 10"), "FedACS, insights for 200 rounds"
    )
    assert rows[0][2:7] == ["+0.0", "0.14", "0.14", "< 4", "4.0"]


def test_results_made_with_other_settings_stay_out_of_the_tables():
    changed = made(0.9)
    changed = replace(changed, config={**changed.config, "clients": 100, "cohort": 5})
    text = markdown(FEDACS.page(FULL, stored(changed)))
    assert rows_of(section(text, "Table II"), "uniform", "random")[0][3] == "not run yet"
    other = "clients is 100 and not 200; cohort is 5 and not 10"
    assert f"uniform-fedavg-seed0 was made with other settings: {other}." in text


def test_a_method_beyond_the_papers_has_its_own_row():
    result = made(0.7, method="fedprox")
    text = markdown(FEDACS.page(FULL, stored(result)))
    assert rows_of(section(text, "Table II"), "uniform", "fedprox")[0][2:4] == ["-", "70.0"]


def test_a_page_links_a_picture_only_while_it_shows_the_present_data(tmp_path):
    series = Series("a", [1, 2], [0.5, 0.75], [None, 0.7], [None, 0.8])
    chart = Chart("some", "Some chart", "round", "accuracy", [series])
    page = Page("paper", "A paper", ["Words.", Table(("a", "b"), [("1", "2")]), chart])
    written = write_page(page, tmp_path, pictures=False)
    text = written.path.read_text()
    assert written.undrawn == ["some"]
    assert "| a | b |\n| --- | --- |\n| 1 | 2 |" in text
    assert "the picture is not drawn" in text
    assert (tmp_path / "paper/some.csv").read_text() == "line,round,accuracy,low,high\na,1,0.5,,\na,2,0.75,0.7,0.8\n"
    (tmp_path / "paper/some.svg").write_text(f"<svg><!-- data {chart.digest} --></svg>")
    assert write_page(page, tmp_path, pictures=False).undrawn == []
    assert "![Some chart](paper/some.svg)" in written.path.read_text()
    for change in (Series("a", [1, 2], [0.5, 0.76]), replace(series, place=3)):
        other = replace(page, parts=[replace(chart, series=[change])])
        assert write_page(other, tmp_path, pictures=False).undrawn == ["some"]


def test_without_matplotlib_the_command_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("papers.page.can_draw", lambda: False)
    arguments = ["fedacs", "--scale", "smoke", "--methods", "fedavg", "--rounds", 1, "--seeds", 1, "--only", "figure-5"]
    said = called(*arguments).stdout
    assert "3 of 3 runs are complete" in said
    assert "1 of 1 pictures were not drawn; their data are there. Pictures need matplotlib" in said


def test_a_line_that_would_hide_another_is_drawn_with_gaps():
    pytest.importorskip("matplotlib")
    low = Series("low", [1, 2, 3], [0.0, 0.1, 0.2])
    high = Series("high", [1, 2, 3], [1.0, 1.1, 1.2])
    over = Series("over low", [1, 2, 3], [0.001, 0.101, 0.201])
    crossing = Series("crossing", [1, 2, 3], [0.0, 0.1, 1.2])
    shorter = Series("shorter", [1, 2], [0.0, 0.1])

    def dashed(*series):
        return "stroke-dasharray" in pictures.draw(Chart("c", "Title", "round", "accuracy", series))

    assert dashed(low, high, over)
    assert not dashed(low, high, crossing)
    assert not dashed(low, high, shorter)


def test_pictures_are_small_and_know_their_data(tmp_path):
    pytest.importorskip("matplotlib")
    store = stored(
        *seeds_of([0.74, 0.76], environment="any", method="iid"),
        *(run for method in METHODS[1:] for run in seeds_of([0.70, 0.72], method=method)),
    )
    written = write_page(FEDACS.page(FULL, store), tmp_path)
    assert written.undrawn == []
    drawn = list((tmp_path / "fedacs").glob("*.svg"))
    assert len(drawn) == written.charts
    assert all(path.stat().st_size < 100_000 for path in drawn)
    assert all(pictures.drawn_from(path) for path in drawn)
    assert write_page(FEDACS.page(FULL, store), tmp_path, pictures=False).undrawn == []


@pytest.mark.slow
@pytest.mark.parametrize("paper", papers.values(), ids=list(papers))
def test_the_committed_page_is_what_the_committed_results_give(tmp_path, paper: Paper):
    scale = paper.scale("paper")
    committed = REPOSITORY / "docs/results"
    if not (REPOSITORY / "results" / scale.store).is_dir() and not (committed / f"{scale.store}.md").exists():
        pytest.skip("nothing of it has been run yet")
    if (committed / scale.store).is_dir():
        shutil.copytree(committed / scale.store, tmp_path / scale.store)
    written = write_page(paper.page(scale, Store.read(REPOSITORY / "results" / scale.store)), tmp_path, pictures=False)
    again = f"covey reproduce {paper.name} --only tables"
    assert written.path.read_text() == (committed / f"{scale.store}.md").read_text(), f"Make it again: {again}"
    for path in (tmp_path / scale.store).glob("*.csv"):
        assert path.read_text() == (committed / scale.store / path.name).read_text(), f"Make it again: {again}"


def test_without_a_paper_the_command_lists_what_there_is_with_its_cost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = json.loads(called("--json").stdout)
    first = next(row for row in rows if (row["paper"], row["scale"]) == ("fedacs", "paper"))
    assert (first["runs"], first["client_samples"], first["complete"]) == (15, 15 * 10**8, 0)
    said = called().stdout
    assert "--scale smoke" in said
    assert "figure-10" in said


def test_tables_alone_need_neither_data_nor_methods(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Store(tmp_path / "results/fedacs", []).write(made(0.7))
    answer = json.loads(called("fedacs", "--only", "tables", "--json").stdout)
    assert answer["page"] == "docs/results/fedacs.md"
    assert "| uniform | random | 70.8 | 70.0 |" in Path(answer["page"]).read_text()
    assert find_paper("fedacs") is FEDACS


def test_a_page_says_where_replies_were_lost(tmp_path):
    runs = [made(0.5), replace(made(0.5, seed=1), dropped=1204)]
    assert made_by("covey reproduce", FULL, Store(tmp_path, runs[:1])).endswith("writes this page.")
    told = made_by("covey reproduce", FULL, Store(tmp_path, runs))
    assert told.endswith(f"writes this page. Replies were dropped: 1,204 in {runs[1].name}.")
