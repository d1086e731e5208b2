"""On-Demand FL as a job of its own: a model for the class mix that is asked for (Jeong and Lee 2024).

    job = covey.ondemand("runs/base", "cat=0.5,dog=0.3,ship=0.2")

From a base run come a model and, where its method keeps them, estimates of the clients' class shares. Clients that
together make the target mix are composed from the estimates (`covey.composition`), and the base model is fine-tuned on
these alone. Each target is a run of its own, with the selector `composed` and the aggregator `ratios`, that begins at
the base run's model; many targets run in lockstep where the runtime can.

    ondemand.json           what was asked for, and what was composed
    base.safetensors        the model that was branched from, and the estimates
    target-1/ …             a run folder for each target, with its model.safetensors
    continued/              the base run gone on with for as many rounds, where that was asked for
    report.html             the page about all of it, where plotly is installed
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from covey.aggregation.ratios import Ratios
from covey.client import Learner
from covey.comparison import Interrupted, OnRun
from covey.composition import Composition, Pairing, compose, sizes_note
from covey.config import Config, overlay
from covey.data.dataset import Samples
from covey.environments import FloatArray, IntArray
from covey.errors import Refusal, require
from covey.estimation import EPSILONS, Estimates, Privacy, PrivacyCost, cost_of_privacy
from covey.evaluation import tested_part, untested_notes
from covey.experiment import Experiment, Run, as_config, expand, resume, run_together
from covey.federations import GIVEN, Federation
from covey.loop import OnRound
from covey.methods import OneModel, methods
from covey.mixes import Target, Wanted, all_wanted
from covey.models import build_model
from covey.records import FORMAT, Records, read_checkpoint, write_checkpoint, write_json
from covey.roles import State
from covey.selection.composed import Composed as ComposedSelector
from covey.surveys import Estimator, check_estimator, estimated
from covey.targets import test_indices

ROUNDS = 50
"""Rounds of fine-tuning by default."""

_FIXED = ("method", "selector", "aggregator", "many", "dataset", "environment", "altered", "model", "clients", "seed")
"""Settings that are the base run's and cannot be given."""


@dataclass(frozen=True)
class Scored:
    """Accuracy on a target; None where the test set has none of its classes."""

    accuracy: float | None = None
    """Mean over classes, weighted by the target; from all test samples."""
    tested: float | None = None
    """On the test set of that mix, as the paper has it."""
    peak: float | None = None
    """The best over rounds, where records list the accuracy of every class."""


@dataclass(frozen=True, eq=False)
class Tailored:
    """The model for one target."""

    wanted: Wanted
    composition: Composition
    run: Run
    true_mix: FloatArray | None
    """`[classes]`: what the composed clients really make together, where that is known. For evaluation only."""
    tested_mix: FloatArray
    """`[classes]`: the target, as far as the test set has samples of its classes."""
    test_samples: int
    """Size of the test set of that mix."""
    base: Scored
    scored: Scored
    continued: Scored | None
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> Path:
        return self.run.folder / "model.safetensors"

    @property
    def gain(self) -> float | None:
        """Accuracy on the target above that of the base model."""
        own, base = self.scored.accuracy, self.base.accuracy
        return None if own is None or base is None else own - base

    @property
    def gain_over_continued(self) -> float | None:
        """Accuracy on the target above that of the base run gone on with, where there is one."""
        own, further = self.scored.accuracy, None if self.continued is None else self.continued.accuracy
        return None if own is None or further is None else own - further

    @property
    def true_distance(self) -> float | None:
        """n·MAE of what the composed clients really make from the target, where that is known."""
        return None if self.true_mix is None else float(np.abs(self.true_mix - self.wanted.mix).sum())

    @cached_property
    def curve(self) -> list[tuple[int, float]]:
        """Round and accuracy on the target."""
        return target_curve(self.run.metrics, self.tested_mix)

    def as_mapping(self) -> dict[str, Any]:
        return {
            "target": self.wanted.name,
            "mix": self.wanted.mix.tolist(),
            "folder": str(self.run.folder),
            "model": str(self.model),
            "clients": self.composition.clients.tolist(),
            "ratios": self.composition.ratios.tolist(),
            "composed_mix": self.composition.mix.tolist(),
            "distance": self.composition.distance,
            "true_mix": None if self.true_mix is None else self.true_mix.tolist(),
            "true_distance": self.true_distance,
            "passes": self.composition.passes,
            "rounds": len(self.run.metrics),
            "accuracy": self.scored.accuracy,
            "peak_accuracy": self.scored.peak,
            "base_accuracy": self.base.accuracy,
            "continued_accuracy": None if self.continued is None else self.continued.accuracy,
            "continued_peak_accuracy": None if self.continued is None else self.continued.peak,
            "test_samples": self.test_samples,
            "tested_accuracy": self.scored.tested,
            "base_tested_accuracy": self.base.tested,
            "continued_tested_accuracy": None if self.continued is None else self.continued.tested,
            "bytes_up": sum(row["bytes_up"] for row in self.run.metrics),
            "bytes_down": sum(row["bytes_down"] for row in self.run.metrics),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, eq=False)
