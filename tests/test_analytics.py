"""The analysis against the truth: ranks of skew, false alarms, who is odd, who stands out, and what it costs."""

import csv
import json
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import covey
from covey import Refusal, analyze
from covey.analytics import STANDS_OUT, Confidence, deviations_above, rank_correlation, unexplained
from covey.federations import build_federation
from covey.layout import Layout
from covey.messages import Order, packed_size
from covey.models import build_model
from covey.selection.fedacs import skewness_scores


def altered(analysis, kind: str) -> set[int]:
    """The clients that really are poisoned, or whose images really are altered."""
    drawn = build_federation(analysis.config).altered
    assert drawn is not None
    flags = drawn.poisoned if kind == "poisoned" else [found == kind for found in drawn.features]
    return {client for client, flag in enumerate(flags) if flag}


def outliers(analysis) -> set[int]:
    return set(analysis.clients[analysis.outlier].tolist())


# --- ranks


@pytest.mark.parametrize("dataset", ["digits", {"name": "synthetic", "train": 3000, "test": 100}])
@pytest.mark.parametrize("environment", ["uniform", "inverse-pareto", "few-class", "dirichlet-layers"])
def test_clients_are_ranked_by_their_true_skew(dataset, environment):
    analysis = analyze(dataset=dataset, environment=environment, workers=1)
    assert analysis.spearman > 0.97
    assert analysis.spearman_score > 0.9
    assert analysis.seconds < 5


def test_clients_of_different_sizes_are_ranked_by_skew_where_the_score_ranks_them_by_size():
    analysis = analyze(environment={"name": "dirichlet", "alpha": 0.3}, workers=1)
    assert analysis.samples.max() > 5 * analysis.samples.min()
    assert analysis.spearman > 0.97
    assert analysis.spearman_score < 0.6
    assert rank_correlation(analysis.score, analysis.samples) > 0.5


def test_the_estimate_is_nearly_the_distance_of_class_shares():
    analysis = analyze(environment="few-class", workers=1)
    assert analysis.measure == "class mix"
    assert np.abs(analysis.skew - analysis.truth).max() < 0.05


def test_rounds_from_different_models_agree_and_one_round_agrees_with_nobody():
    assert analyze(workers=1).agreement > 0.95
    alone = analyze(workers=1, rounds=1)
    assert alone.agreement is None
    assert alone.spearman > 0.95


def test_places_are_those_of_the_estimates():
    analysis = analyze(clients=12, workers=1)
    each = analysis.each()
    assert [row["rank"] for row in each] == list(range(1, 13))
    assert [row["skew"] for row in each] == sorted(analysis.skew, reverse=True)
    by_score = sorted(each, key=lambda row: row["score_rank"])
    assert by_score[0]["score"] == pytest.approx(analysis.score.max(), rel=0.2)


def test_a_rank_correlation_needs_something_to_rank():
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0])) == pytest.approx(0.5)
    assert rank_correlation(np.array([1.0, 2.0]), np.array([1.0, 2.0])) is None
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.ones(3)) is None


# --- how sure


