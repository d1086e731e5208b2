"""A campaign: make the runs of a paper that are missing, group by group, over as many sessions as it takes.

Every run has a folder in the work folder, from which it resumes after any stop, and a file in the store with its
results so far. A run that is complete in the store needs no folder, unless other runs start from its model: it is then
repeated up to that round.
"""

import itertools
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from covey.config.schema import Config
from covey.core.checkpoint import FORMAT, read_checkpoint
from covey.core.loop import OnRound
from covey.core.records import read_config, read_metrics
from covey.data.dataset import load_dataset
from covey.errors import Refusal, require
from covey.job.experiment import Experiment
from covey.job.lockstep_runs import run_together
from covey.job.pending_runs import OnRun
from covey.job.settings import as_config
from covey.storage import write_json
from papers.agents import agent_file, missing_agents, train
from papers.branches import create_branch, features_file, keep_model, missing_rounds, model_file
from papers.export import BRANCH, result_of
from papers.grid import OWN_PARTS, Group, Paper, PlannedRun, Request, Scale, run_differences
from papers.measurements import measure, measured_rounds
from papers.store import Store

LOCKSTEP_RUNS = 12
"""Runs in lockstep on a GPU: more do not use it better, and take longer to finish."""

KEPT_EVERY = 60.0
"""Seconds between exports while runs go on, so that a machine that is taken away costs at most a minute of results."""

Stop = Literal["", "time", "interrupt"]


@dataclass(frozen=True)
class Outcome:
    """Outcome of one session."""

    runs: int
    """Requested runs."""
    finished: int
    """Requested runs that are now complete in the store."""
    rounds: int
    """Rounds made in this session, over all runs."""
    seconds: float
    stopped: Stop
    """Reason for stopping early; empty if it did not."""

    def as_mapping(self) -> dict[str, Any]:
        return asdict(self)


def machine_settings(scale: Scale, runtime: str | None, data_dir: str | None) -> dict[str, Any]:
    """Return the settings that depend on the machine: stacked in bf16 with a GPU, else local in fp32."""
    gpu = torch.cuda.is_available()
    chosen = runtime or ("stacked" if gpu and not scale.local_only else "local")
    settings: dict[str, Any] = {"runtime": chosen, "precision": "bf16" if gpu and chosen == "stacked" else "fp32"}
    if scale.local_only:
        settings["workers"] = 1
    if data_dir is not None:
        settings["data_dir"] = data_dir
    return settings


def reproduce(
    paper: Paper,
    scale: Scale,
    wanted: Request,
    *,
    results: Path,
    work: Path,
    machine: Mapping[str, Any],
    minutes: float | None = None,
    on_run: OnRun | None = None,
    on_round: OnRound | None = None,
) -> Outcome:
    """Make the runs that are not complete in the store, for at most `minutes`; call again to resume.

    Anything impossible (an unknown method, unreadable data, a damaged result) is refused before the first round.
    """
    start = time.monotonic()
    require(minutes is None or minutes > 0, f"minutes must be above 0, not {minutes}.")
    plan = paper.plan(scale, wanted)
    runs = [run for group in plan for run in group.runs]
    configs = {run.name: run.config(machine) for run in [*runs, *_bases(runs)]}
    agent_configs = {run.agent.name: as_config(run.agent.settings, machine) for run in runs if run.agent}
    store = Store.read(results)
    deadline = None if minutes is None else start + 60 * minutes
    campaign = _Campaign(paper, store, work, configs, agent_configs, deadline, on_run, on_round)
    campaign.check(plan)
    stopped = campaign.run(plan)
    return Outcome(
        runs=len(runs),
        finished=sum(store.holds(run) for run in runs),
        rounds=campaign.rounds,
        seconds=round(time.monotonic() - start, 1),
        stopped=stopped,
    )


