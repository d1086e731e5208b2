"""The store: a small JSON file for each run, from which tables and figures are made, and nothing else.

A file holds what a run was (configuration, commit, machine) and what came of it in columns: accuracy, loss and
bytes so far at the rounds that were evaluated, the mean true skew of every cohort, how often each client was invited.
Where a paper asks for it there are also the accuracies of all classes and those on class mixes, from which the accuracy
on other mixes can be told later without another run.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.config.schema import Config
from covey.core.build import build_federation
from covey.core.records import read_config, read_metrics
from covey.data.paper_targets import target as class_mix
from covey.environment.federated_data import Truth
from covey.errors import Refusal, require
from covey.registries import methods
from covey.storage import replace_file
from papers.plan import Planned, differences, run_name

FORMAT = 1
"""Version of a result's file; a file with a higher one is refused."""

MEASUREMENTS = "measurements.json"
"""Where a run folder keeps what was measured of its clients besides the run."""

BRANCH = "branch.json"
"""Where a run folder keeps what it began with, if that was another run's model."""

CENTRAL = "central"
"""The method whose federation has one client."""

OWN_MIX = "local"
"""The target that is every client's own mix, with the client's own model where each has one."""

LISTED_CLASSES = 10
"""The store keeps the accuracy of every class up to so many."""

_COLUMNS = ("round", "accuracy", "loss", "bytes_up", "bytes_down", "probe_bytes")
_SELDOM = ("class_accuracy", "shares", "targets", "branch", "client_loss", "impact")


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """One run as the store keeps it, finished or not."""

    paper: str
    environment: str
    method: str
    seed: int
    variant: str
    commit: str | None
    date: str
    """When the run began."""
    device: str
    torch: str
    config: Mapping[str, Any]
    rounds: int
    """Rounds done."""
    finished: bool
    evaluated: Mapping[str, list[Any]]
    """`round`, `accuracy`, `loss`, and `bytes_up`, `bytes_down`, `probe_bytes` (the part of bytes up that
    measurements take) summed up to that round."""
    cohort_skew: list[float | None]
    """`[rounds]`"""
    skew: list[float]
    """`[clients]`: the true skew of each client."""
    hits: list[int]
    """`[clients]`: rounds to which each was invited."""
    dropped: int
    """Replies that were lost or thrown away."""
    withheld: int
    """Models that clients kept to themselves."""
    seconds: Mapping[str, float]
    """Wall-clock seconds: `clients`, `probes` (their part for measurements), `aggregation` and `total`."""
    measurements: list[dict[str, Any]] = field(default_factory=list)
    """What was measured of all clients after a `round`, for evaluation only: their `scores` and the next `cohort`;
    or the `errors` (n·MAE) of estimates of their class shares, by estimator."""
    class_accuracy: list[list[float]] = field(default_factory=list)
    """`[evaluations, classes]`, where it is kept; the mean over clients where each has a model of its own."""
    shares: list[list[float]] = field(default_factory=list)
    """`[clients, classes]`: true class shares, where `class_accuracy` is kept."""
    targets: Mapping[str, list[float]] = field(default_factory=dict)
    """Target class mix → accuracy on it `[evaluations]`, of those that are kept."""
    branch: Mapping[str, Any] | None = None
    """Of a run that began with another one's model: `base`, `round`, `target`, `estimator`, `estimated` (the round of
    the estimates); and what was composed: how many `clients`, and how far their mix is from the target (n·MAE), by
    the estimates (`distance`) and in truth (`true_distance`)."""

    client_loss: Mapping[str, list[float | None]] = field(default_factory=dict)
    """Where clients reported the loss of the model that they received: its `mean`, `variance` and `gap` over a round's
    clients `[evaluations]`, the mean over the rounds since the last evaluation."""
    impact: list[float | None] = field(default_factory=list)
    """`[clients]`: mean impact factor in the rounds that a client took part in, where a method decides on that."""

    @property
    def name(self) -> str:
        return run_name(self.environment, self.method, self.seed, self.variant)

    @cached_property
    def evaluations(self) -> FloatArray:
        """Rounds that were evaluated, ascending."""
        return np.array(self.evaluated["round"], dtype=np.float64)

    @cached_property
    def accuracy(self) -> FloatArray:
        """Test accuracy at these rounds."""
        return np.array(self.evaluated["accuracy"], dtype=np.float64)

    def accuracy_on(self, target: str) -> FloatArray | None:
        """Accuracy on a class mix (td1, local:7, local) `[evaluations]`; None where the store does not tell.

        Of a single model it is the mean over classes, weighted by the mix.
        """
        if target in self.targets:
            return np.array(self.targets[target], dtype=np.float64)
        if not self.class_accuracy or target == OWN_MIX:
            return None
        shares = np.array(self.shares, dtype=np.float64)
        mix = class_mix(target, shares.shape[1], shares)
        accuracy: FloatArray = np.array(self.class_accuracy, dtype=np.float64) @ mix
        return accuracy

    def as_text(self) -> str:
        """The file: one line for each field; what few papers ask for only where there is any of it."""
        values = {"format": FORMAT, **{spec.name: getattr(self, spec.name) for spec in fields(self)}}
        values = {key: value for key, value in values.items() if value or key not in _SELDOM}
        lines = (
            f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'), allow_nan=False)}"
            for key, value in values.items()
        )
        return "{\n" + ",\n".join(lines) + "\n}\n"


