import warnings
from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey.config.sections import GuardLimits, Local
from covey.core.guard import Guard, bounded_shares, update_norms
from covey.core.interfaces import Aggregator, Setting
from covey.core.messages import Fault
from covey.core.one_model import OneModel
from covey.core.replies import Replies, checked
from covey.model.factory import build_model
from covey.model.layout import Layout
from covey.selection.uniform import Uniform

SMALL: dict[str, Any] = {
    "clients": 20,
    "cohort": 10,
    "rounds": 6,
    "environment": "iid",
    "workers": 1,
    "model": {"name": "mlp", "hidden": (16,)},
}


def replies_of(states: torch.Tensor, samples: list[int] | None = None, clients: list[int] | None = None) -> Replies:
    count = len(states)
    return Replies(
        clients=np.array(clients or range(count), dtype=np.int64),
        states=states,
        samples=torch.tensor(samples or [10] * count),
        losses=torch.ones(count, dtype=torch.float64),
    )


def guard(**limits: Any) -> Guard:
    return Guard(GuardLimits(**limits), clients=20, cohort=5)


def updates(*norms: float) -> torch.Tensor:
    """Models whose updates from zero have these norms."""
    return torch.eye(len(norms), 8) * torch.tensor(norms)[:, None]


def test_an_update_far_outside_is_dropped_and_named():
    model = torch.zeros(8)
    found = guard().screened(1, model, replies_of(updates(1.0, 2.0, 0.5, 1000.0)))
    assert found.clients.tolist() == [0, 1, 2]
    assert [(fault.client, fault.reason) for fault in found.faults] == [
        (3, "its update is 1e+03 times as large as updates are here")
    ]


def test_updates_that_differ_as_honest_ones_do_are_left_alone():
    given = replies_of(updates(1.0, 40.0, 0.01, 3.0))
    assert guard().screened(1, torch.zeros(8), given) is given


def test_a_single_number_of_1e30_is_far_outside():
    states = updates(1.0, 1.0, 1.0)
    states[1, 5] = 1e30
    assert guard().screened(1, torch.zeros(8), replies_of(states)).clients.tolist() == [0, 2]


def test_a_cohort_of_liars_does_not_set_the_measure():
    watch, model = guard(), torch.zeros(8)
    for t in range(1, 4):
        assert len(watch.screened(t, model, replies_of(updates(1.0, 1.0, 1.0)))) == 3
    assert len(watch.screened(4, model, replies_of(updates(5000.0, 5000.0, 5000.0)))) == 0
    assert len(watch.screened(5, model, replies_of(updates(1.0, 1.0, 5000.0)))) == 2


def test_clients_unlike_the_majority_are_heard_when_the_model_fits_the_majority():
    """Then the others' updates are close to nothing, and theirs are as large as they were at first."""
    watch, model = guard(), torch.zeros(8)
    for t in range(1, 700):
        size = 1.0 if t <= 5 else 1e-6
        assert not watch.screened(t, model, replies_of(updates(size, size, size))).faults
    found = watch.screened(700, model, replies_of(updates(1e-6, 1e-6, 1e-6, 3.0, 1000.0)))
    assert found.clients.tolist() == [0, 1, 2, 3]
    assert len(watch.norms) <= 5 + 512


def test_norms_in_double_precision_do_not_overflow():
    states = torch.full((2, 4), 1e30)
    assert update_norms(states, torch.zeros(4)).tolist() == pytest.approx([2e30, 2e30])


def test_a_client_has_the_samples_that_it_claimed_first():
    watch = guard()
    first = watch.screened(1, torch.zeros(8), replies_of(updates(1, 1, 1), [10, 20, 30]))
    later = watch.screened(2, torch.zeros(8), replies_of(updates(1, 1, 1), [10, 2000, 30]))
    assert first.samples.tolist() == later.samples.tolist() == [10, 20, 30]


def test_a_claim_beyond_all_measure_is_not_believed():
    found = guard().screened(1, torch.zeros(8), replies_of(updates(1, 1, 1), [10, 20, 10**9]))
    assert found.samples.tolist() == [10, 20, 20]
    # FedDRL's Pareto split has 2 to 6,432 samples.
    pareto = replies_of(updates(1, 1, 1), [2, 40, 6432])
    assert guard().screened(1, torch.zeros(8), pareto).samples.tolist() == [2, 40, 6432]