def test_the_bound_of_a_tiny_federation_by_hand():
    """Two clients with 50 and 150 samples in 2 classes, at level 0.1: v = 4·(1 - 49/200)/50 and 4·(1 - 149/200)/150."""
    found = Confidence.of(np.array([[0.6, -0.6], [-0.2, 0.2]]), np.array([50, 150]), 0.1)
    v = [4 * (151 / 200) / 50, 4 * (51 / 200) / 150]
    np.testing.assert_allclose(found.deviation, [0.6, 0.2])
    np.testing.assert_allclose(found.limit, [math.sqrt(one * math.log(2 * 2 * 2 / 0.1) / 2) for one in v])
    expected = [min(1, 4 * math.exp(-2 * 0.36 / v[0])), min(1, 4 * math.exp(-2 * 0.04 / v[1]))]
    np.testing.assert_allclose(found.p_values, expected)
    np.testing.assert_allclose(found.sureness, [1 - min(1, 2 * one) for one in expected])
    evidence = [2 * 50 * 0.72 / 4, 2 * 150 * 0.08 / 4]
    np.testing.assert_allclose(found.log_product, [2 * math.log(2) - one for one in evidence])


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(2, 12), st.floats(0.001, 0.5), st.integers(0, 10_000))
def test_beyond_the_limit_means_odd_at_the_level_and_nothing_else_does(clients, classes, level, seed):
    rng = np.random.default_rng(seed)
    found = Confidence.of(rng.uniform(-1, 1, (clients, classes)), rng.integers(1, 400, clients), level)
    np.testing.assert_array_equal(found.deviation >= found.limit, clients * found.p_values <= level)
    assert np.all((found.p_values >= 0) & (found.p_values <= 1))
    assert np.all((found.sureness >= 0) & (found.sureness <= 1))
    assert np.all((found.product >= 0) & (found.product <= 1))
    assert np.all(found.log_product <= classes * math.log(2))


