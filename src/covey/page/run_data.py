"""Data of a report, read from folders: lines (a method with its settings, one run per seed), by federation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from covey.config.schema import Config
from covey.errors import Refusal, require
from covey.job.comparison.compared_runs import Comparison
from covey.job.comparison.equal_rounds import over_equal_rounds
from covey.job.comparison.plan import Variant, is_comparison, places_of, read_plan
from covey.job.runs import Run
from covey.registries import methods
from covey.task.learning_task import ACCURACY
from covey.task.run_metric import main_score, metric_of

_FEDERATION = ("dataset", "environment", "clients", "altered")
"""Settings that decide how data is split; lines that differ in them do not share axes."""

_IMMATERIAL = ("seed", "workers", "data_dir", "task")
"""Settings in which the runs of one line may differ. Runs that are measured by other metrics are apart anyway."""

_SECONDARY = ("rounds", "evaluate_every", "cohort", "runtime", "precision", "folder")
"""Settings that label a line only if no other setting tells it apart."""

_NAMED_UP_TO = 3
"""Up to this many differing settings are all named in a label."""


@dataclass(frozen=True, eq=False)
class Line:
    """Runs that differ only in the seed; they share a colour on the page."""

    label: str
    place: int
    """Number of the colour."""
    runs: tuple[Run, ...]
    """One or more, by ascending seed, each evaluated at least once."""

    @property
    def config(self) -> Config:
        return self.runs[0].config

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.config.seed for run in self.runs)

    @property
    def reshapes(self) -> bool:
        """True if the method is a reference that trains on a reshaped federation."""
        name = self.config.method
        return name in methods.names() and methods[name].part.reshape is not None


@dataclass(frozen=True, eq=False)
class FederationGroup:
    """Lines on the same federation."""

    title: str
    """Settings that tell this federation from the others on the page; empty if there is only one."""
    lines: tuple[Line, ...]
    wanted_target: float | None = None

    @cached_property
    def comparison(self) -> Comparison:
        """Comparison of the lines that have the seeds of the first line, so that differences can be paired."""
        return self._compare([line for line in self.lines if line.seeds == self.lines[0].seeds], self.wanted_target)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row of figures per line; without a difference if its seeds are not those of the first line."""
        paired = {row["name"]: row for row in self.comparison.rows}
        target = self.comparison.target
        return [
            paired.get(line.label) or {**self._compare([line], target).rows[0], "speed_up": None} for line in self.lines
        ]

    def _compare(self, lines: Sequence[Line], target: float | None) -> Comparison:
        variants = tuple(
            Variant(line.label, line.config.method, tuple(run.config for run in line.runs)) for line in lines
        )
        return Comparison(lines[0].runs[0].folder, variants, {line.label: line.runs for line in lines}, target)


@dataclass(frozen=True, eq=False)
class ReportData:
    """The runs that a report is about."""

    folders: tuple[Path, ...]
    groups: tuple[FederationGroup, ...]
    notices: tuple[str, ...]
    """Sentences about runs that are missing or incomplete."""

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        return tuple(line for group in self.groups for line in group.lines)

    @cached_property
    def legend(self) -> tuple[Line, ...]:
        """One line per colour."""
        first = {line.place: line for line in reversed(self.lines)}
        return tuple(first[place] for place in sorted(first))

    @property
    def bare(self) -> bool:
        """True if all labels are plain names of methods."""
        return all(line.label == line.config.method for line in self.lines)


def read_report_data(folders: Sequence[Path]) -> ReportData:
    """Read run folders and folders of comparisons."""
    require(len(folders) > 0, "There is nothing to report on; name at least one run folder or comparison.")
    notices: list[str] = []
    found: list[tuple[Path, Run]] = []
    for folder in folders:
        require(folder.is_dir(), f"{folder} is not a folder; give run folders or folders of comparisons.")
        runs = [Run.open(folder)] if not is_comparison(folder) else _comparable(folder, notices)
        found.extend((folder, run) for run in runs if _evaluated(run, notices))
    if not found:
        raise Refusal(
            f"There is no evaluated round yet in {', '.join(map(str, folders))}; resume with: covey resume "
            f"{folders[0]} (if clients decline to evaluate, metrics.jsonl says so: unscored)"
        )
    targets = {read_plan(folder).get("target") for folder in folders if is_comparison(folder)}
    return ReportData(tuple(folders), _groups(found, targets.pop() if len(targets) == 1 else None), tuple(notices))


def runs_of(folder: Path) -> list[tuple[str, Run]]:
    """Return name and run of a run folder (one, named "") or of a comparison (named by their path in it)."""
    if not is_comparison(folder):
        return [("", Run.open(folder))]
    return [(str(run.folder.relative_to(folder)), run) for run in _runs_of_comparison(folder, [])]


def settings(config: Config) -> dict[str, Any]:
    """Return a configuration with flat dotted keys; the name of a part has its section's key."""
    flat: dict[str, Any] = {}
    for key, value in config.as_mapping().items():
        if not isinstance(value, Mapping):
            flat[key] = value
            continue
        if "name" in value:
            flat[key] = value["name"]
        flat.update({f"{key}.{option}": setting for option, setting in value.items() if option != "name"})
    return flat


