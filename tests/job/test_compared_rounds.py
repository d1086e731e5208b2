"""Runs of a comparison are compared over as many rounds, and one alone is not extended."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import covey
from covey import Refusal
from covey.job.comparison.compared_runs import Comparison
from covey.page.run_data import read_report_data
from tests.conftest import SMALL


def mixed(tmp_path: Path, **settings: Any) -> tuple[Comparison, Path]:
    """Return a comparison, and its folder with a run that was extended alone, as earlier versions allowed."""
    folder = tmp_path / "cmp"
    made = covey.compare(["fedavg", "fedprox"], 2, given={**SMALL, **settings}, out=folder)
    _ = made.rows
    shutil.copytree(folder / "fedavg" / "seed-0", tmp_path / "alone")
    covey.resume(tmp_path / "alone", rounds=5)
    shutil.rmtree(folder / "fedavg" / "seed-0")
    (tmp_path / "alone").rename(folder / "fedavg" / "seed-0")
    return made, folder


def test_a_run_of_a_comparison_is_not_extended_alone(tmp_path):
    covey.compare("fedavg", 1, given=SMALL, out=tmp_path / "cmp")
    place = tmp_path / "cmp" / "fedavg" / "seed-0"
    with pytest.raises(Refusal, match=r"belongs to the comparison .*cmp.* covey resume .*cmp --rounds 5"):
        covey.resume(place, rounds=5)
    assert covey.Run.open(place).config.rounds == 3
    assert covey.resume(place).finished


def test_a_run_that_has_more_rounds_than_the_others_counts_with_theirs(tmp_path, covey_command):
    made, folder = mixed(tmp_path)
    again = Comparison.open(folder)
    assert again.rows == made.rows
    note = f"Runs in {folder} have 3 to 5 rounds: figures are of the first 3"
    assert again.notes[0].startswith(note)
    assert note in str(again)
    compared = covey.compare(["fedavg", "fedprox"], 2, given=SMALL, out=folder)
    assert (compared.rows, compared.notes) == (made.rows, again.notes)
    assert "have 3 to 5 rounds" in " ".join(covey_command("show", folder).out.split())
    assert covey_command("show", folder, "--json").json["notes"] == list(again.notes)
    report = read_report_data([folder])
    assert report.notices == again.notes
    assert [row["difference"] for row in report.groups[0].rows] == [row["difference"] for row in made.rows]


def test_rounds_without_an_evaluation_in_all_runs_do_not_count(tmp_path):
    # The extended run is no longer evaluated after the round that was once its last.
    _, folder = mixed(tmp_path, evaluate_every=2)
    found = Comparison.open(folder)
    assert "the first 2, which all have" in found.notes[0]
    assert {run.metrics[-1]["round"] for runs in found.runs.values() for run in runs} == {2}


def test_a_comparison_that_varies_rounds_needs_no_note(tmp_path):
    assert covey.compare("fedavg", 1, vary={"rounds": [1, 2]}, given=SMALL, out=tmp_path / "cmp").notes == ()
