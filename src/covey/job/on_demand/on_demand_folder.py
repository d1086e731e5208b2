"""The folder of an on-demand job: its plan, the composed clients, and the folders of its runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from covey.arrays import FloatArray, IntArray
from covey.core.checkpoint import FORMAT
from covey.data.class_mix import TargetMix
from covey.errors import Refusal
from covey.job.experiment import Experiment
from covey.job.job_folder import read_job_file, require_empty
from covey.job.on_demand.class_shares import Estimator
from covey.job.on_demand.composition import Composition, Pairing
from covey.job.on_demand.on_demand_result import ComposedTargets
from covey.job.runs import Run
from covey.probe.class_query import EPSILONS, Estimates, Privacy, PrivacyCost, cost_of_privacy
from covey.storage import FolderLock, replacing, write_json


@dataclass(frozen=True)
class OnDemandPlan:
    """The options of a job. A folder with an equal plan is resumed."""

    base: str
    base_round: int
    targets: tuple[dict[str, Any], ...]
    estimator: Estimator
    rounds: int
    pairing: Pairing
    survey: bool
    insight_dp: str | None
    continued: bool
    settings: dict[str, Any] = field(default_factory=dict)

    def as_mapping(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        mapping: dict[str, Any] = json.loads(json.dumps({**vars(self), "targets": list(self.targets)}))
        return mapping


def is_ondemand(folder: Path) -> bool:
    """True if a folder holds an on-demand job."""
    return (folder / "ondemand.json").is_file()


def claim(
    folder: Path,
    plan: OnDemandPlan,
    model: Tensor,
    found: Estimates,
    compositions: Sequence[Composition],
    notes: Sequence[str],
    sent: tuple[int, int],
) -> None:
    """Make the folder and write the plan and the composed clients, before anything is trained."""
    kept = {"shares": found.shares, "seen": found.seen, "sizes": found.sizes}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in kept.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FolderLock(folder, "on-demand job"):
            require_empty(folder, "on-demand job")
            with replacing(folder / "base.safetensors") as beside:
                save_file({"model": model.cpu().contiguous(), **tensors}, str(beside))
            # Last, so that a folder with this file can be resumed.
            write_json(
                folder / "ondemand.json",
                {
                    "format": FORMAT,
                    "plan": plan.as_mapping(),
                    "composed": [composition.as_mapping() for composition in compositions],
                    "notes": list(notes),
                    "bytes_up": sent[0],
                    "bytes_down": sent[1],
                },
            )
    except (OSError, SafetensorError) as error:
        raise Refusal(f"The output folder {folder} cannot be written: {error}.") from error


def read_job(folder: Path) -> dict[str, Any]:
    """Read the file that describes a job: its plan and the composed clients."""
    return read_job_file(folder / "ondemand.json", "an on-demand job")


def run_folders(folder: Path, plan: Mapping[str, Any]) -> list[Path]:
    """Return the run folders of a job: one per target, then that of the continued base run, if there is one."""
    names = [f"target-{number}" for number in range(1, len(plan["targets"]) + 1)]
    return [folder / name for name in (*names, *(["continued"] if plan["continued"] else []))]


def is_complete(folder: Path, plan: Mapping[str, Any]) -> bool:
    """True if every run of a job is finished."""
    return all(
        all((place / name).is_file() for name in ("config.json", "checkpoint.safetensors")) and Run.open(place).finished
        for place in run_folders(folder, plan)
    )


def read_composed(folder: Path, data: Mapping[str, Any], experiment: Experiment) -> tuple[ComposedTargets, Tensor]:
    """Read the composed clients of a job, and the base model."""
    plan = data["plan"]
    try:
        tensors = load_file(str(folder / "base.safetensors"))
    except (OSError, SafetensorError) as error:
        raise Refusal(f"{folder} cannot be resumed: its base.safetensors cannot be read ({error}).") from error
    found = Estimates(*(tensors[name].numpy() for name in ("shares", "seen", "sizes")))
    names, truth = experiment.federation.dataset.class_names, experiment.known_shares
    targets = []
    for mix, mapping in zip(map(TargetMix.of, plan["targets"]), data["composed"], strict=True):
        composition = Composition.of(mapping)
        warning = composition.warning(names)
        targets.append((mix, composition, (*mix.notes, *([warning] if warning else []))))
    composed = ComposedTargets(
        folder=folder,
        base=plan["base"],
        base_round=plan["base_round"],
        estimator=plan["estimator"],
        rounds=plan["rounds"],
        class_names=names,
        client_names=experiment.federation.names,
        estimates=found,
        error=None if truth is None else float(found.errors(truth).mean()),
        targets=tuple(targets),
        notes=tuple(data["notes"]),
        bytes_up=data["bytes_up"],
        bytes_down=data["bytes_down"],
        insight_dp=plan["insight_dp"],
        privacy=() if truth is None else _cost(truth, experiment.federation.sizes, plan["insight_dp"]),
    )
    return composed, tensors["model"]


def _cost(truth: FloatArray, sizes: IntArray, insight_dp: str | None) -> tuple[PrivacyCost, ...]:
    """Return the cost of noise on clients of these shares and sizes, at several ε and the one that was asked for."""
    if insight_dp is None:
        return ()
    asked = Privacy.of(insight_dp, "insight_dp")
    epsilons = sorted({*EPSILONS, asked.epsilon})
    return tuple(cost_of_privacy(truth, sizes.astype(np.float64), asked.delta, epsilons))
