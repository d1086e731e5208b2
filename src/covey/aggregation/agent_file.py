"""Trained agents as files: the networks as safetensors, and the settings that they depend on as metadata."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from covey.aggregation.ddpg import DIVERGED, Agent
from covey.errors import Refusal, require
from covey.storage import replacing


def write_agent(path: Path, agent: Agent, kind: str, encoding: Mapping[str, Any], about: Mapping[str, Any]) -> Path:
    """Write an agent to a file.

    `kind` is the aggregator that it was trained for, `encoding` the options that decide what its states and actions
    mean, and `about` describes its training.
    """
    tensors = {
        "actor.main": agent.actor.main,
        "actor.target": agent.actor.target,
        "critic.main": agent.critic.main,
        "critic.target": agent.critic.target,
    }
    require(all(bool(tensor.isfinite().all()) for tensor in tensors.values()), DIVERGED)
    described = json.dumps({"kind": kind, "meaning": dict(encoding), **about})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            save_file({name: tensor.cpu() for name, tensor in tensors.items()}, str(beside), {"agent": described})
    except (OSError, SafetensorError) as error:
        raise Refusal(f"The file {path} cannot be written: {error}.") from error
    return path


def agent_digest(path: Path) -> str:
    """Return a digest of an agent's file, to tell one agent from another."""
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


def agent_kind(path: Path) -> str:
    """Return the name of the aggregator that a file's agent was trained for."""
    about, _ = _read(path)
    return str(about["kind"])


def read_agent(
    path: Path, agent: Agent, kind: str, encoding: Mapping[str, Any], objective: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Load a file's networks into `agent` and return the file's metadata.

    Refuses a file whose agent was trained for another `kind` or `encoding`, and, where the agent is to keep learning,
    for another `objective` (None if it does not learn).
    """
    about, tensors = _read(path)
    _require_same_encoding(path, about, kind, encoding)
    if objective is not None:
        _require_same_objective(path, about, objective)
    for network, name in ((agent.actor, "actor"), (agent.critic, "critic")):
        for part, mine in (("main", network.main), ("target", network.target)):
            tensor = tensors.get(f"{name}.{part}")
            alike = tensor is not None and tensor.shape == mine.shape and tensor.dtype == mine.dtype
            if tensor is None or not alike or not bool(tensor.isfinite().all()):
                raise Refusal(f"The agent {path} is damaged: '{name}.{part}' is not {len(mine):,} finite numbers.")
            mine.copy_(tensor)
    return about


def _require_same_encoding(path: Path, about: Mapping[str, Any], kind: str, encoding: Mapping[str, Any]) -> None:
    trained_kind, trained = about["kind"], about["meaning"]
    require(trained_kind == kind, f"The agent {path} was trained for the aggregator '{trained_kind}', not '{kind}'.")
    if trained.get("cohort") != encoding.get("cohort"):
        raise Refusal(
            f"The agent {path} was trained for {trained.get('cohort')} clients a round, and here there are "
            f"{encoding['cohort']}: the networks of '{kind}' have a place for each. Set the cohort to "
            f"{trained.get('cohort')}, or train an agent for 'feddrl-set', which takes any number."
        )
    # An option that the file does not name is newer than the file.
    differing = [f"aggregator.{name}={trained[name]}" for name in encoding if _differs(trained, name, encoding[name])]
    require(not differing, f"The agent {path} was trained with other options; set {', '.join(differing)}.")


def _require_same_objective(path: Path, about: Mapping[str, Any], objective: Mapping[str, Any]) -> None:
    """Refuse a critic that has learned the value of another reward."""
    trained = about.get("options", {})
    differing = [f"aggregator.{name}={trained[name]}" for name in objective if _differs(trained, name, objective[name])]
    require(
        not differing,
        f"The agent {path} has learned for another reward, and cannot learn on for this one; set "
        f"{', '.join(differing)}, or aggregator.learn=false to use it as it is.",
    )


def _differs(trained: Mapping[str, Any], name: str, own: Any) -> bool:
    return bool(trained.get(name, own) != own)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return an agent file's metadata and tensors."""
    try:
        with safe_open(str(path), framework="pt") as file:
            described = (file.metadata() or {}).get("agent")
            require(described is not None, f"{path} holds no agent. Give a file that covey train-agent has written.")
            about: dict[str, Any] = json.loads(str(described))
            about = {**about, "kind": about["kind"], "meaning": dict(about["meaning"])}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except Refusal:
        raise
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise Refusal(
            f"The agent {path} cannot be read ({error}). Give a file that covey train-agent has written."
        ) from error
    return about, tensors
