"""Numbers of clients, and checkpoints of a million of them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from covey.core.checkpoint import read_checkpoint, write_checkpoint
from covey.core.client_tally import ClientTally
from covey.errors import Refusal

MANY = 1 << 17


def test_a_tally_counts_as_a_dictionary_does():
    rng, tally = np.random.default_rng(0), ClientTally()
    expected: dict[int, int] = {}
    for _ in range(30):
        clients = rng.choice(200, size=12, replace=False)
        tally.put(clients, tally.of(clients) + 2)
        for client in clients.tolist():
            expected[client] = expected.get(client, 0) + 2
    everyone = np.arange(200)
    assert dict(zip(tally.clients.tolist(), tally.numbers.tolist(), strict=True)) == dict(sorted(expected.items()))
    assert tally.of(everyone).tolist() == [expected.get(client, 0) for client in range(200)]
    assert tally.seen(everyone).tolist() == [client in expected for client in range(200)]


@pytest.mark.parametrize("count", [0, 5, 5_000])
def test_a_tally_is_restored(count):
    tally = ClientTally()
    tally.put(np.arange(count)[::-1] * 3, np.arange(count) + 1)
    again = ClientTally.restored(tally.state())
    assert np.array_equal(again.clients, tally.clients) and np.array_equal(again.numbers, tally.numbers)


def test_few_clients_are_written_by_name_and_many_as_arrays():
    tally = ClientTally()
    tally.put(np.array([7, 2]), np.array([1, 4]))
    assert tally.state() == {"2": 4, "7": 1}
    tally.put(np.arange(10_000), np.ones(10_000, dtype=np.int64))
    assert set(tally.state()) == {"clients", "numbers"}


def test_a_checkpoint_leaves_out_what_nearly_all_clients_have(tmp_path):
    utilities = np.full(MANY, np.nan)
    utilities[[0, 5, MANY - 1]] = 1.5, -0.0, np.inf
    state = {
        "utilities": utilities,
        "known": np.arange(MANY) == 9,
        "rounds": torch.ones(MANY, dtype=torch.int32),
        "dense": np.arange(MANY),
        "model": torch.randn(10),
    }
    write_checkpoint(tmp_path, 3, state)
    assert (tmp_path / "checkpoint.safetensors").stat().st_size < 8 * MANY + 10_000
    _, found = read_checkpoint(tmp_path)
    assert found is not None
    for name, values in state.items():
        assert type(found[name]) is type(values) and found[name].dtype == values.dtype
        assert np.asarray(found[name]).tobytes() == np.asarray(values).tobytes()


def test_a_checkpoint_with_places_outside_is_refused(tmp_path):
    values = np.zeros(MANY)
    values[4] = 1
    write_checkpoint(tmp_path, 1, {"wins": values})
    path: Path = tmp_path / "checkpoint.safetensors"
    damaged = path.read_bytes().replace((4).to_bytes(8, "little"), (1 << 40).to_bytes(8, "little"))
    path.write_bytes(damaged)
    with pytest.raises(Refusal, match="damaged"):
        read_checkpoint(tmp_path)
