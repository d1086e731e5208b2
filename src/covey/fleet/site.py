"""A site's app: answers orders with the site's own samples and the model of the fleet's run.

Samples are in the folder that the node's configuration names: `train.npz` with arrays `x` and `y`, or `train.csv` with
a header and a column `label`; `test.npz` or `test.csv` likewise, if the site keeps samples for evaluation. The run
names the model; models and probes of users' own run only if the site's configuration allows them.

    folder="/data/pumps"              where the samples are
    allow="fleet_models:Net"          models and probes of your own, separated by commas
    label="state"                     the label's column, or several
    update-clip=1.0  update-privacy="8,1e-5"  insight-privacy="1,1e-5"      see docs/privacy.md, also for:
    budget="10,1e-5"  unprotected="loss,evaluation"  classes="ok,worn"      needed with noise: budget, classes
"""

import csv
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from covey.client.learner import Learner
from covey.data.dataset import Dataset, Samples
from covey.errors import Refusal, require
from covey.fleet.fault_injection import inject_fault
from covey.flower.memory_file import recall, remember
from covey.flower.node_app import answered, register
from covey.flower.node_work import Client
from covey.flower.protection import Protection
from covey.model.factory import are_words, build_model
from covey.probe.class_query import Privacy
from covey.task import Task, labels_as, named_task
from covey.task.label_kinds import PLAIN_TASK, require_numbers
from covey.trust import paths_in

RUN = "covey"
"""Key of a run's configuration that holds its description."""


def about(dataset: Dataset, model: str, options: Mapping[str, Any], seed: int, precision: str) -> dict[str, Any]:
    """Return the description of a run for its sites: the model, and how samples are normalised."""
    return {
        "shape": list(dataset.shape),
        "class_names": list(dataset.class_names),
        "mean": list(dataset.mean),
        "deviation": list(dataset.deviation),
        "never": list(dataset.never),
        "stop_words": list(dataset.stop_words),
        "model": model,
        "options": dict(options),
        "seed": seed,
        "precision": precision,
        **({} if dataset.learns.has_classes else {"task": dataset.learns.as_mapping()}),
    }


def prepared(context: Context, part: str) -> Client:
    """Return the client at this site, with its training or its test samples."""
    torch.set_num_threads(1)
    run = json.loads(str(context.run_config[RUN]))
    node = context.node_config
    rules = protection(node)
    task = named_task(run.get("task", PLAIN_TASK))
    named = not task.has_classes or tuple(run["class_names"]) == _listed(node, "classes")
    require(
        rules is None or not rules.noisy or named,
        "The run is about other classes than this site's operator states. Whether samples fit others would tell which "
        "classes occur here.",
    )
    try:
        samples = read_samples(
            Path(str(node["folder"])), part, tuple(run["class_names"]), str(node.get("label", "label")), task
        )
    except Refusal as error:
        # The reason may contain values, labels and file names; it stays in the site's log.
        raise Refusal("Its samples cannot be read; the site's log says why.") from error
    require(
        tuple(samples.x.shape[1:]) == tuple(run["shape"]),
        f"Samples here have the shape {tuple(samples.x.shape[1:])}, and the run is about {tuple(run['shape'])}.",
    )
    name = str(run["model"])
    require(
        ":" not in name or name in allowed(node),
        f"This site does not run the model {name}: list it under allow= in its configuration.",
    )
    for path in paths_in(list(task.as_mapping().values())):
        require(path in allowed(node), f"This site does not run the loss or metric {path}: list it under allow=.")
    dataset = Dataset(
        "site",
        samples.x[:1],
        samples.y[:1],
        samples.x[:1],
        samples.y[:1],
        tuple(run["class_names"]),
        tuple(run["mean"]),
        tuple(run["deviation"]),
        never=tuple(run["never"]),
        stop_words=tuple(run.get("stop_words", ())),
        task=task,
    )
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in run["options"].items()}
    words = are_words(samples.x)
    module = build_model(name, options, dataset.shape, dataset.outputs, run["seed"], tokens=words)
    return Client(Learner(module, dataset, run["precision"]), samples, protection=rules)


