"""FedDRL's two-stage training (section 3.4.2, figure 3b).

A round of a federation gives an agent a single experience. So several workers first run the federation online,
identical except for their noise, each learning and collecting experiences. These are then merged, and a main agent is
trained on all of them offline. It is written to a file, and any later run can use it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from covey.aggregation.agent_file import write_agent
from covey.aggregation.agent_policy import AgentPolicy
from covey.aggregation.ddpg import Agent
from covey.aggregation.feddrl import FedDRL
from covey.aggregation.feddrl_set import FedDRLSet
from covey.aggregation.replay_buffer import Replay
from covey.config.schema import Config
from covey.config.values import own_names
from covey.core.checkpoint import read_checkpoint
from covey.core.one_model import OneModel
from covey.core.records import read_config
from covey.environment.federated_data import Federation
from covey.errors import Interrupted, Refusal, require
from covey.job.experiment import Experiment
from covey.job.lockstep_runs import run_together
from covey.job.runs import Run, resume, run
from covey.job.settings import as_config, with_federation

OnWorkerRound = Callable[[int, dict[str, Any]], None]
"""Called with a worker's number and the record of each of its rounds."""


class TrainingStopped(Interrupted):
    """The workers were stopped before their last round."""

    def __init__(self, folder: Path) -> None:
        Exception.__init__(self, f"Stopped. The same command resumes the workers in {folder}.")
        self.folder = folder


@dataclass(frozen=True, kw_only=True)
class Offline:
    """Settings of the main agent's offline training."""

    epochs: int = 50
    """Average number of times that each experience is drawn. Priorities are recomputed in each epoch."""
    batch: int = 16
    """Experiences per step."""
    actor_rate: float = 1e-3
    """Adam's rate for the actor. Higher than online, as there are many experiences from the beginning."""
    critic_rate: float = 1e-3
    """Adam's rate for the critic."""

    def __post_init__(self) -> None:
        require(self.epochs >= 1, f"epochs must be at least 1, not {self.epochs}.")
        require(self.batch >= 1, f"batch must be at least 1, not {self.batch}.")
        require(self.actor_rate > 0, f"actor_rate must be above 0, not {self.actor_rate:g}.")
        require(self.critic_rate > 0, f"critic_rate must be above 0, not {self.critic_rate:g}.")


@dataclass(frozen=True)
class Training:
    """One agent to train: its workers' settings, their number, and the file to write."""

    config: Config
    """Settings of each worker's run, except for the worker's number."""
    out: Path
    workers: int = 2
    offline: Offline = field(default_factory=Offline)

    def __post_init__(self) -> None:
        require(not self.out.exists(), f"The file {self.out} exists already; choose another name for the agent.")
        require(self.workers >= 1, f"There must be at least one agent that collects, not {self.workers}.")
        most = self.workers * (self.config.rounds - 1)
        require(
            most >= self.offline.batch,
            f"{self.workers} agents over {self.config.rounds} rounds collect {most} experiences at most, and the main "
            f"agent learns from batches of {self.offline.batch}: let there be more rounds, or more agents.",
        )

    @property
    def folder(self) -> Path:
        """Folder of the workers' runs."""
        return self.out.with_name(f"{self.out.stem}-workers")

    def runs(self) -> list[tuple[Config, Path]]:
        """Return settings and folder of each worker's run; refuse folders with runs of other settings."""
        found = []
        for number in range(self.workers):
            mine = as_config(self.config, {"aggregator": {"worker": number, "learn": True}})
            place = self.folder / f"worker-{number}"
            if (place / "config.json").is_file() and read_config(place, trust=_named(mine)) != mine:
                raise Refusal(
                    f"{place} is a run with other settings; choose another name for the agent, or remove {self.folder}."
                )
            found.append((mine, place))
        return found

    def about(self, experiences: int) -> dict[str, Any]:
        """Return the description of the training that the agent's file holds."""
        config = self.config
        return {
            "trained_on": {
                **{part: getattr(config, part).as_mapping() for part in ("dataset", "environment", "model")},
                **{name: getattr(config, name) for name in ("clients", "cohort", "seed", "rounds", "numbering")},
                "workers": self.workers,
                "experiences": experiences,
                "epochs": self.offline.epochs,
            },
            "options": config.aggregator.as_mapping() if config.aggregator else {},
        }


