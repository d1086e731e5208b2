"""Surveys, gates and measurements that fail, through the round loop on a real federation."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

import covey
from covey.aggregation import Average
from covey.config.schema import Config
from covey.config.sections import Local
from covey.core.interfaces import Probe, Setting
from covey.core.loop import LoopRun
from covey.core.messages import Gate, Order, Reply
from covey.core.one_model import OneModel
from covey.core.records import Records
from covey.core.replies import Replies, checked, stack_replies
from covey.job.lockstep_runs import run_together
from covey.model.layout import Layout, Slot
from covey.probe.losses import Losses
from covey.registries import aggregators, selectors
from covey.selection import Uniform


@dataclass(frozen=True)
class Ticket(Probe):
    """A number that depends on the client's samples; the server sends 100 floats with it."""

    name = "ticket"

    def measure(self, learner, received, trained, samples, key):
        return {"number": torch.tensor(float(samples.y.sum() % 2))}

    def payload(self) -> dict[str, Tensor]:
        return {"payload": torch.zeros(100)}


@selectors.add("test-asking")
class Asking(Uniform):
    """Asks all clients for their loss, and invites those with the highest."""

    def survey(self, t, candidates):
        return candidates, (Losses(),)

    def surveyed(self, t, replies):
        assert replies.states.shape[1] == 0
        torch.testing.assert_close(replies.probes["losses"]["before"], replies.probes["losses"]["after"])
        self.losses = dict(zip(replies.clients.tolist(), replies.probes["losses"]["before"].tolist(), strict=True))

    def select(self, t, candidates):
        return np.array(sorted(candidates, key=lambda client: -self.losses[client])[: self.setting.cohort])


@aggregators.add("test-gated")
class Gated(Average):
    """Averages models of clients with an odd ticket only."""

    seen: list[tuple[list[int], list[int]]] = []  # noqa: RUF012

    def probes(self, t):
        return (Ticket(),)

    def gate(self, t):
        return Gate("ticket", "number", 1.0)

    def combine(self, t, model, replies):
        self.seen.append((replies.clients.tolist(), replies.withheld.tolist()))
        assert (replies.probes["ticket"]["number"] == 1).all()
        return super().combine(t, model, replies)


SMALL = {"clients": 8, "cohort": 4, "rounds": 3, "local": {"epochs": 1}, "workers": 1}


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["local", "stacked"])
def test_a_survey_comes_before_the_cohort_and_its_bytes_count(tmp_path, runtime):
    given = {**SMALL, "runtime": runtime, "device": "cpu"}
    asking = covey.run(given, selector="test-asking", out=tmp_path / "asking")
    plain = covey.run(given, selector="uniform", out=tmp_path / "plain")
    model_bytes = 4 * sum(parameter.numel() for parameter in asking.model().parameters())
    for row, other in zip(asking.metrics, plain.metrics, strict=True):
        assert row["bytes_down"] - other["bytes_down"] >= 8 * model_bytes
        assert 0 < row["bytes_up"] - other["bytes_up"] < 8 * 400
        assert row["probe_bytes"] == {"losses": 8 * 16}
        assert row["clock"] > other["clock"]
        assert len(row["clients"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["local", "stacked"])
def test_withheld_models_cost_no_bytes(tmp_path, runtime):
    Gated.seen.clear()
    given = {**SMALL, "runtime": runtime, "device": "cpu"}
    gated = covey.run(given, aggregator="test-gated", out=tmp_path / "gated")
    plain = covey.run(given, aggregator="average", out=tmp_path / "plain")
    model_bytes = 4 * sum(parameter.numel() for parameter in gated.model().parameters())
    assert any(withheld for _, withheld in Gated.seen)
    assert any(clients for clients, _ in Gated.seen)
    for row, other in zip(gated.metrics, plain.metrics, strict=True):
        saved = other["bytes_up"] - row["bytes_up"]
        assert abs(saved - len(row["withheld"]) * model_bytes) < 4 * 200
        assert row["bytes_down"] - other["bytes_down"] >= 4 * 400
    for clients, withheld in Gated.seen:
        assert not set(clients) & set(withheld)


def replies_of(measured: list[dict[str, dict[str, Tensor]]]) -> Replies:
    order = Order(1, np.arange(len(measured)), torch.zeros(3), Local(), (Ticket(),))
    replies = [Reply(client, torch.ones(3), 5, 0.1, probes) for client, probes in enumerate(measured)]
    return checked(stack_replies(order, replies, (), 3))


def test_a_missing_misshapen_or_infinite_measurement_costs_the_measurement_alone():
    good = {"ticket": {"number": torch.ones(2)}}
    replies = replies_of(
        [good, {}, {"ticket": {"number": torch.ones(3)}}, {"ticket": {"number": torch.tensor([1.0, torch.inf])}}, good]
    )
    assert len(replies) == 5
    assert replies.observed("ticket").tolist() == [0, 4]
    assert [(fault.client, fault.measurement) for fault in replies.faults] == [
        (1, "ticket"),
        (2, "ticket"),
        (3, "ticket"),
    ]
    assert "missing" in replies.faults[0].reason
    assert "shape" in replies.faults[1].reason
    assert "infinite" in replies.faults[2].reason
    assert replies.take(np.array([1, 4])).observed("ticket").tolist() == [1]


def test_without_measurements_no_client_is_observed():
    assert replies_of([{}, {}]).observed("ticket").tolist() == []


def test_a_run_that_evaluates_needs_the_truth_about_its_clients(tmp_path):
    experiment = covey.Experiment.of(covey.Config.of(SMALL))
    experiment.runtime.close()
    parts = experiment.method, experiment.runtime, Records(tmp_path, 0)
    parts[2].close()
    assert LoopRun(*parts, None, 3, evaluate_every=0).truth is None
    with pytest.raises(ValueError, match="needs the truth"):
        LoopRun(*parts, None, 3)


def test_all_runs_in_lockstep_are_asked_at_once_whether_to_stop(tmp_path):
    """To ask means to look into the folders of all runs: a look for each run would be their number squared."""
    looks = []
    for runs in (1, 4):
        asked: list[bool] = []

        def stop(asked: list[bool] = asked) -> bool:
            asked.append(True)
            return len(asked) >= 6

        settings = {**SMALL, "rounds": 5, "runtime": "stacked", "device": "cpu"}
        pending = [(Config.of({**settings, "seed": seed}), tmp_path / f"{runs}-{seed}") for seed in range(runs)]
        made = run_together(pending, stop=stop)
        looks.append(len(asked))
        assert {len(one.metrics) for one in made} == {3}
    assert looks == [6, 6]


def test_what_a_selector_returns_is_written_out_only_to_refuse_it():
    class Unwritten(list):
        def __repr__(self):
            raise AssertionError("written out")

    class Listing(Uniform):
        def select(self, t, candidates):
            return Unwritten([2, 0])

    head = Slot("head.bias", (3,), 0)
    setting = Setting(4, 2, 1, 3, 0, Layout((head,), (), (head,)), Local())
    method = OneModel(setting, torch.zeros(3), Listing(), Average())
    assert method.order(1, np.arange(4)).clients.tolist() == [0, 2]