class Composed:
    """What is known before anybody trains: estimates, and the clients chosen for each target."""

    folder: Path
    base: str
    base_round: int
    estimator: Estimator
    rounds: int
    class_names: tuple[str, ...]
    client_names: tuple[str, ...]
    """What the data calls its clients, where it does."""
    estimates: Estimates
    error: float | None
    """n·MAE of the estimates, mean over clients, where the truth is known. For evaluation only."""
    targets: tuple[tuple[Wanted, Composition, tuple[str, ...]], ...]
    """Each with its notes."""
    notes: tuple[str, ...] = ()
    bytes_up: int = 0
    """Of the survey, where one was made."""
    bytes_down: int = 0
    insight_dp: str | None = None
    """Epsilon and delta of what clients were asked for, where that had noise."""
    privacy: tuple[PrivacyCost, ...] = ()
    """What noise costs on these clients, at the δ that was asked for and several ε, where the truth is known.

    For evaluation only.
    """

    @property
    def clients(self) -> int:
        return len(self.estimates.seen)

    def client_name(self, client: int) -> str:
        return self.client_names[client] if self.client_names else str(client)


@dataclass(frozen=True, eq=False)
class OnDemand:
    """What a job came to."""

    composed: Composed
    tailored: tuple[Tailored, ...]
    continued: Run | None = None

    @property
    def folder(self) -> Path:
        return self.composed.folder

    @property
    def verdict(self) -> str:
        """What was gained, in a sentence or two."""
        used = sorted({len(one.composition.clients) for one in self.tailored})
        who = f"{' to '.join(map(str, dict.fromkeys((used[0], used[-1]))))} of {self.composed.clients} clients"
        gains = [100 * one.gain for one in self.tailored if one.gain is not None]
        if not gains:
            return f"Fine-tuned on {who}; the test set has no sample of the target's classes to judge by."
        if len(self.tailored) > 1:
            further = [100 * one.gain_over_continued for one in self.tailored if one.gain_over_continued is not None]
            fairly = f", and {_spread(further)} over the base run gone on with" if further else ""
            return (
                f"Over {len(gains)} targets, models fine-tuned on {who} gain on average {_spread(gains)} points on "
                f"their target over the base model{fairly}."
            )
        one = self.tailored[0]
        said = (
            f"On the target, the model fine-tuned on {who} is right for {one.scored.accuracy:.1%} of the samples, the "
            f"base model for {one.base.accuracy:.1%} ({gains[0]:+.1f} points)."
        )
        if one.continued is not None:
            said += f" The base run gone on with comes to {one.continued.accuracy:.1%}."
        return said

    def as_mapping(self) -> dict[str, Any]:
        """The findings for JSON."""
        composed = self.composed
        return {
            "folder": str(self.folder),
            "base": composed.base,
            "base_round": composed.base_round,
            "estimator": composed.estimator,
            "estimate_error": composed.error,
            "insight_dp": composed.insight_dp,
            "clients": composed.clients,
            "clients_estimated": int((composed.estimates.seen > 0).sum()),
            "class_names": list(composed.class_names),
            "survey_bytes_up": composed.bytes_up,
            "survey_bytes_down": composed.bytes_down,
            "privacy": [vars(cost) for cost in composed.privacy],
            "notes": list(composed.notes),
            "targets": [one.as_mapping() for one in self.tailored],
        }

    def draw(self, path: Path) -> Path:
        """Write the findings as a page that opens in a browser, offline."""
        from covey.report.ondemand import ondemand_page

        return ondemand_page(self, path)