class Store:
    """Results of one paper at one scale, in one folder."""

    def __init__(self, folder: Path, results: Sequence[Result]) -> None:
        self.folder = folder
        self._results: dict[str, Result] = {}
        self._lines: dict[tuple[str, str, str], dict[int, Result]] = {}
        for result in results:
            self._add(result)

    @classmethod
    def read(cls, folder: Path) -> "Store":
        """All results of a folder; none where there is no such folder."""
        return cls(folder, [read_result(path) for path in sorted(folder.glob("*.json"))])

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results.values())

    def __len__(self) -> int:
        return len(self._results)

    def get(self, name: str) -> Result | None:
        return self._results.get(name)

    def line(self, environment: str, method: str, variant: str = "") -> dict[int, Result]:
        """Seed → result, of one line of a table."""
        return dict(sorted(self._lines.get((environment, method, variant), {}).items()))

    def holds(self, run: Planned) -> bool:
        """Whether nothing of a run is missing."""
        found = self.get(run.name)
        if found is None or found.rounds < run.rounds:
            return False
        return {at for at in run.measured if at <= run.rounds} <= {one["round"] for one in found.measurements}

    def write(self, result: Result) -> bool:
        """Keep a result, unless there is already one that is as long; says whether it was written."""
        before = self.get(result.name)
        if before is not None:
            other = differences(result.config, before.config, common=True)
            require(
                not other,
                f"{self.folder / result.name}.json holds a run with other settings ({'; '.join(other[:3])}); "
                "move it away, or choose another --results.",
            )
            if (before.rounds, len(before.measurements)) >= (result.rounds, len(result.measurements)):
                return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.folder / f"{result.name}.json", result.as_text().encode())
        except OSError as error:
            raise Refusal(f"The results in {self.folder} cannot be written: {error.strerror or error}.") from error
        self._add(result)
        return True

    def _add(self, result: Result) -> None:
        self._results[result.name] = result
        self._lines.setdefault((result.environment, result.method, result.variant), {})[result.seed] = result


