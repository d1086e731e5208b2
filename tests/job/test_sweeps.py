"""Sweeps: differences at the same settings, and their table."""

from typing import Any

import pytest

import covey
from covey.cli.sweep_table import short_names
from covey.cli.terminal import console
from covey.job.comparison.compared_runs import Comparison
from covey.job.comparison.plan import Variant
from covey.job.result_text import verdicts
from covey.page.run_report import report
from tests.conftest import SMALL
from tests.job.test_comparison import Past


def swept(curves: dict[tuple[str, str], list[float]]) -> Comparison:
    """Return a comparison of made-up runs by method and setting, each with a terminal accuracy per seed."""
    variants = tuple(Variant(f"{method} {setting}", method, ()) for method, setting in curves)
    runs = {f"{method} {setting}": tuple(Past([end]) for end in ends) for (method, setting), ends in curves.items()}
    return Comparison(None, variants, runs, 1.0)  # type: ignore[arg-type]


def test_methods_are_compared_with_the_first_at_the_same_settings():
    result = swept(
        {
            ("fedavg", "rate=0.1"): [0.5, 0.6],
            ("fedavg", "rate=1"): [0.3, 0.4],
            ("fedprox", "rate=0.1"): [0.51, 0.612],
            ("fedprox", "rate=1"): [0.35, 0.452],
            ("iid", "rate=0.1"): [0.7, 0.8],
            ("iid", "rate=1"): [0.4, 0.5],
        }
    )
    rows = {row["name"]: row for row in result.rows}
    assert [row["against"] for row in result.rows] == [None, None, *["fedavg rate=0.1", "fedavg rate=1"] * 2]
    assert rows["fedprox rate=0.1"]["difference"] == pytest.approx(0.011)
    assert rows["fedprox rate=1"]["difference"] == pytest.approx(0.051)
    assert rows["fedprox rate=1"]["gap_recovered"] == pytest.approx(0.51)
    assert verdicts(result)[1] == "fedprox rate=1 ends 5.1 points above fedavg rate=1 (clear of zero)."
    assert "points against fedavg rate=1" in str(result)
    assert result.against == "fedavg at the same settings"


def test_settings_of_one_method_are_compared_with_the_first():
    result = swept({("fedavg", "rate=0.1"): [0.5], ("fedavg", "rate=1"): [0.3], ("fedavg", "rate=2"): [0.2]})
    assert [row["against"] for row in result.rows] == [None, "fedavg rate=0.1", "fedavg rate=0.1"]
    assert result.against == "fedavg rate=0.1"


def test_terminal_and_report_say_what_differences_are_against(tmp_path, covey_command):
    vary = {"local.rate": [0.1, 0.02]}
    covey.compare(["fedavg", "fedprox"], 2, vary=vary, given=SMALL, out=tmp_path / "cmp")
    shown = " ".join(covey_command("show", tmp_path / "cmp").out.split())
    assert "paired by seed, against fedavg at the same settings" in shown
    page = report([tmp_path / "cmp"]).read_text()
    assert "points against fedavg at the same settings" in page


def test_a_sweep_is_one_table_with_short_names_that_fits_eighty_columns(tmp_path, covey_command, monkeypatch):
    monkeypatch.setattr(console, "width", 80)
    vary: dict[str, list[Any]] = {"environment.alpha": [0.1, 1], "local.epochs": [1, 2], "local.batch": [8]}
    given = {**SMALL, "environment": {"name": "dirichlet"}, "rounds": 1}
    covey.compare(["fedavg", "fedprox"], 2, vary=vary, given=given, out=tmp_path / "cmp")
    lines = covey_command("show", tmp_path / "cmp").out.splitlines()
    assert max(map(len, lines[1:14])) <= 80
    heads = [line for line in lines if "method" in line]
    assert [line.split()[:3] for line in heads] == [["method", "alpha", "epochs"]]
    table = [line.split()[:3] for line in lines if line.split()[:1] in (["fedavg"], ["fedprox"])]
    assert ["fedprox", "0.1", "2"] in table
    assert "…" not in "".join(lines[:14]) and "batch" not in "".join(lines[:14])
    assert {"terminal", "interval", "against"} <= set("".join(lines[:14]).split())


def test_a_short_name_that_two_settings_share_is_written_in_full():
    variants = [Variant("", "fedavg", (), {"server.rate": rate, "local.rate": 1 - rate}) for rate in (0, 1)]
    assert short_names(variants) == {"server.rate": "server.rate", "local.rate": "local.rate"}
