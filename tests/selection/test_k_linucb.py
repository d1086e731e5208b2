"""k-LinUCB: the highest bounds of a linear model of the context, shared by all clients or each its own."""

import math

import numpy as np
import pytest
import torch

from covey import Refusal
from covey.config.sections import Local
from covey.core.checkpoint import write_checkpoint
from covey.core.interfaces import Setting
from covey.core.replies import Replies
from covey.model.layout import Layout
from covey.randomness import generator
from covey.selection.k_linucb import KLinUCB
from tests.conftest import saved_state


def begun(contexts: np.ndarray, cohort=2, seed=0, **options) -> KLinUCB:
    """A selector that knows these contexts `[clients, bytes]`."""
    selector = KLinUCB(bits=8 * contexts.shape[1], **options)
    count = len(contexts)
    selector.begin(Setting(count, cohort, 100, 10, seed, Layout((), (), ()), Local()))
    survey = selector.survey(1, np.arange(count))
    assert survey is not None and [probe.name for probe in survey[1]] == ["simhash"]
    selector.surveyed(1, replies(survey[0], simhash={"bits": torch.from_numpy(contexts[survey[0]])}))
    return selector


def replies(clients, **probes) -> Replies:
    count = len(clients)
    return Replies(
        np.array(clients, dtype=np.int64),
        torch.zeros(count, 0),
        torch.ones(count, dtype=torch.int64),
        torch.zeros(count, dtype=torch.float64),
        probes,
    )


def rewarded(clients, rewards) -> Replies:
    values = torch.tensor(np.asarray(rewards, dtype=np.float64))
    return replies(clients, utility={"loss": values, "square": values**2})