def result_of(paper: str, run: Planned, folder: Path, skew: Sequence[float] | None = None) -> Result:
    """What a run folder holds so far; `skew` where it is known already may save dealing the data again."""
    config = read_config(folder)
    # While clients are measured on the way, a run folder asks for the rounds up to there and no more.
    config = replace(config, rounds=max(config.rounds, run.rounds))
    rows = read_metrics(folder)
    machine = _read_json(folder / "environment.json")
    measured = _read_json(folder / MEASUREMENTS) if (folder / MEASUREMENTS).is_file() else []
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    up = down = probes = 0
    for row in rows:
        up += row["bytes_up"]
        down += row["bytes_down"]
        probes += sum(row.get("probe_bytes", {}).values())
        if "accuracy" in row:
            values = (row["round"], round(row["accuracy"], 4), _rounded(row["loss"], 4), up, down, probes)
            for name, value in zip(_COLUMNS, values, strict=True):
                columns[name].append(value)
    invited = Counter(client for row in rows for client in row["clients"])
    settings = config.as_mapping()
    settings.pop("data_dir", None)
    if run.school is not None:
        settings["aggregator"]["agent"] = run.school.name
    scored = [row for row in rows if "accuracy" in row]
    truth = true_skew(folder) if skew is None else skew
    listed = run.by_class and all(len(row.get("class_accuracy", ())) in range(1, LISTED_CLASSES + 1) for row in scored)
    return Result(
        paper=paper,
        environment=run.environment,
        method=run.method,
        seed=run.seed,
        variant=run.variant,
        commit=machine.get("commit"),
        date=machine["started"],
        device=machine.get("gpu") or "CPU",
        torch=machine["versions"]["torch"],
        config=settings,
        rounds=len(rows),
        finished=len(rows) >= config.rounds,
        evaluated=columns,
        cohort_skew=[_rounded(row["cohort_skew"], 3) for row in rows],
        skew=[round(float(value), 3) for value in truth],
        hits=[invited[client] for client in range(len(truth))],
        dropped=sum(len(row["dropped"]) for row in rows),
        withheld=sum(len(row.get("withheld", ())) for row in rows),
        seconds={
            "clients": round(sum(row["seconds"].get("clients", 0.0) for row in rows), 4),
            "probes": round(sum(sum(row.get("probe_seconds", {}).values()) for row in rows), 4),
            "aggregation": round(sum(row["seconds"].get("aggregation", 0.0) for row in rows), 4),
            "total": round(sum(sum(row["seconds"].values()) for row in rows), 4),
        },
        measurements=measured,
        class_accuracy=[_all_rounded(row["class_accuracy"], 4) for row in scored] if listed else [],
        shares=[_all_rounded(row, 4) for row in truth_of(config).shares] if listed else [],
        targets={target: _all_rounded(_on_target(scored, target, config), 4) for target in run.targets},
        branch=_read_json(folder / BRANCH) if (folder / BRANCH).is_file() else None,
        client_loss=_client_loss(rows),
        impact=_impact(rows, len(truth)),
    )


def _client_loss(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Figures of clients' losses at every evaluation, over the rounds since the one before; {} where there are none."""
    if not any("client_loss" in row for row in rows):
        return {}
    columns: dict[str, list[float | None]] = {"mean": [], "variance": [], "gap": []}
    since: list[Mapping[str, float]] = []
    for row in rows:
        since += [row["client_loss"]] if "client_loss" in row else []
        if "accuracy" in row:
            for name, column in columns.items():
                column.append(float(f"{np.mean([one[name] for one in since]):.4g}") if since else None)
            since = []
    return columns


def _impact(rows: Sequence[Mapping[str, Any]], clients: int) -> list[float | None]:
    """The mean impact factor of each client over the rounds that it took part in; [] where nobody decides on them."""
    told = [row["figures"]["impact_factors"] for row in rows if "impact_factors" in row.get("figures", {})]
    factors: list[list[float]] = [[] for _ in range(clients)]
    for one in told:
        for client, factor in one.items():
            factors[int(client)].append(factor)
    return [float(f"{np.mean(own):.4g}") if own else None for own in factors] if told else []


def true_skew(folder: Path) -> FloatArray:
    """The skew of each client of a run `[clients]`, its data dealt again."""
    return truth_of(read_config(folder)).skew


def truth_of(config: Config) -> Truth:
    """The true class shares and skew of a run's clients, its data dealt again."""
    return _truth(_Dealt(config))


class _Dealt:
    """A configuration as far as it decides who holds what, so that runs on the same data deal them once."""

    def __init__(self, config: Config) -> None:
        self.config = config
        mapping = config.as_mapping()
        kept = {key: mapping.get(key) for key in ("dataset", "environment", "altered", "clients", "seed", "data_dir")}
        reshaped = config.method in methods.names() and methods[config.method].part.reshape is not None
        self.key = json.dumps([kept, config.method if reshaped else None], sort_keys=True)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Dealt) and self.key == other.key


