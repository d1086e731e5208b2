"""Clustered federated learning parts clients whose labels mean different things, and only those."""

import json

import numpy as np
import pytest
import torch

import covey
from covey import Config, Refusal, resume, run
from covey.config.sections import Local
from covey.core.interfaces import Setting
from covey.core.replies import Replies
from covey.data import digits
from covey.model import build_model
from covey.model.layout import Layout
from covey.personalization.cfl import CFL, bipartition, cosines
from tests.conftest import SMALL, saved_state, without_timings

DATA = digits(None)
LEARNING = {
    "workers": 1,
    "model": {"name": "mlp", "hidden": (16,)},
    "local": {"epochs": 3, "batch": 20, "rate": 0.2},
}
PARTING = {**LEARNING, "method": "cfl", "many": {"relative": True, "warm_up": 3}}


def grouped(groups, clients, samples=60, seed=0):
    """Return digits whose labels are permuted differently in each group of clients, and each client's group."""
    rng = np.random.default_rng(seed)
    meanings = [np.arange(10), *(rng.permutation(10) for _ in range(groups - 1))]
    group = rng.permutation(np.arange(clients) % groups)
    drawn = [rng.choice(len(DATA.y), samples, replace=False) for _ in range(clients)]
    x = np.concatenate([DATA.x[places].numpy() for places in drawn])
    y = np.concatenate([meanings[of][DATA.y[places].numpy()] for of, places in zip(group, drawn, strict=True)])
    parts = [np.arange(client * samples, (client + 1) * samples) for client in range(clients)]
    held = covey.federation(x, y, parts, test=(DATA.test_x.numpy(), DATA.test_y.numpy()))
    return held, group, meanings


def partition(labels):
    """Return the partition into groups, regardless of their numbers."""
    return {tuple(np.flatnonzero(np.asarray(labels) == label).tolist()) for label in np.unique(labels)}


def clusters_of(result):
    return saved_state(result.folder)["cluster"]


def accuracy(result, client, meaning):
    module = result.model(client)
    x = (DATA.test_x.float() - DATA.mean[0]) / DATA.deviation[0]
    return (module(x).argmax(1).numpy() == meaning[DATA.test_y.numpy()]).mean()


def test_two_groups_are_parted_and_each_gets_a_model_that_serves_it(tmp_path):
    held, group, meanings = grouped(2, 8)
    result = run(PARTING, federation=held, rounds=16, out=tmp_path / "run")
    assert partition(clusters_of(result)) == partition(group)
    served = [accuracy(result, client, meanings[group[client]]) for client in range(8)]
    together = run(PARTING, federation=held, rounds=16, many={"epsilon1": 0.0}, out=tmp_path / "together")
    assert together.metrics[-1]["figures"]["clusters"] == 1
    unserved = [accuracy(together, client, meanings[group[client]]) for client in range(8)]
    assert min(served) > 0.8
    assert np.mean(unserved) < 0.65


def test_four_groups_are_parted_one_cut_after_another_with_everybody_in_the_right_one(tmp_path):
    held, group, _ = grouped(4, 12)
    result = run(PARTING, federation=held, rounds=16, out=tmp_path / "run")
    counts = [row["figures"]["clusters"] for row in result.metrics]
    assert counts[-1] == 4
    assert len(set(counts)) > 2
    assert partition(clusters_of(result)) == partition(group)


def test_clients_of_one_kind_stay_together(tmp_path):
    held, _, _ = grouped(1, 8)
    result = run(PARTING, federation=held, rounds=25, out=tmp_path / "run")
    assert result.metrics[-1]["figures"]["clusters"] == 1


def test_with_a_cohort_each_round_the_same_groups_are_found(tmp_path):
    held, group, _ = grouped(2, 8)
    many = {"relative": True, "warm_up": 3, "participation": "cohort"}
    result = run(PARTING, federation=held, rounds=24, cohort=4, many=many, out=tmp_path / "run")
    assert all(len(row["clients"]) == 4 for row in result.metrics)
    assert partition(clusters_of(result)) == partition(group)


