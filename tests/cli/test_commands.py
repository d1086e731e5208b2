"""The command line: output, exit codes and the files that it writes."""

import json

import pytest
from safetensors.torch import load_file

from covey import Run

SIZES = ["--clients", "8", "--cohort", "4", "--rounds", "2", "--workers", "1"]
QUICK = [*SIZES, "--set", "local.epochs=1", "--set", "environment.samples=20"]


def test_run_evaluate_export_and_resume_one_after_another(covey_command, tmp_path):
    folder = tmp_path / "run"
    ran = covey_command("run", *QUICK, "--out", folder, "--json")
    assert ran.code == 0
    assert ran.json["rounds"] == 2
    assert ran.json["finished"] is True
    assert ran.json["dropped"] == []
    scored = covey_command("evaluate", folder, "--json")
    assert scored.json["accuracy"] == ran.json["accuracy"]
    assert len(scored.json["class_accuracy"]) == 10
    exported = covey_command("export", folder, "--to", tmp_path / "model.safetensors", "--json")
    assert exported.json["parameters"] == 64 * 64 + 64 + 640 + 10
    assert sum(tensor.numel() for tensor in load_file(tmp_path / "model.safetensors").values()) == 4810
    assert covey_command("resume", folder, "--json").json["accuracy"] == ran.json["accuracy"]


def test_results_are_printed_for_people_too(covey_command, tmp_path):
    ran = covey_command("run", *QUICK, "--out", tmp_path / "run")
    assert "test accuracy" in ran.out
    assert f"Records: {tmp_path / 'run'}" in ran.out
    assert "clients' own mix" in covey_command("evaluate", tmp_path / "run").out
    mixes = ["--target", "0=3,1=1", "--target", "td1"]
    judged = covey_command("evaluate", tmp_path / "run", *mixes, "--json").json
    by_class = judged["class_accuracy"]
    assert [one["accuracy"] for one in judged["targets"]] == pytest.approx(
        [0.75 * by_class[0] + 0.25 * by_class[1], sum(by_class[:3]) / 3]
    )
    shown = covey_command("evaluate", tmp_path / "run", *mixes).out
    assert "td1" in shown and "sum to 4 and were scaled to sum to 1" in " ".join(shown.split())
    assert "There is no class 'x'" in covey_command("evaluate", tmp_path / "run", "--target", "x=1").err
    assert "4,810 parameters" in covey_command("export", tmp_path / "run").out


def test_compare_prints_a_table_and_what_it_says(covey_command, tmp_path):
    flags = ["compare", "--methods", "fedavg,fedprox,iid", "--seeds", "2", *QUICK, "--out", tmp_path / "cmp"]
    said = covey_command(*flags)
    assert said.code == 0
    assert "terminal accuracy" in said.out
    assert "fedprox ends" in said.out
    again = covey_command(*flags, "--json")
    assert [row["name"] for row in again.json["rows"]] == ["fedavg", "fedprox", "iid"]
    assert again.json["rows"][1]["gap_recovered"] is None or isinstance(again.json["rows"][1]["gap_recovered"], float)
    assert covey_command("resume", tmp_path / "cmp", "--json").json == again.json


def test_compare_shows_rows_that_say_something(covey_command, tmp_path):
    flags = ["compare", "--methods", "fedavg,loss-softmax", "--seeds", "1", "--target", "1", *QUICK]
    fair = covey_command(*flags, "--fairness", "--out", tmp_path / "fair").out
    assert all(name in fair for name in ("clients' mean loss", "variance", "gap", "rounds to 100.0%"))
    plain = covey_command(*flags, "--out", tmp_path / "plain").out
    assert not any(name in plain for name in ("clients' mean loss", "gap to IID closed", "speed-up", "95 % interval"))


def test_compare_sweeps_a_setting(covey_command, tmp_path):
    said = covey_command(
        "compare", "--methods", "fedavg", "--seeds", "1", "--vary", "local.rate=0.1,0.01", *QUICK,
        "--out", tmp_path / "cmp", "--json",
    )  # fmt: skip
    assert [row["name"] for row in said.json["rows"]] == ["fedavg local.rate=0.1", "fedavg local.rate=0.01"]


def test_names_in_brackets_are_printed_as_they_are(covey_command, tmp_path):
    for name in ("[trial]", "[/trial]"):
        ran = covey_command("run", *QUICK, "--out", tmp_path / name)
        assert ran.code == 0, ran.err
        assert f"Records: {tmp_path / name}" in ran.out


