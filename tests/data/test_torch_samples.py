import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import covey
from covey.data.torch_samples import DatasetSamples
from covey.errors import Refusal

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


class Points(Dataset[Any]):
    """The first samples of X; counts which of them are read."""

    def __init__(self, count: int = 120, labels: Any = Y) -> None:
        self.count, self.labels_of, self.reads = count, labels, list[int]()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        self.reads.append(number)
        return torch.from_numpy(X[number]), self.labels_of[number]


class Listing(Points):
    """Points that list their labels and class names, as torchvision's data sets do."""

    targets = Y.tolist()
    classes = ("left", "right")


def settings(**more: Any) -> dict[str, Any]:
    return {"rounds": 2, "cohort": 2, "workers": 1, "local.epochs": 2, "local.batch": 8, "precision": "fp64", **more}


def test_one_dataset_with_the_client_of_each_sample():
    by_function = covey.federation(Points(), clients=lambda number: f"site {number % 4}")
    by_array = covey.federation(Points(), clients=[f"site {number % 4}" for number in range(120)])
    assert by_function.names == ("site 0", "site 1", "site 2", "site 3")
    assert by_function.sizes.tolist() == [24] * 4
    assert by_function.fingerprint == by_array.fingerprint
    for client in range(4):
        here = by_function.samples(client)
        numbers = [int(np.flatnonzero((x.numpy() == X).all(axis=1))[0]) for x in here.x]
        assert {number % 4 for number in numbers} == {client}
        assert here.y.tolist() == Y[numbers].tolist()


def test_a_dataset_for_each_client_with_tests_of_their_own():
    parts = {name: Subset(Points(), range(at, 120, 4)) for at, name in enumerate(("a", "b", "c", "d"))}
    tests = {"b": Subset(Points(), range(7)), "d": Subset(Points(), range(7, 20))}
    federation = covey.federation(parts, test=tests)
    assert federation.names == ("a", "b", "c", "d")
    assert federation.sizes.tolist() == [30] * 4
    assert federation.test_parts is not None
    assert [part.tolist() for part in federation.test_parts] == [[], list(range(7)), [], list(range(7, 20))]
    assert torch.equal(federation.dataset.test_x[:], torch.from_numpy(X[:20]))
    as_list = covey.federation(list(parts.values()), test=0.5)
    assert as_list.names == ("0", "1", "2", "3")
    assert as_list.sizes.tolist() == [15] * 4


