"""Client speeds, availability and drop-outs on a simulated clock."""

from typing import Any

import numpy as np
import pytest
import torch

from covey import Config, Refusal, resume, run
from covey.job.experiment import Experiment
from covey.model import build_model
from covey.runtime.devices import OnDevices
from tests.conftest import SMALL, without_timings


def built(**settings) -> Experiment:
    experiment = Experiment.of(Config.of({**SMALL, **settings}))
    experiment.runtime.close()
    return experiment


def test_equal_devices_take_the_time_of_their_samples_and_bytes(tmp_path):
    devices = {"speed": 50, "bandwidth": 1000}
    result = run(SMALL, devices=devices, out=tmp_path / "run")
    parameters = 64 * 16 + 16 + 160 + 10
    a_round = 20 / 50 + 2 * 4 * parameters / 1000
    assert [row["clock"] for row in result.metrics] == pytest.approx([a_round, 2 * a_round, 3 * a_round])


def test_a_round_lasts_as_long_as_its_slowest_client():
    experiment = built(devices={"spread": 1.0, "bandwidth": 1e12})
    runtime = experiment.runtime
    assert isinstance(runtime, OnDevices)
    order = experiment.method.order(1, np.arange(8))
    replies = runtime.execute(order)
    expected = 20 / runtime.speeds[order.clients]
    assert replies.seconds.tolist() == pytest.approx(expected.tolist(), rel=1e-4)
    assert replies.round_seconds == pytest.approx(expected.max(), rel=1e-4)
    assert len(set(expected.round(6))) == 4


def test_the_clock_never_changes_the_model(tmp_path):
    plain = run(SMALL, out=tmp_path / "plain")
    slow = run(SMALL, devices={"spread": 2.0, "speed": 1}, out=tmp_path / "slow")
    assert [row["loss"] for row in plain.metrics] == [row["loss"] for row in slow.metrics]
    assert slow.metrics[-1]["clock"] > plain.metrics[-1]["clock"]


def test_only_a_share_of_the_clients_can_be_reached_and_it_changes_by_round():
    runtime = built(clients=20, devices={"availability": 0.3}).runtime
    rounds = [runtime.available(t) for t in range(1, 200)]
    assert all(len(clients) == 6 and len(set(clients.tolist())) == 6 for clients in rounds)
    assert (np.bincount(np.concatenate(rounds), minlength=20) > 30).all()
    assert np.array_equal(rounds[4], runtime.available(5))
    assert len(built(devices={"availability": 0.01}).runtime.available(1)) == 1


def test_a_client_that_answers_a_survey_may_still_drop_out_of_training(tmp_path):
    given = {**SMALL, "clients": 20, "cohort": 5, "rounds": 20, "devices": {"dropout": 0.4}}
    result = run(given, method="power-of-choice", out=tmp_path / "run")
    lost = [fault for row in result.metrics for fault in row["dropped"] if fault["client"] in row["clients"]]
    assert 20 <= len(lost) <= 70  # 40 of 100 on average


def test_cohorts_are_chosen_from_reachable_clients(tmp_path):
    result = run(SMALL, rounds=6, devices={"availability": 0.5}, out=tmp_path / "run")
    runtime = built(devices={"availability": 0.5}).runtime
    for row in result.metrics:
        assert set(row["clients"]) <= set(runtime.available(row["round"]).tolist())


def test_clients_that_drop_out_are_named_and_the_others_count(tmp_path):
    result = run(SMALL, cohort=8, rounds=30, devices={"dropout": 0.3}, out=tmp_path / "run")
    lost = [fault for row in result.metrics for fault in row["dropped"]]
    assert 0.15 * 240 < len(lost) < 0.45 * 240
    assert {fault["reason"] for fault in lost} == {"it dropped out"}
    assert result.metrics[-1]["accuracy"] > 0.3


def test_the_model_is_unchanged_if_the_whole_cohort_drops_out(tmp_path):
    result = run(SMALL, cohort=1, rounds=20, devices={"dropout": 0.6}, out=tmp_path / "run")
    losses = [row["loss"] for row in result.metrics]
    for before, row in zip(losses, result.metrics[1:], strict=False):
        assert (row["loss"] == before) == bool(row["dropped"])
    assert sum(bool(row["dropped"]) for row in result.metrics) >= 5


def test_replies_after_the_deadline_are_lost_and_the_round_ends_then():
    experiment = built(devices={"spread": 1.0, "bandwidth": 1e12, "deadline": 0.02})
    runtime = experiment.runtime
    assert isinstance(runtime, OnDevices)
    order = experiment.method.order(1, np.arange(8))
    replies = runtime.execute(order)
    needed = 20 / runtime.speeds[order.clients]
    assert 0 < len(replies) < 4
    assert replies.clients.tolist() == order.clients[needed <= 0.02].tolist()
    assert replies.round_seconds == 0.02
    assert all("the deadline is 0.02 s" in fault.reason for fault in replies.faults)


def test_local_only_clients_drop_out_too(tmp_path):
    result = run(SMALL, method="local-only", rounds=1, devices={"dropout": 0.4}, out=tmp_path / "run")
    lost = [fault["client"] for fault in result.metrics[0]["dropped"]]
    assert 0 < len(lost) < 8
    models = [layer.detach() for client in range(8) for layer in [next(result.model(client).parameters())]]
    fresh = next(build_model("mlp", {"hidden": (16,)}, (1, 8, 8), 10, seed=0).parameters())
    assert [client for client in range(8) if torch.equal(models[client], fresh)] == lost


def test_a_resumed_run_keeps_the_clock_and_the_drop_outs(tmp_path):
    settings: dict[str, Any] = {"devices": {"spread": 1.0, "dropout": 0.3, "availability": 0.7}}
    whole = run(SMALL, rounds=6, out=tmp_path / "whole", **settings)
    count = 0

    def stop(record):
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(SMALL, rounds=6, out=tmp_path / "cut", on_round=stop, **settings)
    assert without_timings(resume(tmp_path / "cut").metrics) == without_timings(whole.metrics)


@pytest.mark.parametrize(
    ("devices", "sentence"),
    [
        ({"availability": 0}, r"devices.availability is a fraction in \(0, 1\], not 0."),
        ({"availability": 1.1}, r"devices.availability is a fraction in \(0, 1\], not 1.1."),
        ({"dropout": 1}, r"devices.dropout must be in \[0, 1\), not 1."),
        ({"speed": 0}, "devices.speed must be above 0, not 0."),
        ({"spread": -1}, "devices.spread must not be negative, not -1."),
        ({"colour": 1}, "There is no setting 'devices.colour'."),
    ],
    ids=str,
)
def test_impossible_devices_are_refused(devices, sentence):
    with pytest.raises(Refusal, match=sentence):
        Config.of(devices=devices)
