"""Agents that are trained before the runs in which they decide, and kept in the work folder.

A training that was stopped goes on where it was: the runs of its workers are kept like any others.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from covey.config.schema import Config
from covey.job.agent_training import Offline, OnWorkerRound, Training, TrainingStopped, train_agents
from papers.plan import Planned, School

AGENTS = "agents"
"""Where the work folder keeps them."""


def agent_file(work: Path, school: School) -> Path:
    return work / AGENTS / f"{school.name}.safetensors"


def missing_agents(runs: Sequence[Planned], work: Path) -> list[School]:
    """What has to be trained before these runs, each once."""
    schools = {run.school.name: run.school for run in runs if run.school}
    return [school for school in schools.values() if not agent_file(work, school).is_file()]


def train(
    schools: Sequence[School],
    configs: Mapping[str, Config],
    work: Path,
    on_round: OnWorkerRound | None = None,
    stop: Callable[[], bool] | None = None,
    *,
    together: bool = False,
) -> bool:
    """Train agents one after another, or the workers of all in lockstep; says whether that came to an end."""
    trainings = [
        Training(configs[school.name], agent_file(work, school), school.workers, Offline(**school.offline))
        for school in schools
    ]
    try:
        for part in [trainings] if together else [[one] for one in trainings]:
            train_agents(part, on_round, stop)
    except TrainingStopped:
        return False
    return True
