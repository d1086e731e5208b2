"""Workloads as settings of Covey on a GPU."""

from typing import Any

from benchmarks.ceiling import has_momentum
from benchmarks.workloads import Workload, dataset_options


def covey_settings(
    workload: Workload, precision: str, device: str, trainer: str = "sgd", test: int = 10_000
) -> dict[str, Any]:
    """Return a workload as settings of Covey, with `test` test samples."""
    local = {"epochs": workload.epochs, "batch": workload.batch, "rate": workload.rate}
    given: dict[str, Any] = {
        "dataset": dataset_options(workload, test),
        "environment": {"name": "iid", "samples": workload.samples},
        "clients": workload.clients,
        "cohort": workload.cohort,
        "model": workload.model,
        "precision": precision,
        "evaluate_every": 5,
        "runtime": "stacked",
        "device": device,
        "local": local,
    }
    if has_momentum(workload):
        # FedACS's local training, as its experiments have it.
        given["local"] = {**local, "momentum": 0.5, "weight_decay": 5e-4, "crop": 4, "flip": True, "decay": 0.9993}
    if trainer == "adam":
        given["local"] = {**given["local"], "optimizer": "adam", "momentum": 0.0, "rate": 0.001}
    elif trainer != "sgd":
        # Without δ no ε is computed, which needs a package of its own.
        given["trainer"] = {"name": trainer, "delta": None} if trainer == "dp-sgd" else trainer
        # As their methods have it; the others average by samples, and all clients have as many here.
        given["aggregator"] = {"name": "average", "weighted": False}
    return given
