"""SimHash: hashes, fingerprints, and clients that send only their bits."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from covey import Config, Refusal
from covey.client.learner import Learner
from covey.config.sections import Local
from covey.core.build import build_federation
from covey.core.messages import Order
from covey.data.dataset import Dataset, Samples
from covey.job.experiment import Experiment
from covey.model import build_model
from covey.model.layout import Layout
from covey.probe.simhash import (
    SimHash,
    fingerprint,
    hamming,
    hashes_of_numbers,
    hashes_of_words,
    mean_input,
    of_tokens,
    of_words,
    packed,
    projected,
    quantised,
    unpacked,
    weighted,
)
from covey.randomness import generator
from covey.runtime import LocalRuntime, StackedRuntime
from tests.conftest import SMALL


def bits(text: str) -> np.ndarray:
    return np.array([digit == "1" for digit in text])


def texts(topics=6, each=50, words=300, vocabulary=1000, seed=0) -> tuple[np.ndarray, list[torch.Tensor]]:
    """Clients' words by topic: Zipf's law, with a topic's own order of popularity."""
    rng = generator(seed, "texts")
    popularity = 1 / np.arange(1, vocabulary + 1)
    popularity /= popularity.sum()
    ranked = [rng.permutation(topics * vocabulary)[:vocabulary] for _ in range(topics)]
    topic = np.arange(topics * each) % topics
    said = [ranked[one][rng.choice(vocabulary, size=words, p=popularity)] for one in topic]
    return topic, [torch.from_numpy(tokens) for tokens in said]


class Words(nn.Module):
    """The smallest model that takes tokens."""

    tokens = True
    head = "table"

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.table = nn.Embedding(classes, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.table(x).sum(dim=1)
        return logits


def reader(never=(), stop_words=()) -> Learner:
    """A client's learner for texts of a vocabulary of 20."""
    x, y = torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    dataset = Dataset("texts", x, y, x, y, tuple(map(str, range(20))), never=never, stop_words=stop_words)
    return Learner(Words(20), dataset)


def measured(probe: SimHash, learner: Learner, x: torch.Tensor) -> np.ndarray:
    nothing = torch.empty(0)
    fields = probe.measure(learner, nothing, nothing, Samples(x, torch.zeros(len(x), dtype=torch.int64)), 0)
    assert list(fields) == ["bits"]
    return unpacked(fields["bits"].numpy())


# --- by hand


def test_a_word_weighs_plus_where_its_hash_is_one_and_minus_where_it_is_zero():
    # The paper's Figure 2: 'the' is hashed to 1001.
    assert weighted(bits("1001")[None], np.array([1])).tolist() == [[1, -1, -1, 1]]
    assert weighted(bits("1001")[None], np.array([2.5])).tolist() == [[2.5, -2.5, -2.5, 2.5]]


def test_the_fingerprint_of_a_phrase_is_the_sign_of_the_sums():
    # the (twice) 1001, cat 0101, sat 1100, on 1010, mat 0011: sums 2-1+1+1-1, -2+1+1-1-1, -2-1-1+1+1, 2+1-1-1+1.
    hashes = np.stack([bits(one) for one in ("1001", "0101", "1100", "1010", "0011")])
    assert weighted(hashes, np.array([2, 1, 1, 1, 1])).sum(axis=0).tolist() == [2, -2, -2, 2]
    assert fingerprint(hashes, np.array([2, 1, 1, 1, 1])).tolist() == bits("1001").tolist()


def test_a_sum_of_zero_gives_zero():
    assert fingerprint(np.stack([bits("10"), bits("01")]), np.array([3, 3])).tolist() == [False, False]
    assert of_tokens(torch.empty(0, dtype=torch.int64)).tolist() == of_words([]).tolist() == [False] * 64


def test_quantised_bits_are_the_parity_of_the_step_that_a_value_lies_on():
    # One coordinate and therefore the offset alone decides where steps begin; a step further the bit is the other.
    low, high = quantised(np.array([0.0]), 8, 1.0), quantised(np.array([1.0]), 8, 1.0)
    assert (low != high).all()
    assert (quantised(np.array([2.0]), 8, 1.0) == low).all()
    assert low.all()  # below every offset: ⌊(0 - b) / 1⌋ = -1
    assert (quantised(np.array([40.0]), 8, 40.0) == high).all()


# --- hashes


def test_hashes_are_the_same_in_every_process_and_on_every_machine():
    numbers, words = packed(hashes_of_numbers(np.array([0, 7]))), packed(hashes_of_words(["the", "cat"]))
    assert [bytes(row).hex() for row in numbers] == ["70858be76f3f055c", "60c97ed12ee71643"]
    assert [bytes(row).hex() for row in words] == ["5edaab6c90973a2e", "3327dd2c7b9d982f"]


def test_hashes_look_like_coin_flips():
    hashes = hashes_of_numbers(np.arange(4000), 256)
    assert hashes.mean(axis=0) == pytest.approx(np.full(256, 0.5), abs=0.05)
    correlation = np.corrcoef(hashes.T) - np.eye(256)
    assert np.abs(correlation).max() < 0.1


def test_a_longer_fingerprint_begins_with_the_shorter_one():
    tokens = torch.tensor([3, 5, 5, 8])
    assert of_tokens(tokens, 256)[:64].tolist() == of_tokens(tokens, 64).tolist()


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.sampled_from([8, 16, 64, 72, 256]))
@settings(max_examples=40, deadline=None)
def test_words_are_weighted_by_their_counts_in_any_order(tokens, size):
    hashes = hashes_of_numbers(np.array(tokens), size)
    one_by_one = fingerprint(hashes, np.ones(len(tokens)))
    assert (of_tokens(torch.tensor(tokens), size) == one_by_one).all()
    assert (of_tokens(torch.tensor(sorted(tokens)).reshape(1, -1), size) == one_by_one).all()
    words = [f"word{token}" for token in tokens]
    assert (of_words(words, size) == fingerprint(hashes_of_words(words, size), np.ones(len(words)))).all()


