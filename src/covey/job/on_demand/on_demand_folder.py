"""The folder of an on-demand job: its plan, the composed clients, and the folders of its runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from covey.arrays import FloatArray, IntArray
from covey.core.checkpoint import FORMAT
from covey.data.class_mix import TargetMix
from covey.errors import Refusal, require
from covey.job.experiment import Experiment
from covey.job.job_folder import read_job_file, require_empty
from covey.job.on_demand.class_shares import Estimator
from covey.job.on_demand.composition import Composition, Pairing
from covey.job.on_demand.on_demand_result import ComposedTargets
from covey.job.runs import Run
from covey.probe.class_query import EPSILONS, Estimates, Privacy, PrivacyCost, cost_of_privacy
from covey.storage import FolderLock, replacing, write_json


class _TargetFile(TypedDict):
    name: str
    mix: list[float]
    notes: list[str]


class _CompositionFile(TypedDict):
    target: list[float]
    clients: list[int]
    ratios: list[float]
    mix: list[float]
    passes: int


class _PlanOfJob(TypedDict):
    base: str
    base_round: int
    targets: list[_TargetFile]
    estimator: str
    rounds: int
    pairing: str
    survey: bool
    insight_dp: str | None
    continued: bool
    settings: dict[str, Any]
    without: NotRequired[list[str]]


class _PrivacyFile(TypedDict, total=False):
    epsilon: float
    delta: float
    protects: str


class _JobFile(TypedDict):
    """What `ondemand.json` holds."""

    format: int
    plan: _PlanOfJob
    composed: list[_CompositionFile]
    notes: list[str]
    bytes_up: int
    bytes_down: int
    base_privacy: NotRequired[_PrivacyFile]


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
    without: tuple[str, ...] = ()
    """Names, or else numbers, of the clients that are left out of compositions."""

    def as_mapping(self) -> dict[str, Any]:
        """Return the plan for JSON; folders where nobody is left out have no `without`."""
        mapping: dict[str, Any] = json.loads(json.dumps({**vars(self), "targets": list(self.targets)}))
        return mapping if self.without else {key: value for key, value in mapping.items() if key != "without"}


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
    base_privacy: Mapping[str, Any],
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
                    "base_privacy": dict(base_privacy),
                },
            )
    except (OSError, SafetensorError) as error:
        raise Refusal(f"The output folder {folder} cannot be written: {error}.") from error


def read_job(folder: Path) -> dict[str, Any]:
    """Read the file that describes a job: its plan and the composed clients."""
    job = read_job_file(folder / "ondemand.json", "an on-demand job", _JobFile)
    plan, composed = job["plan"], job["composed"]
    require(
        len(plan["targets"]) == len(composed) > 0 and plan["rounds"] >= 1 and plan["base_round"] >= 1,
        f"{folder} is not an on-demand job: its ondemand.json does not say who was composed for each target.",
    )
    for target, composition in zip(plan["targets"], composed, strict=True):
        classes = {len(mix) for mix in (target["mix"], composition["target"], composition["mix"])}
        clients, ratios = composition["clients"], composition["ratios"]
        require(
            len(classes) == 1 and len(clients) == len(ratios) > 0 and min(clients) >= 0,
            f"{folder} is not an on-demand job: in its ondemand.json, shares, clients and ratios do not fit together.",
        )
    return job


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
    names, truth = experiment.federation.dataset.class_names, experiment.known_shares
    _require_fitting(folder, data, tensors, experiment)
    found = Estimates(*(tensors[name].numpy() for name in ("shares", "seen", "sizes")))
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
        without=tuple(plan.get("without", ())),
        base_privacy=data.get("base_privacy", {}),
        privacy=() if truth is None else _cost(truth, experiment.federation.sizes, plan["insight_dp"]),
    )
    return composed, tensors["model"]


def _require_fitting(
    folder: Path, data: Mapping[str, Any], tensors: Mapping[str, Tensor], experiment: Experiment
) -> None:
    """Refuse a job whose estimates, compositions or base model are not those of its federation and its model."""
    clients, classes = experiment.federation.clients, experiment.federation.dataset.classes
    shapes = {"shares": (clients, classes), "seen": (clients,), "sizes": (clients,)}
    shapes["model"] = (experiment.module_size,)
    found = {name: tuple(tensors[name].shape) if name in tensors else None for name in shapes}
    fitting = all(
        len(one["mix"]) == classes and max(one["clients"]) < clients and len(set(one["clients"])) == len(one["clients"])
        for one in data["composed"]
    )
    require(
        found == shapes and fitting,
        f"{folder} is damaged: its base model, estimates or compositions are not those of its {clients} clients and "
        f"{classes} classes.",
    )


def _cost(truth: FloatArray, sizes: IntArray, insight_dp: str | None) -> tuple[PrivacyCost, ...]:
    """Return the cost of noise on clients of these shares and sizes, at several ε and the one that was asked for."""
    if insight_dp is None:
        return ()
    asked = Privacy.of(insight_dp, "insight_dp")
    epsilons = sorted({*EPSILONS, asked.epsilon})
    return tuple(cost_of_privacy(truth, sizes.astype(np.float64), asked.delta, epsilons))
