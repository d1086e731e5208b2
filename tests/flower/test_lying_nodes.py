"""Nodes that answer as they should and say what is not so."""

from typing import Any

import pytest
from flwr.app import ArrayRecord, Message

from covey.flower import InProcessGrid, Strategy
from covey.flower.wire import REPLY
from tests.flower.test_flower import an_app, net

LIAR = 1000
"""The node of client 0."""


class LyingGrid(InProcessGrid):
    """A grid one of whose nodes claims a billion samples, and perfect scores in evaluations."""

    def _answer(self, message: Message) -> Message:
        answer = super()._answer(message)
        if message.metadata.dst_node_id == LIAR and answer.has_content() and REPLY in answer.content.metric_records:
            record = answer.content.metric_records[REPLY]
            if "accuracy" in record:
                record["samples"], record["accuracy"] = 10**9, 1.0
        return answer


class Boasting(InProcessGrid):
    """A grid one of whose nodes claims a billion samples and no loss when it has trained."""

    def _answer(self, message: Message) -> Message:
        answer = super()._answer(message)
        if message.metadata.dst_node_id == LIAR and answer.has_content() and REPLY in answer.content.metric_records:
            record = answer.content.metric_records[REPLY]
            if "accuracy" not in record and "loss" in record:
                record["samples"], record["loss"] = 10**9, 0.0
        return answer


def scores(grid: InProcessGrid, **more: Any) -> float:
    # Clients hardly train, so the true accuracy stays low.
    strategy = Strategy("fedavg", model=net(), clients=10, cohort=4, local={"rate": 1e-6}, **more)
    result = strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=1)
    accuracy = result.evaluate_metrics_clientapp[1]["accuracy"]
    assert isinstance(accuracy, float)
    return accuracy


def test_one_liar_does_not_decide_the_accuracy_that_is_reported():
    truth = scores(InProcessGrid(an_app(), 10))
    believed = scores(LyingGrid(an_app(), 10), guard={"on": False})
    bounded = scores(LyingGrid(an_app(), 10))
    assert believed == pytest.approx(1.0, abs=1e-3)
    # The liar weighs at most as much as two clients of ten.
    assert bounded <= truth + 0.2 * (1 - truth) + 0.05


@pytest.mark.parametrize(("on", "share"), [(False, 1.0), (True, 0.1)])
def test_one_liar_does_not_decide_the_training_loss_that_is_reported(on, share):
    losses = []
    for kind in (InProcessGrid, Boasting):
        strategy = Strategy("fedavg", model=net(), clients=10, cohort=10, local={"rate": 1e-6}, guard={"on": on})
        result = strategy.start(kind(an_app(), 10), ArrayRecord(net().state_dict()), num_rounds=1)
        losses.append(result.train_metrics_clientapp[1]["train_loss"])
    # It counts as the median client.
    assert losses[1] == pytest.approx((1 - share) * losses[0], rel=0.1, abs=1e-3)