@lru_cache(maxsize=3)
def _truth(dealt: _Dealt) -> Truth:
    config = dealt.config
    recipe = methods[config.method].part if config.method in methods.names() else None
    federation = build_federation(config)
    return (recipe.reshape(federation, config.seed) if recipe and recipe.reshape else federation).truth


def _on_target(rows: Sequence[Mapping[str, Any]], target: str, config: Config) -> list[float]:
    """The accuracy on a class mix at every evaluation."""
    if target == OWN_MIX:
        return [float(row["own_accuracy"]) for row in rows]
    shares = truth_of(config).shares
    mix = class_mix(target, shares.shape[1], shares)
    return [float(np.asarray(row["class_accuracy"]) @ mix) for row in rows]


def read_result(path: Path) -> Result:
    """A result's file, or the sentence that says what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(f"The result {path} is damaged and cannot be read ({error}).") from error
    try:
        found = int(data.pop("format"))
        require(found <= FORMAT, f"it was made by a newer version of Covey: format {found}, this one reads {FORMAT}")
        result = Result(**data)
        _check(result)
        require(path.stem == result.name, f"it holds the run {result.name}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refusal(f"The result {path} is damaged and cannot be used ({error}).") from error
    return result


def _check(result: Result) -> None:
    """Refuse columns that do not belong together."""
    columns, rounds = result.evaluated, result.rounds
    require(set(columns) == set(_COLUMNS), f"its columns are {', '.join(columns)}")
    lengths = {len(columns[name]) for name in _COLUMNS}
    require(len(lengths) == 1, f"its columns have different lengths, {sorted(lengths)}")
    at = np.array(columns["round"], dtype=np.float64)
    require(bool((np.diff(at) > 0).all()), "its evaluated rounds do not ascend")
    require(len(at) == 0 or (at[0] >= 1 and at[-1] <= rounds), f"it has {rounds} rounds but evaluations beyond them")
    accuracy = np.array(columns["accuracy"], dtype=np.float64)
    require(bool(((accuracy >= 0) & (accuracy <= 1)).all()), "an accuracy is not a fraction")
    require(len(result.cohort_skew) == rounds, f"it has {rounds} rounds but {len(result.cohort_skew)} cohort skews")
    # All data in one place are one client.
    clients = 1 if result.config["method"] == CENTRAL else int(result.config["clients"])
    require(len(result.skew) == clients, f"it has {clients} clients but the skew of {len(result.skew)}")
    require(len(result.hits) == clients, f"it has {clients} clients but the hits of {len(result.hits)}")
    require(result.finished == (rounds >= int(result.config["rounds"])), "it is not as finished as it says")
    for one in result.measurements:
        for name, column in {"scores": one.get("scores"), **one.get("errors", {})}.items():
            fits = column is None or len(column) == clients
            require(fits, f"the {name} after round {one['round']} are not of {clients} clients")
    for name, figures in result.client_loss.items():
        require(len(figures) == len(at), f"it has {len(at)} evaluations but {len(figures)} of clients' {name} loss")
    require(len(result.impact) in (0, clients), f"it has {clients} clients but the impact of {len(result.impact)}")
    for target, accuracies in result.targets.items():
        require(len(accuracies) == len(at), f"it has {len(at)} evaluations but {len(accuracies)} on {target}")
    if result.class_accuracy:
        rows = len(result.class_accuracy)
        require(rows == len(at), f"it has {len(at)} evaluations but {rows} of every class")
        require(len(result.shares) == clients, f"it has {clients} clients but the shares of {len(result.shares)}")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(f"The file {path} cannot be read ({error}).") from error


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _all_rounded(values: Sequence[float] | FloatArray, digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]
