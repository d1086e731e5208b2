from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey.config.schema import Config
from covey.config.sections import Attack
from covey.core.replies import Replies
from covey.job.experiment import Experiment
from tests.equal_runs import ends_the_same

SMALL: dict[str, Any] = {
    "clients": 20,
    "cohort": 10,
    "rounds": 2,
    "environment": "iid",
    "workers": 1,
    "model": {"name": "mlp", "hidden": (16,)},
}


def round_of(attack: dict[str, Any], **more: Any) -> tuple[torch.Tensor, Replies, np.ndarray]:
    """The model sent, the replies of all clients, and which of them are hostile."""
    one = Experiment.of(Config.of({**SMALL, "cohort": 20, "attack": attack, **more}))
    order = one.method.order(1, np.arange(20))
    replies = one.runtime.execute(order)
    hostile = one.runtime.annotate({"clients": order.clients.tolist()}).get("attackers", [])
    one.runtime.close()
    return order.start, replies, np.array(hostile, dtype=np.int64)


@pytest.fixture(scope="module")
def honest() -> torch.Tensor:
    start, replies, hostile = round_of({"kind": "none"})
    assert not len(hostile)
    return replies.states - start


@pytest.mark.parametrize(
    ("attack", "factor"),
    [
        ({"kind": "flip"}, -1),
        ({"kind": "flip", "factor": 5}, -5),
        ({"kind": "scale"}, 1000),
        ({"kind": "count"}, 1),
        ({"kind": "count-flip"}, -1),
    ],
)
def test_attackers_change_their_updates_and_counts_and_others_do_not(attack, factor, honest):
    start, replies, hostile = round_of({"attackers": 0.2, **attack})
    assert len(hostile) == 4
    expected = honest.clone()
    expected[hostile] *= factor
    torch.testing.assert_close(replies.states - start, expected, rtol=1e-3, atol=1e-5)
    claimed = replies.samples[hostile]
    assert (claimed == 10**9).all() if "count" in attack["kind"] else (claimed < 100).all()


def test_noise_has_the_size_of_an_update_and_another_direction(honest):
    start, replies, hostile = round_of({"kind": "noise", "attackers": 0.2})
    sent = (replies.states - start)[hostile]
    torch.testing.assert_close(sent.norm(dim=1), honest[hostile].norm(dim=1), rtol=1e-3, atol=1e-3)
    assert torch.cosine_similarity(sent, honest[hostile]).abs().max() < 0.2
    assert len({tuple(row.tolist()) for row in sent}) == 4


def test_those_who_collude_send_the_same(honest):
    start, replies, hostile = round_of({"kind": "collude", "attackers": 0.2})
    sent = (replies.states - start)[hostile]
    torch.testing.assert_close(sent, -honest[hostile].mean(dim=0).expand_as(sent), rtol=1e-3, atol=1e-5)


def test_liars_claim_a_high_loss_and_train_honestly(honest):
    start, replies, hostile = round_of({"kind": "lie", "attackers": 0.2}, method="feddrl-set")
    assert set(replies.losses[hostile].tolist()) == {1000.0}
    assert set(replies.probes["losses"]["before"][hostile].tolist()) == {1000.0}
    others = np.setdiff1d(np.arange(20), hostile)
    assert replies.losses[others].max() < 10
    torch.testing.assert_close(replies.states - start, honest)


def test_attackers_are_drawn_by_the_seed():
    drawn = [tuple(round_of({"kind": "count", "attackers": 0.2}, seed=seed)[2]) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_wrong_labels_are_an_alteration():
    config = Config.of({"attack": {"kind": "labels", "attackers": 0.2}})
    assert config.altered.poison == 0.2
    assert not config.attack
    assert Config.of(config.as_mapping()) == config


def test_two_shares_of_wrong_labels_are_refused():
    labels = {"kind": "labels"}
    with pytest.raises(covey.Refusal, match=r"a share of 0\.1 of the clients wrong labels .*altered\.poison 0\.3"):
        Config.of({"attack": labels, "altered": {"poison": 0.3}})
    assert Config.of({"attack": {**labels, "attackers": 0.3}, "altered": {"poison": 0.3}}).altered.poison == 0.3


@pytest.mark.parametrize("kind", ["flip", "labels"])
def test_attacks_are_simulated_where_clients_can_be_hostile(kind):
    given = {"attack": {"kind": kind}, "runtime": "flower"}
    with pytest.raises(covey.Refusal, match="simulated on the runtimes local and stacked, not on 'flower'"):
        Config.of(given)
    # Folders of earlier versions can still be read.
    assert kind == "flip" or Config.stored(given).altered.poison == 0.1


@pytest.mark.parametrize("method", ["mocha", "local-only"])
def test_an_attack_that_changes_nothing_says_so(method):
    with pytest.warns(
        UserWarning, match=r"Clients of this method send no models, so attack\.kind=flip changes nothing"
    ):
        Experiment.of(Config.of({**SMALL, "method": method, "attack": {"kind": "flip"}})).runtime.close()


def test_a_run_under_attack_ends_the_same_however_it_is_executed(tmp_path):
    attack = {"kind": "noise", "attackers": 0.2}
    ends_the_same({**SMALL, "rounds": 5, "precision": "fp64", "attack": attack, "aggregator": "trimmed-mean"}, tmp_path)


def test_comparisons_in_lockstep_are_attacked_too(tmp_path):
    attack = {"kind": "flip", "attackers": 0.2}
    given = {**SMALL, "cohort": 6, "attack": attack, "runtime": "stacked", "device": "cpu"}
    covey.compare(["fedavg", "fedacs"], seeds=2, out=tmp_path, given=given)
    rows = covey.Run.open(tmp_path / "fedacs" / "seed-1").metrics
    alone = covey.run({**given, "method": "fedacs", "seed": 1}, out=tmp_path / "alone").metrics
    assert [row["attackers"] for row in rows] == [row["attackers"] for row in alone]
    assert rows[-1]["loss"] == pytest.approx(alone[-1]["loss"], rel=1e-3)


def test_attacks_are_refused_where_clients_are_not_simulated_here():
    with pytest.raises(covey.Refusal, match="Attacks are simulated on the runtimes local and stacked, not on 'flower'"):
        Config.of({"attack": {"kind": "flip"}, "runtime": "flower"})
    wrong: tuple[tuple[dict[str, Any], str], ...] = (({"kind": "flop"}, "kind"), ({"attackers": 1.5}, "attackers"))
    for given, part in (*wrong, ({"factor": -1}, "factor")):
        with pytest.raises(covey.Refusal, match=part):
            Attack(**given)


def test_the_command_line_takes_attack_and_attackers(covey_command, tmp_path):
    sizes = ["--clients", "10", "--cohort", "5", "--rounds", "1", "--workers", "1"]
    done = covey_command("run", *sizes, "--attack", "flip", "--attackers", "0.3", "--out", tmp_path / "run", "--json")
    assert done.code == 0
    assert covey.Run.open(tmp_path / "run").config.attack == Attack(kind="flip", attackers=0.3)
    alone = covey_command("run", *sizes, "--attackers", "0.3")
    assert alone.code == 2
    assert "--attackers goes with --attack" in alone.err
    wrong = covey_command("run", *sizes, "--attack", "flop")
    assert wrong.code == 2
    assert "attack.kind must be one of none, flip" in wrong.err
