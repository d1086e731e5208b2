import subprocess
import sys

import numpy as np
import pytest
import torch

import covey
from covey.data.dataset import channel_statistics
from covey.data.memory_map import MappedSamples
from covey.data.sample_store import SampleStore, StoredSubset, StoredTogether, keep_within, stored_statistics
from covey.errors import Refusal

RNG = np.random.default_rng(0)


class Counted(SampleStore):
    """Rows of a tensor that counts which of them are read."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__(x.shape, x.dtype, "counted: x")
        self.x = x
        self.reads: list[int] = []

    def read(self, rows):
        self.reads += rows.tolist()
        return self.x[rows]


def test_a_store_gives_the_rows_that_a_tensor_would():
    x = torch.arange(60.0).view(20, 3)
    store = Counted(x)
    for index in (slice(2, 9), slice(3, None, 4), torch.tensor([7, 7, 0]), torch.arange(20) % 3 == 0, 5, -1):
        assert torch.equal(store[index], x[index])
    assert (len(store), store.shape, store.dtype, store.nbytes) == (20, x.shape, x.dtype, 240)
    chosen = torch.tensor([4, 19, 1])
    assert torch.equal(StoredSubset(store, chosen)[torch.tensor([2, 0])], x[[1, 4]])
    both = StoredTogether([StoredSubset(store, chosen), Counted(x[:5])], "both")
    assert torch.equal(both[torch.tensor([7, 0, 3])], torch.stack([x[4], x[4], x[0]]))
    assert torch.equal(both.to(torch.device("cpu")), torch.cat([x[chosen], x[:5]]))


def test_rows_are_read_once_where_all_fit_and_each_time_where_not():
    store = Counted(torch.arange(40.0).view(20, 2))
    keep_within((store,), 2 * store.nbytes)  # type: ignore[arg-type]
    first = store[torch.tensor([3, 8])]
    again = store[torch.tensor([8, 3, 9])]
    assert store.reads == [3, 8, 9]
    assert torch.equal(again[[1, 0]], first)
    store.reads.clear()
    keep_within((store,), 2 * store.nbytes - 2)  # type: ignore[arg-type]
    assert torch.equal(store[torch.tensor([3, 8])], first)
    assert torch.equal(store[torch.tensor([3, 8])], first)
    assert store.reads == [3, 8, 3, 8]


def test_two_stores_do_not_both_take_memory_that_one_needs():
    large, small = Counted(torch.zeros(100, 2)), Counted(torch.zeros(10, 2))
    keep_within((large, small), 2 * large.nbytes)  # type: ignore[arg-type]
    assert (large.resident, small.resident) == (False, True)


def test_a_value_that_is_not_finite_is_refused_with_its_row_when_it_is_read():
    x = torch.zeros(20, 2)
    x[13, 1] = torch.nan
    store = Counted(x)
    assert len(store[:13]) == 13
    with pytest.raises(Refusal, match=r"counted: x\[13\] holds a value that is not a finite float32 number"):
        StoredSubset(store, torch.tensor([2, 13]))[:]


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_statistics_in_pieces_are_those_of_the_whole(kind, monkeypatch):
    monkeypatch.setattr("covey.data.sample_store._PIECE", 300)
    x = torch.from_numpy(RNG.integers(0, 256, size=(70, 3, 4, 4))).to(kind)
    x[:, 2] = 7
    for pieces, whole in zip(stored_statistics(Counted(x)), channel_statistics(x), strict=True):
        assert pieces == pytest.approx(whole, rel=1e-12)


def test_a_memory_map_is_read_where_it_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr("covey.data.own_arrays.READ_AT_ONCE", 0)
    x, y = RNG.normal(size=(90, 5)), np.arange(90) % 2
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    lazy, whole = covey.federation(mapped, y, np.arange(90) % 3), covey.federation(x, y, np.arange(90) % 3)
    assert isinstance(lazy.dataset.x, StoredSubset)
    assert isinstance(lazy.dataset.x.whole, MappedSamples)
    for client in range(3):
        assert torch.equal(lazy.samples(client).x, whole.samples(client).x)
    assert lazy.dataset.mean == pytest.approx(whole.dataset.mean, abs=1e-12)
    assert lazy.fingerprint == covey.federation(mapped, y, np.arange(90) % 3).fingerprint
    assert lazy.fingerprint != covey.federation(mapped, 1 - y, np.arange(90) % 3).fingerprint


def test_a_small_memory_map_is_an_array_as_it_always_was(tmp_path):
    x, y = RNG.normal(size=(90, 5)), np.arange(90) % 2
    np.save(tmp_path / "x.npy", x)
    mapped = covey.federation(np.load(tmp_path / "x.npy", mmap_mode="r"), y, np.arange(90) % 3)
    assert mapped.fingerprint == covey.federation(x, y, np.arange(90) % 3).fingerprint


GROWTH = """
import pathlib, re, sys, numpy as np, covey
def memory(what):
    return int(re.search(what + r":\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) >> 10
def run(x, name):
    federation = covey.federation(x, np.arange(len(x)) % 2, np.arange(len(x)) // 500)
    settings = {"model.hidden": (4,), "rounds": 2, "cohort": federation.clients, "local.epochs": 1, "local.batch": 250}
    covey.run(settings, federation=federation, host_memory_limit=sys.argv[4], workers=1, method=sys.argv[3],
              out=sys.argv[2] + name)
run(np.eye(1000, 1500), "small")
pathlib.Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
before = memory("VmRSS")
run(np.load(sys.argv[1], mmap_mode="r"), "large")
print(memory("VmHWM") - before)
"""


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="Peak memory is measured in KiB on Linux.")
@pytest.mark.parametrize(
    ("method", "limit", "fits"), [("fedavg", 64, False), ("central", 64, False), ("fedavg", 999, True)]
)
def test_samples_larger_than_the_memory_given_take_less_than_it(tmp_path, method, limit, fits):
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (20_000, 1500))
    for at in range(0, len(x), 1000):
        x[at : at + 1000] = RNG.normal(size=(1000, 1500))
    x.flush()
    assert x.nbytes > 110 << 20
    command = [sys.executable, "-c", GROWTH, str(tmp_path / "x.npy"), str(tmp_path / "run"), method, f"{limit}MiB"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    grown = int(answer.stdout.split()[-1])
    # Where they fit they stay in memory, so the measurement would see it.
    assert grown > 100 if fits else grown < limit
