"""Agents that are trained before the runs in which they decide, and kept in the work folder.

An interrupted training resumes where it stopped: its workers' runs are kept like any others.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from covey.config.schema import Config
from covey.job.agent_training import Offline, OnWorkerRound, Training, TrainingStopped, train_agents
from papers.grid import AgentPlan, PlannedRun

AGENTS = "agents"
"""Their folder in the work folder."""


def agent_file(work: Path, agent: AgentPlan) -> Path:
    return work / AGENTS / f"{agent.name}.safetensors"


def missing_agents(runs: Sequence[PlannedRun], work: Path) -> list[AgentPlan]:
    """Return the agents that must be trained before these runs, each once."""
    agents = {run.agent.name: run.agent for run in runs if run.agent}
    return [agent for agent in agents.values() if not agent_file(work, agent).is_file()]


def train(
    agents: Sequence[AgentPlan],
    configs: Mapping[str, Config],
    work: Path,
    on_round: OnWorkerRound | None = None,
    stop: Callable[[], bool] | None = None,
    *,
    together: bool = False,
) -> bool:
    """Train agents one by one, or with the workers of all in lockstep; return False if training was stopped."""
    trainings = [
        Training(configs[agent.name], agent_file(work, agent), agent.workers, Offline(**agent.offline))
        for agent in agents
    ]
    try:
        for part in [trainings] if together else [[one] for one in trainings]:
            train_agents(part, on_round, stop)
    except TrainingStopped:
        return False
    return True
