"""A federation of the user's own data: arrays, memory maps, or torch Datasets."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from covey.arrays import IntArray
from covey.config.values import chosen
from covey.data.dataset import Dataset, channel_statistics, for_task
from covey.data.own_arrays import from_arrays, stated_statistics, untrained_classes
from covey.data.own_split import SplitKind
from covey.data.torch_samples import clients_of, is_torch_dataset, statistics_of_images
from covey.environment.federated_data import Federation
from covey.environment.from_torch import dataset_of_datasets, holds_datasets
from covey.environment.natural import groups_of, own_tests
from covey.errors import require
from covey.registries import tasks
from covey.task.learning_task import Task


def federation(
    x: Any,
    y: Any = None,
    parts: Mapping[Any, Any] | Sequence[Any] | Any = None,
    *,
    clients: Any = None,
    test: Any = 0.2,
    test_clients: Any = None,
    split: SplitKind = "within",
    class_names: Sequence[str] | None = None,
    name: str = "own data",
    tokens: bool = False,
    normalise: bool | tuple[Any, Any] = True,
    task: str | Mapping[str, Any] | Task | type[Task] | None = None,
) -> Federation:
    """Return a federation of your own samples, to pass to `covey.run(federation=...)`.

    `x` are samples `[n, ...]` (uint8 images `[n, channels, height, width]`, or numbers), `y` labels `[n]`, or several a
    sample `[n, targets]`. What they are for follows from them, unless `task` says it (`"regression"`, `"multilabel"`).
    `parts` says how they are split: the client of each sample `[n]` (numbers or names), a list with each client's
    sample numbers, or a mapping from clients' names to them (a sample may then belong to several clients). `test` is
    a pair of test samples and labels (`test_clients` says whose they are), or the share of each client's samples to
    hold out: drawn (`split="within"`), the last ones (`"last"`), or the share of clients that are held out with all of
    their samples (`"by-client"`). With `tokens=True`, `x` are the numbers of words `[n, length]`.

    A model sees samples normalised: minus the mean, divided by the deviation, of each channel or feature (axis 1) over
    the training samples. `normalise=False` gives it the samples as they are, as a pretrained model needs them, and
    `normalise=(mean, deviation)` says both in the samples' own unit: a number, or one for each channel or feature.

    `x` may also be a torch Dataset of pairs (sample, label) with `clients`, the client of each sample or a function of
    its number; or a list or mapping of Datasets, one for each client, and so may `test`. Their samples, and those of
    memory maps, are read by the clients that use them, and kept in memory where all fit (`host_memory_limit`). What a
    Dataset gives as numbers, and not as uint8, has its own transforms behind it and is not normalised.
    """
    require(split in get_args(SplitKind), f"split is one of {', '.join(get_args(SplitKind))}, not {split!r:.60}.")
    by_dataset = holds_datasets(x)
    require(clients is None or parts is None, "Give clients or parts, not both: each says who holds a sample.")
    if by_dataset:
        count = len(x) if is_torch_dataset(x) else sum(map(len, x.values() if isinstance(x, Mapping) else x))
        given = "the clients of a torch Dataset's samples: clients, an array or a function of the sample's number"
        require(parts is not None or clients is not None or not is_torch_dataset(x), f"{name}: give {given}.")
    else:
        _require_lengths(x, y, parts if clients is None else [clients], name)
        count = len(y)
    if clients is not None:
        parts = clients_of(clients, count, name)
    held_out, share = _test(test)
    stated = None if normalise is True else stated_statistics(normalise, name, tokens=tokens)
    made = partial(
        dataset_of_datasets if by_dataset else from_arrays,
        name, x, y, held_out=held_out, test=share, split=split, class_names=class_names, tokens=tokens,
        statistics=stated or (statistics_of_images if by_dataset else channel_statistics),
    )  # fmt: skip

    def named(of: Any, **more: Any) -> Dataset:
        dataset = replace(_for_task(made(of, **more), task), stated_scale=stated is not None)
        # Rare words are always in some samples alone; and where a note says that classes may be amounts, they may be.
        if dataset.learns.has_classes and not tokens and not dataset.note:
            for sentence in untrained_classes(dataset.y, dataset.test_y, dataset.class_names):
                warnings.warn(f"{name}: {sentence}", stacklevel=3)
        return dataset

    if parts is None:
        return of_clients(named(None))
    require(len(parts) > 0, "parts names no client.")
    names: tuple[str, ...] = ()
    if isinstance(parts, Mapping):
        names, parts = tuple(map(str, parts)), list(parts.values())
    elif _is_client(next(iter(parts))):
        require(
            len(parts) == count,
            f"parts must say the client of each of the {count} samples, or list each client's sample numbers; it says "
            f"the client of {len(parts)} samples.",
        )
        return of_clients(named(parts, **({} if test_clients is None else {"test_clients": test_clients})))
    members = [_sample_numbers(part, names[client] if names else client, count) for client, part in enumerate(parts)]
    require(
        held_out is not None,
        "Where parts lists sample numbers, give test samples too: test=(test_x, test_y).",
    )
    used = np.concatenate(members)
    shared = len(np.unique(used)) < len(used)
    return Federation(named(None), [torch.from_numpy(part) for part in members], shared=shared, names=names)


def _for_task(dataset: Dataset, task: Any) -> Dataset:
    """Return the data set for a task that is named, with its options or without, or given."""
    name, options = chosen("task", task)
    return dataset if name is None else for_task(dataset, {"name": name, **tasks.options(name, options)})


def of_clients(dataset: Dataset) -> Federation:
    """Return the federation of the clients that a data set names, each with its own training and test samples."""
    parts = groups_of(dataset)
    return Federation(dataset, parts, shared=False, names=dataset.group_names, test_parts=own_tests(dataset))


def _require_lengths(x: Any, y: Any, parts: Any, name: str) -> None:
    """Refuse what has no length, and labels of another number than samples."""
    require(
        parts is not None,
        f"{name}: say whose the samples are: clients, a number or a name for each of them (or parts).",
    )
    for argument, given in (("x", x), ("y", y), ("parts", parts)):
        require(hasattr(given, "__len__"), f"{name}: {argument} must be an array or a list, not {given!r:.60}.")
    require(len(x) == len(y), f"{name}: {len(x)} samples but {len(y)} labels.")
    require(len(y) > 0, f"{name}: there are no samples.")


def _test(test: Any) -> tuple[Any, float]:
    """Return the test samples and labels if they are given, and the share to hold out if not."""
    if holds_datasets(test):
        return test, 0.0
    if isinstance(test, tuple | list) and len(test) == 2:
        return (test[0], test[1]), 0.0
    share = isinstance(test, Real) and not isinstance(test, bool)
    require(share, f"test must be a share to hold out, or a pair (test_x, test_y), not {type(test).__name__}.")
    return None, float(test)


def _is_client(entry: Any) -> bool:
    """True if an entry of `parts` is a client's number or name, False if it is a client's sample numbers."""
    return isinstance(entry, str) or not hasattr(entry, "__len__") or (isinstance(entry, Tensor) and entry.ndim == 0)


def _sample_numbers(part: Any, client: int | str, count: int) -> IntArray:
    """Return a client's sample numbers `[n]`, checked."""
    try:
        given = np.asarray(part).reshape(-1)
    except (TypeError, ValueError):
        given = np.array([None])
    whole = len(given) == 0 or np.issubdtype(given.dtype, np.integer)
    require(whole, f"parts must list whole sample numbers; to client {client} it gives {part!r:.60}.")
    require(len(given) > 0, f"parts gives client {client} no sample.")
    inside = bool((given >= 0).all() and (given < count).all())
    require(inside, f"parts gives client {client} samples outside 0 to {count - 1}.")
    return given.astype(np.int64)
