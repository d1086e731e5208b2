import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import covey
from covey import Refusal, compare
from covey.errors import Interrupted
from covey.job.comparison.compared_runs import Comparison, Curve
from covey.job.comparison.execution import resume_comparison
from covey.job.comparison.plan import Variant
from covey.job.comparison.row_text import difference
from covey.job.comparison.statistics import Estimate
from covey.job.result_text import verdicts
from covey.page.tables import reproduced_by
from tests.conftest import SMALL, without_timings


class Past:
    """A run that ended with the given accuracies, each round costing 100 bytes."""

    def __init__(self, accuracies: list[float]) -> None:
        self.metrics: list[dict[str, Any]] = [
            {"round": number, "accuracy": accuracy, "bytes_up": 60, "bytes_down": 40}
            for number, accuracy in enumerate(accuracies, 1)
        ]


def made_up(curves: dict[str, list[list[float]]], target: float | None = None) -> Comparison:
    contenders = tuple(Variant(name, name, ()) for name in curves)
    runs = {name: tuple(Past(one) for one in several) for name, several in curves.items()}
    return Comparison(None, contenders, runs, target)  # type: ignore[arg-type]


def test_estimate_is_students_interval():
    values = [0.5, 0.6, 0.9]
    estimate = Estimate.of(values)
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert estimate.mean == pytest.approx(2 / 3)
    assert estimate.median == 0.6
    assert estimate.low == pytest.approx(low)
    assert estimate.high == pytest.approx(high)
    assert Estimate.of([0.5]).low is None


def test_terminal_accuracy_is_the_mean_of_the_last_twentieth_of_the_rounds():
    accuracies = [0.0] * 95 + [0.1, 0.2, 0.3, 0.4, 0.5]
    assert Curve.of(Past(accuracies).metrics).terminal == pytest.approx(0.3)
    assert Curve.of(Past([0.1, 0.7]).metrics).terminal == 0.7


def test_differences_are_paired_by_seed():
    # Seeds differ by ten points, methods by one in every seed: pairing shows it, marginal intervals do not.
    result = made_up({"fedavg": [[0.5], [0.6], [0.7]], "other": [[0.51], [0.61], [0.712]]})
    first, other = result.rows
    assert first["difference"] is None
    assert other["difference"] == pytest.approx((0.01 + 0.01 + 0.012) / 3)
    assert other["difference_low"] > 0
    assert other["terminal_low"] < first["terminal_high"]


def test_a_difference_that_is_the_same_in_every_seed_has_no_interval_and_is_not_called_clear_of_zero():
    result = made_up({"fedavg": [[0.5], [0.6]], "other": [[0.503], [0.603]], "better": [[0.51], [0.6101]]}, target=1.0)
    assert verdicts(result) == [
        "other ends 0.3 points above fedavg (the same in every seed, which gives no interval).",
        "better ends 1.0 points above fedavg (clear of zero).",
    ]
    assert [difference(row) for row in result.rows] == ["-", "+0.3", "+1.0 ± 0.1"]


def test_rounds_bytes_and_speed_up_to_a_target():
    result = made_up({"slow": [[0.1, 0.2, 0.3, 0.4]], "fast": [[0.1, 0.4, 0.5, 0.5]]}, target=0.4)
    slow, fast = result.rows
    assert (slow["rounds_to_target"], fast["rounds_to_target"]) == (4, 2)
    assert (slow["bytes_to_target"], fast["bytes_to_target"]) == (400, 200)
    assert fast["speed_up"] == 2.0
    never = made_up({"slow": [[0.1, 0.2]], "fast": [[0.5, 0.6]]}, target=0.4).rows
    assert never[0]["rounds_to_target"] is None
    assert never[1]["speed_up"] is None
    assert [row["reached"] for row in never] == [0, 1]


def test_mean_rounds_that_are_not_whole_are_shown_with_a_decimal():
    curves = {"slow": [[0.1, 0.4], [0.1, 0.1, 0.4]], "fast": [[0.4], [0.1, 0.1, 0.4]], "first": [[0.4], [0.4]]}
    said = verdicts(made_up(curves))
    assert said[0].endswith("after 2 rounds against 2.5.")
    assert said[1].endswith("after 1 round against 2.5.")


