"""The analysis as a job: models, insights, runtimes, bytes, clients that do not answer, and refusals."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import covey
from covey import Refusal, analyze
from covey.core.build import build_federation
from covey.core.messages import Order
from covey.core.wire_size import packed_size
from covey.model import build_model
from covey.model.layout import Layout
from tests.job.analysis.test_outliers import outliers

# --- models and insights


class Scaled(nn.Module):
    """A model that scales its last layer's output, so that the range of its gradient is not 2."""

    head = "last"

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(math.prod(shape), classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(x.flatten(1))
        return 3 * logits


@pytest.mark.parametrize(
    "model",
    [{"name": "tests.job.analysis.test_analysis_job:Scaled"}, {"name": "leaf-cnn"}],
    ids=["scaled logits", "no bias"],
)
def test_without_a_bias_of_known_range_clients_are_ranked_but_nobody_is_called_odd(model):
    analysis = analyze(model=model, clients=16, environment={"name": "uniform", "samples": 60}, workers=1, rounds=1)
    assert analysis.confidence is None
    assert not analysis.odd.any()
    assert analysis.measure == "distance"
    assert "no bias that is added" in analysis.notes[0]
    assert analysis.spearman is not None
    assert analysis.spearman > 0.8


def test_the_gradient_of_all_parameters_gives_the_same_class_mixes():
    full, head = (analyze(insight=kind, clients=24, workers=1, rounds=1) for kind in ("full", "head"))
    np.testing.assert_allclose(full.skew, head.skew, atol=1e-5)
    assert full.confidence is not None
    assert head.confidence is not None
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
        "insight.weight": module.get_parameter("layers.head.weight"),
        "insight.bias": module.get_parameter("layers.head.bias"),
    }
    assert analysis.bytes_up == 3 * 12 * packed_size(sent)


# --- clients that do not answer, a user's own clients


def test_clients_that_drop_out_are_judged_by_the_rounds_they_answered_in():
    analysis = analyze(devices={"dropout": 0.4, "availability": 0.8, "spread": 0.5}, workers=1)
    assert analysis.missing
    assert len(analysis.clients) + len(analysis.missing) == 60
    assert {"it dropped out"} == {fault.reason for fault in analysis.faults}
    assert analysis.spearman is not None
    assert analysis.spearman > 0.97
    assert analysis.clock > 0


def test_only_those_who_are_asked_are_analysed():
    analysis = analyze(among=[3, 5, 8, 13, 21, 34], workers=1, rounds=1)
    assert analysis.clients.tolist() == [3, 5, 8, 13, 21, 34]
    truth = build_federation(analysis.config).truth
    np.testing.assert_array_equal(analysis.truth, truth.skew[[3, 5, 8, 13, 21, 34]])


def test_a_users_own_clients_go_by_their_names():
    rng = np.random.default_rng(0)
    sites = np.repeat(["kiel", "bremen", "<b>ulm</b>"], 200)
    chance_of_up = np.where(sites == "kiel", 0.95, np.where(sites == "bremen", 0.5, 0.4))
    labels = np.where(rng.random(600) < chance_of_up, "up", "down")
    own = covey.federation(rng.normal(size=(600, 4)), labels, sites)
    analysis = analyze(federation=own, workers=1)
    first = analysis.each()[0]
    assert (first["name"], first["odd"]) == ("kiel", True)


def test_a_run_on_a_users_own_clients_is_analysed_with_its_model(tmp_path):
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
        analyze(clients=4, insight="tests.job.analysis.test_analysis_job:nothing_usable", workers=1)


# --- refusals


def test_what_cannot_go_together_is_refused(tmp_path):
    run = covey.run(clients=4, cohort=2, rounds=1, local={"epochs": 1}, workers=1, out=tmp_path / "run")
    with pytest.raises(Refusal, match="one round, not 2"):
        analyze(model_of=run, rounds=2)
    with pytest.raises(Refusal, match="another one cannot be given"):
        analyze(model_of=run, model={"name": "mlp", "hidden": (8,)})
    with pytest.raises(Refusal, match="not a whole Config"):
        analyze(run.config, model_of=run)
    larger: dict[str, Any] = {"dataset.upscale": 2}
    with pytest.raises(Refusal, match="4,810 parameters"):
        analyze(model_of=run, **larger)
    with pytest.raises(Refusal, match="There is no client 7"):
        analyze(clients=4, among=[0, 7])
    for wrong in ([False, True, True, False], [0.5, 1.5]):
        with pytest.raises(Refusal, match="among is a list of clients' numbers"):
            analyze(clients=4, among=wrong)  # type: ignore[arg-type]