def _spread(points: Sequence[float]) -> str:
    return f"{np.mean(points):+.1f} (from {min(points):+.1f} to {max(points):+.1f})"


@dataclass(frozen=True)
class _Plan:
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


def ondemand(
    base: Run | Path | str,
    target: Target | Sequence[Target],
    *,
    estimator: Estimator = "learned",
    rounds: int = ROUNDS,
    pairing: Pairing = "unscaled",
    survey: bool = False,
    insight_dp: str | None = None,
    continued: bool = False,
    federation: Federation | None = None,
    out: Path | str | None = None,
    on_composed: Callable[[Composed], None] | None = None,
    on_run: OnRun | None = None,
    on_round: OnRound | None = None,
    **settings: Any,
) -> OnDemand:
    """Fine-tune the model of a base run for a class mix, or for each of several, on clients that make that mix.

    target: one or a list: text such as "cat=0.5,dog=0.5", class → share, a share for each class, a `Path` to a file of
        labels, or the paper's "td1", "td2", "td3" and "local:7", the mix of client 7 as that client would state it (not
        of sites with data of their own: they have to state it).
    estimator: where the clients' class shares come from: learned, analytic, or ground-truth (see `Estimator`).
    rounds: rounds of fine-tuning.
    pairing: what weighs a client in the composition: unscaled, scaled_rn, or the authors' scaled_r.
    survey: ask all clients for a fresh estimate first, by the base run's predictor as it is now (learned).
    insight_dp: epsilon and delta, such as "1,1e-5", of the gradient that clients are asked for (analytic).
    continued: also go on with the base run for as many rounds, to compare with.
    federation: the one that the base run was made with, where that was passed in from Python.
    out: folder to write; one that holds part of the same job is gone on with.

    Other settings are laid over the base run's: `local`, `cohort`, `evaluate_every`, `runtime`, `workers`, and so on.
    They hold from the first round after branching. The learning rate goes on from where the base run is, unless one is
    given.
    """
    run = _opened(base, federation)
    require(rounds >= 1, f"rounds must be at least 1, not {rounds}.")
    check_estimator(estimator, survey=survey, insight_dp=insight_dp)
    given = expand(settings)
    for key in given:
        require(key not in _FIXED, f"The {key} is that of the base run: another one cannot be given.")
    config = as_config(run.config, given)
    experiment, done = _trained(run, config)
    try:
        experiment.federation.dataset.require_tests()
        wishes = all_wanted(target, experiment.federation.dataset.class_names, _true_shares(experiment))
        plan = _Plan(
            base=str(run.folder.resolve()),
            base_round=done,
            targets=tuple(wish.as_mapping() for wish in wishes),
            estimator=estimator,
            rounds=rounds,
            pairing=pairing,
            survey=survey,
            insight_dp=insight_dp,
            continued=continued,
            settings=given,
        )
        folder = Path(out) if out is not None else _default_folder()
        if is_ondemand(folder):
            require(
                _read(folder)["plan"] == plan.as_mapping(),
                f"The folder {folder} holds another job; choose another --out.",
            )
        else:
            _free(folder)
            if continued:
                _continued_config(run.config, plan.as_mapping())
            found, notes, sent = estimated(experiment, done, estimator, survey=survey, insight_dp=insight_dp)
            compositions = [
                compose(found.shares, wish.mix, at_least=config.cohort, sizes=found.sizes, pairing=pairing)
                for wish in wishes
            ]
            asked = survey or estimator != "learned"
            notes = [*_unfinished(run, done), *notes, *sizes_note(found.sizes, pairing, asked=asked)]
            _claim(folder, plan, experiment.method.models()[0], found, compositions, notes, sent)
        return _advance(folder, run, experiment, on_composed, on_run, on_round)
    finally:
        experiment.runtime.close()