class Asking(Uniform):
    """Keeps the sample counts that a survey's clients tell."""

    def surveyed(self, t: int, replies: Replies) -> None:
        self.told = replies.samples.tolist()


def test_claims_in_surveys_are_no_more_believed_than_others():
    layout = Layout.of(build_model("mlp", {"hidden": (4,)}, (1, 8, 8), 10, 0))
    selector = Asking()
    method = OneModel(Setting(3, 3, 5, 10, 0, layout, Local()), torch.zeros(layout.size), selector, Leap())
    method.surveyed(1, replies_of(torch.empty(3, 0), [10, 20, 10**9]))
    assert selector.told == [10, 20, 20]
    found = method.screened(1, replies_of(torch.zeros(3, layout.size), [10, 2000, 20]))
    assert found.samples.tolist() == [10, 20, 20]


def test_no_client_weighs_more_than_two_in_an_evaluation():
    shares = bounded_shares(np.array([60.0] * 9 + [1e9]))
    assert shares.sum() == pytest.approx(1)
    assert shares[-1] == pytest.approx(0.2)
    assert bounded_shares(np.array([1.0, 1.5, 0.5])).tolist() == [1 / 3, 0.5, 0.5 / 3]
    several = bounded_shares(np.array([1.0] * 8 + [1e6, 1e9]))
    assert several.sum() == pytest.approx(1)
    assert several.max() == pytest.approx(0.2)


def test_clients_that_are_dropped_again_and_again_rest():
    watch, model = guard(), torch.zeros(8)
    for t in (1, 2):
        watch.screened(t, model, replies_of(updates(1.0, 1.0, 1e6)))
    assert watch.candidates(3, np.arange(3)).tolist() == [0, 1]
    again = guard()
    again.load_state_dict(watch.state_dict())
    assert again.state_dict() == watch.state_dict()
    assert again.candidates(3, np.arange(3)).tolist() == [0, 1]
    assert again.candidates(9, np.arange(3)).tolist() == [0, 1, 2]


def test_invitations_are_bounded_if_asked_for_and_a_round_is_never_short():
    watch = guard(invitations=1.5)
    for t in range(1, 9):
        assert len(watch.candidates(t, np.arange(20))) >= 5
        watch.note_invited(np.arange(5))
    # A fair share after 9 rounds of 5 of 20 is 2.25 invitations; the five had 8.
    assert not set(watch.candidates(9, np.arange(20)).tolist()) & set(range(5))
    assert watch.candidates(9, np.arange(6)).tolist() == [0, 1, 2, 3, 5]
    assert guard().candidates(9, np.arange(6)).tolist() == list(range(6))


class Leap(Aggregator):
    """Leaps to a model that nobody can train from, once."""

    def combine(self, t: int, model: torch.Tensor, replies: Replies) -> torch.Tensor:
        return model * 1e20 if t == 2 else model + 1


def test_updates_are_not_compared_before_an_aggregator_with_privacy(tmp_path):
    given = {**SMALL, "rounds": 2, "attack": {"kind": "scale"}}
    private = covey.run({**given, "aggregator": {"name": "dp-fedavg", "delta": None}}, out=tmp_path / "private")
    assert not any(row["dropped"] for row in private.metrics)
    bounded = {"name": "norm-bound", "around": "dp-fedavg,delta=none"}
    assert not any(
        row["dropped"]
        for row in covey.run({**given, "aggregator": {**bounded, "bound": 1.0}}, out=tmp_path / "bounded").metrics
    )
    with pytest.raises(covey.Refusal, match="a bound that adapts to the clients' updates tells about them"):
        covey.run({**given, "aggregator": bounded}, out=tmp_path / "adapting")


@pytest.mark.parametrize("on", [True, False])
def test_a_model_that_leaves_nothing_finite_is_rolled_back(on):
    module = build_model("mlp", {"hidden": (4,)}, (1, 8, 8), 10, 0)
    layout = Layout.of(module)
    setting = Setting(3, 3, 5, 10, 0, layout, Local())
    method = OneModel(setting, torch.ones(layout.size), Uniform(), Leap(), limits=GuardLimits(on=on, norm=0))
    states = torch.ones(3, layout.size)
    for t in (1, 2):
        method.absorb(t, replies_of(states))
    sound = torch.full((layout.size,), 2.0)
    kept = method.state_dict()
    broken = checked(replies_of(torch.full_like(states, float("nan"))))
    other = OneModel(setting, torch.ones(layout.size), Uniform(), Leap(), limits=GuardLimits(on=on, norm=0))
    other.load_state_dict(kept)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for one in (method, other):
            one.absorb(3, broken)
            assert torch.equal(one.model, sound) == on
            assert one.figures().get("rolled_back", False) == on
    assert any("the model is back at the one before" in str(warning.message) for warning in seen) == on