def test_the_default_target_is_the_highest_accuracy_that_every_run_reached():
    assert made_up({"a": [[0.3, 0.6], [0.5, 0.4]], "b": [[0.9], [0.8]]}).target == 0.5


def test_recovered_gap_is_measured_between_the_first_method_and_the_iid_reference():
    result = made_up({"fedavg": [[0.70], [0.72]], "clever": [[0.73], [0.75]], "iid": [[0.74], [0.76]]})
    assert [row["gap_recovered"] for row in result.rows] == [None, pytest.approx(0.75), None]
    noise = made_up({"fedavg": [[0.70], [0.72]], "clever": [[0.73], [0.75]], "iid": [[0.76], [0.71]]})
    assert noise.rows[1]["gap_recovered"] is None
    upside_down = made_up({"fedavg": [[0.8]], "clever": [[0.9]], "iid": [[0.7]]})
    assert upside_down.rows[1]["gap_recovered"] is None


def test_methods_of_one_seed_share_federation_and_initialisation(tmp_path):
    result = compare(["fedavg", "fedprox"], seeds=2, given=SMALL, rounds=1, out=tmp_path / "cmp")
    for seed in range(2):
        one, other = (result.runs[name][seed] for name in ("fedavg", "fedprox"))
        a, b = covey.Experiment.of(one.config), covey.Experiment.of(other.config)
        a.runtime.close()
        b.runtime.close()
        assert all((x == y).all() for x, y in zip(a.federation.parts, b.federation.parts, strict=True))
        assert (a.method.models() == b.method.models()).all()
        assert one.metrics[0]["clients"] == other.metrics[0]["clients"]


def test_varied_settings_make_a_line_for_every_combination(tmp_path):
    vary: dict[str, list[Any]] = {"local.rate": [0.1, 0.01], "local.epochs": [1, 2]}
    result = compare(["fedavg"], seeds=1, vary=vary, given=SMALL, rounds=1, out=tmp_path / "cmp")
    assert [row["name"] for row in result.rows] == [
        "fedavg local.rate=0.1 local.epochs=1",
        "fedavg local.rate=0.1 local.epochs=2",
        "fedavg local.rate=0.01 local.epochs=1",
        "fedavg local.rate=0.01 local.epochs=2",
    ]
    assert len({row["terminal_accuracy"] for row in result.rows}) > 1
    assert list(result.frame()["seeds"]) == [1, 1, 1, 1]


def test_a_comparison_that_was_cut_off_resumes_where_it_stopped(tmp_path, monkeypatch):
    whole = compare(["fedavg", "iid"], seeds=2, given=SMALL, out=tmp_path / "whole")
    count = 0

    def stop_after_seven_rounds(record):
        nonlocal count
        count += 1
        if count == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(["fedavg", "iid"], seeds=2, given=SMALL, out=tmp_path / "cut", on_round=stop_after_seven_rounds)
    left: list[Any] = []
    resumed = resume_comparison(tmp_path / "cut", on_round=lambda record: left.append(record["round"]))
    assert len(left) == 12 - 7
    for name, runs in whole.runs.items():
        for one, other in zip(runs, resumed.runs[name], strict=True):
            assert without_timings(one.metrics) == without_timings(other.metrics)
    again = compare(["fedavg", "iid"], seeds=2, given=SMALL, out=tmp_path / "cut", on_round=left.append)
    assert len(left) == 12 - 7
    assert again.rows == resumed.rows


def test_another_comparison_in_the_same_folder_is_refused(tmp_path):
    compare(["fedavg"], seeds=1, given=SMALL, rounds=1, out=tmp_path / "cmp")
    with pytest.raises(Refusal, match="holds another comparison"):
        compare(["iid"], seeds=1, given=SMALL, rounds=1, out=tmp_path / "cmp")