def allowed(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the models and probes of users' own that the site runs."""
    return _listed(node, "allow")


def _listed(node: Mapping[str, Any], option: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in str(node.get(option, "")).split(",") if name.strip())


def protection(node: Mapping[str, Any]) -> Protection | None:
    """Return the clipping and noise that the site applies to its answers, and its budget."""
    clip, budget = node.get("update-clip"), node.get("budget")
    update, insight = node.get("update-privacy"), node.get("insight-privacy")
    for option, text in (("update-privacy", update), ("insight-privacy", insight)):
        if text is not None:
            Privacy.of(str(text), option)
    if clip is None and update is None and insight is None and budget is None:
        return None
    rules = Protection(
        update=None if update is None else str(update),
        update_clip=None if clip is None else float(clip),
        insight=None if insight is None else str(insight),
        insight_clip=float(node.get("insight-clip", 1.0)),
        budget=None if budget is None else str(budget),
        ledger=_ledger(node),
        unprotected=_listed(node, "unprotected"),
    )
    require(
        not rules.noisy or bool(_listed(node, "classes")),
        "A site with noise states the classes that runs are about: classes='ok,worn', as in the fleet's data section.",
    )
    return rules


def _ledger(node: Mapping[str, Any]) -> str | None:
    """Return the file that counts the site's noisy answers: `privacy.json` in its folder, or as `ledger` says.

    A relative path is one in the site's folder, from wherever the node is started: another file would know of nothing.
    """
    given, memory = node.get("ledger"), node.get("memory")
    if not memory:
        return str(given) if given else None
    return str(Path(str(memory)).with_name("privacy.json") if not given else Path(str(memory)).parent / str(given))


def read_samples(
    folder: Path, part: str, classes: tuple[str, ...], label: str = "label", task: Task | None = None
) -> Samples:
    """Return a site's samples; without test samples, it evaluates on its training samples."""
    for name in (part, "train"):
        for path in (folder / f"{name}.npz", folder / f"{name}.csv"):
            if path.is_file():
                samples = _read(path, path.stat().st_mtime_ns, classes, label, task is None or task.has_classes)
                return samples if task is None or task.has_classes else _for_task(path, samples, task)
    raise Refusal(f"There are no samples in {folder}: a file train.npz (arrays x, y) or train.csv (column {label}).")


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, classes: tuple[str, ...], label: str, has_classes: bool) -> Samples:
    x, y = _npz(path) if path.suffix == ".npz" else _csv(path, label)
    require(len(x) == len(y) and len(y) > 0, f"{path}: {len(x)} samples and {len(y)} labels.")
    if not has_classes:
        return Samples(_values(path, x), _numbers(path, y))
    if y.dtype.kind not in "iu":
        places = {name: number for number, name in enumerate(classes)}
        unknown = sorted({str(value) for value in y} - set(places))
        require(not unknown, f"{path}: labels that are no classes of this fleet: {', '.join(unknown[:5])}.")
        y = np.array([places[str(value)] for value in y], dtype=np.int64)
    require(
        int(y.min()) >= 0 and int(y.max()) < len(classes),
        f"{path}: labels run from {y.min()} to {y.max()}, and the fleet has {len(classes)} classes.",
    )
    return Samples(_values(path, x), torch.from_numpy(y.astype(np.int64)))


def _for_task(path: Path, samples: Samples, task: Task) -> Samples:
    """Return samples with their numbers as a task's labels."""
    outputs = task.outputs or 1
    require(
        samples.y.shape[1] == outputs,
        f"{path}: samples have {samples.y.shape[1]} labels each, and the run is about {outputs}.",
    )
    return Samples(samples.x, labels_as(task, samples.y, samples.y[:1], (), str(path)).y)


def _numbers(path: Path, y: NDArray[Any]) -> torch.Tensor:
    """Return labels as finite numbers float64 `[n, targets]`."""
    try:
        numbers = y.astype(np.float64).reshape(len(y), -1)
    except ValueError as error:
        raise Refusal(f"{path}: labels must be numbers ({error}).") from error
    require_numbers(numbers, str(path), "x")
    return torch.from_numpy(numbers)


def _values(path: Path, x: NDArray[Any]) -> torch.Tensor:
    values = torch.from_numpy(np.ascontiguousarray(x))
    if values.dtype != torch.uint8 and values.is_floating_point():
        require(bool(torch.isfinite(values).all()), f"{path} holds values that are not finite numbers.")
        values = values.to(torch.float32)
    return values


def _npz(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return archive["x"], archive["y"]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise Refusal(f"{path} cannot be read: {error}.") from error


def _csv(path: Path, label: str) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            rows = list(reader)
            labels = [label] if label in (reader.fieldnames or ()) else [name.strip() for name in label.split(",")]
            names = [name for name in reader.fieldnames or () if name not in labels]
        for one in labels:
            require(bool(rows) and one in rows[0], f"{path} has no column '{one}', or no rows.")
        x = np.array([[float(row[name]) for name in names] for row in rows], dtype=np.float32)
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise Refusal(f"{path} cannot be read: {error}.") from error
    return x, np.array([row[labels[0]] if len(labels) == 1 else [row[one] for one in labels] for row in rows])


def work(message: Message, context: Context) -> Message:
    """Answer an order."""
    turn = recall(context, _memory(context))
    answer = answered(message, context, lambda: prepared(context, "train"), allowed=allowed(context.node_config))
    remember(context, _memory(context), turn)
    return inject_fault(message, context, answer)


def _memory(context: Context) -> Path | None:
    """Return the file of the site's memory, if it has one."""
    place = context.node_config.get("memory")
    return Path(str(place)) if place else None


def score(message: Message, context: Context) -> Message:
    """Score a model on the site's test samples."""
    recall(context, _memory(context))
    return answered(message, context, lambda: prepared(context, "test"), allowed=allowed(context.node_config))


app = ClientApp()
"""The app of a fleet's nodes."""
register(app, work, score)
