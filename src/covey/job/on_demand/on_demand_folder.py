"""The folder of an on-demand job: what was asked for, what was composed, and where its runs are."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
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
from covey.job.on_demand.class_shares import Estimator
from covey.job.on_demand.composition import Composition, Pairing
from covey.job.on_demand.on_demand_result import ComposedTargets
from covey.job.runs import Run
from covey.probe.class_query import EPSILONS, Estimates, Privacy, PrivacyCost, cost_of_privacy
from covey.storage import write_json


@dataclass(frozen=True)
class OnDemandPlan:
    """What a job was asked for; the same again goes on with it."""

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
        mapping: dict[str, Any] = json.loads(json.dumps({**vars(self), "targets": list(self.targets)}))
        return mapping


def is_ondemand(folder: Path) -> bool:
    """Whether a folder holds a job of this kind."""
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
    """Make the folder and keep what was composed, before anything trains."""
    kept = {"shares": found.shares, "seen": found.seen, "sizes": found.sizes}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in kept.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"model": model.cpu().contiguous(), **tensors}, str(folder / "base.safetensors"))
        # Last, so that a folder with this file has everything to go on from.
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
    try:
        data: dict[str, Any] = json.loads((folder / "ondemand.json").read_text(encoding="utf-8"))
        version = int(data["format"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(f"{folder} is not an on-demand job: its ondemand.json cannot be read ({error}).") from error
    if version > FORMAT:
        raise Refusal(
            f"{folder} was made by a newer version of Covey (format {version}; this one reads up to {FORMAT})."
        )
    return data


def require_free(folder: Path) -> None:
    """Refuse a folder that holds something else."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise Refusal(f"The output folder {folder} is not empty and holds no on-demand job; choose another --out.")
    except OSError as error:
        raise Refusal(f"The output folder {folder} cannot be read: {error.strerror or error}.") from error


def default_folder() -> Path:
    """`runs/<time>-ondemand`, not yet taken."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder, number = Path("runs") / f"{stamp}-ondemand", 2
    while folder.exists():
        folder, number = folder.with_name(f"{stamp}-ondemand-{number}"), number + 1
    return folder


def run_folders(folder: Path, plan: Mapping[str, Any]) -> list[Path]:
    """The run folders of a job: one for each target, then that of the base run gone on with, if it was asked for."""
    names = [f"target-{number}" for number in range(1, len(plan["targets"]) + 1)]
    return [folder / name for name in (*names, *(["continued"] if plan["continued"] else []))]


def is_complete(folder: Path, plan: Mapping[str, Any]) -> bool:
    return all(
        all((place / name).is_file() for name in ("config.json", "checkpoint.safetensors")) and Run.open(place).finished
        for place in run_folders(folder, plan)
    )


def read_composed(folder: Path, data: Mapping[str, Any], experiment: Experiment) -> tuple[ComposedTargets, Tensor]:
    """What a job's folder says was composed, and the model that it branched from."""
    plan = data["plan"]
    try:
        tensors = load_file(str(folder / "base.safetensors"))
    except (OSError, SafetensorError) as error:
        raise Refusal(f"{folder} cannot be gone on with: its base.safetensors cannot be read ({error}).") from error
    found = Estimates(*(tensors[name].numpy() for name in ("shares", "seen", "sizes")))
    names, truth = experiment.federation.dataset.class_names, experiment.known_shares
    targets = []
    for wish, mapping in zip(map(TargetMix.of, plan["targets"]), data["composed"], strict=True):
        composition = Composition.of(mapping)
        warning = composition.warning(names)
        targets.append((wish, composition, (*wish.notes, *([warning] if warning else []))))
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
    """What noise costs on clients of these shares and sizes, at several ε and the one that was asked for."""
    if insight_dp is None:
        return ()
    asked = Privacy.of(insight_dp, "insight_dp")
    epsilons = sorted({*EPSILONS, asked.epsilon})
    return tuple(cost_of_privacy(truth, sizes.astype(np.float64), asked.delta, epsilons))