def test_the_default_folder_is_the_first_that_holds_no_other_comparison(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [str(compare("fedavg", given=SMALL, rounds=1, seeds=seeds).folder) for seeds in (1, 2, 1, 2)]
    assert folders == ["runs/compare-fedavg", "runs/compare-fedavg-2"] * 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"methods": []}, "There is no method to compare"),
        ({"methods": ["fedavg", "nothing"]}, "There is no method 'nothing'"),
        ({"methods": ["fedavg", "fedavg"]}, "asked for twice"),
        (
            {"methods": ["fedavg", {"selector": "oort"}]},
            r"'selector\+aggregator' such as .*, not \{'selector': 'oort'\}",
        ),
        (
            {"methods": ["oort+average"], "given": {"selector": "fedacs", "aggregator": "average"}},
            r"The method 'oort\+average' cannot be compared with the parts of 'fedacs\+average'",
        ),
        ({"methods": ["fedacs+nothing"]}, "There is no aggregator 'nothing'"),
        ({"seeds": 1.5}, "seeds must be a whole number such as 3, or a list .*, not 1.5"),
        ({"seeds": "12"}, "seeds must be a whole number"),
        ({"seeds": [0, 1.5]}, "seeds must be a whole number"),
        ({"vary": {"local.rate": "0.1"}}, r"vary takes a list of values for local.rate, such as .*, not '0.1'"),
        ({"vary": {"local.rate": 0.1}}, "vary takes a list of values"),
        ({"vary": {"local.rate": []}}, "vary takes a list of values"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"seeds": [1, 1]}, "not all different"),
        ({"target": 1.5}, r"target is a fraction in \(0, 1\]"),
        ({"vary": {"local.rat": [1]}}, "There is no setting 'local.rat'"),
        ({"given": {"aggregator.beta": 1}}, "The aggregator 'average' has no option 'beta'. It takes: fairness, weigh"),
        (
            {"methods": ["fedavg", "feddrl", "cfl"], "given": {"aggregator.bet": 1}},
            "'average' has no option 'bet'. It takes: .* 'feddrl' has no option 'bet'. Did you mean 'beta'?",
        ),
        (
            {"methods": ["fedavg", "feddrl"], "given": {"aggregator": {"name": "feddrl", "beta": 1}}},
            "The method 'fedavg' has the aggregator 'average'",
        ),
        ({"seed": 3}, "takes seeds .*, not one seed"),
        ({"vary": {"seed": [1, 2]}}, r"does not vary seed; give seeds instead \(--seeds A,B\)"),
        (
            {"methods": ["feddrl"], "vary": {"aggregator.beta": [0.1, 1.5]}},
            r"aggregator.beta is a fraction in \[0, 1\]",
        ),
    ],
    ids=str,
)
def test_impossible_comparisons_are_refused_before_anything_is_written(tmp_path, arguments, sentence):
    with pytest.raises(Refusal, match=sentence):
        compare(**{"methods": ["fedavg"], "seeds": 1, "given": SMALL, **arguments}, out=tmp_path / "cmp")
    assert not (tmp_path / "cmp").exists()


def test_the_folder_of_a_comparison_says_that_it_is_no_run(tmp_path):
    compare("fedavg", seeds=1, given=SMALL, rounds=1, out=tmp_path / "cmp")
    for opened in (covey.resume, covey.Run.open):
        with pytest.raises(
            Refusal, match=r"holds a comparison: covey.Comparison.open reads it, and covey.compare with"
        ):
            opened(tmp_path / "cmp")


def test_one_method_may_be_a_name_alone(tmp_path):
    assert list(compare("fedavg", seeds=1, given=SMALL, rounds=1, out=tmp_path / "cmp").runs) == ["fedavg"]


