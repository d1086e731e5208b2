"""Power-of-choice: clients report the loss of the present model, and the highest are invited."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from covey import Config, Refusal, resume, run
from covey.config.sections import Local
from covey.core.checkpoint import write_checkpoint
from covey.core.interfaces import Setting
from covey.core.replies import Replies
from covey.job.experiment import Experiment
from covey.model.layout import Layout
from covey.selection.power_of_choice import PowerOfChoice
from tests.conftest import SMALL, learner_of, saved_state, without_timings


def begun(clients=10, cohort=3, seed=0, **options) -> PowerOfChoice:
    selector = PowerOfChoice(**options)
    selector.begin(Setting(clients, cohort, 100, 10, seed, Layout((), (), ()), Local()))
    return selector


def reports(clients, losses, samples=None) -> Replies:
    count = len(clients)
    values = torch.tensor(losses, dtype=torch.float32)
    return Replies(
        np.array(clients, dtype=np.int64),
        torch.zeros(count, 0),
        torch.tensor(samples or [1] * count, dtype=torch.int64),
        torch.zeros(count, dtype=torch.float64),
        {"utility": {"loss": values, "square": values**2}},
    )


def test_the_clients_with_the_highest_losses_are_invited():
    selector = begun(10, 3, candidates=6)
    asked, probes = selector.survey(1, np.arange(10))
    assert len(set(asked.tolist())) == 6
    assert [probe.name for probe in probes] == ["utility"]
    asked = np.sort(asked)
    selector.surveyed(1, reports(asked, [0.5, 3.0, 0.1, 2.0, 0.7, 1.0]))
    assert sorted(selector.select(1, np.arange(10)).tolist()) == sorted(asked[[1, 3, 5]].tolist())


def test_twice_the_cohort_is_asked_or_everybody():
    assert begun(10, 3).asking == 6
    assert begun(10, 7).asking == 10
    assert len(begun(10, 3).survey(1, np.arange(4))[0]) == 4


def test_candidates_are_drawn_uniformly_until_sizes_are_known_and_then_by_size():
    selector = begun(4, 1, candidates=1)

    def found() -> np.ndarray:
        drawn = [int(selector.survey(t, np.arange(4))[0][0]) for t in range(1, 3001)]
        return np.bincount(drawn, minlength=4) / 3000

    assert found() == pytest.approx([0.25] * 4, abs=0.04)
    selector.surveyed(1, reports([0, 1], [1.0, 1.0], samples=[10, 50]))
    # The others count as average: 30.
    assert found() == pytest.approx(np.array([10, 50, 30, 30]) / 120, abs=0.04)
    selector.observe(1, reports([2, 3], [1.0, 1.0], samples=[20, 20]))
    assert found() == pytest.approx([0.1, 0.5, 0.2, 0.2], abs=0.04)


def test_ties_are_broken_at_random():
    selector = begun(6, 1, candidates=6)
    met = set()
    for t in range(1, 60):
        selector.survey(t, np.arange(6))
        selector.surveyed(t, reports(range(6), [1.0] * 6))
        met |= set(selector.select(t, np.arange(6)).tolist())
    assert met == set(range(6))


def test_clients_that_were_not_asked_take_the_places_of_those_that_did_not_answer():
    selector = begun(6, 3, candidates=4)
    asked = np.sort(selector.survey(1, np.arange(6))[0])
    selector.surveyed(1, reports(asked[:2], [math.nan, 1.0]))
    chosen = selector.select(1, np.arange(6)).tolist()
    assert chosen[0] == asked[1]
    assert sorted(chosen[1:]) == sorted(set(range(6)) - set(asked.tolist()))


def test_nobody_answering_leaves_a_cohort_all_the_same():
    selector = begun(4, 3, candidates=4)
    selector.survey(1, np.arange(4))
    selector.surveyed(1, reports([], []))
    assert len(set(selector.select(1, np.arange(4)).tolist())) == 3


@pytest.mark.parametrize(
    ("candidates", "sentence"),
    [
        (0, "selector.candidates must be at least 1, not 0."),
        (2, "selector.candidates must be from the cohort, 3, to the number of clients, 10, not 2."),
        (11, "selector.candidates must be from the cohort, 3, to the number of clients, 10, not 11."),
    ],
)
def test_impossible_numbers_of_candidates_are_refused(candidates, sentence):
    with pytest.raises(Refusal, match=sentence):
        begun(10, 3, candidates=candidates)


def test_a_run_invites_the_clients_whose_loss_really_is_highest(tmp_path):
    result = run(SMALL, selector={"name": "power-of-choice", "candidates": 8}, rounds=1, out=tmp_path / "run")
    experiment = Experiment.of(Config.of(SMALL))
    learner, (model,) = learner_of(experiment), experiment.method.models()
    losses = [learner.mean_loss(model, experiment.federation.samples(client)) for client in range(8)]
    experiment.runtime.close()
    assert result.metrics[0]["clients"] == sorted(np.argsort(losses)[-4:].tolist())


def test_sizes_decide_who_is_drawn_and_do_not_weigh_the_models_again():
    def option(config: Config) -> object:
        assert config.aggregator is not None
        return config.aggregator.options["weighted"]

    def weighted(**settings: Any) -> object:
        return option(Config.of({**SMALL, **settings}))

    assert not weighted(method="power-of-choice")
    assert weighted(method="power-of-choice", aggregator={"weighted": True})
    assert weighted(selector="power-of-choice")
    assert weighted(method="fedavg")
    before = {**Config.of({**SMALL, "method": "power-of-choice"}).as_mapping(), "aggregator": {"weighted": True}}
    assert option(Config.stored(before)), "an older run keeps its setting"


def test_a_checkpoint_keeps_the_sizes(tmp_path):
    selector, again = begun(), begun()
    selector.surveyed(1, reports([0, 1, 2], [1.0] * 3, samples=[10, 500, 3]))
    write_checkpoint(tmp_path, 1, selector.state_dict())
    again.load_state_dict(saved_state(tmp_path))
    asked = [[one.survey(t, np.arange(10))[0].tolist() for t in range(2, 20)] for one in (selector, again, begun())]
    assert asked[0] == asked[1] != asked[2]


def test_a_run_that_is_cut_off_and_resumed_is_the_whole_run(tmp_path):
    settings: dict[str, Any] = {"selector": {"name": "power-of-choice", "candidates": 6}, "devices": {"dropout": 0.2}}
    whole = run(SMALL, rounds=6, out=tmp_path / "whole", **settings)

    def stop(record):
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(SMALL, rounds=6, out=tmp_path / "cut", on_round=stop, **settings)
    assert without_timings(resume(tmp_path / "cut").metrics) == without_timings(whole.metrics)
    plain = run(SMALL, rounds=6, out=tmp_path / "plain", devices={"dropout": 0.2})
    assert whole.metrics[0]["bytes_down"] > 2 * plain.metrics[0]["bytes_down"]
