"""q-FedAvg: updates of clients with high loss count more."""

import numpy as np
import pytest
import torch
from torch import Tensor

from covey import Refusal, run
from covey.aggregation.qffl import QFFL
from covey.config.sections import Local
from covey.core.interfaces import Setting
from covey.core.messages import Fault
from covey.core.replies import Replies
from covey.model.layout import Layout, Slot
from tests.conftest import SMALL

LAYOUT = Layout((Slot("weight", (2,), 0),), (Slot("mean", (1,), 2),), (Slot("weight", (2,), 0),))
"""Two parameters and one buffer."""

MODEL = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
STATES = torch.tensor([[1.5, 1.0, 3.0], [1.0, 0.0, 9.0]], dtype=torch.float64)


def begun(q: float, **local) -> QFFL:
    aggregator = QFFL(q=q)
    aggregator.begin(Setting(10, 3, 100, 10, 0, LAYOUT, Local(**{"rate": 0.5, **local})))
    return aggregator


def replies(losses, states: Tensor = STATES, faults: tuple[Fault, ...] = ()) -> Replies:
    count = len(states)
    measured = torch.tensor(losses, dtype=torch.float64)
    return Replies(
        np.arange(count),
        states,
        torch.arange(1, count + 1),
        torch.zeros(count, dtype=torch.float64),
        {"utility": {"loss": measured, "square": measured**2}},
        faults,
    )


def test_the_step_is_that_of_algorithm_2():
    # L = 2: Δw = (-1, 0) and (0, 2), of squared norms 1 and 4. F = 2 and 3.
    # q = 1: Δ = (-2, 0) and (0, 6); h = 1·1·1 + 2·2 = 5 and 1·1·4 + 2·3 = 10.
    found = begun(1.0).combine(1, MODEL, replies([2.0, 3.0]))
    assert found[:2].tolist() == pytest.approx([1 + 2 / 15, 1 - 6 / 15], rel=1e-12)
    # Statistics have the weights 2 : 3.
    assert float(found[2]) == pytest.approx((2 * 3 + 3 * 9) / 5, rel=1e-12)
    # q = 2: Δ = 4·(-1, 0) and 9·(0, 2); h = 2·2·1 + 2·4 = 12 and 2·3·4 + 2·9 = 42.
    found = begun(2.0).combine(1, MODEL, replies([2.0, 3.0]))
    assert found[:2].tolist() == pytest.approx([1 + 4 / 54, 1 - 18 / 54], rel=1e-12)


def test_the_rate_is_that_of_the_rounds_first_epoch():
    # From round 2 on with 2 epochs and decay 1/2: η = 0.5/4, L = 8.
    # Δw = (-4, 0) and (0, 8); q = 1, F = 1: h = 16 + 8 and 64 + 8.
    found = begun(1.0, epochs=2, decay=0.5).combine(2, MODEL, replies([1.0, 1.0]))
    assert found[:2].tolist() == pytest.approx([1 + 4 / 96, 1 - 8 / 96], rel=1e-12)


def test_q_of_zero_is_the_plain_mean():
    found = begun(0.0).combine(1, MODEL, replies([2.0, 30.0]))
    assert found.tolist() == pytest.approx(STATES.mean(dim=0).tolist(), rel=1e-12)


def test_high_losses_and_large_q_do_not_overflow_and_a_loss_of_zero_is_not_infinite():
    assert torch.isfinite(begun(200.0).combine(1, MODEL, replies([9000.0, 8000.0]))).all()
    found = begun(0.5).combine(1, MODEL, replies([0.0, 2.0]))
    assert torch.isfinite(found).all()
    alone = begun(1.0).combine(1, MODEL, replies([0.0, 0.0]))
    assert torch.isfinite(alone).all()


@pytest.mark.parametrize("unusable", [float("nan"), -1.0, 1e5])
def test_a_client_without_a_usable_loss_does_not_count(unusable):
    found = begun(1.0).combine(1, MODEL, replies([2.0, unusable]))
    assert found.tolist() == pytest.approx([1 + 2 / 5, 1.0, 3.0], rel=1e-12)
    nobody = begun(1.0).combine(1, MODEL, replies([unusable, unusable]))
    assert nobody.tolist() == pytest.approx(STATES.mean(dim=0).tolist(), rel=1e-12)


def test_it_goes_with_sgd_alone():
    with pytest.raises(Refusal, match=r"takes 1/local.rate for the smoothness .* use local.optimizer=sgd."):
        begun(1.0, optimizer="adam")
    with pytest.raises(Refusal, match=r"aggregator.q must not be negative, not -1."):
        QFFL(q=-1.0)


def test_a_run_records_how_evenly_the_model_serves_and_a_larger_q_is_another_run(tmp_path):
    given = {**SMALL, "method": "qffl", "precision": "fp64"}
    even = run({**given, "aggregator": {"q": 2}}, out=tmp_path / "even")
    mean = run({**given, "aggregator": {"q": 0}}, out=tmp_path / "mean")
    plain = run(
        {**SMALL, "precision": "fp64", "aggregator": {"name": "average", "weighted": False}}, out=tmp_path / "p"
    )
    assert all("client_loss" in row for row in even.metrics)
    assert [row["loss"] for row in mean.metrics] == pytest.approx([row["loss"] for row in plain.metrics], rel=1e-9)
    assert abs(even.metrics[-1]["loss"] - mean.metrics[-1]["loss"]) > 1e-3
