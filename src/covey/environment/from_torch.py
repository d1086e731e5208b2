"""A federation of torch Datasets: one for each client, or one with the client of each sample."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.data.dataset import Dataset
from covey.data.labels import labels_of as checked_labels
from covey.data.own_arrays import Statistics, from_arrays
from covey.data.own_split import SplitKind
from covey.data.sample_store import SampleStore, StoredTogether
from covey.data.torch_samples import (
    DatasetSamples,
    class_names_of,
    clients_of,
    is_torch_dataset,
    labels_of,
)
from covey.errors import require

Own = tuple[SampleStore, NDArray[Any], NDArray[Any] | None]
"""Samples, labels `[n]` and clients `[n]`."""


def holds_datasets(given: Any) -> bool:
    """True for a torch Dataset, or a list or mapping of them."""
    if isinstance(given, Mapping | list | tuple):
        entries = list(given.values()) if isinstance(given, Mapping) else list(given)
        found = [is_torch_dataset(entry) for entry in entries]
        require(
            not any(found) or all(found), "Give a torch Dataset for every client: some of these are something else."
        )
        return bool(found) and all(found)
    return is_torch_dataset(given)


def dataset_of_datasets(
    name: str,
    given: Any,
    labels: Any,
    clients: Any,
    *,
    held_out: Any,
    test: float,
    test_clients: Any = None,
    split: SplitKind,
    class_names: Sequence[str] | None,
    tokens: bool,
    statistics: Statistics,
) -> Dataset:
    """Return the data set of torch Datasets; samples are read where they are used. See `covey.federation`."""
    store, targets, owners = _own(given, labels, clients, name, "x", tokens)
    if held_out is not None and holds_datasets(held_out):
        test_store, test_targets, test_owners = _own(held_out, None, None, name, "test_x", tokens)
        held_out = test_store, test_targets
        test_clients = test_owners if test_clients is None else test_clients
    if class_names is None and is_torch_dataset(given):
        class_names = class_names_of(given, targets)
    return from_arrays(
        name,
        store,
        targets,
        owners,
        test=test,
        held_out=held_out,
        test_clients=test_clients,
        split=split,
        class_names=class_names,
        tokens=tokens,
        statistics=statistics,
    )


def _own(given: Any, labels: Any, clients: Any, name: str, what: str, tokens: bool) -> Own:
    """Return samples, labels and clients of one Dataset, or of one for each client."""
    if is_torch_dataset(given):
        targets = labels_of(given, labels, name)
        words = checked_labels(targets, name, what)
        owners = None if clients is None else clients_of(clients, len(targets), name)
        return DatasetSamples(given, targets, f"{name}: {what}", tokens), words, owners
    require(clients is None, "Where each client has a Dataset, clients says nothing more: leave it out.")
    require(labels is None, "Where each client has a Dataset, labels are theirs: leave y out.")
    by_name = dict(given) if isinstance(given, Mapping) else dict(enumerate(given))
    stores: list[DatasetSamples] = []
    checked: list[NDArray[Any]] = []
    for client, one in by_name.items():
        own = f"{name}: {what} of client {client!r}"
        require(len(one) > 0 or what != "x", f"{name}: client {client!r} has no samples; leave it out.")
        if len(one):
            labels = labels_of(one, None, own)
            checked.append(checked_labels(labels, own, what))
            stores.append(DatasetSamples(one, labels, own, tokens))
    require(bool(stores), f"{name}: there are no {'training' if what == 'x' else 'test'} samples.")
    for store in stores:
        require(
            store.shape[1:] == stores[0].shape[1:] and store.dtype == stores[0].dtype,
            f"{store.name} has samples of shape {list(store.shape[1:])} ({store.dtype}), and {stores[0].name} of shape "
            f"{list(stores[0].shape[1:])} ({stores[0].dtype}); all must be alike.",
        )
    counts = [len(one) for one in by_name.values()]
    owners = np.repeat(np.array(list(by_name), dtype=np.str_ if isinstance(given, Mapping) else np.int64), counts)
    return StoredTogether(stores, f"{name}: {what}"), np.concatenate(checked), owners