def train_agent(
    given: Mapping[str, Any] | Config | None = None,
    /,
    *,
    rounds: int,
    out: Path | str,
    workers: int = 2,
    offline: Offline | None = None,
    federation: Federation | None = None,
    on_round: OnWorkerRound | None = None,
    **settings: Any,
) -> Path:
    """Train an agent on a federation in two stages, and write it to `out`, a safetensors file.

    Settings are those of `covey.run`, with a method or aggregator that has an agent; its options are the workers'.
    The workers' runs, of `rounds` rounds each, are stored beside `out`; calling again resumes a stopped training.
    """
    if federation is not None:
        settings = with_federation(given, settings, federation)
    config = as_config(given, {**settings, "rounds": rounds})
    training = Training(config, Path(out), workers, offline or Offline())
    if federation is None:
        return train_agents([training], on_round)[0]
    policy = agent_policy(config, federation)
    runs = [
        _run_worker(mine, place, number, federation, on_round) for number, (mine, place) in enumerate(training.runs())
    ]
    return _finish(training, policy, runs)


def train_agents(
    trainings: Sequence[Training],
    on_round: OnWorkerRound | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[Path]:
    """Train several agents, with the workers of all of them in lockstep. `stop` ends them early; they can resume."""
    policies = [agent_policy(training.config) for training in trainings]
    runs = run_together([each for training in trainings for each in training.runs()], on_round, stop)
    files = []
    for training, policy in zip(trainings, policies, strict=True):
        files.append(_finish(training, policy, runs[: training.workers]))
        runs = runs[training.workers :]
    return files


def _finish(training: Training, policy: AgentPolicy, runs: Sequence[Run]) -> Path:
    """Train the main agent on the experiences of finished workers, and write its file."""
    if not all(each.finished for each in runs):
        raise TrainingStopped(training.folder)
    main = train_offline(policy, [experiences(each) for each in runs], training.offline)
    return write_agent(training.out, main, policy.kind, policy.encoding, training.about(len(main.replay)))


def agent_policy(config: Config, federation: Federation | None = None) -> AgentPolicy:
    """Return the policy that a run with these settings starts with; refuse an aggregator without an agent."""
    experiment = Experiment.of(config, federation)
    experiment.runtime.close()
    aggregator = experiment.method.aggregator if isinstance(experiment.method, OneModel) else None
    if not isinstance(aggregator, FedDRL | FedDRLSet):
        name = config.aggregator.name if config.aggregator else config.method
        raise Refusal(f"'{name}' has no agent to train; choose the aggregator 'feddrl' or 'feddrl-set'.")
    return aggregator.policy


def _named(config: Config) -> Collection[str]:
    """Return the code of somebody's own that the caller names, so that the workers' folders may name it too."""
    return own_names(config.as_mapping()).values()


def _run_worker(
    config: Config, place: Path, number: int, federation: Federation, on_round: OnWorkerRound | None
) -> Run:
    """Run or resume a worker on a federation given as an object."""
    callback = (lambda record: on_round(number, record)) if on_round else None
    if (place / "config.json").is_file():
        return resume(place, federation=federation, on_round=callback, trust=_named(config))
    return run(config, federation=federation, out=place, on_round=callback)


def experiences(run: Run) -> Replay:
    """Return the replay buffer of a run's agent, from its last checkpoint."""
    _, state = read_checkpoint(run.folder)
    assert state is not None
    held = state["aggregator"]["agent"]["replay"]
    replay = Replay(max(len(held["rewards"]), 1), held["states"].shape[1], held["actions"].shape[1])
    replay.load_state_dict({**held, "next": 0})
    return replay


def train_offline(policy: AgentPolicy, replays: Sequence[Replay], offline: Offline) -> Agent:
    """Train an agent, from the policy's initial networks, on the experiences of all workers (the second stage)."""
    together = sum(len(replay) for replay in replays)
    require(
        together >= offline.batch,
        f"The workers remember {together} experiences, not enough for a batch of {offline.batch}.",
    )
    initial, seed = policy.agent, policy.setting.seed
    learning = replace(
        initial.learning,
        batch=offline.batch,
        updates=together,
        capacity=together,
        actor_rate=offline.actor_rate,
        critic_rate=offline.critic_rate,
    )
    main = Agent(initial.architecture, learning, seed, anchor=initial.anchor)
    main.actor, main.critic = initial.actor.copy(), initial.critic.copy()
    for replay in replays:
        main.replay.extend(replay)
    for epoch in range(offline.epochs):
        main.train_now(seed, epoch, "offline")
    return main
