"""A reproduction in motion: what is missing is run, group by group, and what is there is kept.

Every run has a folder under the work folder, from which it goes on after any stop, and a file in the store, which
holds what it came to so far. A run that the store holds in full needs no folder, unless others begin with its model:
then it is played again, as far as that.
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
from covey.job.comparison.execution import OnRun
from covey.job.experiment import Experiment
from covey.job.runs import run_together
from covey.job.settings import as_config
from covey.storage import write_json
from papers.branching import begin_branch, keep_model, lacking, model_file
from papers.measuring import measure, measured_rounds
from papers.plan import Group, Paper, Planned, Scale, Wanted, made_otherwise
from papers.schooling import agent_file, missing_agents, train
from papers.store import BRANCH, Store, result_of

LOCKSTEP_RUNS = 12
"""Runs that are played together on a GPU: more fill it no better, and take longer to come to an end."""

Stop = Literal["", "time", "interrupt"]


@dataclass(frozen=True)
class Outcome:
    """What an occasion came to."""

    runs: int
    """Runs that were asked for."""
    finished: int
    """Of these, how many the store now holds in full."""
    rounds: int
    """Rounds played on this occasion, over all runs."""
    seconds: float
    stopped: Stop
    """Why it ended early, where it did."""

    def as_mapping(self) -> dict[str, Any]:
        return asdict(self)


def machine_settings(scale: Scale, runtime: str | None, data_dir: str | None) -> dict[str, Any]:
    """What the machine decides: the stack in bf16 where there is a GPU, else the local runtime in fp32."""
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
    wanted: Wanted,
    *,
    results: Path,
    work: Path,
    machine: Mapping[str, Any],
    minutes: float | None = None,
    on_run: OnRun | None = None,
    on_round: OnRound | None = None,
) -> Outcome:
    """Run what the store does not hold yet, for at most so many minutes; call again to go on.

    Whatever is impossible (a method that is not there, data that cannot be read, a damaged result) is refused before
    anything starts.
    """
    begin = time.monotonic()
    require(minutes is None or minutes > 0, f"minutes must be above 0, not {minutes}.")
    plan = paper.plan(scale, wanted)
    runs = [run for group in plan for run in group.runs]
    configs = {run.name: run.config(machine) for run in [*runs, *_bases(runs)]}
    lessons = {run.school.name: as_config(run.school.settings, machine) for run in runs if run.school}
    store = Store.read(results)
    deadline = None if minutes is None else begin + 60 * minutes
    player = _Player(paper, store, work, configs, lessons, deadline, on_run, on_round)
    player.check(plan)
    stopped = player.play(plan)
    return Outcome(
        runs=len(runs),
        finished=sum(store.holds(run) for run in runs),
        rounds=player.played,
        seconds=round(time.monotonic() - begin, 1),
        stopped=stopped,
    )


class _Player:
    """Plays the groups of one reproduction."""

    def __init__(
        self,
        paper: Paper,
        store: Store,
        work: Path,
        configs: Mapping[str, Config],
        lessons: Mapping[str, Config],
        deadline: float | None,
        on_run: OnRun | None,
        on_round: OnRound | None,
    ) -> None:
        self.paper = paper
        self.store = store
        self.work = work
        self.configs = configs
        self.lessons = lessons
        self.deadline = deadline
        self.played = 0
        self._on_run = on_run
        self._on_round = on_round

    def check(self, plan: Sequence[Group]) -> None:
        """Refuse data that cannot be read, and folders that hold something else."""
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
                other = made_otherwise(run, held.config, held.branch)
                _require_same(other, f"{self.store.folder / run.name}.json", "results")
            if self._begun(run):
                folder = self.work / run.name
                began = json.loads((folder / BRANCH).read_text(encoding="utf-8")) if run.branch else None
                other = made_otherwise(run, read_config(folder).as_mapping(), began)
                _require_same(other, f"The folder {folder}", "work")
        try:
            self.work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refusal(f"The work folder {self.work} cannot be written: {error.strerror or error}.") from error

    def play(self, plan: Sequence[Group]) -> Stop:
        """All groups in turn; says what stopped it, if anything did."""
        lockstep = all(_stacks(config) for config in self.configs.values())
        kept: Experiment | None = None
        # An earlier occasion that was killed has left rounds behind that the store does not know of.
        self._export([run for group in plan for run in group.runs])
        for group in plan:
            for block in group.blocks(LOCKSTEP_RUNS if lockstep else 1):
                missing = [run for run in block if not self.store.holds(run)]
                for part in [missing] if lockstep and missing else [[run] for run in missing]:
                    if self._over():
                        return "time"
                    config = self.configs[(_bases(part) or part)[0].name]
                    if lockstep and (kept is None or not _alike(kept.config, config)):
                        # Runs share compiled steps while one of them is alive: this one is, while others are like it.
                        kept = Experiment.of(config)
                    stopped = (
                        self._prepare(group, part) or self._school(group, part) or self._advance(group.title, part)
                    )
                    if stopped:
                        return stopped
        return ""

    def _prepare(self, group: Group, runs: Sequence[Planned]) -> Stop:
        """See to it that what branches begin with is there: play their base runs as far as that, once more if need be.

        Those that the plan has are at their end already, and nothing is left to do, unless this is another machine.
        """
        bases: dict[str, Planned] = {}
        until = 0
        for branch in (run.branch for run in runs if run.branch and not self._begun(run)):
            folder = self.work / branch.base.name
            for t in lacking(branch, folder):
                require(
                    self._done(branch.base) <= t,
                    f"The folder {folder} has gone on without keeping what other runs begin with after round {t}; "
                    "move it away, and it is played again.",
                )
                bases[branch.base.name], until = branch.base, max(until, t)
        return self._advance(f"{group.title}, what it begins with", list(bases.values()), until) if bases else ""

    def _school(self, group: Group, runs: Sequence[Planned]) -> Stop:
        """See to it that the agents that decide in these runs are trained."""
        lacking = missing_agents(runs, self.work)
        if not lacking:
            return ""
        told = self._counting()
        rounds = sum(school.workers * self.lessons[school.name].rounds for school in lacking)
        if self._on_run:
            self._on_run(f"{group.title}, agents are trained", None, rounds)
        together = all(_stacks(self.lessons[school.name]) for school in lacking)
        done = train(lacking, self.lessons, self.work, told, self._over, together=together)
        return "" if done else "time" if self._over() else "interrupt"

    def _counting(self) -> Callable[[int, dict[str, Any]], None]:
        """What is told of rounds of many runs, as rounds of one."""
        count = itertools.count(1)

        def told(number: int, record: dict[str, object]) -> None:
            self.played += 1
            if self._on_round:
                self._on_round({**record, "round": next(count)})

        return told

    def _advance(self, title: str, runs: Sequence[Planned], until: int | None = None) -> Stop:
        """Play runs together to their end (or to round `until`), with a halt wherever one is measured or kept."""
        ends = {run.name: run.rounds if until is None else min(run.rounds, until) for run in runs}
        target = max(ends.values())
        asked = {at for run in runs for at in (*run.measured, *run.kept) if at < target}
        halts = sorted(asked | set(ends.values()))
        if self._on_run:
            label = f"{title}, {len(runs)} runs in lockstep" if len(runs) > 1 else runs[0].name
            self._on_run(label, None, sum(max(0, ends[run.name] - self._done(run)) for run in runs))
        told = self._counting()
        try:
            for halt in halts:
                pending = [run for run in runs if self._done(run) < min(halt, ends[run.name])]
                if pending:
                    run_together([self._opened(run, min(halt, ends[run.name])) for run in pending], told, self._over)
                if any(self._done(run) < min(halt, ends[run.name]) for run in pending):
                    return "time" if self._over() else "interrupt"
                for run in runs:
                    self._attend(run, halt)
        finally:
            self._export(runs)
        return ""

    def _attend(self, run: Planned, halt: int) -> None:
        """Measure a run's clients and keep its model, where that is wanted after the round that it is at."""
        folder = self.work / run.name
        if halt not in (*run.measured, *run.kept) or halt != self._done(run):
            return
        if halt in run.measured and halt not in measured_rounds(folder):
            measure(self._config(run), folder, run.measure)
        if halt in run.kept and not model_file(folder, halt).is_file():
            keep_model(folder)

    def _over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _begun(self, run: Planned) -> bool:
        """Whether a run's folder can be gone on with; of a branch the checkpoint is what it begins with."""
        needed = "config.json" if run.branch is None else "checkpoint.safetensors"
        return (self.work / run.name / needed).is_file()

    def _done(self, run: Planned) -> int:
        """Rounds that a run can go on from."""
        return read_checkpoint(self.work / run.name)[0] if self._begun(run) else 0

    def _config(self, run: Planned) -> Config:
        """The configuration to go on with: arithmetic stays as the run began, and so do a branch's clients."""
        config = self.configs[run.name]
        if run.school is not None:
            config = as_config(config, {"aggregator": {"agent": str(agent_file(self.work, run.school))}})
        if not self._begun(run):
            return config
        found = read_config(self.work / run.name)
        config = replace(config, precision=found.precision)
        return config if run.branch is None else replace(config, selector=found.selector, aggregator=found.aggregator)

    def _opened(self, run: Planned, rounds: int) -> tuple[Config, Path]:
        """A run's configuration up to so many rounds, and its folder, ready to go on."""
        folder = self.work / run.name
        config = replace(self._config(run), rounds=rounds)
        if self._begun(run):
            write_json(folder / "config.json", {"format": FORMAT, "config": config.as_mapping()})
        elif folder.exists():
            # A run that was killed before it had begun: there is nothing to go on from.
            shutil.rmtree(folder)
        if run.branch is not None and not self._begun(run):
            config = begin_branch(run.branch, config, folder, self.work / run.branch.base.name)
        return config, folder

    def _export(self, runs: Sequence[Planned]) -> None:
        """Put into the store what the runs' folders hold."""
        for run in runs:
            folder = self.work / run.name
            if self.store.holds(run) or not self._begun(run) or not read_metrics(folder):
                continue
            before = self.store.get(run.name)
            self.store.write(result_of(self.paper.name, run, folder, before.skew if before else None))


def _stacks(config: Config) -> bool:
    """Whether a run's clients are really stacked, and not left to the local runtime for want of a GPU."""
    return config.runtime == "stacked" and (config.device == "cpu" or torch.cuda.is_available())


def _bases(runs: Sequence[Planned]) -> list[Planned]:
    """The runs that some of these begin with, each once."""
    return list({run.branch.base.name: run.branch.base for run in runs if run.branch}.values())


def _alike(one: Config, other: Config) -> bool:
    """Whether two runs may share compiled steps: the same model on samples of the same shape."""
    return (one.dataset, one.model) == (other.dataset, other.model)


def _require_same(other: Sequence[str], where: str, flag: str) -> None:
    require(
        not other,
        f"{where} holds a run with other settings ({'; '.join(other[:3])}); move it away, or choose another --{flag}.",
    )