def test_clients_read_their_own_samples_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("covey.data.sample_store._DIGESTED", 1)
    data = Listing()
    federation = covey.federation(data, clients=np.arange(120) // 30)
    assert set(data.reads) <= {0, 59, 119}
    data.reads.clear()
    run = covey.run(settings(rounds=1, cohort=1), federation=federation, out=tmp_path / "run")
    invited = run.metrics[0]["clients"][0]
    of_others = {number for number in data.reads if number // 30 != invited}
    # Others' samples are read for tests, and two of the first client for a trial of the trainer and the fingerprint.
    tested, first = federation.dataset.test_x.chosen, federation.dataset.x.chosen[:2]  # type: ignore[attr-defined]
    assert of_others <= {*tested.tolist(), *first.tolist()}
    assert set(range(30 * invited, 30 * invited + 30)) <= set(data.reads)


@pytest.mark.parametrize("runtime", ["local", "stacked"])
@pytest.mark.parametrize("limit", [None, "1KiB"])
def test_a_run_is_the_same_as_on_arrays_resident_or_streamed(tmp_path, runtime, limit):
    lazy = covey.federation(Points(), clients=np.arange(120) % 4)
    dataset = lazy.dataset
    whole = covey.Federation(
        covey.Dataset("own data", dataset.x[:], dataset.y, dataset.test_x[:], dataset.test_y, dataset.class_names),
        lazy.parts,
        shared=False,
    )
    runs = [
        covey.run(
            settings(), federation=one, runtime=runtime, device="cpu", host_memory_limit=limit, out=tmp_path / name
        )
        for name, one in (("lazy", lazy), ("whole", whole))
    ]
    assert [row["loss"] for row in runs[0].metrics] == [row["loss"] for row in runs[1].metrics]


def test_streams_are_the_same_on_both_runtimes_for_altered_images_too(tmp_path):
    images = torch.from_numpy(RNG.integers(0, 256, size=(80, 1, 8, 8), dtype=np.uint8))
    federation = covey.federation(TensorDataset(images, torch.arange(80) % 2), clients=np.arange(80) % 4)
    more = settings(cohort=4, altered={"inverted": 0.5, "noise": 0.2}, host_memory_limit="1KiB")
    runs = [
        covey.run(more, federation=federation, runtime=runtime, device="cpu", out=tmp_path / runtime)
        for runtime in ("local", "stacked")
    ]
    losses = [[row["loss"] for row in run.metrics] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_random_transforms_draw_the_same_whenever_a_sample_is_read():
    class Shaken(Points):
        def __getitem__(self, number: int) -> tuple[Any, Any]:
            x, y = super().__getitem__(number)
            return x + torch.randn(6) + random.random() + np.random.rand(), y

    store = DatasetSamples(Shaken(), Y, "own data: x")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = store[torch.tensor([3, 4])]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(store[torch.tensor([4, 3])], first[[1, 0]])
    assert not torch.equal(first[0] - torch.from_numpy(X[3]), first[1] - torch.from_numpy(X[4]))


def test_labels_are_taken_from_lists_where_the_dataset_has_them():
    data: Any
    for data in (Listing(), Subset(Listing(), range(120)), ConcatDataset([Listing()])):
        counted = data if isinstance(data, Listing) else getattr(data, "dataset", None) or data.datasets[0]
        federation = covey.federation(data, clients=np.arange(120) % 2)
        assert len(set(counted.reads)) <= 3
        assert torch.bincount(federation.dataset.y).sum() == 96
    assert covey.federation(Listing(), clients=np.arange(120) % 2).dataset.class_names == ("left", "right")
    # Labels that the Dataset transforms are those that count.
    turned = Listing(labels=1 - Y)
    y = covey.federation(turned, clients=np.arange(120) % 2, class_names=("left", "right")).dataset
    assert int(y.y.sum() + y.test_y.sum()) == int((1 - Y).sum())


def test_images_of_a_dataset_are_scaled_by_some_and_other_numbers_stay():
    images = RNG.integers(0, 200, size=(60, 3, 4, 4), dtype=np.uint8)
    federation = covey.federation(TensorDataset(torch.from_numpy(images), torch.arange(60) % 2), clients=[0, 1] * 30)
    assert federation.dataset.x.dtype == torch.uint8
    assert federation.dataset.mean == pytest.approx(images.mean(axis=(0, 2, 3)), rel=0.05)
    assert covey.federation(Points(), clients=[0, 1] * 60).dataset.mean == (0.0,)


class Named(Dataset[Any]):
    def __len__(self):
        return 9

    def __getitem__(self, number):
        return {"x": X[number], "y": Y[number]}


class Endless(IterableDataset[Any]):
    def __iter__(self):
        return iter([])


def gaps(number: int) -> Dataset[Any]:
    x = torch.from_numpy(X.copy())
    x[number, 2] = torch.nan
    return TensorDataset(x, torch.from_numpy(Y))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((Points(),), "give the clients of a torch Dataset's samples"),
        ((DataLoader(Points()),), "give its Dataset: loader.dataset"),
        ((Endless(),), "A Endless cannot be read by index"),
        (({"a": Points(), "b": Points(0)},), "client 'b' has no samples"),
        (([Points(), X],), "Give a torch Dataset for every client"),
        ((Points(), Y[:5], np.arange(120) % 2), "120 samples but 5 labels"),
        ((Points(), 1 - Y, np.arange(120) % 2), "labels are not those that the Dataset gives"),
        ((Points(), None, np.arange(60) % 2), "client of each of the 120 samples, .* the client of 60 samples"),
        ((Points(labels=np.zeros(120, int)), None, np.arange(120) % 2), "there is only one class"),
        ((Points(labels=[None] * 120), None, np.arange(120) % 2), r"x\[0\] has a label of the type NoneType"),
        ((TensorDataset(torch.zeros(9, 2)), None, np.arange(9)), r"x\[0\] is a tuple of 1; a Dataset must give pairs"),
        (
            (Named(), None, np.arange(9)),
            r"x\[0\] is a dict with x, y; a Dataset must give pairs .*: wrap it in one that",
        ),
    ],
)
def test_what_is_no_dataset_of_clients_is_refused_in_a_sentence(given, sentence):
    with pytest.raises(Refusal, match=sentence):
        covey.federation(*given)


class Broken(Points):
    """Points one of which cannot be read."""

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        if number == 50:
            raise OSError("truncated image")
        return super().__getitem__(number)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sample_that_the_dataset_cannot_read_is_named(tmp_path, workers):
    with pytest.raises(Refusal, match=r"own data: x\[50\] cannot be read: OSError: truncated image"):
        covey.federation(Broken(), clients=np.arange(120) // 60)
    listing = type("BrokenListing", (Broken,), {"targets": Y.tolist()})
    federation = covey.federation(listing(), clients=np.arange(120) // 60)
    with pytest.raises(Refusal, match=r"own data: x\[50\] cannot be read: OSError: truncated image"):
        covey.run(settings(workers=workers), federation=federation, out=tmp_path / "run")


def test_tensors_that_numpy_cannot_hold_are_read():
    x, y = torch.from_numpy(X), torch.from_numpy(X[:, 0])
    odd = TensorDataset(x.bfloat16().requires_grad_(), y.bfloat16().requires_grad_())
    federation = covey.federation(odd, clients=np.arange(120) % 2)
    assert federation.dataset.learns.name == "regression"
    assert torch.equal(federation.dataset.x[:][:1], x.bfloat16().float()[federation.dataset.x.chosen[:1]])  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_reads_nan_ends_with_a_sentence_that_names_the_row(tmp_path, workers):
    federation = covey.federation(gaps(50), clients=np.arange(120) // 60)
    with pytest.raises(Refusal, match=r"own data: x\[50\] holds a value that is not a finite float32 number"):
        covey.run(settings(workers=workers), federation=federation, out=tmp_path / "run")


def test_labels_that_change_between_two_reads_are_refused():
    data = Points(labels=Y.copy())
    store = DatasetSamples(data, Y.copy(), "own data: x")
    data.labels_of[5] = 1 - data.labels_of[5]
    with pytest.raises(Refusal, match=r"own data: x\[5\] has the label . now and had . before"):
        store[torch.tensor([4, 5])]