def test_a_mix_is_compared_under_the_names_of_its_parts(tmp_path):
    options = {"selector": {"clip": 0.9}, "aggregator": {"weighted": False}}
    made = compare(["fedavg", "oort+loss-softmax"], seeds=1, given={**SMALL, **options}, rounds=1, out=tmp_path / "a")
    mix = made.runs["oort+loss-softmax"][0].config
    assert mix.selector is not None
    assert mix.aggregator is not None
    assert (mix.method, mix.selector.name, mix.aggregator.name) == ("oort+loss-softmax", "oort", "loss-softmax")
    assert mix == covey.Config.of(
        {**SMALL, "rounds": 1}, selector={"name": "oort", "clip": 0.9}, aggregator="loss-softmax"
    )
    assert resume_comparison(tmp_path / "a").rows == made.rows
    assert "--methods fedavg,oort+loss-softmax" in reproduced_by(tmp_path / "a")


def test_an_option_goes_to_the_methods_that_have_it(tmp_path):
    given = {**SMALL, "rounds": 1, "aggregator": {"weighted": False, "beta": 0.5}, "many": {"warm_up": 7}}
    made = compare(["fedavg", "feddrl", "cfl"], seeds=1, given=given, out=tmp_path / "a")
    fedavg, feddrl, cfl = (made.runs[name][0].config for name in ("fedavg", "feddrl", "cfl"))
    assert fedavg.aggregator is not None
    assert feddrl.aggregator is not None
    assert cfl.many is not None
    assert fedavg.aggregator.options["weighted"] is False
    assert feddrl.aggregator.options["beta"] == 0.5
    assert cfl.many.options["warm_up"] == 7
    assert resume_comparison(tmp_path / "a").rows == made.rows
    assert "--set aggregator.weighted=false --set aggregator.beta=0.5 --set many.warm_up=7" in reproduced_by(
        tmp_path / "a"
    )


def test_fairness_is_measured_by_all_methods_that_can(tmp_path):
    methods = ["fedavg", "loss-softmax", "cfl"]
    result = compare(methods, seeds=1, given=SMALL, rounds=2, fairness=True, out=tmp_path / "cmp")
    told = {label: ["client_loss" in row for row in runs[0].metrics] for label, runs in result.runs.items()}
    assert told == {"fedavg": [True, True], "loss-softmax": [True, True], "cfl": [False, False]}
    last = result.runs["fedavg"][0].metrics[-1]["client_loss"]
    assert {name: result.rows[0][f"client_loss_{name}"] for name in last} == pytest.approx(last)
    assert result.rows[2]["client_loss_mean"] is None
    again = compare(methods, seeds=1, given=SMALL, rounds=2, fairness=True, out=tmp_path / "cmp")
    assert again.rows == result.rows


def test_an_interrupted_comparison_says_how_to_resume(tmp_path):
    assert str(Interrupted(tmp_path)) == f"Stopped. Resume with: covey resume {tmp_path}"
    with pytest.raises(Refusal, match="is not a comparison"):
        resume_comparison(tmp_path)
    (tmp_path / "compare.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(Refusal, match="newer version"):
        resume_comparison(tmp_path)


def test_paths_and_numbers_of_numpy_are_settings_like_others(tmp_path):
    given = {**SMALL, "data_dir": tmp_path}
    vary: dict[str, Any] = {"clients": np.array([6, 8])}
    found = compare("fedavg", 1, vary=vary, given=given, out=tmp_path / "all")
    assert [one.label for one in found.contenders] == ["fedavg clients=6", "fedavg clients=8"]


def test_the_columns_that_a_guide_names_are_in_the_frame_and_become_csv_and_latex(tmp_path):
    page = (Path(__file__).parents[2] / "docs/how-to/paper.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+`) \|", page, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    comparison = compare(["fedavg", "fedprox"], seeds=2, given=SMALL, out=tmp_path / "both", progress=False)
    table = comparison.frame()[named]
    assert len(named) == 14
    assert not any(isinstance(value, dict | list) for value in table.to_numpy().flatten())
    assert table.to_csv(index=False).splitlines()[1].startswith("fedavg,2,0.")
    assert r"\toprule" in table.to_latex(index=False, escape=True, na_rep="--")
    assert comparison.rows[0]["terminal_metrics"]["macro_f1"] > 0