def resume_ondemand(
    folder: Path | str,
    *,
    federation: Federation | None = None,
    on_composed: Callable[[Composed], None] | None = None,
    on_run: OnRun | None = None,
    on_round: OnRound | None = None,
) -> OnDemand:
    """Go on with a job that was stopped; one that is complete is read."""
    folder = Path(folder)
    plan = _read(folder)["plan"]
    if _complete(folder, plan):
        return _kept(folder, federation, on_composed)
    require(
        (Path(plan["base"]) / "config.json").is_file(),
        f"The job {folder} is not complete, and its base run is no longer at {plan['base']}; move it back there to go "
        "on with the job.",
    )
    run = _opened(str(plan["base"]), federation)
    experiment = Experiment.of(as_config(run.config, plan["settings"]), run.given, resumed=True)
    try:
        return _advance(folder, run, experiment, on_composed, on_run, on_round)
    finally:
        experiment.runtime.close()


def read_ondemand(folder: Path | str, *, federation: Federation | None = None) -> OnDemand:
    """What a complete job came to; nothing is trained, and one that is not complete is refused.

    The base run is not needed for it.
    """
    folder = Path(folder)
    require(
        _complete(folder, _read(folder)["plan"]),
        f"The job {folder} is not complete; go on with: covey resume {folder}",
    )
    return _kept(folder, federation)


def is_ondemand(folder: Path) -> bool:
    """Whether a folder holds a job of this kind."""
    return (folder / "ondemand.json").is_file()


def target_curve(metrics: Sequence[dict[str, Any]], mix: FloatArray) -> list[tuple[int, float]]:
    """Round and accuracy on a mix, from records that list the accuracy of every class."""
    return [
        (int(row["round"]), float(np.asarray(row["class_accuracy"]) @ mix))
        for row in metrics
        if "class_accuracy" in row
    ]


def _opened(base: Run | Path | str, federation: Federation | None) -> Run:
    run = base if isinstance(base, Run) else Run.open(base)
    if federation is not None and run.given is None and run.config.dataset.name == GIVEN:
        run = Run(run.folder, run.config, federation)
    return run


def _places(folder: Path, plan: Mapping[str, Any]) -> list[Path]:
    """The run folders of a job: one for each target, then that of the base run gone on with, if it was asked for."""
    names = [f"target-{number}" for number in range(1, len(plan["targets"]) + 1)]
    return [folder / name for name in (*names, *(["continued"] if plan["continued"] else []))]


def _complete(folder: Path, plan: Mapping[str, Any]) -> bool:
    return all(
        all((place / name).is_file() for name in ("config.json", "checkpoint.safetensors")) and Run.open(place).finished
        for place in _places(folder, plan)
    )


def _kept(
    folder: Path, federation: Federation | None, on_composed: Callable[[Composed], None] | None = None
) -> OnDemand:
    """What a complete job came to. Clients, data and model are those of its first run, as of all of them."""
    data = _read(folder)
    first = _opened(folder / "target-1", federation)
    experiment = Experiment.of(first.config, first.given, resumed=True)
    try:
        composed, model = _composed(folder, data, experiment)
        if on_composed is not None:
            on_composed(composed)
        runs = [Run.open(place, first.given) for place in _places(folder, data["plan"])]
        return _evaluated(composed, model, experiment, runs, with_base=data["plan"]["continued"])
    finally:
        experiment.runtime.close()


def _unfinished(run: Run, done: int) -> list[str]:
    if done >= run.config.rounds:
        return []
    return [
        f"The base run is not finished: its model is that after {done} of {run.config.rounds} rounds. To finish it "
        f"first: covey resume {run.folder}"
    ]


