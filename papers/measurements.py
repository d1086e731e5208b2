"""Measurements of all clients during a run, whether they take part or not. They do not change the run.

scores     FedACS's reward of every client, as in its Fig. 4; for evaluation only
estimates  class shares of every client by On-Demand FL's estimators: their errors, for evaluation only, and the shares
           themselves, from which branches are composed
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from covey.arrays import FloatArray, IntArray
from covey.config.schema import Config
from covey.core.checkpoint import read_checkpoint
from covey.core.messages import Order
from covey.errors import Refusal
from covey.job.experiment import Experiment
from covey.job.on_demand.class_shares import Estimator, estimated
from covey.probe.class_query import Estimates
from covey.probe.insight import Insight, vectors
from covey.selection.fedacs import skewness_scores
from covey.storage import replace_file
from papers.export import MEASUREMENTS
from papers.grid import Measure

ESTIMATORS: dict[str, tuple[Estimator, bool]] = {
    "learned": ("learned", False),
    "analytic": ("analytic", False),
    "analytic-as-is": ("analytic-as-is", False),
    # Last, because a survey trains the server side of the predictor.
    "surveyed": ("learned", True),
}
"""Name → estimator, and True if all clients are asked first; `learned` uses what clients sent when they took part."""

GUESS = "guess"
"""The uniform guess: equal class shares."""

_AT_ONCE = 25
"""Clients that are measured together; bounds the memory."""


def measured_rounds(folder: Path) -> list[int]:
    """Return the rounds after which a run's clients have been measured."""
    return [int(one["round"]) for one in _read(folder)]


def measure(config: Config, folder: Path, what: Measure = "scores") -> None:
    """Measure the clients of a run on its current model and keep the measurement in its folder."""
    before = _read(folder)
    one = _scores(config, folder) if what == "scores" else _estimates(config, folder)
    replace_file(folder / MEASUREMENTS, json.dumps([*before, one]).encode())


def client_scores(config: Config, folder: Path) -> tuple[int, FloatArray, IntArray]:
    """Return rounds done, every client's reward `[clients]` as if it took part in the next round, and that cohort.

    R_i = -√M_i·‖Δw_i - mean Δw‖ (FedACS eq. 16), the mean taken over the cohort and the client itself; NaN where an
    insight is not finite. Clients only measure their insight; nothing is trained.
    """
    done, state = read_checkpoint(folder)
    experiment = Experiment.of(config, resumed=state is not None)
    probe = Insight(rate=config.local.rate)
    insights, samples = [], []
    try:
        method, clients = experiment.method, np.arange(experiment.federation.clients)
        if state is not None:
            method.load_state_dict(state)
        cohort = method.order(done + 1, clients).clients
        for some in np.array_split(clients, -(-len(clients) // _AT_ONCE)):
            order = Order(done + 1, some, method.models()[0], config.local, (probe,), train=False)
            replies = experiment.runtime.execute(order)
            insights.append(vectors(replies.probes[probe.name]).cpu())
            samples.append(replies.samples)
    finally:
        experiment.runtime.close()
    values, counts = torch.cat(insights), torch.cat(samples)
    sound = torch.isfinite(values).all(dim=1).numpy()
    scores = np.full(len(clients), np.nan)
    for client in clients[sound]:
        members = np.append(cohort[(cohort != client) & sound[cohort]], client)
        scores[client] = -skewness_scores(values[members], counts[members])[-1]
    return done, scores, cohort


def class_estimates(config: Config, folder: Path) -> tuple[int, dict[str, Estimates], FloatArray]:
    """Return rounds done, the class shares of all clients by each estimator, and the true ones `[clients, classes]`."""
    done, state = read_checkpoint(folder)
    experiment = Experiment.of(config, resumed=state is not None)
    try:
        if state is not None:
            experiment.method.load_state_dict(state)
        found = {
            name: estimated(experiment, done, estimator, survey=survey)[0]
            for name, (estimator, survey) in ESTIMATORS.items()
        }
    finally:
        experiment.runtime.close()
    return done, found, experiment.federation.truth.shares


def read_estimates(folder: Path, t: int, estimator: str) -> Estimates:
    """Return a run's estimates of its clients after round `t`, as kept by `measure`."""
    path = estimates_file(folder, t)
    try:
        tensors = load_file(str(path))
        return Estimates(*(tensors[f"{estimator}.{name}"].numpy() for name in ("shares", "seen", "sizes")))
    except (OSError, KeyError, SafetensorError) as error:
        raise Refusal(f"The estimates {path} cannot be read ({error}).") from error


def estimates_file(folder: Path, t: int) -> Path:
    return folder / f"estimates-{t}.safetensors"


def _scores(config: Config, folder: Path) -> dict[str, Any]:
    done, scores, cohort = client_scores(config, folder)
    written = [float(f"{score:.3g}") if np.isfinite(score) else None for score in scores]
    return {"round": done, "cohort": cohort.tolist(), "scores": written}


def _estimates(config: Config, folder: Path) -> dict[str, Any]:
    done, found, truth = class_estimates(config, folder)
    tensors: dict[str, Tensor] = {}
    for name, one in found.items():
        for field in ("shares", "seen", "sizes"):
            tensors[f"{name}.{field}"] = torch.from_numpy(np.ascontiguousarray(getattr(one, field)))
    path = estimates_file(folder, done)
    save_file(tensors, str(path.with_suffix(".part")))
    path.with_suffix(".part").replace(path)
    errors = {name: one.errors(truth) for name, one in found.items()}
    errors[GUESS] = Estimates.unknown(*truth.shape).errors(truth)
    return {
        "round": done,
        "seen": int((found["learned"].seen > 0).sum()),
        "errors": {name: [round(float(error), 3) for error in column] for name, column in errors.items()},
    }


def _read(folder: Path) -> list[dict[str, Any]]:
    path = folder / MEASUREMENTS
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return found
