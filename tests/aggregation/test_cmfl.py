"""CMFL: updates whose signs disagree with the federation's do not count."""

import math
import pickle

import numpy as np
import pytest
import torch

from covey import Config, Refusal, resume, run
from covey.aggregation.cmfl import CMFL, Relevance, ServerCMFL, sign_agreement
from covey.config.sections import Local
from covey.core.interfaces import Setting
from covey.core.messages import Gate, Order
from covey.core.one_model import OneModel
from covey.core.replies import Replies
from covey.job.experiment import Experiment
from covey.model.layout import Layout, Slot
from tests.conftest import SMALL, saved_state, without_timings

LAYOUT = Layout((Slot("weight", (5,), 0),), (Slot("mean", (1,), 5),), (Slot("weight", (5,), 0),))
"""Five parameters and one buffer."""


def begun(aggregator):
    aggregator.begin(Setting(10, 3, 100, 10, 0, LAYOUT, Local()))
    return aggregator


def replies(states, samples=None) -> Replies:
    count = len(states)
    return Replies(
        np.arange(count),
        torch.tensor(states, dtype=torch.float32),
        torch.tensor(samples or [1] * count),
        torch.zeros(count, dtype=torch.float64),
    )


def test_relevance_is_the_share_of_equal_signs_over_the_parameters_alone():
    update = torch.tensor([1.0, -2.0, 0.0, 3.0, -1.0, -9.0])
    reference = torch.tensor([0.1, 5.0, 0.0, 0.2, -7.0])
    assert float(sign_agreement(update, reference)) == 0.8
    assert bool(sign_agreement(update, reference) >= 0.8)


def test_a_client_measures_its_relevance_against_the_last_global_update():
    probe = Relevance(torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0]))
    received = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 4.0])
    trained = torch.tensor([2.0, 0.0, 0.5, 0.0, 1.0, 9.0])
    learner = samples = None
    # Signs + - - - 0 against + + - - +.
    measured = pickle.loads(pickle.dumps(probe)).measure(learner, received, trained, samples or [], 0)
    assert {name: float(value) for name, value in measured.items()} == {"share": 0.6}


def test_everybody_is_relevant_before_the_first_global_update():
    aggregator = begun(CMFL())
    assert aggregator.probes(1) == () and aggregator.gate(1) is None


def test_the_global_update_travels_to_the_clients_and_opens_the_gate():
    aggregator = begun(CMFL(threshold=0.6, decay="none"))
    model = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    states = [[2.0, 0.0, 1.0, 1.0, 1.0, 5.0], [2.0, 2.0, 1.0, 1.0, 3.0, 1.0]]
    combined = aggregator.combine(1, model, replies(states, samples=[30, 10]))
    assert combined.tolist() == [2.0, 0.5, 1.0, 1.0, 1.5, 4.0]
    aggregator.stepped(1, model, combined)
    assert aggregator.update.tolist() == [1.0, -0.5, 0.0, 0.0, 0.5]
    (probe,) = aggregator.probes(2)
    assert probe.payload()["update"] is aggregator.update
    assert aggregator.gate(2) == Gate("relevance", "share", 0.6)
    plain = Order(2, np.arange(3), combined, Local())
    with_update = Order(2, np.arange(3), combined, Local(), (probe,))
    assert with_update.bytes_down() - plain.bytes_down() >= 3 * 5 * 4


def test_the_threshold_is_constant_or_falls_with_the_root_of_the_round():
    assert [begun(CMFL(decay="none")).threshold_at(t) for t in (2, 100)] == [0.8, 0.8]
    assert [begun(CMFL()).threshold_at(t) for t in (1, 4, 100)] == pytest.approx([0.8, 0.4, 0.08])


def test_the_server_keeps_updates_that_agree_with_the_mean_of_the_round():
    aggregator = begun(ServerCMFL())
    model = torch.zeros(6)
    states = [[1, 1, 1, 1, -1, 3], [1, 1, 1, -1, -1, 6], [-1, -1, -1, 1, -1, 9]]
    # The mean is + + + + -; agreement 5/5, 4/5, 2/5.
    assert aggregator.relevance(1, model, replies(states)).tolist() == [1.0, 0.8, 0.4]
    assert aggregator.combine(1, model, replies(states)).tolist() == [1, 1, 1, 0, -1, 4.5]
    # With 10 : 30 samples the last parameters weigh 1/4 : 3/4.
    weighed = aggregator.combine(1, model, replies(states, samples=[10, 30, 10]))
    assert aggregator.relevance(1, model, replies(states, samples=[10, 30, 10])).tolist() == [0.8, 1.0, 0.2]
    assert weighed.tolist() == [1, 1, 1, -0.5, -1, 5.25]


def test_the_server_takes_the_most_relevant_update_where_none_is_relevant_enough():
    aggregator = begun(ServerCMFL(threshold=1.0))
    states = [[1, 1, -1, -1, 1, 0], [-1, 1, 1, 1, 1, 2], [1, -1, 1, 1, -1, 4]]
    # The mean is + + + + +; agreement 3/5, 4/5, 3/5.
    assert aggregator.combine(1, torch.zeros(6), replies(states)).tolist() == states[1]