def _trained(run: Run, config: Config) -> tuple[Experiment, int]:
    """The base run as it stands, and how many rounds it has behind it; `config` may have it executed elsewhere."""
    done, state = read_checkpoint(run.folder)
    if state is None:
        raise Refusal(f"{run.folder} has no finished round yet; go on with: covey resume {run.folder}")
    recipe = methods[run.config.method].part if run.config.method in methods.names() else None
    require(
        recipe is None or recipe.reshape is None,
        f"The method '{run.config.method}' trains on other clients than those of the federation, so there is nobody "
        "to compose its model from; choose another base run.",
    )
    require(run.config.many is None, f"The method '{run.config.method}' has many models, and a base run has one.")
    experiment = Experiment.of(config, run.given, resumed=True)
    experiment.method.load_state_dict(state)
    return experiment, done


def _claim(
    folder: Path,
    plan: _Plan,
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


def _begin_all(
    folder: Path, plan: Mapping[str, Any], composed: Composed, run: Run, model: Tensor, method: OneModel
) -> None:
    """A run folder for each target that begins at the base model, and one that goes on with the base run."""
    for number, (_, composition, _) in enumerate(composed.targets, start=1):
        tailored = _tailored_config(run.config, plan, composition)
        assert tailored.selector is not None
        assert tailored.aggregator is not None
        parts = ComposedSelector(**tailored.selector.options), Ratios(**tailored.aggregator.options)
        setting = replace(method.setting, cohort=tailored.cohort, rounds=tailored.rounds, work=tailored.local)
        _begin(folder / f"target-{number}", tailored, 0, OneModel(setting, model, *parts).state_dict())
    if plan["continued"] and not (folder / "continued" / "checkpoint.safetensors").is_file():
        done, state = read_checkpoint(run.folder)
        require(
            state is not None and done == plan["base_round"],
            f"The base run {run.folder} is no longer at round {plan['base_round']}, where this job began.",
        )
        assert state is not None
        longer = _continued_config(run.config, plan)
        _begin(folder / "continued", longer, done, state, run.folder / "metrics.jsonl")


def _begin(folder: Path, config: Config, done: int, state: State, metrics: Path | None = None) -> None:
    """A run folder that goes on from a state after `done` rounds; the state comes last, and makes it complete."""
    if (folder / "checkpoint.safetensors").is_file():
        return
    try:
        if not (folder / "config.json").is_file():
            Records.create(folder, config).close()
        if metrics is not None:
            shutil.copyfile(metrics, folder / "metrics.jsonl")
        write_checkpoint(folder, done, state)
    except (OSError, SafetensorError) as error:
        raise Refusal(f"The folder {folder} cannot be written: {error}.") from error


def _first_rate(base: Config, plan: Mapping[str, Any]) -> float:
    """The learning rate of the first round after branching: as given, or where the base run's own settings left it."""
    if "rate" in plan["settings"].get("local", {}):
        return as_config(base, plan["settings"]).local.rate
    return base.local.rate_at(plan["base_round"] + 1, 0)


def _continued_config(base: Config, plan: Mapping[str, Any]) -> Config:
    """The base run's configuration for as many more rounds, at the rates of the tailored runs.

    Rounds are counted on, and the rate decays from the first one: it is set to what comes to `_first_rate` in time.
    """
    done, rate = plan["base_round"], _first_rate(base, plan)
    longer = as_config(base, {**plan["settings"], "rounds": done + plan["rounds"]})
    if longer.local.rate_at(done + 1, 0) == rate:
        return longer
    decayed = longer.local.decay ** (done * longer.local.epochs)
    require(
        decayed > 0 and bool(np.isfinite(rate / decayed)),
        f"With local.decay={longer.local.decay:g} the rate would be zero after the {done} rounds of the base run, so "
        "that it cannot be gone on with; choose a decay nearer to 1, or leave out --continued.",
    )
    return as_config(longer, {"local": {"rate": rate / decayed}})


def _tailored_config(base: Config, plan: Mapping[str, Any], composition: Composition) -> Config:
    """The base run's configuration with the settings that were given and the composed clients."""
    config = as_config(base, plan["settings"])
    mapping = {key: value for key, value in config.as_mapping().items() if key not in ("method", "many")}
    clients = tuple(composition.clients.tolist())
    parts = {
        "selector": {"name": "composed", "clients": clients},
        "aggregator": {"name": "ratios", "clients": clients, "ratios": tuple(composition.ratios.tolist())},
    }
    going_on = {"local": {"rate": _first_rate(base, plan)}}
    return as_config({**overlay(mapping, going_on), **parts}, {"rounds": plan["rounds"]})


def _advance(
    folder: Path,
    run: Run,
    experiment: Experiment,
    on_composed: Callable[[Composed], None] | None,
    on_run: OnRun | None,
    on_round: OnRound | None,
) -> OnDemand:
    """Train what is not trained yet, then evaluate everything."""
    data = _read(folder)
    composed, model = _composed(folder, data, experiment)
    assert isinstance(experiment.method, OneModel)
    _begin_all(folder, data["plan"], composed, run, model, experiment.method)
    if on_composed is not None:
        on_composed(composed)
    places, with_base = _places(folder, data["plan"]), data["plan"]["continued"]
    labels = [wish.name for wish, _, _ in composed.targets]
    mixes: list[FloatArray | None] = [wish.mix for wish, _, _ in composed.targets]
    if with_base:
        labels, mixes = [*labels, "the base run gone on with"], [*mixes, None]
    _train(places, labels, mixes, run.given, on_run, on_round)
    runs = [Run.open(place, run.given) for place in places]
    if not all(one.finished for one in runs):
        raise Interrupted(folder)
    return _evaluated(composed, model, experiment, runs, with_base=with_base)


def _train(
    places: Sequence[Path],
    labels: Sequence[str],
    mixes: Sequence[FloatArray | None],
    given: Federation | None,
    on_run: OnRun | None,
    on_round: OnRound | None,
) -> None:
    """Run what is missing: in lockstep on the stacked runtime, else one after another."""
    missing = [place for place in range(len(places)) if not Run.open(places[place]).finished]
    pending = [(Run.open(places[place]).config, places[place]) for place in missing]
    if len(pending) > 1 and given is None and all(config.runtime == "stacked" for config, _ in pending):
        left = sum(config.rounds - len(Run.open(place).metrics) for config, place in pending)
        if on_run:
            on_run(f"{len(pending)} runs in lockstep", None, left)
        counted = 0

        def on_any(number: int, record: dict[str, object]) -> None:
            nonlocal counted
            counted += 1
            if on_round:
                on_round({**_on_target(record, mixes[missing[number]]), "round": counted})

        run_together(pending, on_any)
        return
    for place, (config, folder) in zip(missing, pending, strict=True):
        if on_run:
            on_run(labels[place], None, config.rounds)
        mix = mixes[place]
        told = None if on_round is None else _told(on_round, mix)
        if not resume(folder, federation=given, on_round=told).finished:
            return


def _told(on_round: OnRound, mix: FloatArray | None) -> OnRound:
    return lambda record: on_round(_on_target(record, mix))


def _on_target(record: dict[str, object], mix: FloatArray | None) -> dict[str, object]:
    """A round's record with the accuracy on the target in the place of that on the whole test set."""
    if mix is None or "class_accuracy" not in record:
        return record
    return {**record, "accuracy": float(np.asarray(record["class_accuracy"]) @ mix)}


def _evaluated(
    composed: Composed, model: Tensor, experiment: Experiment, runs: Sequence[Run], *, with_base: bool
) -> OnDemand:
    """Score the base model, the tailored ones and the continued one on every target."""
    states = [model.cpu()]
    for one in runs:
        _, state = read_checkpoint(one.folder)
        assert state is not None
        states.append(state["model"].to(model.dtype).cpu())
    judge, truth = _Judge(experiment, states), _true_shares(experiment)
    later = [row for row in runs[-1].metrics if row["round"] > composed.base_round]
    tailored = []
    for number, (wish, composition, notes) in enumerate(composed.targets, start=1):
        one = runs[number - 1]
        if not (one.folder / "model.safetensors").is_file():
            one.export(one.folder / "model.safetensors")
        mix, untested = tested_part(wish.mix, judge.totals)
        samples = judge.test_set(wish.mix) if mix.any() else None
        tailored.append(
            Tailored(
                wanted=wish,
                composition=composition,
                run=one,
                true_mix=None if truth is None else composition.made_of(truth),
                tested_mix=mix,
                test_samples=0 if samples is None else len(samples),
                base=judge.scored(0, mix, samples, []),
                scored=judge.scored(number, mix, samples, one.metrics),
                continued=judge.scored(len(states) - 1, mix, samples, later) if with_base else None,
                notes=(*notes, *untested_notes(untested)),
            )
        )
    return OnDemand(composed, tuple(tailored), runs[-1] if with_base else None)


class _Judge:
    """Scores models on mixes: all of them on the whole test set at once, each on the test set of a mix."""

    def __init__(self, experiment: Experiment, states: list[Tensor]) -> None:
        config, self.dataset = experiment.config, experiment.federation.dataset
        scores = experiment.runtime.evaluate(torch.stack(states))
        self.states = states
        self.by_class, self.totals = scores.class_accuracy, scores.totals
        shape, classes = self.dataset.shape, self.dataset.classes
        module = build_model(config.model.name, dict(config.model.options), shape, classes, config.seed)
        on_gpu = config.runtime == "stacked" and config.device != "cpu" and torch.cuda.is_available()
        self.learner = Learner(module, self.dataset, config.precision, "cuda" if on_gpu else "cpu")

    def test_set(self, mix: FloatArray) -> Samples:
        index = torch.from_numpy(test_indices(mix, self.dataset.test_y.numpy()))
        device = self.learner.device
        return Samples(self.dataset.test_x[index].to(device), self.dataset.test_y[index].to(device))

    def scored(self, place: int, mix: FloatArray, samples: Samples | None, metrics: Sequence[dict[str, Any]]) -> Scored:
        if samples is None:
            return Scored()
        _, right = self.learner.score(self.states[place].to(self.learner.device), samples)
        peak = max((accuracy for _, accuracy in target_curve(metrics, mix)), default=None)
        return Scored(float(self.by_class[place] @ mix), int(right.sum()) / len(samples), peak)


def _composed(folder: Path, data: Mapping[str, Any], experiment: Experiment) -> tuple[Composed, Tensor]:
    """What a job's folder says was composed, and the model that it branched from."""
    plan = data["plan"]
    try:
        tensors = load_file(str(folder / "base.safetensors"))
    except (OSError, SafetensorError) as error:
        raise Refusal(f"{folder} cannot be gone on with: its base.safetensors cannot be read ({error}).") from error
    found = Estimates(*(tensors[name].numpy() for name in ("shares", "seen", "sizes")))
    names, truth = experiment.federation.dataset.class_names, _true_shares(experiment)
    targets = []
    for wish, mapping in zip(map(Wanted.of, plan["targets"]), data["composed"], strict=True):
        composition = Composition.of(mapping)
        warning = composition.warning(names)
        targets.append((wish, composition, (*wish.notes, *([warning] if warning else []))))
    composed = Composed(
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


def _true_shares(experiment: Experiment) -> FloatArray | None:
    """The clients' class shares `[clients, classes]`, where they are known. For evaluation only."""
    return experiment.federation.truth.shares if experiment.known else None


def _cost(truth: FloatArray, sizes: IntArray, insight_dp: str | None) -> tuple[PrivacyCost, ...]:
    """What noise costs on clients of these shares and sizes, at several ε and the one that was asked for."""
    if insight_dp is None:
        return ()
    asked = Privacy.of(insight_dp, "insight_dp")
    epsilons = sorted({*EPSILONS, asked.epsilon})
    return tuple(cost_of_privacy(truth, sizes.astype(np.float64), asked.delta, epsilons))


def _read(folder: Path) -> dict[str, Any]:
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


def _free(folder: Path) -> None:
    """Refuse a folder that holds something else."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise Refusal(f"The output folder {folder} is not empty and holds no on-demand job; choose another --out.")
    except OSError as error:
        raise Refusal(f"The output folder {folder} cannot be read: {error.strerror or error}.") from error


def _default_folder() -> Path:
    """`runs/<time>-ondemand`, not yet taken."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder, number = Path("runs") / f"{stamp}-ondemand", 2
    while folder.exists():
        folder, number = folder.with_name(f"{stamp}-ondemand-{number}"), number + 1
    return folder