class _Campaign:
    """One session of a campaign."""

    def __init__(
        self,
        paper: Paper,
        store: Store,
        work: Path,
        configs: Mapping[str, Config],
        agent_configs: Mapping[str, Config],
        deadline: float | None,
        on_run: OnRun | None,
        on_round: OnRound | None,
    ) -> None:
        self.paper = paper
        self.store = store
        self.work = work
        self.configs = configs
        self.agent_configs = agent_configs
        self.deadline = deadline
        self.rounds = 0
        self._on_run = on_run
        self._on_round = on_round

    def check(self, plan: Sequence[Group]) -> None:
        """Refuse data that cannot be read, and folders and results of runs with other settings."""
        missing = [run for group in plan for run in group.runs if not self.store.holds(run)]
        names = {run.name for run in missing}
        missing += [run for run in _bases(missing) if run.name not in names]
        for config in {str(c.dataset.as_mapping()): c for c in (self.configs[run.name] for run in missing)}.values():
            load_dataset(
                config.dataset.name, Path(config.data_dir) if config.data_dir else None, dict(config.dataset.options)
            )
        for run in missing:
            held = self.store.get(run.name)
            if held is not None:
                other = run_differences(run, held.config, held.branch)
                _require_same(other, f"{self.store.folder / run.name}.json", "results")
            if self._begun(run):
                folder = self.work / run.name
                began = json.loads((folder / BRANCH).read_text(encoding="utf-8")) if run.branch else None
                other = run_differences(run, read_config(folder, trust=OWN_PARTS).as_mapping(), began)
                _require_same(other, f"The folder {folder}", "work")
        try:
            self.work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refusal(f"The work folder {self.work} cannot be written: {error.strerror or error}.") from error

    def run(self, plan: Sequence[Group]) -> Stop:
        """Run all groups in turn; return the reason for stopping early, if any."""
        lockstep = all(_is_stacked(config) for config in self.configs.values())
        kept: Experiment | None = None
        # A session that was killed may have left rounds that are not in the store.
        self._export([run for group in plan for run in group.runs])
        for group in plan:
            for block in group.blocks(LOCKSTEP_RUNS if lockstep else 1):
                missing = [run for run in block if not self.store.holds(run)]
                for part in [missing] if lockstep and missing else [[run] for run in missing]:
                    if self._over():
                        return "time"
                    config = self.configs[(_bases(part) or part)[0].name]
                    if lockstep and (kept is None or not _share_steps(kept.config, config)):
                        # Compiled steps are shared while a run that uses them is alive; this one keeps them.
                        kept = Experiment.of(config)
                    stopped = self._prepare(group, part) or self._train(group, part) or self._advance(group.title, part)
                    if stopped:
                        return stopped
        return ""

    def _prepare(self, group: Group, runs: Sequence[PlannedRun]) -> Stop:
        """Make sure that the models and estimates that runs start from are there, repeating base runs if need be.

        Base runs of the plan are complete by then, so this only happens on another machine.
        """
        bases: dict[str, PlannedRun] = {}
        until = 0
        for base, run in ((run.base, run) for run in runs if not self._begun(run)):
            if base is None:
                continue
            folder = self.work / base.name
            for t in missing_rounds(run, folder):
                require(
                    self._done(base) <= t,
                    f"The folder {folder} is past round {t} but lacks the model or estimates other runs start from; "
                    "move it away, and it is run again.",
                )
                bases[base.name], until = base, max(until, t)
        return self._advance(f"{group.title}, base runs", list(bases.values()), until) if bases else ""

    def _train(self, group: Group, runs: Sequence[PlannedRun]) -> Stop:
        """Train the agents that decide in these runs, unless they are there."""
        missing = missing_agents(runs, self.work)
        if not missing:
            return ""
        on_round = self._round_counter()
        rounds = sum(agent.workers * self.agent_configs[agent.name].rounds for agent in missing)
        if self._on_run:
            self._on_run(f"{group.title}, agents are trained", None, rounds)
        together = all(_is_stacked(self.agent_configs[agent.name]) for agent in missing)
        done = train(missing, self.agent_configs, self.work, on_round, self._over, together=together)
        return "" if done else "time" if self._over() else "interrupt"

    def _round_counter(self) -> Callable[[int, dict[str, Any]], None]:
        """Return a listener that numbers the rounds of many runs consecutively, as if they were one run's."""
        count = itertools.count(1)

        def on_round(number: int, record: dict[str, object]) -> None:
            self.rounds += 1
            if self._on_round:
                self._on_round({**record, "round": next(count)})

        return on_round

    def _advance(self, title: str, runs: Sequence[PlannedRun], until: int | None = None) -> Stop:
        """Advance runs together to their end (or round `until`), halting wherever one is measured or its model kept."""
        ends = {run.name: run.rounds if until is None else min(run.rounds, until) for run in runs}
        target = max(ends.values())
        asked = {at for run in runs for at in (*run.measured, *run.kept) if at < target}
        halts = sorted(asked | set(ends.values()))
        if self._on_run:
            label = f"{title}, {len(runs)} runs in lockstep" if len(runs) > 1 else runs[0].name
            self._on_run(label, None, sum(max(0, ends[run.name] - self._done(run)) for run in runs))
        on_round = self._exporting(self._round_counter(), runs)
        try:
            for halt in halts:
                pending = [run for run in runs if self._done(run) < min(halt, ends[run.name])]
                if pending:
                    run_together(
                        [self._opened(run, min(halt, ends[run.name])) for run in pending], on_round, self._over
                    )
                if any(self._done(run) < min(halt, ends[run.name]) for run in pending):
                    return "time" if self._over() else "interrupt"
                for run in runs:
                    self._attend(run, halt)
        finally:
            self._export(runs)
        return ""

    def _exporting(
        self, on_round: Callable[[int, dict[str, Any]], None], runs: Sequence[PlannedRun]
    ) -> Callable[[int, dict[str, Any]], None]:
        """Return a listener that also writes the runs' results so far, now and then."""
        last = time.monotonic()

        def listening(number: int, record: dict[str, Any]) -> None:
            nonlocal last
            on_round(number, record)
            if time.monotonic() - last >= KEPT_EVERY:
                self._export(runs)
                last = time.monotonic()

        return listening

    def _attend(self, run: PlannedRun, halt: int) -> None:
        """Measure a run's clients and keep its model, if that is planned after its current round."""
        folder = self.work / run.name
        if halt not in (*run.measured, *run.kept) or halt != self._done(run):
            return
        if halt in run.measured and halt not in measured_rounds(folder):
            measure(self._config(run), folder, run.measure)
        if halt in run.kept and not model_file(folder, halt).is_file():
            keep_model(folder)

    def _over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _begun(self, run: PlannedRun) -> bool:
        """True if a run can resume from its folder; a branch starts from a checkpoint."""
        needed = "config.json" if run.branch is None else "checkpoint.safetensors"
        return (self.work / run.name / needed).is_file()

    def _done(self, run: PlannedRun) -> int:
        """Return the round that a run can resume from."""
        return read_checkpoint(self.work / run.name)[0] if self._begun(run) else 0

    def _config(self, run: PlannedRun) -> Config:
        """Return the configuration to resume with.

        Of a run that has begun, numbering, precision, features, and a branch's clients stay as they were.
        """
        config = self.configs[run.name]
        if run.agent is not None:
            config = as_config(config, {"aggregator": {"agent": str(agent_file(self.work, run.agent))}})
        if not self._begun(run):
            if run.features is None:
                return config
            file = features_file(run.features, config, self.work / run.features.base.name)
            return as_config(config, {"many": {"features": str(file)}})
        found = read_config(self.work / run.name, trust=OWN_PARTS)
        config = replace(config, precision=found.precision, many=found.many, numbering=found.numbering)
        return config if run.branch is None else replace(config, selector=found.selector, aggregator=found.aggregator)

    def _opened(self, run: PlannedRun, rounds: int) -> tuple[Config, Path]:
        """Return a run's configuration up to `rounds` and its folder, ready to resume."""
        folder = self.work / run.name
        config = replace(self._config(run), rounds=rounds)
        if self._begun(run):
            write_json(folder / "config.json", {"format": FORMAT, "config": config.as_mapping()})
        elif folder.exists():
            # A run that was killed before its first checkpoint: there is nothing to resume from.
            shutil.rmtree(folder)
        if run.branch is not None and not self._begun(run):
            config = create_branch(run.branch, config, folder, self.work / run.branch.base.name)
        return config, folder

    def _export(self, runs: Sequence[PlannedRun]) -> None:
        """Write the runs' results so far to the store."""
        for run in runs:
            folder = self.work / run.name
            if self.store.holds(run) or not self._begun(run) or not read_metrics(folder):
                continue
            before = self.store.get(run.name)
            self.store.write(result_of(self.paper.name, run, folder, before.skew if before else None))


def _is_stacked(config: Config) -> bool:
    """True if a run's clients are really stacked, and not left to the local runtime for lack of a GPU."""
    return config.runtime == "stacked" and (config.device == "cpu" or torch.cuda.is_available())


def _bases(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the base runs of these runs, each once."""
    return list({run.base.name: run.base for run in runs if run.base}.values())


def _share_steps(one: Config, other: Config) -> bool:
    """True if two runs can share compiled steps: same model, same data set."""
    return (one.dataset, one.model) == (other.dataset, other.model)


def _require_same(other: Sequence[str], where: str, flag: str) -> None:
    require(
        not other,
        f"{where} holds a run with other settings ({'; '.join(other[:3])}); move it away, or choose another --{flag}.",
    )
