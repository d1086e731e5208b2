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
    variants = tuple(
        Variant(f"{method} {setting}".strip(), method, (), dict(one.split("=") for one in setting.split()))
        for method, setting in curves
    )
    runs = {
        f"{method} {setting}".strip(): tuple(Past([end]) for end in ends) for (method, setting), ends in curves.items()
    }
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


def test_a_method_for_which_less_varies_is_compared_where_the_settings_agree():
    result = swept(
        {
            ("fedavg", "rate=0.1"): [0.5],
            ("fedavg", "rate=1"): [0.3],
            ("prox", "rate=0.1 mu=1"): [0.6],
            ("prox", "rate=1 mu=1"): [0.6],
        }
    )
    assert [row["against"] for row in result.rows] == [None, None, "fedavg rate=0.1", "fedavg rate=1"]
    result = swept({("prox", "mu=1"): [0.6], ("prox", "mu=2"): [0.7], ("fedavg", ""): [0.5], ("iid", ""): [0.9]})
    assert [row["against"] for row in result.rows] == [None, *["prox mu=1"] * 3]
    assert result.against == "prox mu=1"


def test_an_option_varies_for_the_methods_that_have_it(tmp_path, covey_command, monkeypatch):
    monkeypatch.setattr(console, "width", 100)
    methods = ["fedavg", "uniform+average+fedprox", "iid"]
    made = covey.compare(methods, 2, vary={"trainer.mu": [0.1, 1.0]}, given=SMALL, rounds=2, out=tmp_path / "cmp")
    pulled = [f"uniform+average+fedprox trainer.mu={mu}" for mu in (0.1, 1.0)]
    assert [row["name"] for row in made.rows] == ["fedavg", *pulled, "iid"]
    assert [row["against"] for row in made.rows] == [None, *["fedavg"] * 3]
    assert [made.runs[name][0].config.as_mapping()["trainer"]["mu"] for name in pulled] == [0.1, 1.0]
    shown = covey_command("show", tmp_path / "cmp").out
    table = [line.split()[:2] for line in shown.splitlines() if line.split()[:1] in (["fedavg"], ["iid"])]
    assert table[:2] == [["fedavg", "-"], ["iid", "-"]]
    assert covey.Comparison.open(tmp_path / "cmp").rows == made.rows
    more = covey.compare(
        [*methods, "scaffold"],
        2,
        vary={"trainer.mu": [0.1, 1.0]},
        given=SMALL,
        rounds=2,
        out=tmp_path / "cmp",
    )
    assert [row["name"] for row in more.rows] == ["fedavg", *pulled, "iid", "scaffold"]
    assert more.rows[1]["terminal_accuracy"] == made.rows[1]["terminal_accuracy"]


def test_the_help_tells_of_combinations_and_of_parts_of_ones_own(covey_command):
    shown = " ".join(covey_command("compare", "--help").out.replace("│", " ").split())
    assert "(selector+aggregator+trainer); your own as module:Class" in shown
    assert "for the methods that have it" in shown


def test_an_option_that_no_method_has_does_not_vary(tmp_path):
    with pytest.raises(covey.Refusal, match=r"'sgd' has no option 'mu'.*'scaffold' has no option 'mu'"):
        covey.compare(["fedavg", "scaffold"], 1, vary={"trainer.mu": [0.1, 1.0]}, given=SMALL, out=tmp_path / "cmp")


def test_the_rate_of_a_servers_optimiser_is_tuned_beside_methods_without_one(tmp_path):
    given = {**SMALL, "rounds": 1, "server": {"tau": 0.01}}
    made = covey.compare(
        ["fedavg", "fedadam", "fedavgm"], 1, vary={"server.rate": [0.1, 0.3]}, given=given, out=tmp_path / "a"
    )
    rates = {name: (runs[0].config.server.rate, runs[0].config.server.tau) for name, runs in made.runs.items()}
    assert rates == {
        "fedavg": (None, None),
        "fedadam server.rate=0.1": (0.1, 0.01),
        "fedadam server.rate=0.3": (0.3, 0.01),
        "fedavgm server.rate=0.1": (0.1, None),
        "fedavgm server.rate=0.3": (0.3, None),
    }
    with pytest.raises(covey.Refusal, match=r"server.rate has no effect with server.optimizer=none"):
        covey.compare(["fedavg", "fedprox"], 1, vary={"server.rate": [0.1, 0.3]}, given=SMALL, out=tmp_path / "b")


@pytest.mark.parametrize(
    ("methods", "given"),
    [
        (["fedavg", "fedprox"], {"local": {"proximal": 0.1}}),
        (["fedavg", "fedavgm"], {"server": {"optimizer": "momentum"}}),
        (["fedavg", "uniform+average+sgd"], {}),
    ],
)
def test_two_names_for_the_same_run_are_refused(methods, given, tmp_path):
    sentence = f"With these settings {methods[0]} and {methods[1]} are the same run".replace("+", r"\+")
    with pytest.raises(covey.Refusal, match=sentence):
        covey.compare(
            methods,
            1,
            given={**SMALL, "local": {**SMALL["local"], **given.pop("local", {})}, **given},
            out=tmp_path / "cmp",
        )
    assert not (tmp_path / "cmp").exists()


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
