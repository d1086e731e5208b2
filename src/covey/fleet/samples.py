"""A data set as the server of sites with their own data knows it: sample shape, classes, perhaps a test set.

Blank samples, one for each class, stand in for the sites' samples; nobody learns from them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from covey.config.values import chosen
from covey.data.dataset import Dataset
from covey.environment.federated_data import Federation
from covey.errors import Refusal, require
from covey.fleet.fleet_folder import Fleet
from covey.registry import coerce
from covey.task import Regression, labels_as, named_task

LOADER = "covey.fleet.samples:load"

_KNOWN = ("shape", "classes", "targets", "mean", "deviation", "test")


def settings(fleet: Fleet) -> dict[str, Any]:
    """Return the settings of a fleet's runs."""
    run = {"runtime": "fleet", **fleet.run}
    if not fleet.data:
        return run
    about = {"dataset": {"name": LOADER, "folder": str(fleet.folder)}, "environment": "natural"}
    return {**run, **about, "clients": len(fleet.sites)}


def load(data_dir: Path | None, /, *, folder: str = "") -> Dataset:
    """Return the data set of a live fleet as its server knows it, with blank samples."""
    return _seen(Fleet.read(folder))


def federation_of(fleet: Fleet) -> Federation:
    """Return the sites of a fleet with its own data, as its server knows them."""
    dataset = _seen(fleet)
    parts = torch.arange(len(dataset.y)).view(len(fleet.sites), -1)
    return Federation(dataset, list(parts), shared=False, names=fleet.sites)


def _seen(fleet: Fleet) -> Dataset:
    if "targets" in fleet.data:
        return _seen_without_classes(fleet)
    shape, classes = described(fleet.data, fleet.folder)
    channels = shape[0] if len(shape) > 1 else 1
    blank = torch.zeros(len(classes), *shape)
    labels = torch.arange(len(classes))
    test_x, test_y = _test(fleet, classes) if "test" in fleet.data else (blank, labels)
    return Dataset(
        "fleet",
        blank.repeat(len(fleet.sites), *(1 for _ in shape)),
        labels.repeat(len(fleet.sites)),
        test_x,
        test_y,
        classes,
        coerce(fleet.data.get("mean", (0.0,) * channels), tuple[float, ...], "data.mean"),
        coerce(fleet.data.get("deviation", (1.0,) * channels), tuple[float, ...], "data.deviation"),
        groups=torch.arange(len(fleet.sites)).repeat_interleave(len(classes)),
        group_names=fleet.sites,
        blank=True,
        untested="test" not in fleet.data,
    )


def _seen_without_classes(fleet: Fleet) -> Dataset:
    """Return the data set of sites whose samples have numbers in place of a class."""
    where = fleet.folder / "fleet.toml"
    targets = coerce(fleet.data["targets"], int, "data.targets")
    instead = targets >= 1 and "classes" not in fleet.data
    require(instead, f"{where}: data.targets is a number from 1, in place of data.classes.")
    name, options = chosen("task", fleet.run.get("task"))
    task = named_task({"name": name or "regression", **options})
    require(
        not task.has_classes and not (isinstance(task, Regression) and not task.centre),
        f"{where}: with data.targets, [run] says the task, such as task = {{name = 'regression', centre = [20.0], "
        "scale = [5.0]}: nobody sees all sites' targets, so say what to subtract and to divide by.",
    )
    blank = torch.zeros(2, targets, dtype=torch.float64)
    shape = coerce(fleet.data.get("shape", ()), tuple[int, ...], "data.shape")
    require(bool(shape) and min(shape) >= 1, f"{where}: data.shape must be positive numbers.")
    x, channels = torch.zeros(2, *shape), shape[0] if len(shape) > 1 else 1
    tested = "test" in fleet.data
    test_x, test_y = _arrays(fleet) if tested else (x, blank)
    labels = labels_as(task, blank, test_y.double(), (), str(where))
    return Dataset(
        "fleet",
        x.repeat(len(fleet.sites), *(1 for _ in shape)),
        labels.y.repeat(len(fleet.sites), 1),
        test_x,
        labels.test_y,
        (),
        coerce(fleet.data.get("mean", (0.0,) * channels), tuple[float, ...], "data.mean"),
        coerce(fleet.data.get("deviation", (1.0,) * channels), tuple[float, ...], "data.deviation"),
        groups=torch.arange(len(fleet.sites)).repeat_interleave(2),
        group_names=fleet.sites,
        blank=True,
        untested=not tested,
        task=labels.task,
    )


def described(data: Mapping[str, Any], folder: Path) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return shape and class names from a fleet's section `data`."""
    where = folder / "fleet.toml"
    for key in data:
        require(key in _KNOWN, f"{where}: there is no setting 'data.{key}'. Known: {', '.join(_KNOWN)}.")
    for key in ("shape", "classes"):
        require(key in data, f"{where} does not say: data.{key}.")
    shape = coerce(data["shape"], tuple[int, ...], "data.shape")
    given = data["classes"]
    count = isinstance(given, int)
    classes = tuple(str(number) for number in range(given)) if count else coerce(given, tuple[str, ...], "data.classes")
    require(len(classes) >= 2, f"{where}: data.classes must be at least two.")
    require(bool(shape) and min(shape) >= 1, f"{where}: data.shape must be positive numbers.")
    return shape, classes


def _test(fleet: Fleet, classes: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = _arrays(fleet)
    return x, y.to(torch.int64)


def _arrays(fleet: Fleet) -> tuple[torch.Tensor, torch.Tensor]:
    path = fleet.folder / str(fleet.data["test"])
    try:
        with np.load(path, allow_pickle=False) as archive:
            return torch.from_numpy(archive["x"]), torch.from_numpy(archive["y"])
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise Refusal(f"The test set {path} cannot be read (arrays x and y): {error}.") from error