@pytest.mark.parametrize("independent", [True, False], ids=["independent samples", "dealt from one pool"])
def test_false_alarms_are_no_more_frequent_than_the_level_even_in_the_worst_case(independent):
    """Values at both ends of the range, for which Hoeffding's inequality is made. Half the range would fail here."""
    rng, level, trials = np.random.default_rng(1), 0.2, 3_000
    sizes = np.array([20, 40, 60, 80])
    alarms = {1.0: 0, 0.5: 0}
    pool = np.repeat([-1.0, 1.0], sizes.sum() // 2)
    for _ in range(trials):
        values = rng.choice([-1.0, 1.0], sizes.sum()) if independent else rng.permutation(pool)
        means = np.array([part.mean() for part in np.split(values, np.cumsum(sizes)[:-1])])
        apart = means - sizes @ means / sizes.sum()
        found = Confidence.of(np.stack([apart, -apart], axis=1), sizes, level)
        for share in alarms:
            alarms[share] += bool((found.deviation >= share * found.limit).any())
    assert alarms[1.0] / trials <= level
    assert alarms[0.5] / trials > level


def test_clients_that_are_alike_are_not_called_odd():
    for seed in range(5):
        analysis = analyze(environment="iid", clients=20, seed=seed, workers=1, rounds=2)
        assert not analysis.odd.any()
        assert not analysis.outlier.any()


def test_strongly_skewed_clients_are_called_odd_and_mildly_skewed_ones_are_not():
    analysis = analyze(workers=1)
    assert analysis.odd[analysis.truth > 0.5].all()
    assert not analysis.odd[analysis.truth < 0.2].any()
    np.testing.assert_array_equal(analysis.odd, analysis.confidence.deviation >= analysis.confidence.limit)


def test_a_stricter_level_calls_fewer_clients_odd():
    counts = [analyze(workers=1, rounds=1, level=level).odd.sum() for level in (0.5, 0.05, 1e-6)]
    assert counts[0] >= counts[1] > counts[2]


def test_the_product_of_bounds_is_the_papers_with_the_logarithm_put_right():
    """Eq. 34: Q² = (K·ln 2 - ln P)·(b - a)²/2 on the K coordinates of the bias, and P is above 1 for clients alike."""
    rng = np.random.default_rng(0)
    samples = np.array([30, 60, 90])
    bias = rng.uniform(-0.3, 0.3, (3, 5))
    apart = bias - samples @ bias / samples.sum()
    score = skewness_scores(torch.from_numpy(bias), torch.from_numpy(samples))
    log_product = Confidence.of(apart, samples, 0.05).log_product
    np.testing.assert_allclose(score**2, (5 * math.log(2) - log_product) * 4 / 2)
    alike = analyze(environment="iid", clients=20, workers=1, rounds=1).confidence
    assert np.all(alike.log_product > 0)
    assert np.all(alike.product == 1)


# --- who stands out


@pytest.mark.parametrize(
    "environment", ["iid", "uniform", "dirichlet", {"name": "uniform", "samples": 60}], ids=lambda given: str(given)
)
def test_poisoned_clients_stand_out_without_any_training(environment):
    analysis = analyze(environment=environment, altered={"poison": 0.1}, workers=1)
    poisoned = altered(analysis, "poisoned")
    assert len(poisoned) == 6
    assert poisoned <= outliers(analysis)
    assert len(outliers(analysis) - poisoned) <= 1


def test_flipped_labels_do_not_show_in_the_class_mix_or_in_the_score():
    """Which is why what the class mix does not explain is looked at."""
    alike = analyze(environment="iid", clients=40, altered={"poison": 0.1}, workers=1)
    assert not alike.odd.any()
    skewed = analyze(altered={"poison": 0.1}, workers=1)
    assert not (deviations_above(skewed.score) > STANDS_OUT).any()


@pytest.mark.parametrize("kind", ["shifted", "inverted"])
def test_clients_whose_images_are_altered_stand_out(kind):
    analysis = analyze(altered={kind: 0.1}, workers=1)
    assert outliers(analysis) == altered(analysis, kind)
    assert analysis.spearman > 0.97


def test_poisoned_clients_stand_out_from_the_view_of_a_trained_model(tmp_path):
    """Even one that was trained on their labels too; its view of the skew is worse than an untrained one's."""
    run = covey.run(altered={"poison": 0.1}, rounds=10, evaluate_every=10, workers=1, out=tmp_path / "run")
    analysis = analyze(model_of=run)
    poisoned = altered(analysis, "poisoned")
    assert poisoned <= outliers(analysis)
    assert set(analysis.clients[analysis.order[: len(poisoned)]].tolist()) == poisoned
    assert (analysis.measure, analysis.confidence, analysis.rounds) == ("distance", None, 1)
    assert "was trained" in analysis.notes[0]
    assert analysis.as_mapping()["odd"] is None
    elsewhere = analyze({"altered": {"poison": 0}}, model_of=tmp_path / "run", environment="iid")
    assert elsewhere.config.environment.name == "iid"
    assert not poisoned & outliers(elsewhere)


def test_a_third_of_wrong_labels_does_not_bend_the_line_towards_itself():
    analysis = analyze(environment="few-class", altered={"poison": 0.3}, workers=1)
    assert altered(analysis, "poisoned") == outliers(analysis)


def brightness(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A user's own insight: the mean image."""
    return x.mean(dim=0).flatten()


def test_a_function_of_the_user_shows_clients_whose_images_are_shifted():
    analysis = analyze(
        environment="iid", altered={"shifted": 0.1}, insight="tests.test_analytics:brightness", workers=1, rounds=1
    )
    shifted = altered(analysis, "shifted")
    assert len(shifted) == 6
    assert outliers(analysis) == shifted
    assert set(analysis.clients[analysis.order[:6]].tolist()) == shifted
    assert analysis.confidence is None
    assert "brightness is not known" in analysis.notes[0]


def test_what_is_unexplained_does_not_depend_on_how_insights_are_turned():
    """Few long vectors are handled by their inner products alone."""
    rng = np.random.default_rng(0)
    bias = rng.normal(size=(30, 4))
    insights = bias @ rng.normal(size=(4, 20)) + 0.1 * rng.normal(size=(30, 20))
    insights[7] += 1.0
    samples = rng.integers(10, 50, 30)
    turned = insights @ np.linalg.qr(rng.normal(size=(200, 20)))[0].T
    short = unexplained(torch.from_numpy(insights), bias, samples)
    np.testing.assert_allclose(unexplained(torch.from_numpy(turned), bias, samples), short, rtol=1e-6)
    assert short.argmax() == 7
    assert np.flatnonzero(deviations_above(short) > STANDS_OUT).tolist() == [7]


def test_clients_that_are_all_the_same_do_not_stand_out():
    assert not deviations_above(np.zeros(8)).any()
    assert not deviations_above(np.full(8, 3.0)).any()
    same = unexplained(torch.ones(30, 12, dtype=torch.float64), np.ones((30, 3)), np.full(30, 10))
    assert np.abs(same).max() < 1e-9


def test_too_few_clients_are_ranked_and_nobody_stands_out():
    analysis = analyze(clients=6, workers=1, rounds=1)
    assert analysis.strangeness is None
    assert "Fewer than 20 clients answered" in analysis.notes[0]
    assert analysis.each()[0]["outlier"] is None


# --- models and insights


class Scaled(nn.Module):
    """A model that does something to its last layer's output, so that the range of its gradient is not 2."""

    head = "last"

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(math.prod(shape), classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(x.flatten(1))
        return 3 * logits


class Headless(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(math.prod(shape), classes)


@pytest.mark.parametrize(
    "model", [{"name": "tests.test_analytics:Scaled"}, {"name": "leaf-cnn"}], ids=["scaled logits", "no bias"]
)
def test_without_a_bias_of_known_range_clients_are_ranked_but_nobody_is_called_odd(model):
    analysis = analyze(model=model, clients=16, environment={"name": "uniform", "samples": 60}, workers=1, rounds=1)
    assert analysis.confidence is None
    assert not analysis.odd.any()
    assert analysis.measure == "distance"
    assert "no bias that is added" in analysis.notes[0]
    assert analysis.spearman > 0.8


def test_the_gradient_of_all_parameters_says_the_same_of_class_mixes():
    full, head = (analyze(insight=kind, clients=24, workers=1, rounds=1) for kind in ("full", "head"))
    np.testing.assert_allclose(full.skew, head.skew, atol=1e-5)
    np.testing.assert_allclose(full.confidence.p_values, head.confidence.p_values, rtol=1e-3)
    assert full.bytes_up > 5 * head.bytes_up


def test_local_and_stacked_find_the_same():
    given = {"altered": {"poison": 0.1}, "environment": "dirichlet", "precision": "fp64", "clients": 30, "workers": 1}
    local = analyze(given)
    stacked = analyze(given, runtime="stacked", device="cpu")
    for name in ("skew", "score", "strangeness"):
        np.testing.assert_allclose(getattr(local, name), getattr(stacked, name), rtol=1e-7, atol=1e-9)
    assert outliers(local) == outliers(stacked)
    assert (local.bytes_up, local.bytes_down) == (stacked.bytes_up, stacked.bytes_down)


def test_bytes_are_those_of_models_down_and_insights_up():
    analysis = analyze(clients=12, workers=1)
    module = build_model("mlp", {}, (1, 8, 8), 10, 0)
    state = Layout.of(module).read(module)
    order = Order(1, np.arange(12), state, analysis.config.local, ())
    extra = 3 * 12 * len("insight")
    assert 0 <= analysis.bytes_down - 3 * order.bytes_down() <= extra + 3 * 12 * 8
    sent = {
        "samples": torch.tensor(1),
        "insight.weight": module.layers.head.weight,
        "insight.bias": module.layers.head.bias,
    }
    assert analysis.bytes_up == 3 * 12 * packed_size(sent)


# --- clients that do not answer, clients of one's own


def test_clients_that_drop_out_are_judged_by_the_rounds_they_answered_in():
    analysis = analyze(devices={"dropout": 0.4, "availability": 0.8, "spread": 0.5}, workers=1)
    assert analysis.missing
    assert len(analysis.clients) + len(analysis.missing) == 60
    assert {"it dropped out"} == {fault.reason for fault in analysis.faults}
    assert analysis.spearman > 0.97
    assert analysis.clock > 0


def test_only_those_who_are_asked_are_analysed():
    analysis = analyze(among=[3, 5, 8, 13, 21, 34], workers=1, rounds=1)
    assert analysis.clients.tolist() == [3, 5, 8, 13, 21, 34]
    truth = build_federation(analysis.config).truth
    np.testing.assert_array_equal(analysis.truth, truth.skew[[3, 5, 8, 13, 21, 34]])


def test_ones_own_clients_are_called_by_their_names():
    rng = np.random.default_rng(0)
    sites = np.repeat(["kiel", "bremen", "<b>ulm</b>"], 200)
    chance_of_up = np.where(sites == "kiel", 0.95, np.where(sites == "bremen", 0.5, 0.4))
    labels = np.where(rng.random(600) < chance_of_up, "up", "down")
    own = covey.federation(rng.normal(size=(600, 4)), labels, sites)
    analysis = analyze(federation=own, workers=1)
    first = analysis.each()[0]
    assert (first["name"], first["odd"]) == ("kiel", True)


def test_a_run_on_ones_own_clients_is_analysed_with_its_model(tmp_path):
    rng = np.random.default_rng(0)
    own = covey.federation(rng.normal(size=(120, 4)), rng.integers(0, 2, 120), np.repeat(np.arange(8), 15))
    run = covey.run(federation=own, cohort=2, rounds=1, workers=1, out=tmp_path / "run")
    again = analyze(model_of=tmp_path / "run", federation=own)
    np.testing.assert_array_equal(again.score, analyze(model_of=run).score)
    assert len(again.clients) == 8
    with pytest.raises(Refusal, match="passed in from Python"):
        analyze(model_of=tmp_path / "run")


def nothing_usable(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.full((2,), float("nan"))


def test_answers_that_cannot_be_used_are_refused_with_the_reason():
    with pytest.raises(Refusal, match=r"fewer than two of 4 .* client 0: its insight holds NaN"):
        analyze(clients=4, insight="tests.test_analytics:nothing_usable", workers=1)


# --- the command


QUICK = ["--clients", 24, "--set", "workers=1", "--set", "environment.samples=80"]


def test_the_command_prints_json_and_writes_csv_with_the_same_figures(covey_command, tmp_path):
    answer = covey_command("analyze", *QUICK, "--poison", "0.1", "--json", "--csv", tmp_path / "new" / "clients.csv")
    assert answer.code == 0
    found = answer.json
    assert found["spearman"] > 0.8
    assert found["agreement"] > 0.8
    assert found["clients"] == len(found["each"]) == 24
    assert found["bytes_up"] > 0
    assert found["seconds"] > 0
    with (tmp_path / "new" / "clients.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["client"]) for row in rows] == [one["client"] for one in found["each"]]
    assert [float(row["skew"]) for row in rows] == [one["skew"] for one in found["each"]]
    assert [row["outlier"] == "True" for row in rows] == [one["client"] in found["outliers"] for one in found["each"]]


def test_the_command_tells_people_who_is_odd_and_how_many_are_not_shown(covey_command):
    said = covey_command("analyze", "--set", "workers=1", "--poison", "0.1", "--rounds", 1).out
    assert "40 clients between them are not shown." in said
    assert re.search(r"\d+ of 60 clients have an odd class mix \(chance of any false alarm at most 0.05\)", said)
    assert re.search(r"Outliers in what class mixes do not explain: \d+(, \d+){5}\.", said)
    assert "sent up / down" in said
    assert max(map(len, said.split("Most skewed first")[1].splitlines()[:20])) <= 80


def test_the_command_runs_stacked_and_from_a_run(covey_command, tmp_path):
    stacked = covey_command("analyze", *QUICK, "--runtime", "stacked", "--device", "cpu", "--json").json
    assert stacked["spearman"] > 0.8
    covey_command("run", *QUICK, "--rounds", 2, "--set", "local.epochs=1", "--out", tmp_path / "run", "--json")
    found = covey_command("analyze", "--from", tmp_path / "run", "--json").json
    assert (found["model_of"], found["clients"]) == (str(tmp_path / "run"), 24)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--rounds 0", "rounds must be at least 1, not 0."),
        ("--rounds few", "rounds must be a whole number, not 'few'."),
        ("--level 1.5", "level is a probability between 0 and 1, not 1.5."),
        ("--level high", "level must be a number, not 'high'."),
        ("--insight heads", "insight is head, full, or a function of yours"),
        ("--insight no.such:thing", "The insight 'no.such:thing' cannot be imported"),
        ("--environment nowhere", "There is no environment 'nowhere'."),
        ("--clients 1", "an analysis needs at least two."),
        ("--from absent", "is not a run folder"),
        ("--model tests.test_analytics:Headless", "does not name its last layer"),
        ("--set colour=red", "There is no setting 'colour'."),
        ("--clients 4 --rounds 1 --set workers=1 --csv /dev/null/a.csv", "cannot be written"),
    ],
)
def test_wrong_input_is_a_sentence(covey_command, tmp_path, monkeypatch, flags, sentence):
    monkeypatch.chdir(tmp_path)
    answer = covey_command("analyze", *flags.split())
    assert answer.code == 2
    assert answer.err.startswith("covey: ")
    assert sentence in answer.err
    assert answer.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_go_together_is_refused(tmp_path):
    run = covey.run(clients=4, cohort=2, rounds=1, local={"epochs": 1}, workers=1, out=tmp_path / "run")
    with pytest.raises(Refusal, match="one round, not 2"):
        analyze(model_of=run, rounds=2)
    with pytest.raises(Refusal, match="another one cannot be given"):
        analyze(model_of=run, model={"name": "mlp", "hidden": (8,)})
    with pytest.raises(Refusal, match="not a whole Config"):
        analyze(run.config, model_of=run)
    with pytest.raises(Refusal, match="4,810 parameters"):
        analyze(model_of=run, **{"dataset.upscale": 2})
    with pytest.raises(Refusal, match="There is no client 7"):
        analyze(clients=4, among=[0, 7])


# --- the page


def test_the_page_draws_skew_certainty_outliers_and_truth(tmp_path):
    pytest.importorskip("plotly")
    analysis = analyze(clients=24, altered={"poison": 0.1}, workers=1, rounds=1)
    text = analysis.draw(tmp_path / "deep" / "analysis.html").read_text(encoding="utf-8")
    assert "<h1>24 clients with digits, environment uniform</h1>" in text
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', text, re.DOTALL)[1])
    assert len(charts) == 2
    skew, truth = charts
    bars = [trace for trace in skew["data"] if trace["type"] == "bar"]
    np.testing.assert_allclose(bars[0]["y"], analysis.skew[analysis.order], rtol=1e-5)
    limits = [trace for trace in skew["data"] if trace["type"] == "scatter"]
    np.testing.assert_allclose(limits[0]["y"], analysis.confidence.limit[analysis.order], rtol=1e-5)
    assert bars[0]["marker"]["color"].count("var(--line-1)") == analysis.outlier.sum()
    assert sum(len(trace["x"]) for trace in truth["data"]) == 24
    assert f"{analysis.spearman:.2f}" in text
    assert [item.name for item in (tmp_path / "deep").iterdir()] == ["analysis.html"]


def test_the_page_of_a_trained_models_view_says_what_is_missing(tmp_path):
    pytest.importorskip("plotly")
    analysis = analyze(clients=6, environment="iid", insight="tests.test_analytics:brightness", workers=1, rounds=1)
    text = analysis.draw(tmp_path / "analysis.html").read_text(encoding="utf-8")
    assert "What is missing" in text
    assert "odd class mix</span>" not in text