def test_compare_takes_seeds_and_not_a_seed(covey_command, tmp_path):
    refused = covey_command("compare", "--methods", "fedavg", *QUICK, "--set", "seed=3", "--out", tmp_path / "cmp")
    assert refused.code != 0
    assert "takes seeds (a number, or a list such as 3,7), not one seed" in refused.err
    shared = tmp_path / "shared.toml"
    shared.write_text("seed = 3\n")
    flags = ["compare", "--methods", "fedavg", "--seeds", "7,", *QUICK, "--config", shared, "--out", tmp_path / "cmp"]
    assert covey_command(*flags).code == 0
    assert [folder.name for folder in (tmp_path / "cmp" / "fedavg").iterdir()] == ["seed-7"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("methods", {"fedavg", "fedprox", "central", "local-only", "iid"}),
        ("environments", {"iid", "uniform", "dirichlet"}),
        ("datasets", {"digits", "synthetic"}),
        ("models", {"mlp", "tutorial-cnn"}),
        ("selectors", {"uniform"}),
        ("aggregators", {"average"}),
        ("runtimes", {"local"}),
    ],
)
def test_lists_are_arrays_of_objects_with_names(covey_command, kind, expected):
    listed = covey_command("list", kind, "--json").json
    assert expected <= {entry["name"] for entry in listed}
    assert all(entry["summary"] for entry in listed)
    printed = covey_command("list", kind)
    assert printed.code == 0
    assert all(name in printed.out for name in expected)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("run --method nothing", "There is no method 'nothing'."),
        ("run --environment nowhere", "There is no environment 'nowhere'."),
        ("run --dataset nothing", "There is no dataset 'nothing'."),
        ("run --model nothing", "There is no model 'nothing'."),
        ("run --set colour=red", "There is no setting 'colour'."),
        ("run --set local.lr=1", "There is no setting 'local.lr'."),
        ("run --set local.rate", "is not of the form key=value"),
        ("run --cohort 0", "cohort must be from 1"),
        ("run --clients 5 --cohort 6", "cohort must be from 1 to the number of clients, 5, not 6."),
        ("run --cohort 1.5", "fraction in (0, 1]"),
        ("run --set local.rate=-1", "local.rate must be above 0, not -1."),
        ("run --rounds none", "rounds must be"),
        ("run --model tutorial-cnn", "needs images of at least 16 x 16 pixels"),
        ("run --clients 2000 --environment iid", "cannot give one to each of 2000 clients"),
        ("run --config absent.toml", "cannot be read"),
        ("run --environment given", "stands for a federation passed in from Python"),
        ("run --dataset given", "was passed in from Python"),
        ("run --environment natural", "does not say which client a sample belongs to"),
        ("run --out /dev/null/run", "cannot be written"),
        ("compare --methods fedavg --out /dev/null/run", "cannot be written"),
        ("compare --methods fedavg --seeds few", "--seeds takes a number"),
        ("compare --methods fedavg --vary local.rate", "not of the form key=value1,value2"),
        ("compare --methods fedavg --target 2", "target is a fraction in (0, 1]"),
        ("resume .", "is not a run folder"),
        ("evaluate absent", "is not a run folder"),
        ("export absent", "is not a run folder"),
        ("list colours", "There is no list of 'colours'."),
    ],
)
def test_wrong_input_is_a_sentence_exit_code_2_and_nothing_written(
    covey_command, tmp_path, monkeypatch, flags, sentence
):
    monkeypatch.chdir(tmp_path)
    answer = covey_command(*flags.split())
    assert answer.code == 2
    assert answer.err.startswith("covey: ")
    assert sentence in answer.err
    assert answer.err.count("\n") == 1
    assert answer.out == ""
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_flag_and_a_missing_argument_exit_with_2(covey_command):
    assert covey_command("run", "--colour", "red").code == 2
    assert covey_command("compare").code == 2


def test_an_unwritable_export_is_refused(covey_command, tmp_path):
    covey_command("run", *QUICK, "--out", tmp_path / "run")
    answer = covey_command("export", tmp_path / "run", "--to", "/dev/null/model.safetensors")
    assert answer.code == 2
    assert "cannot be written" in answer.err


def test_a_run_with_a_spoilt_client_says_so(covey_command, tmp_path):
    answer = covey_command(
        "run", "--dataset", "tests.job.test_runs:spoiled", "--environment", "iid", "--clients", 4, "--cohort", 4,
        "--rounds", 1, "--workers", 1, "--set", "local.rate=0.01", "--out", tmp_path / "run",
    )  # fmt: skip
    assert answer.code == 0
    assert "1 reply was dropped" in answer.out
    assert "its loss became NaN or infinite" in answer.out
    assert "measurements" not in answer.out


def test_a_run_with_a_measurement_that_is_missing_says_so(covey_command, tmp_path):
    covey_command("run", *QUICK, "--out", tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    first, *others = path.read_text().splitlines()
    lost = {"client": 3, "reason": "its losses holds NaN"}
    path.write_text("\n".join([json.dumps({**json.loads(first), "unmeasured": [lost]}), *others]) + "\n")
    said = " ".join(covey_command("resume", tmp_path / "run").out.split())
    assert "1 measurement could not be used (clients 3). The first: round 1, client 3: its losses holds NaN." in said


def test_poison_is_short_for_an_alteration(covey_command, tmp_path):
    covey_command("run", *QUICK, "--poison", "0.5", "--out", tmp_path / "run")
    assert Run.open(tmp_path / "run").config.altered.poison == 0.5