def spell(value: Any) -> str:
    """Return a setting's value in the form of the command line."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(spell, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _comparable(folder: Path, notices: list[str]) -> list[Run]:
    """Return the runs of a comparison that were begun, over rounds that all have."""
    begun = {run.folder: run for run in _runs_of_comparison(folder, notices)}
    found, notes = over_equal_rounds(folder, read_plan(folder), begun)
    notices.extend(notes)
    return list(found.values())


def _runs_of_comparison(folder: Path, notices: list[str]) -> list[Run]:
    runs = []
    for label, seed, place in places_of(folder, read_plan(folder)):
        if (place / "config.json").is_file():
            runs.append(Run.open(place))
        else:
            notices.append(f"{label}, seed {seed}, was not started; resume with: covey resume {folder}")
    return runs


def _evaluated(run: Run, notices: list[str]) -> bool:
    """True if a run was evaluated; adds a notice about a run that stopped early."""
    done, name = len(run.metrics), f"{run.config.method}, seed {run.config.seed}"
    if not run.recorded:
        stopped = f"{name}, stopped after round {done} of {run.config.rounds}"
        notices.append(f"{stopped}; resume with: covey resume {run.folder}")
    return any(main_score(row) is not None for row in run.metrics)


def _groups(found: Sequence[tuple[Path, Run]], target: float | None) -> tuple[FederationGroup, ...]:
    lines: dict[tuple[str, int], list[Run]] = {}
    sources: dict[tuple[str, int], Path] = {}
    for folder, run in found:
        identity = repr([item for item in settings(run.config).items() if item[0] not in _IMMATERIAL] + [_metric(run)])
        again = 0
        while any(run.config.seed == other.config.seed for other in lines.get((identity, again), [])):
            again += 1
        lines.setdefault((identity, again), []).append(run)
        sources.setdefault((identity, again), folder)
    federations: dict[str, list[tuple[str, int]]] = {}
    for key, runs in lines.items():
        federations.setdefault(repr(_measured_on(runs[0])), []).append(key)
    titles = _distinguish([_measured_on(lines[keys[0]][0]) for keys in federations.values()])
    places: dict[str, int] = {}
    groups = []
    for title, keys in zip(titles, federations.values(), strict=True):
        known = [{**_rest(lines[key][0].config), "folder": sources[key]} for key in keys]
        labels = _distinguish([{"method": one.pop("method"), **one} for one in known], bare="method")
        members = []
        for number, (label, key) in enumerate(zip(labels, keys, strict=True)):
            label = label if labels.count(label) == 1 else f"{label} ({number + 1})"
            place = places.setdefault(label, len(places))
            members.append(Line(label, place, tuple(sorted(lines[key], key=lambda run: run.config.seed))))
        groups.append(FederationGroup(title, tuple(members), target))
    return tuple(groups)


def federation_of(config: Config) -> dict[str, Any]:
    """Return the settings that decide how data is split."""
    return {key: value for key, value in settings(config).items() if key.split(".")[0] in _FEDERATION}


def _metric(run: Run) -> str:
    return metric_of(run.metrics).name


def _measured_on(run: Run) -> dict[str, Any]:
    """Return the settings that decide how data is split, and the metric if it is not accuracy."""
    metric = _metric(run)
    return {**federation_of(run.config), **({} if metric == ACCURACY.name else {"metric": metric})}


def _rest(config: Config) -> dict[str, Any]:
    outside = (*_FEDERATION, *_IMMATERIAL)
    return {key: value for key, value in settings(config).items() if key.split(".")[0] not in outside}


def _distinguish(mappings: Sequence[Mapping[str, Any]], bare: str | None = None) -> list[str]:
    """Return a label for each mapping, made of the settings that tell them apart, and always of the setting `bare`.

    If few settings differ, all are named; of many, only as many as needed.
    """
    names = [[str(mapping[bare])] if bare else [] for mapping in mappings]

    def differing(members: list[int]) -> list[str]:
        keys = dict.fromkeys(key for member in members for key in mappings[member])
        found = [key for key in keys if len({repr(mappings[member].get(key)) for member in members}) > 1]
        # Options that only some parts have are used only if nothing else tells the mappings apart.
        common = [key for key in found if all(key in mappings[member] for member in members)]
        return sorted(common or found, key=lambda key: key in _SECONDARY)

    def split(members: list[int]) -> None:
        keys = differing(members)
        main = [key for key in keys if key not in _SECONDARY and key != bare]
        if not keys:
            return
        chosen = main if bare not in keys and 0 < len(main) <= _NAMED_UP_TO else keys[:1]
        parts: dict[str, list[int]] = {}
        for member in members:
            mapping = mappings[member]
            names[member] += [f"{key}={spell(mapping[key])}" for key in chosen if key != bare and key in mapping]
            parts.setdefault(repr([mapping.get(key) for key in chosen]), []).append(member)
        for part in parts.values():
            split(part)

    split(list(range(len(mappings))))
    return [" ".join(name) for name in names]
