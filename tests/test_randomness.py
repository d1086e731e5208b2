import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey import randomness

MASK = (1 << 64) - 1


def splitmix64(state: int, count: int) -> list[int]:
    """The published generator, on Python integers."""
    values = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        values.append(z ^ (z >> 31))
    return values


@given(st.integers(0, MASK), st.integers(1, 50))
def test_tensor_bits_are_splitmix64(seed, count):
    assert [value & MASK for value in randomness.bits(seed, count).tolist()] == splitmix64(seed, count)


def test_known_first_output_of_splitmix64():
    assert int(randomness.bits(0, 1).item()) & MASK == 0xE220A8397B1DCDAF


def test_keys_of_a_tensor_draw_what_each_key_draws_alone():
    keys = [randomness.key(1, client) for client in range(5)]
    signed = torch.tensor([key - (1 << 64) if key >> 63 else key for key in keys])
    together = randomness.permutation(signed, 20)
    for row, key in zip(together, keys, strict=True):
        assert torch.equal(row, randomness.permutation(key, 20))


def test_every_part_of_a_key_matters():
    keys = {
        randomness.key(0, 1, 2, "batches"),
        randomness.key(1, 1, 2, "batches"),
        randomness.key(0, 2, 2, "batches"),
        randomness.key(0, 2, 1, "batches"),
        randomness.key(0, 1, 2, "crop"),
        randomness.key(0, 1, 2),
    }
    assert len(keys) == 6


@given(st.integers(0, MASK), st.integers(1, 200))
def test_permutation_holds_every_position_once(key, count):
    assert sorted(randomness.permutation(key, count).tolist()) == list(range(count))


def test_uniform_and_integers_are_even():
    uniform = randomness.uniform(7, 100_000)
    assert uniform.min() >= 0 and uniform.max() < 1
    assert abs(uniform.mean().item() - 0.5) < 0.005
    counts = torch.bincount(randomness.integers(7, 90_000, 9), minlength=9)
    assert len(counts) == 9
    assert (counts - 10_000).abs().max() < 500


def test_server_draws_depend_on_the_key_alone():
    first = randomness.generator(3, 1, "cohort").random(4)
    np.random.seed(0)
    torch.manual_seed(0)
    assert np.array_equal(first, randomness.generator(3, 1, "cohort").random(4))
    assert not np.array_equal(first, randomness.generator(3, 2, "cohort").random(4))


def test_seeding_torch_for_initialisation_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with randomness.torch_seed(0, "initialisation"):
        drawn = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with randomness.torch_seed(0, "initialisation"):
        assert torch.equal(torch.rand(3), drawn)