def test_earlier_norms_are_no_measure_once_clients_train_otherwise():
    layout = Layout.of(build_model("mlp", {"hidden": (4,)}, (1, 8, 8), 10, 0))

    def method(rate: float) -> OneModel:
        setting = Setting(3, 3, 5, 10, 0, layout, Local(rate=rate))
        return OneModel(setting, torch.zeros(layout.size), Uniform(), Leap())

    before = method(0.1)
    before.screened(1, replies_of(torch.eye(3, layout.size)))
    same, other = method(0.1), method(20.0)
    for one in (same, other):
        one.load_state_dict(before.state_dict())
    large = replies_of(torch.eye(3, layout.size) * 1e4)
    assert len(same.screened(2, large)) == 0
    assert len(other.screened(2, large)) == 3


def test_rounds_without_replies_roll_nothing_back():
    module = build_model("mlp", {"hidden": (4,)}, (1, 8, 8), 10, 0)
    layout = Layout.of(module)
    method = OneModel(Setting(3, 3, 5, 10, 0, layout, Local()), torch.ones(layout.size), Uniform(), Leap())
    for t in (1, 2):
        method.absorb(t, replies_of(torch.ones(3, layout.size)))
    nothing = Replies(np.empty(0, np.int64), torch.empty(0, layout.size), torch.empty(0), torch.empty(0))
    method.absorb(3, nothing)
    method.absorb(
        4,
        covey.Replies(
            nothing.clients, nothing.states, nothing.samples, nothing.losses, faults=(Fault(1, "it dropped out"),)
        ),
    )
    assert float(method.model[0]) == pytest.approx(2e20)


def test_one_huge_update_no_longer_ends_a_run(tmp_path):
    hostile = {"attack": {"kind": "scale", "attackers": 0.05, "factor": 1e25}}
    on = covey.run({**SMALL, **hostile}, out=tmp_path / "on")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        off = covey.run({**SMALL, **hostile, "guard": {"on": False}}, out=tmp_path / "off")
    assert on.metrics[-1]["accuracy"] > 0.6
    assert off.metrics[-1]["accuracy"] < 0.3
    dropped = [fault for row in on.metrics for fault in row["dropped"]]
    assert dropped and all("times as large as updates are here" in fault["reason"] for fault in dropped)
    assert {fault["client"] for fault in dropped} == {client for row in on.metrics for client in row["attackers"]}


def test_a_guarded_run_under_attack_resumes_to_the_same_end(tmp_path):
    given = {
        **SMALL,
        "attack": {"kind": "scale", "attackers": 0.2},
        "guard": {"invitations": 1.5},
        "selector": "oort-simple",
    }

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    whole = covey.run(given, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        covey.run(given, out=tmp_path / "stopped", on_round=stop)
    resumed = covey.resume(tmp_path / "stopped")
    for mine, theirs in zip(resumed.metrics, whole.metrics, strict=True):
        for timing in ("seconds", "probe_seconds"):
            mine.pop(timing), theirs.pop(timing)
        assert mine == theirs


@pytest.mark.slow
@pytest.mark.parametrize("selector", ["oort", "oort-simple", "fedacs", "power-of-choice"])
def test_liars_get_little_more_than_their_share_of_invitations(selector, tmp_path):
    given = {**SMALL, "clients": 30, "rounds": 20, "selector": selector, "attack": {"kind": "lie", "attackers": 0.1}}
    shares = []
    for limit in (0.0, 1.5):
        run = covey.run({**given, "guard": {"invitations": limit}}, out=tmp_path / f"{limit:g}")
        shares.append(
            sum(len(row["attackers"]) for row in run.metrics) / sum(len(row["clients"]) for row in run.metrics)
        )
    assert shares[1] <= 0.15 + 1e-9
    assert shares[1] < shares[0]


def test_limits_that_make_no_sense_are_refused():
    for limits, part in (
        ({"norm": 0.5}, "guard.norm"),
        ({"count": -1}, "guard.count"),
        ({"invitations": 0.5}, "guard.inv"),
    ):
        with pytest.raises(covey.Refusal, match=part):
            GuardLimits(**limits)