def test_without_a_cut_it_is_fedavg_with_everyone(tmp_path):
    given = {**SMALL, "environment": {"name": "dirichlet", "alpha": 0.3}, "precision": "fp64", "rounds": 4}
    one = run(given, method="cfl", many={"epsilon1": 0.0}, out=tmp_path / "one")
    other = run(given, method="fedavg", cohort=8, out=tmp_path / "other")
    ours, theirs = (Layout.of(result.model(0)).read(result.model(0)) for result in (one, other))
    assert (ours - theirs).norm() <= 1e-12 * theirs.norm()


MODULE = build_model("mlp", {"hidden": ()}, (2,), 2, 0)
START = torch.zeros(6, dtype=torch.float64)


def method(clients=6, **options):
    setting = Setting(clients, clients, 10, 2, 0, Layout.of(MODULE), Local())
    return CFL(setting, START, **{"warm_up": 0, **options})


def replies(of, changes):
    """Replies of clients that changed the first two parameters of their cluster's model by so much."""
    clients = np.array(sorted(changes))
    starts = of.models()[of.model_of_client[clients]]
    changed = [[*changes[client], 0, 0, 0, 0] for client in clients.tolist()]
    states = starts + torch.tensor(changed, dtype=torch.float64)
    return Replies(clients, states, torch.full((len(clients),), 10), torch.ones(len(clients), dtype=torch.float64))


def test_a_cluster_is_trained_by_those_who_take_part_and_by_nothing_that_was_sent_before():
    cfl = method()
    cfl.absorb(1, replies(cfl, {0: (1, 0), 2: (3, 0)}))
    assert cfl.models()[0, :2].tolist() == [2, 0]
    cfl.absorb(2, replies(cfl, {1: (0, 5)}))
    assert cfl.models()[0, :2].tolist() == [2, 5]


def test_a_cut_waits_until_every_member_has_sent_an_update():
    cfl = method(clients=4, epsilon1=0.5, epsilon2=1.0)
    cfl.absorb(1, replies(cfl, {0: (2, 0), 1: (-2, 0)}))
    assert len(cfl.models()) == 1
    assert cfl.figures()["norms"] == [{"mean": None, "max": None}]
    cfl.absorb(2, replies(cfl, {2: (2, 0.1), 3: (-2, 0.1)}))
    assert cfl.model_of_client.tolist() == [0, 1, 0, 1]
    # Round 2 moves each new cluster by what its member of that round sent, once.
    assert cfl.models()[:, :2].tolist() == [[2, 0.1], [-2, 0.1]]
    # Updates of the old cluster's model do not count for the new ones.
    cfl.absorb(3, replies(cfl, {0: (2, 0), 1: (2, 0)}))
    assert cfl.figures()["norms"] == [{"mean": None, "max": None}] * 2


def test_positions_within_a_cluster_are_mapped_back_to_clients():
    cfl = method(clients=7, epsilon1=1.0, epsilon2=1.0)
    right, left, up, down = (2, 0), (-2, 0), (0, 2), (0, -2)
    cfl.absorb(1, replies(cfl, dict(enumerate([right, left, right, left, right, left, left]))))
    assert cfl.model_of_client.tolist() == [0, 1, 0, 1, 0, 1, 1]
    cfl.absorb(2, replies(cfl, dict(enumerate([right, up, right, down, right, down, up]))))
    assert cfl.model_of_client.tolist() == [0, 1, 0, 2, 0, 2, 1]


@pytest.mark.parametrize(
    "options",
    [{"epsilon1": 0.1}, {"epsilon2": 2.5}, {"min_size": 5}, {"warm_up": 1}, {"gamma": 0.999}],
    ids=str,
)
def test_every_condition_of_a_cut_can_prevent_it(options):
    changes = {0: (2, 1), 1: (2, -0.5), 2: (-2, 0), 3: (-2, 0)}
    for more, clusters in (({}, 2), (options, 1)):
        cfl = method(clients=4, **{"epsilon1": 0.5, "epsilon2": 1.0, **more})
        cfl.absorb(1, replies(cfl, changes))
        assert len(cfl.models()) == clusters


def test_means_weigh_clients_by_their_samples_unless_told_otherwise():
    for weighted, expected in ((True, 2.5), (False, 2.0)):
        cfl = method(weighted=weighted)
        sent = replies(cfl, {0: (1, 0), 1: (3, 0)})
        sent.samples[:] = torch.tensor([10, 30])
        cfl.absorb(1, sent)
        assert cfl.models()[0, 0].item() == expected