@pytest.mark.parametrize("size", [8, 64, 256])
def test_bits_survive_packing(size):
    contexts = generator(size).random((5, size)) < 0.5
    assert packed(contexts).shape == (5, size // 8)
    assert (unpacked(packed(contexts)) == contexts).all()


# --- near and far


def test_texts_of_one_topic_are_near_and_of_two_are_far():
    topic, said = texts()
    contexts = np.stack([of_tokens(tokens) for tokens in said])
    pairs = np.triu_indices(len(topic), 1)
    distances = hamming(contexts[pairs[0]], contexts[pairs[1]])
    same = topic[pairs[0]] == topic[pairs[1]]
    assert distances[same].mean() < 12
    assert distances[~same].mean() > 24


def test_the_share_of_bits_that_differ_is_the_angle_over_pi():
    rng = generator("angles")
    one, other = rng.standard_normal((2, 400, 500))
    mixed = 0.8 * one + 0.6 * other
    found = np.mean([hamming(projected(a, 256), projected(b, 256)) for a, b in zip(one, mixed, strict=True)]) / 256
    assert found == pytest.approx(np.arccos(0.8) / np.pi, abs=0.01)


def test_quantised_bits_differ_in_proportion_to_the_distance():
    rng = generator("steps")
    vectors = rng.standard_normal((300, 500))
    for distance in (0.1, 0.5, 1.0):
        found = np.mean([hamming(quantised(v, 256, 1.0), quantised(v + distance, 256, 1.0)) for v in vectors]) / 256
        assert found == pytest.approx(distance, abs=0.03)


@pytest.mark.parametrize("form", ["projection", "quantised"])
def test_clients_with_the_same_digits_are_nearer_than_clients_with_others(form):
    experiment = Experiment.of(Config.of(SMALL))
    experiment.runtime.close()
    dataset = experiment.federation.dataset
    learner = Learner(experiment.module, dataset)
    contexts, kind = [], []
    for label in range(10):
        images = dataset.x[dataset.y == label]
        for half in (images[::2], images[1::2]):
            contexts.append(measured(SimHash(64, form), learner, half))
            kind.append(label)
    distances = hamming(np.stack(contexts)[:, None], np.stack(contexts)[None])
    same = np.equal.outer(kind, kind)
    assert distances[same].sum() / 20 < 8  # over the ten pairs, each counted twice; a half is at 0 from itself
    assert distances[~same].mean() > 16


# --- the probe


def test_the_probe_ignores_words_that_are_never_an_answer():
    x = torch.tensor([[0, 0, 5, 7], [0, 5, 7, 1]])
    assert (measured(SimHash(), reader(), x) == of_tokens(x)).all()
    assert (measured(SimHash(), reader(never=(0, 1)), x) == of_tokens(torch.tensor([5, 7, 5, 7]))).all()
    assert not measured(SimHash(), reader(never=(0, 1, 5, 7)), x).any()


def test_stop_words_are_left_out_of_the_hash_where_the_client_knows_them():
    x = torch.tensor([[0, 3, 5, 7], [3, 3, 7, 1]])
    knows = reader(never=(0, 1), stop_words=(3, 4))
    assert (measured(SimHash(), knows, x) == of_tokens(torch.tensor([5, 7, 7]))).all()
    everything = of_tokens(torch.tensor([3, 3, 3, 5, 7, 7]))
    assert (measured(SimHash(stop_words="hash"), knows, x) == everything).all()
    assert (measured(SimHash(), reader(never=(0, 1)), x) == everything).all()


def test_topics_are_told_apart_better_without_stop_words():
    topic, said = texts(topics=4, each=10)
    rng = generator("stop words")
    # Half of all words are among thirty stop words, the same in every topic but in shares of each client's own.
    stopped = [torch.from_numpy(rng.choice(30, size=300, p=rng.dirichlet(np.ones(30)))) for _ in topic]
    mixed = [torch.cat([30 + words, stops])[None] for words, stops in zip(said, stopped, strict=True)]
    pairs = np.triu_indices(len(topic), 1)
    same = topic[pairs[0]] == topic[pairs[1]]
    apart = {}
    for stop_words in ("ignore", "hash"):
        probe = SimHash(stop_words=stop_words)
        learner = reader(stop_words=tuple(range(30)))
        contexts = np.stack([measured(probe, learner, words) for words in mixed])
        distances = hamming(contexts[pairs[0]], contexts[pairs[1]])
        spread = np.sqrt((distances[same].var() + distances[~same].var()) / 2)
        apart[stop_words] = (distances[~same].mean() - distances[same].mean()) / spread
    assert apart["ignore"] > 1.5 * apart["hash"]


def test_the_mean_of_images_is_exact_and_needs_no_copy_of_them():
    images = torch.from_numpy(generator(0, "images").integers(0, 256, size=(300, 1, 20, 20), dtype=np.uint8))
    labels = torch.arange(300) % 2
    learner = Learner(nn.Linear(400, 2), Dataset("images", images, labels, images, labels))
    tracemalloc.start()
    mean = mean_input(learner, images)
    ours = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        mean_input(learner, images)
    torchs = max(one.cpu_memory_usage for one in seen.events())
    exact = images.long().sum(dim=0).double() / 300 * learner.scale.double() + learner.shift.double()
    assert np.array_equal(mean, exact.flatten().numpy())
    # A copy as int64 is eight times as large as the images.
    assert ours + torchs < 2 * images.nbytes


def test_auto_is_projection_for_images():
    experiment = Experiment.of(Config.of(SMALL))
    experiment.runtime.close()
    learner, samples = Learner(experiment.module, experiment.federation.dataset), experiment.federation.samples(0)
    normalised = learner.inputs(samples.x).double().mean(dim=0).flatten().numpy()
    assert (measured(SimHash(), learner, samples.x) == projected(normalised)).all()
    assert (measured(SimHash(64, "quantised", 2.0), learner, samples.x) == quantised(normalised, 64, 2.0)).mean() > 0.95


@pytest.mark.parametrize("form", ["auto", "quantised"])
def test_both_runtimes_send_the_same_bits_and_nothing_else(form):
    federation = build_federation(Config.of(SMALL))
    dataset = federation.dataset

    def module():
        return build_model("mlp", {}, dataset.shape, dataset.classes, seed=0)

    local = LocalRuntime(federation, module(), workers=1)
    stacked = StackedRuntime(federation, module())
    start = Layout.of(module()).read(module())
    order = Order(1, np.arange(8), start, Local(), (SimHash(64, form),), train=False)
    one, other = local.execute(order), stacked.execute(order)
    local.close()
    assert torch.equal(one.probes["simhash"]["bits"], other.probes["simhash"]["bits"])
    assert one.probes["simhash"]["bits"].shape == (8, 8)
    assert one.probe_bytes == other.probe_bytes == {"simhash": 8 * 8}
    assert one.states.shape == (8, 0)
    assert len(np.unique(one.probes["simhash"]["bits"].numpy(), axis=0)) > 1


def test_impossible_probes_are_refused():
    for size in (0, 7, 12, 264):
        with pytest.raises(Refusal, match=f"bits must be a multiple of 8 from 8 to 256, not {size}"):
            SimHash(size)
    with pytest.raises(Refusal, match="form is auto, tokens, quantised or projection, not 'md5'"):
        SimHash(64, "md5")  # type: ignore[arg-type]
    with pytest.raises(Refusal, match="step must be above 0, not 0"):
        SimHash(64, "quantised", 0.0)
    with pytest.raises(Refusal, match="stop_words is ignore or hash, not 'keep'"):
        SimHash(stop_words="keep")  # type: ignore[arg-type]


def test_a_form_that_does_not_fit_the_samples_is_refused():
    with pytest.raises(Refusal, match="The samples are words, for which the form is auto or tokens, not projection"):
        measured(SimHash(64, "projection"), reader(), torch.tensor([[1, 2, 3, 4]]))
    with pytest.raises(Refusal, match="no words, for which the form is auto, quantised or projection, not tokens"):
        measured(SimHash(64, "tokens"), reader(), torch.rand(2, 4))