def test_the_server_accepts_exactly_the_threshold():
    layout = Layout((Slot("weight", (10,), 0),), (), (Slot("weight", (10,), 0),))
    aggregator = ServerCMFL(threshold=0.7)
    aggregator.begin(Setting(10, 3, 100, 10, 0, layout, Local()))
    states = torch.ones(3, 10)
    states[2, :3] = -1
    combined = aggregator.combine(1, torch.zeros(10), replies(states.tolist()))
    assert combined.tolist() == pytest.approx([1 / 3] * 3 + [1] * 7)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "cmfl", "threshold": 1.5}, r"aggregator.threshold is a share in \[0, 1\], not 1.5."),
        ({"name": "cmfl", "decay": "linear"}, "aggregator.decay must be one of none, sqrt, not 'linear'."),
        ({"name": "cmfl-server", "threshold": -1}, r"aggregator.threshold is a share in \[0, 1\], not -1."),
    ],
)
def test_impossible_options_are_refused(options, sentence, tmp_path):
    with pytest.raises(Refusal, match=sentence):
        run(SMALL, aggregator=options, out=tmp_path / "run")


# --- in runs


def cmfl(**options) -> dict[str, object]:
    return {**SMALL, "aggregator": {"name": "cmfl", **options}}


def test_a_run_withholds_the_updates_that_are_not_relevant_and_saves_their_bytes(tmp_path):
    result = run(
        cmfl(threshold=0.6, decay="none"), rounds=8, environment={"name": "iid", "samples": 20}, out=tmp_path / "run"
    )
    model = 4 * (64 * 16 + 16 + 160 + 10)
    assert result.metrics[0]["withheld"] == []
    withheld = [len(row["withheld"]) for row in result.metrics]
    assert 0 < sum(withheld) < 7 * 4
    for row in result.metrics:
        assert set(row["withheld"]) <= set(row["clients"])
        assert row["bytes_up"] // model == 4 - len(row["withheld"])
    assert result.metrics[-1]["accuracy"] > result.metrics[0]["accuracy"]


def test_clients_judge_themselves_as_the_server_would():
    experiment = Experiment.of(Config.of(cmfl(threshold=0.6, decay="none")))
    method, runtime = experiment.method, experiment.runtime
    assert isinstance(method, OneModel)
    assert isinstance(method.aggregator, CMFL)
    first = method.order(1, np.arange(8))
    method.absorb(1, runtime.execute(first))
    order = method.order(2, np.arange(8))
    trained = runtime.execute(Order(2, order.clients, order.start, order.work))
    gated = runtime.execute(order)
    runtime.close()
    update = method.aggregator.update
    assert update is not None
    shares = [float(sign_agreement(state - order.start, update)) for state in trained.states]
    assert order.clients[np.array(shares) < 0.6].tolist() == gated.withheld.tolist()
    assert len(gated.withheld) > 0


@pytest.mark.parametrize("runtime", ["local", "stacked"])
@pytest.mark.parametrize("threshold", [0.6, 1.0])
def test_selectors_hear_clients_that_keep_their_models(tmp_path, runtime, threshold):
    gate = {"name": "cmfl", "threshold": threshold, "decay": "none"}
    given = {**SMALL, "rounds": 6, "runtime": runtime, "device": "cpu", "devices": {"spread": 1.0}}
    for number, selector in enumerate(({"name": "fedacs", "pool": 0.5}, "oort", "oort-simple")):
        result = run(given, selector=selector, aggregator=gate, out=tmp_path / str(number))
        state = saved_state(result.folder)["selector"]
        assert sum(len(row["withheld"]) for row in result.metrics) > 0
        last = result.metrics[-1]["clients"]
        if "record_rounds" in state:
            records = dict(zip(state["record_clients"], state["record_rounds"], strict=True))
            assert [records[client] for client in last] == [6] * 4
        elif "durations" in state:
            assert np.isfinite(state["durations"][last]).all()
            assert len(set(state["utilities"][last].tolist())) == 4, "and not the mean of the others"
        else:
            assert (state["last"][last] == 6).all()
            assert (state["losses"][last] > 0).all()


def test_the_model_stays_where_nobody_is_relevant(tmp_path):
    result = run(cmfl(threshold=1.0, decay="none"), rounds=3, out=tmp_path / "run")
    assert [len(row["withheld"]) for row in result.metrics] == [0, 4, 4]
    assert len({row["loss"] for row in result.metrics}) == 1


def test_a_threshold_that_falls_lets_everybody_in_soon(tmp_path):
    result = run(cmfl(decay="sqrt"), rounds=6, out=tmp_path / "run")
    assert result.metrics[-1]["withheld"] == []
    assert math.isfinite(result.metrics[-1]["loss"])


@pytest.mark.parametrize("options", [{"name": "cmfl", "threshold": 0.6}, {"name": "cmfl-server"}], ids=str)
def test_a_run_that_is_cut_off_and_resumed_is_the_whole_run(options, tmp_path):
    settings = {**SMALL, "aggregator": options, "environment": {"name": "iid", "samples": 20}}
    whole = run(settings, rounds=6, out=tmp_path / "whole")

    def stop(record):
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, rounds=6, out=tmp_path / "cut", on_round=stop)
    assert without_timings(resume(tmp_path / "cut").metrics) == without_timings(whole.metrics)
    assert whole.metrics[-1]["accuracy"] > whole.metrics[0]["accuracy"]
