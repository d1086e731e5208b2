"""Branches: runs that start from another run's model, on clients composed to a target class mix.

The base run keeps its model at the rounds where branches start (`keep_model`), and its estimates of clients' class
shares at the rounds where it is measured (`papers.measurements`). From these a branch is composed as `covey ondemand`
composes it, by the paper's equations 7 and 8, and written as a run folder that any runtime can resume. Other runs use
the features of a kept model (`features_file`).
"""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from covey.arrays import FloatArray
from covey.config.schema import Config
from covey.core.build import build_module, dataset_of
from covey.core.checkpoint import read_checkpoint, write_checkpoint
from covey.core.records import Records, read_config
from covey.core.server_chain import served_model
from covey.data.paper_targets import target as class_mix
from covey.errors import Refusal, require
from covey.job.on_demand.composition import compose
from covey.job.settings import as_config
from covey.model.layout import Layout
from covey.storage import write_json
from papers.export import BRANCH, truth_of
from papers.grid import OWN_PARTS, Branch, Features, PlannedRun
from papers.measurements import estimates_file, read_estimates


def keep_model(folder: Path) -> None:
    """Keep the current model of a run as the start of branches: the average over rounds if there is one."""
    done, state = read_checkpoint(folder)
    assert state is not None
    path = model_file(folder, done)
    config = read_config(folder, trust=OWN_PARTS)
    model = state["model"]
    if config.averaging:
        model = served_model(state, config.averaging, Layout.of(build_module(config, dataset_of(config))))
    save_file({"model": model.contiguous()}, str(path.with_suffix(".part")))
    path.with_suffix(".part").replace(path)


def model_file(folder: Path, t: int) -> Path:
    return folder / f"model-{t}.safetensors"


def missing_rounds(run: PlannedRun, base: Path) -> list[int]:
    """Return the rounds of the base run whose model or estimates a run needs and its folder lacks."""
    source, branch = run.branch or run.features, run.branch
    needed = [] if source is None else [(source.at, model_file(base, source.at))]
    if branch is not None and branch.estimator != "ground-truth":
        needed.append((branch.estimated, estimates_file(base, branch.estimated)))
    return [t for t, path in needed if not path.is_file()]


def create_branch(branch: Branch, config: Config, folder: Path, base: Path) -> Config:
    """Compose clients for a branch and write its run folder; return the configuration with these clients.

    The checkpoint is written last: a folder with a checkpoint is complete.
    """
    shares = truth_of(config).shares
    mix = class_mix(branch.target, shares.shape[1], shares)
    composition = compose(_class_shares(branch, base, shares), mix, at_least=config.cohort)
    clients, ratios = composition.clients.tolist(), composition.ratios.tolist()
    chosen: dict[str, object] = {"selector": {"name": "composed", "clients": clients}}
    if config.aggregator is not None and config.aggregator.name == "ratios":
        chosen["aggregator"] = {"name": "ratios", "clients": clients, "ratios": ratios}
    config = as_config(config, chosen)
    about = {
        **branch.as_mapping(),
        "clients": len(clients),
        "distance": round(composition.distance, 4),
        "true_distance": round(float(np.abs(composition.made_of(shares) - mix).sum()), 4),
    }
    model = _model(base, branch.at)
    try:
        Records.create(folder, config).close()
        write_json(folder / BRANCH, about)
        write_checkpoint(folder, 0, {"model": model, "selector": {}, "aggregator": {}})
    except (OSError, SafetensorError) as error:
        raise Refusal(f"The folder {folder} cannot be written: {error}.") from error
    return config


def _class_shares(branch: Branch, base: Path, truth: FloatArray) -> FloatArray:
    """Return the class shares `[clients, classes]` that a branch is composed from."""
    if branch.estimator == "ground-truth":
        return truth
    found = read_estimates(base, branch.estimated, branch.estimator)
    require(found.shares.shape == truth.shape, f"The estimates in {base} are of other clients than the branch's.")
    return found.shares


def features_file(features: Features, config: Config, base: Path) -> Path:
    """Return the file of a kept model's tensors by name, as a run's `features`; written now if there is none."""
    path = base / f"features-{features.at}.safetensors"
    if not path.is_file():
        layout = Layout.of(build_module(config, dataset_of(config)))
        save_file(layout.named(_model(base, features.at)), str(path.with_suffix(".part")))
        path.with_suffix(".part").replace(path)
    return path


def _model(base: Path, at: int) -> Tensor:
    """Return the model that a run kept after round `at`."""
    path = model_file(base, at)
    try:
        return load_file(str(path))["model"]
    except (OSError, KeyError, SafetensorError) as error:
        raise Refusal(f"The model {path} cannot be read ({error}).") from error
