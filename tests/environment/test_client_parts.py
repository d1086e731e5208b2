"""A federation is a plan: parts made when they are asked for are the parts that were dealt before."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from covey.arrays import IntArray
from covey.config.schema import Config
from covey.core.build import build_federation
from covey.environment.client_parts import ClientParts, Slices, blocks_of
from covey.environment.federated_data import Federation
from covey.environment.keyed_parts import draws
from covey.environment.partition import Deal, split_samples
from covey.environment.truth import Truth
from covey.errors import Refusal
from covey.randomness import generator, keys

SHARING: dict[str, dict[str, Any]] = {
    "uniform": {"samples": 40},
    "uniform-observed": {"samples": 40, "group": 3},
    "inverse-pareto": {"samples": 40},
    "few-class": {"samples": 40},
    "dirichlet-layers": {"samples": 40},
    "iid": {"samples": 40},
}
LABELS: IntArray = np.random.default_rng(0).permutation(np.arange(900) % 10)


def deal(name: str, clients: int = 300, *, keyed: bool, seed: int = 0, **options: Any) -> Deal:
    chosen = {**SHARING.get(name, {}), **options}
    return split_samples(name, chosen, LABELS, 10, clients, generator(seed, "environment"), keyed=keyed)


def all_of(split: Deal) -> list[IntArray]:
    """Return each client's samples, drawn together: one by one, a block of class mixes is drawn for each of them."""
    parts = ClientParts.of(split.parts)
    return np.split(parts.together(np.arange(len(parts))).numpy(), np.cumsum(parts.sizes)[:-1])


def counts_of(split: Deal) -> IntArray:
    return np.stack([np.bincount(LABELS[part], minlength=10) for part in all_of(split)])


@pytest.mark.parametrize("name", ["uniform", "uniform-observed", "inverse-pareto", "few-class"])
def test_clients_drawn_by_key_have_the_class_counts_and_the_skew_of_those_dealt_in_turn(name):
    keyed, dealt = deal(name, keyed=True), deal(name, keyed=False)
    assert np.array_equal(counts_of(keyed), counts_of(dealt))
    assert (keyed.skew is None) == (dealt.skew is None)
    if keyed.skew is not None and dealt.skew is not None:
        assert np.array_equal(keyed.skew, dealt.skew)


def test_class_mixes_drawn_by_key_are_distributed_as_those_dealt_in_turn():
    def skews(keyed: bool) -> Any:
        shares = counts_of(deal("dirichlet-layers", 2_000, keyed=keyed)) / 40
        return np.sort(np.abs(shares - 0.1).sum(axis=1) / 2)

    assert np.abs(skews(keyed=True) - skews(keyed=False)).max() < 0.06
    odd, even = (counts_of(deal("dirichlet-layers", 600, keyed=True))[at::2].max(axis=1).mean() for at in (1, 0))
    assert odd > 1.3 * even


@pytest.mark.parametrize("name", list(SHARING))
def test_a_client_holds_different_samples_and_every_sample_is_as_likely(name):
    split = deal(name, 3_000, keyed=True)
    held = all_of(split)
    assert all(len(part) == 40 for part in held)
    counts = counts_of(split)
    for client in np.flatnonzero(counts.max(axis=1) <= 90)[:50]:
        assert len(np.unique(held[client])) == 40
    times = np.bincount(np.concatenate(held), minlength=900)
    expected = np.bincount(LABELS, weights=times, minlength=10)[LABELS] / 90
    assert (np.abs(times - expected) < 6 * np.sqrt(expected)).all()


@pytest.mark.parametrize("name", list(SHARING))
def test_a_client_s_samples_depend_on_its_key_alone(name):
    split, again = deal(name, keyed=True), deal(name, keyed=True)
    alone = [again.parts[client] for client in (250, 3)]
    assert np.array_equal(split.parts[250], alone[0]) and np.array_equal(split.parts[3], alone[1])
    parts = ClientParts.of(split.parts)
    together = parts.together(np.array([3, 250, 7]))
    assert torch.equal(together, torch.cat([parts[3], parts[250], parts[7]]))
    assert not np.array_equal(deal(name, keyed=True, seed=1).parts[3], alone[1])


def test_a_client_that_wants_more_than_there_is_has_all_and_then_different_ones():
    found = draws(keys(5, np.arange(3)), np.array([4, 4, 10]), np.array([11, 4, 3]))
    assert np.bincount(found[:11], minlength=4).tolist() == sorted(
        np.bincount(found[:11]).tolist(), key=lambda n: n
    ) or (set(np.bincount(found[:11], minlength=4).tolist()) == {2, 3})
    assert sorted(found[11:15].tolist()) == [0, 1, 2, 3]
    assert len(set(found[15:].tolist())) == 3


