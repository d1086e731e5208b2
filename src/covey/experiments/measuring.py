"""Scores of all clients, whether they take part or not: what FedACS's Fig. 4 shows. For evaluation only."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from covey.config import Config
from covey.environments import FloatArray, IntArray
from covey.experiment import Experiment
from covey.experiments.store import MEASUREMENTS
from covey.insight import Insight, vectors
from covey.messages import Order
from covey.records import read_checkpoint, replace_file
from covey.selection.fedacs import skewness_scores

_AT_ONCE = 25
"""Clients that are measured together, which bounds the memory."""


def measured_rounds(folder: Path) -> list[int]:
    """The rounds after which a run's clients have been measured."""
    return [int(one["round"]) for one in _read(folder)]


def measure(config: Config, folder: Path) -> None:
    """Measure the clients of a run on its present model, and keep that in its folder."""
    before = _read(folder)
    done, scores, cohort = client_scores(config, folder)
    written = [float(f"{score:.3g}") if np.isfinite(score) else None for score in scores]
    one = {"round": done, "cohort": cohort.tolist(), "scores": written}
    replace_file(folder / MEASUREMENTS, json.dumps([*before, one]).encode())


def client_scores(config: Config, folder: Path) -> tuple[int, FloatArray, IntArray]:
    """Rounds done, the reward R_i of every client `[clients]` as if it took part in the next round, and that cohort.

    R_i = -√M_i·‖Δw_i - mean Δw‖ (FedACS eq. 16), the mean taken over the cohort and the client itself; NaN where an
    insight is not finite. Clients only measure their insight on the model; nothing is trained, and the run does not
    notice.
    """
    done, state = read_checkpoint(folder)
    experiment = Experiment.of(config)
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


def _read(folder: Path) -> list[dict[str, Any]]:
    path = folder / MEASUREMENTS
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return found
