"""A site's app: answers orders with the site's own samples and the model of the fleet's run.

Samples are in the folder that the node's configuration names: `train.npz` with arrays `x` and `y`, or `train.csv` with
a header and a column `label`; `test.npz` or `test.csv` likewise, if the site keeps samples for evaluation. The run
names the model; models and probes of users' own run only if the site's configuration allows them.

    folder="/data/pumps"              where the samples are
    allow="fleet_models:Net"          models and probes of your own, separated by commas
    label="state"                     the label's column
    update-clip=1.0  update-privacy="8,1e-5"  insight-privacy="1,1e-5"      see docs/privacy.md, also for:
    budget="10,1e-5"  unprotected="loss,evaluation"  classes="ok,worn"      needed with noise: budget, classes
"""

import csv
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from covey.fleet.certificates import write_private
from covey.fleet.fault_injection import inject_fault
from covey.flower.node_app import answered, register
from covey.flower.node_work import Client
from covey.flower.private_api import ProtoRecordDict, recorddict_from_proto, recorddict_to_proto
from covey.flower.protection import Protection
from covey.model import build_model
from covey.probe.class_query import Privacy

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
    }


def prepared(context: Context, part: str) -> Client:
    """Return the client at this site, with its training or its test samples."""
    torch.set_num_threads(1)
    run = json.loads(str(context.run_config[RUN]))
    node = context.node_config
    rules = protection(node)
    require(
        rules is None or not rules.noisy or tuple(run["class_names"]) == _listed(node, "classes"),
        "The run is about other classes than this site's operator states. Whether samples fit others would tell which "
        "classes occur here.",
    )
    try:
        samples = read_samples(
            Path(str(node["folder"])), part, tuple(run["class_names"]), str(node.get("label", "label"))
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
    )
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in run["options"].items()}
    module = build_model(name, options, dataset.shape, dataset.classes, run["seed"])
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
    """Return the file that counts the site's noisy answers: `privacy.json` in its folder, or as `ledger` says."""
    given, memory = node.get("ledger"), node.get("memory")
    return str(given) if given else str(Path(str(memory)).with_name("privacy.json")) if memory else None


def read_samples(folder: Path, part: str, classes: tuple[str, ...], label: str = "label") -> Samples:
    """Return a site's samples; without test samples, it evaluates on its training samples."""
    for name in (part, "train"):
        for path in (folder / f"{name}.npz", folder / f"{name}.csv"):
            if path.is_file():
                return _read(path, path.stat().st_mtime_ns, classes, label)
    raise Refusal(f"There are no samples in {folder}: a file train.npz (arrays x, y) or train.csv (column {label}).")


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, classes: tuple[str, ...], label: str) -> Samples:
    x, y = _npz(path) if path.suffix == ".npz" else _csv(path, label)
    require(len(x) == len(y) and len(y) > 0, f"{path}: {len(x)} samples and {len(y)} labels.")
    if y.dtype.kind not in "iu":
        places = {name: number for number, name in enumerate(classes)}
        unknown = sorted({str(value) for value in y} - set(places))
        require(not unknown, f"{path}: labels that are no classes of this fleet: {', '.join(unknown[:5])}.")
        y = np.array([places[str(value)] for value in y], dtype=np.int64)
    require(
        int(y.min()) >= 0 and int(y.max()) < len(classes),
        f"{path}: labels run from {y.min()} to {y.max()}, and the fleet has {len(classes)} classes.",
    )
    values = torch.from_numpy(np.ascontiguousarray(x))
    if values.dtype != torch.uint8 and values.is_floating_point():
        require(bool(torch.isfinite(values).all()), f"{path} holds values that are not finite numbers.")
        values = values.to(torch.float32)
    return Samples(values, torch.from_numpy(y.astype(np.int64)))


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
            names = [name for name in reader.fieldnames or () if name != label]
        require(bool(rows) and label in rows[0], f"{path} has no column '{label}', or no rows.")
        x = np.array([[float(row[name]) for name in names] for row in rows], dtype=np.float32)
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise Refusal(f"{path} cannot be read: {error}.") from error
    return x, np.array([row[label] for row in rows])


def work(message: Message, context: Context) -> Message:
    """Answer an order."""
    turn = recall(context)
    answer = answered(message, context, lambda: prepared(context, "train"), allowed=allowed(context.node_config))
    remember(context, turn)
    return inject_fault(message, context, answer)


def recall(context: Context) -> int:
    """Load the site's memory (its own model, MOCHA's dual variables), and return a turn number for this order.

    The file counts, not the state that the node hands over: that one is lost when the node restarts, and may come from
    an order that ended late.
    """
    place = context.node_config.get("memory")
    if not place:
        return 0
    path = Path(str(place))
    with _turns(path) as turns:
        turns["taken"] += 1
        if path.is_file():
            context.state = recorddict_from_proto(ProtoRecordDict.FromString(path.read_bytes()))
        return turns["taken"]


def remember(context: Context, turn: int) -> None:
    """Write the site's memory, if it holds anything, unless a later order has done so already."""
    place = context.node_config.get("memory")
    if not place or not any(len(record) for record in context.state.array_records.values()):
        return
    path = Path(str(place))
    with _turns(path) as turns:
        if turn < turns["written"]:
            return
        beside = path.with_name(f"{path.name}.part")
        beside.unlink(missing_ok=True)
        write_private(beside, recorddict_to_proto(context.state).SerializeToString())
        beside.replace(path)
        turns["written"] = turn


@contextmanager
def _turns(path: Path) -> Iterator[dict[str, int]]:
    """Lock a site's memory; yield the last turn taken, and the turn of the order that wrote last.

    A server that gives up on an order sends the next one, so two may be in progress.
    """
    handle = os.open(path.with_name(f"{path.name}.turns"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        found = [int(word) for word in os.read(handle, 64).split()]
        turns = dict(zip(("taken", "written"), found or (0, 0), strict=True))
        yield turns
        # A fixed number of bytes, in place: a process that is killed leaves no partial write.
        os.pwrite(handle, b"%020d %020d" % (turns["taken"], turns["written"]), 0)
    finally:
        os.close(handle)


def score(message: Message, context: Context) -> Message:
    """Score a model on the site's test samples."""
    recall(context)
    return answered(message, context, lambda: prepared(context, "test"), allowed=allowed(context.node_config))


app = ClientApp()
"""The app of a fleet's nodes."""
register(app, work, score)