def test_draws_are_uniform_without_replacement():
    many = 20_000
    found = draws(keys(7, np.arange(many)), np.full(many, 9), np.full(many, 3)).reshape(many, 3)
    pairs = np.zeros((9, 9))
    np.add.at(pairs, (found[:, 0], found[:, 1]), 1)
    assert np.diagonal(pairs).sum() == 0
    expected = many / 72
    off = pairs[~np.eye(9, dtype=bool)]
    assert np.square(off - expected).sum() / expected < 130  # χ² with 71 degrees of freedom: p < 0.0001


def test_a_class_without_samples_is_refused():
    rng, lacking = generator(0, "environment"), LABELS[LABELS > 0]
    with pytest.raises(Refusal, match="no training sample"):
        split_samples("uniform", {"samples": 40}, lacking, 10, 300, rng, keyed=True)


def test_slices_are_the_arrays_that_they_were_cut_from():
    samples, sizes = np.array([5, 3, 9, 1, 2, 8]), np.array([2, 0, 4])
    cut = Slices.cut(samples, sizes)
    assert [part.tolist() for part in cut] == [[5, 3], [], [9, 1, 2, 8]]
    assert [part.tolist() for part in Slices.cut(samples, sizes, ascending=True)] == [[3, 5], [], [1, 2, 8, 9]]
    assert cut[-1].tolist() == [9, 1, 2, 8] and len(cut) == 3
    with pytest.raises(IndexError):
        cut[3]


def test_blocks_hold_every_client_once():
    sizes = np.random.default_rng(0).integers(0, 400_000, 37)
    blocks = list(blocks_of(sizes))
    assert np.concatenate(blocks).tolist() == list(range(37))
    assert all(sizes[block].sum() <= 1 << 19 or len(block) == 1 for block in blocks)


def small(**more: Any) -> Config:
    return Config.of(
        {"dataset": {"name": "synthetic", "train": 900}, "environment": "dirichlet", "clients": 60, **more}
    )


def test_truth_and_samples_of_a_plan_are_those_of_a_list():
    plan = build_federation(small())
    listed = Federation(plan.dataset, list(plan.parts), plan.shared, plan.skew)
    assert isinstance(plan.parts, ClientParts) and isinstance(listed.parts, list)
    for name in ("shares", "skew", "mean_shares"):
        assert np.array_equal(getattr(plan.truth, name), getattr(listed.truth, name))
    assert np.array_equal(plan.sizes, listed.sizes)
    assert torch.equal(plan.samples(7).x, listed.samples(7).x) and torch.equal(plan.labels(7), listed.labels(7))
    assert torch.equal(plan.held(), torch.unique(torch.cat(list(plan.parts))))
    assert plan.fingerprint == listed.fingerprint


def test_truth_that_is_not_kept_is_the_truth(monkeypatch):
    federation = build_federation(small())
    monkeypatch.setattr("covey.environment.truth._KEPT", 10)
    counted = Truth.of(federation.class_counts, federation.sizes, 10, None)
    kept = federation.truth
    assert not isinstance(counted.rows, np.ndarray)
    assert np.array_equal(counted.shares, kept.shares)
    assert np.allclose(counted.skew, kept.skew) and np.allclose(counted.mean_shares, kept.mean_shares)
    assert np.array_equal(counted.rows[np.array([4, 2])], kept.shares[[4, 2]])
    assert np.array_equal(counted.rows[5], kept.shares[5])


def test_large_federations_are_keyed_unless_said_otherwise_and_old_ones_are_not():
    assert small().dealing == "in-turn"
    large = small(environment="uniform", clients=100_000)
    assert large.dealing == "keyed"
    assert Config.of(large.as_mapping()) == large
    assert small(environment="uniform", clients=100_000, dealing="in-turn").dealing == "in-turn"
    stored = {name: value for name, value in large.as_mapping().items() if name != "dealing"}
    assert Config.stored(stored).dealing == "in-turn"


_DIGEST = """
import hashlib
from covey.config.schema import Config
from covey.core.build import build_federation
given = {"dataset": {"name": "synthetic", "train": 900}, "environment": {"name": "few-class", "samples": 30}}
federation = build_federation(Config.of(given, clients=500, dealing="keyed"))
print(hashlib.sha256(b"".join(federation.parts[client].numpy().tobytes() for client in (3, 499, 0))).hexdigest())
"""


def test_another_process_draws_the_same_samples():
    def digest() -> str:
        return subprocess.run([sys.executable, "-c", _DIGEST], capture_output=True, text=True, check=True).stdout

    assert digest() == digest() != ""
