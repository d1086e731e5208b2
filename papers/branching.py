"""Branches: runs that begin with another run's model, on clients that together make a target class mix.

A base run keeps its model when it comes to a round that branches begin at (`keep_model`), and what it has estimated of
its clients' class shares when it is measured (`papers.measuring`). From these a branch is composed as
`covey ondemand` does it, with the paper's equations 7 and 8, and made a run folder that any runtime can go on with.
"""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from covey.arrays import FloatArray
from covey.config.schema import Config
from covey.core.checkpoint import read_checkpoint, write_checkpoint
from covey.core.records import Records
from covey.data.paper_targets import target as class_mix
from covey.errors import Refusal, require
from covey.job.on_demand.composition import compose
from covey.job.settings import as_config
from covey.storage import write_json
from papers.measuring import estimates_file, read_estimates
from papers.plan import Branch
from papers.store import BRANCH, truth_of


def keep_model(folder: Path) -> None:
    """Keep the present model of a run, for branches to begin with."""
    done, state = read_checkpoint(folder)
    assert state is not None
    path = model_file(folder, done)
    save_file({"model": state["model"].contiguous()}, str(path.with_suffix(".part")))
    path.with_suffix(".part").replace(path)


def model_file(folder: Path, t: int) -> Path:
    return folder / f"model-{t}.safetensors"


def lacking(branch: Branch, base: Path) -> list[int]:
    """Rounds of the base run of which its folder does not hold what a branch begins with."""
    needed = [(branch.at, model_file(base, branch.at))]
    if branch.estimator != "ground-truth":
        needed.append((branch.estimated, estimates_file(base, branch.estimated)))
    return [t for t, path in needed if not path.is_file()]


def begin_branch(branch: Branch, config: Config, folder: Path, base: Path) -> Config:
    """Compose clients for a branch and make it a run folder; returns the configuration with these clients.

    The checkpoint comes last, and makes the folder complete.
    """
    shares = truth_of(config).shares
    mix = class_mix(branch.target, shares.shape[1], shares)
    composition = compose(_estimated(branch, base, shares), mix, at_least=config.cohort)
    clients, ratios = composition.clients.tolist(), composition.ratios.tolist()
    config = as_config(
        config,
        {
            "selector": {"name": "composed", "clients": clients},
            "aggregator": {"name": "ratios", "clients": clients, "ratios": ratios},
        },
    )
    about = {
        **branch.as_mapping(),
        "clients": len(clients),
        "distance": round(composition.distance, 4),
        "true_distance": round(float(np.abs(composition.made_of(shares) - mix).sum()), 4),
    }
    model = _model(branch, base)
    try:
        Records.create(folder, config).close()
        write_json(folder / BRANCH, about)
        write_checkpoint(folder, 0, {"model": model, "selector": {}, "aggregator": {}})
    except (OSError, SafetensorError) as error:
        raise Refusal(f"The folder {folder} cannot be written: {error}.") from error
    return config


def _estimated(branch: Branch, base: Path, truth: FloatArray) -> FloatArray:
    """The class shares `[clients, classes]` that a branch is composed by."""
    if branch.estimator == "ground-truth":
        return truth
    found = read_estimates(base, branch.estimated, branch.estimator)
    require(found.shares.shape == truth.shape, f"The estimates in {base} are of other clients than the branch's.")
    return found.shares


def _model(branch: Branch, base: Path) -> Tensor:
    path = model_file(base, branch.at)
    try:
        return load_file(str(path))["model"]
    except (OSError, KeyError, SafetensorError) as error:
        raise Refusal(f"The model {path} cannot be read ({error}).") from error