def test_complete_linkage_keeps_the_most_different_apart():
    # In the second case each is near to the next: single linkage would cut off the last one alone.
    for degrees, sides in (([0, 170, 10, 200, 20], [[0, 2, 4], [1, 3]]), ([0, 30, 62, 96, 132], [[0, 1], [2, 3, 4]])):
        angles = np.deg2rad(degrees)
        similarity = cosines(torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], axis=1)))
        assert np.allclose(similarity, np.cos(angles[:, None] - angles))
        assert [side.tolist() for side in bipartition(similarity)] == sides


def test_both_runtimes_cut_alike_and_a_run_cut_off_between_two_cuts_ends_the_same(tmp_path):
    held, group, _ = grouped(2, 8)
    given = {**PARTING, "rounds": 14, "precision": "fp64"}
    whole = run(given, federation=held, out=tmp_path / "whole")
    stacked = run(given, federation=held, runtime="stacked", device="cpu", out=tmp_path / "stacked")
    assert partition(clusters_of(whole)) == partition(clusters_of(stacked)) == partition(group)
    for mine, theirs in zip(whole.metrics, stacked.metrics, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
    first = next(row["round"] for row in whole.metrics if row["figures"]["clusters"] == 2)

    def stop(record):
        if record["round"] == first:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(given, federation=held, out=tmp_path / "cut", on_round=stop)
    again = resume(tmp_path / "cut", federation=held)
    assert without_timings(again.metrics) == without_timings(whole.metrics)
    written = [(tmp_path / name / "checkpoint.safetensors").read_bytes() for name in ("whole", "cut")]
    assert written[0] == written[1]


def test_a_round_without_replies_changes_nothing(tmp_path):
    result = run(SMALL, method="cfl", rounds=1, devices={"deadline": 1e-9}, out=tmp_path / "run")
    assert len(result.metrics[0]["dropped"]) == 8
    fresh = build_model("mlp", {"hidden": (16,)}, (1, 8, 8), 10, seed=0)
    assert torch.equal(Layout.of(fresh).read(fresh), Layout.of(result.model(0)).read(result.model(0)))


def test_options_of_methods_with_many_models_are_settings_like_any_other(tmp_path, covey_command):
    flags = "run --method cfl --clients 6 --rounds 1 --workers 1 --set environment.samples=10"
    settings = "--set many.epsilon1=0.3 --set many.participation=cohort"
    answer = covey_command(*flags.split(), *settings.split(), "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    written = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert written["many"]["name"] == "cfl"
    assert (written["many"]["epsilon1"], written["many"]["participation"]) == (0.3, "cohort")
    assert Config.of(written) == Config.of(Config.of(written).as_mapping())
    many = Config.of(written).many
    assert many is not None and many.options["epsilon1"] == 0.3
    assert Config.of(method="fedavg").many is None
    alone = Config.of(method="local-only").many
    assert alone is not None and alone.options == {}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"method": "cfl", "many": {"epsilon": 1}}, "The many-model method 'cfl' has no option 'epsilon'"),
        ({"method": "cfl", "many": {"epsilon1": "low"}}, "many.epsilon1 must be a number or none, not 'low'."),
        ({"method": "cfl", "many": "mocha"}, "The method 'cfl' stands for 'cfl' under many, not for 'mocha'."),
        ({"method": "fedavg", "many": {"epsilon1": 1}}, "The method 'fedavg' keeps one model"),
        ({"selector": "uniform", "many": {"epsilon1": 1}}, "'uniform+average' keeps one model"),
        ({"method": "cfl", "selector": "uniform"}, "has no selector to choose"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(given, sentence):
    with pytest.raises(Refusal) as refusal:
        Config.of(given)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epsilon1": -1.0}, "many.epsilon1 must not be negative, not -1."),
        ({"gamma": 1.0}, r"many.gamma must be in \[0, 1\), not 1."),
        ({"min_size": 1}, "many.min_size must be at least 2, not 1."),
        ({"warm_up": -1}, "many.warm_up must not be negative, not -1."),
    ],
    ids=str,
)
def test_impossible_options_are_refused(options, sentence):
    with pytest.raises(Refusal, match=sentence):
        method(**options)