def random_contexts(count: int, bits: int = 64, seed: int = 0) -> np.ndarray:
    return generator(seed, "contexts").integers(0, 256, (count, bits // 8), dtype=np.uint8)


def test_bounds_by_hand():
    # Contexts (1, 0, …), (1, 1, 0, …) and (0, 0, 1, …).
    selector = begun(np.array([[0x80], [0xC0], [0x20]], dtype=np.uint8), model="shared", alpha=0.5, ridge=1.0)
    assert selector.bounds(np.arange(3)) == pytest.approx(0.5 * np.sqrt([1, 2, 1]))
    selector.observe(1, rewarded([0, 2], [1.0, 0.5]))
    # A = diag(2, 1, 2, 1 …), b = (1, 0, 0.5, 0 …), θ = (0.5, 0, 0.25, 0 …).
    expected = [0.5 + 0.5 * math.sqrt(1 / 2), 0.5 + 0.5 * math.sqrt(1 / 2 + 1), 0.25 + 0.5 * math.sqrt(1 / 2)]
    assert selector.bounds(np.arange(3)) == pytest.approx(expected)
    assert selector.select(2, np.arange(3)).tolist() == [1, 0]


@pytest.mark.parametrize("normalise", [False, True])
def test_shared_is_ridge_regression_on_all_rewards(normalise):
    contexts = random_contexts(30)
    x = np.unpackbits(contexts, axis=1).astype(float)
    x = x / np.linalg.norm(x, axis=1, keepdims=True) if normalise else x
    rewards = generator("rewards").random(30)
    selector = begun(contexts, cohort=4, model="shared", alpha=0.3, ridge=0.7, normalise=normalise)
    met = []
    for t in range(1, 12):
        cohort = np.sort(selector.select(t, np.arange(30)))
        met += cohort.tolist()
        selector.observe(t, rewarded(cohort, rewards[cohort]))
    a = 0.7 * np.eye(64) + x[met].T @ x[met]
    theta = np.linalg.solve(a, x[met].T @ rewards[met]) / rewards[met].max()
    bonus = 0.3 * np.sqrt(np.einsum("nb,bc,nc->n", x, np.linalg.inv(a), x))
    assert selector.bounds(np.arange(30)) == pytest.approx(x @ theta + bonus, rel=1e-9)


def test_the_cohort_are_the_highest_bounds_and_ties_are_drawn():
    contexts = random_contexts(20)
    selector = begun(contexts, cohort=5)
    for t in range(1, 6):
        cohort = selector.select(t, np.arange(20))
        bounds = selector.bounds(np.arange(20))
        assert bounds[cohort].min() >= bounds[np.setdiff1d(np.arange(20), cohort)].max()
        selector.observe(t, rewarded(cohort, np.linspace(0.1, 1, 20)[cohort]))
    even = begun(contexts, cohort=1, normalise=True)
    met = {int(even.select(t, np.arange(20))[0]) for t in range(1, 200)}
    assert met == set(range(20))


def test_disjoint_models_are_each_clients_own_regression():
    contexts = random_contexts(6)
    x = np.unpackbits(contexts, axis=1).astype(float)
    selector = begun(contexts, alpha=0.4, ridge=0.1)
    for t, (client, reward) in enumerate([(0, 0.5), (1, 1.0), (0, 0.25), (4, 0.75)], start=1):
        selector.observe(t, rewarded([client], [reward]))
    expected = []
    for client, rewards in enumerate([[0.5, 0.25], [1.0], [], [], [0.75], []]):
        a = 0.1 * np.eye(64) + len(rewards) * np.outer(x[client], x[client])
        inverse = np.linalg.inv(a)
        theta = inverse @ (x[client] * sum(rewards))
        expected.append(x[client] @ theta + 0.4 * math.sqrt(x[client] @ inverse @ x[client]))
    assert selector.bounds(np.arange(6)) == pytest.approx(expected, rel=1e-9)


def test_what_is_learned_of_a_client_says_something_of_its_like_only_where_the_model_is_shared():
    contexts = np.array([[0xF0], [0xF1], [0x0F], [0x0E]], dtype=np.uint8)
    for model, learns in (("shared", True), ("disjoint", False)):
        selector = begun(contexts, model=model, alpha=0.0)
        selector.observe(1, rewarded([0, 2], [1.0, 0.1]))
        bounds = selector.bounds(np.arange(4))
        assert (bounds[1] > bounds[3]) == learns


def test_alpha_follows_delta_unless_it_is_given():
    assert KLinUCB().alpha == pytest.approx(1 + math.sqrt(math.log(20) / 2))
    assert KLinUCB(delta=0.5).alpha == pytest.approx(1 + math.sqrt(math.log(4) / 2))
    assert KLinUCB(alpha=0.0).alpha == 0.0


def test_rewards_that_did_not_arrive_teach_nothing():
    for model in ("shared", "disjoint"):
        selector = begun(random_contexts(4), model=model)
        before = selector.bounds(np.arange(4))
        selector.observe(1, rewarded([0, 1], [math.nan, math.nan]))
        selector.observe(2, replies([]))
        assert (selector.bounds(np.arange(4)) == before).all()
        assert selector.figures() == {"utility": None}


@pytest.mark.parametrize("model", ["shared", "disjoint"])
def test_a_checkpoint_continues_to_the_same_cohorts(model, tmp_path):
    contexts, rewards = random_contexts(20), generator("state").random(20)

    def played(selector, rounds):
        cohorts = []
        for t in rounds:
            cohort = np.sort(selector.select(t, np.arange(20)))
            selector.observe(t, rewarded(cohort, rewards[cohort]))
            cohorts.append(cohort.tolist())
        return cohorts

    selector = begun(contexts, model=model, cohort=3)
    played(selector, range(1, 7))
    write_checkpoint(tmp_path, 6, selector.state_dict())
    again = KLinUCB(model=model)
    again.begin(Setting(20, 3, 100, 10, 0, Layout((), (), ()), Local()))
    again.load_state_dict(saved_state(tmp_path))
    assert again.survey(7, np.arange(20)) is None
    assert played(again, range(7, 15)) == played(selector, range(7, 15))
    assert (again.bounds(np.arange(20)) == selector.bounds(np.arange(20))).all()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bits": 4}, "selector.bits must be a multiple of 8 from 8 to 256, not 4."),
        ({"model": "mixed"}, "selector.model is disjoint or shared, not 'mixed'."),
        ({"alpha": -0.1}, "selector.alpha must not be negative, not -0.1."),
        ({"delta": 0.0}, "selector.delta is a probability in \\(0, 1\\), not 0."),
        ({"ridge": 0.0}, "selector.ridge must be above 0, not 0."),
    ],
)
def test_impossible_options_are_refused(options, sentence):
    with pytest.raises(Refusal, match=sentence):
        KLinUCB(**options)
