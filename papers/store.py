"""The store: one small JSON file per run. Tables and figures are made from these files alone.

A file holds a run's configuration, commit and machine, and its results in columns: accuracy, loss and bytes so far at
the evaluated rounds, the mean true skew of every cohort, and how often each client was invited. Some papers also keep
the accuracy of every class, from which the accuracy on any class mix follows without another run.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from covey.arrays import FloatArray, IntArray
from covey.config.schema import EARLIER
from covey.data.paper_targets import target as class_mix
from covey.environment.partition import client_order
from covey.errors import Refusal, require
from covey.storage import replace_file
from papers.grid import PlannedRun, differences, run_differences, run_name

FORMAT = 1
"""Version of a result's file; newer versions are refused."""

CENTRAL = "central"
"""The method whose federation has one client."""

OWN_MIX = "local"
"""The target that is every client's own class mix, scored with the client's own model if it has one."""

LISTED_CLASSES = 10
"""Most classes of which the store keeps every class's accuracy."""

COLUMNS = ("round", "accuracy", "loss", "bytes_up", "bytes_down", "probe_bytes")
_OPTIONAL = (
    "raw_accuracy",
    "halved",
    "class_accuracy",
    "shares",
    "targets",
    "branch",
    "client_loss",
    "impact",
    "agent",
    "regret",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """One run in the store, finished or not."""

    paper: str
    environment: str
    method: str
    seed: int
    variant: str
    commit: str | None
    date: str
    """Start of the run."""
    device: str
    torch: str
    config: Mapping[str, Any]
    rounds: int
    """Rounds done."""
    finished: bool
    evaluated: Mapping[str, list[Any]]
    """Columns `round`, `accuracy`, `loss`, and `bytes_up`, `bytes_down`, `probe_bytes` (the part of bytes up that
    probes take), summed up to that round."""
    cohort_skew: list[float | None]
    """`[rounds]`"""
    skew: list[float]
    """True skew `[clients]`."""
    hits: list[int]
    """Rounds to which each client was invited `[clients]`."""
    dropped: int
    """Replies that were lost or discarded."""
    withheld: int
    """Models that clients withheld."""
    seconds: Mapping[str, float]
    """Wall-clock seconds: `clients`, `probes` (the part of it for probes), `aggregation` and `total`."""
    measurements: list[dict[str, Any]] = field(default_factory=list)
    """Measurements of all clients after a `round`: their `scores` and the next `cohort`, or the `errors` (n·MAE) of
    their estimated class shares, by estimator."""
    class_accuracy: list[list[float]] = field(default_factory=list)
    """`[evaluations, classes]`, if kept; the mean over clients if each has its own model."""
    raw_accuracy: list[float] = field(default_factory=list)
    """Accuracy of the model before averaging over rounds `[evaluations]`, if models are averaged."""
    halved: list[int] = field(default_factory=list)
    """Rounds in which the server's rate was halved."""
    shares: list[list[float]] = field(default_factory=list)
    """True class shares `[clients, classes]`, if `class_accuracy` is kept."""
    targets: Mapping[str, list[float]] = field(default_factory=dict)
    """Target class mix → accuracy on it `[evaluations]`, if kept."""
    branch: Mapping[str, Any] | None = None
    """Start of a run from another run's model: `base`, `round`, `target`, `estimator`, `estimated` (the round of the
    estimates); number of composed `clients`, and the distance (n·MAE) of their mix from the target, by the estimates
    (`distance`) and in truth (`true_distance`)."""
    client_loss: Mapping[str, list[float | None]] = field(default_factory=dict)
    """`mean`, `variance` and `gap` over a round's clients of the loss of the model that they received
    `[evaluations]`, means over the rounds since the last evaluation; if clients reported it."""
    regret: Mapping[str, list[float | None]] = field(default_factory=dict)
    """`cohort_loss` and `population_loss`: mean loss of the cohort and of all clients `[evaluations]`, means over the
    rounds since the last evaluation; and the `regret` so far; if the run records it."""
    impact: list[float | None] = field(default_factory=list)
    """Mean impact factor over the rounds that a client took part in `[clients]`, if the method sets them."""
    agent: Mapping[str, Any] = field(default_factory=dict)
    """`digest` and `seed` of the agent that decided, if one was trained beforehand."""

    @property
    def name(self) -> str:
        return run_name(self.environment, self.method, self.seed, self.variant)

    @cached_property
    def evaluations(self) -> FloatArray:
        """Evaluated rounds, ascending."""
        return np.array(self.evaluated["round"], dtype=np.float64)

    @cached_property
    def accuracy(self) -> FloatArray:
        """Test accuracy at these rounds."""
        return np.array(self.evaluated["accuracy"], dtype=np.float64)

    @property
    def client_order(self) -> IntArray:
        """Each client's place in its environment's own order, in which groups are formed: `[clients]`."""
        return client_order(len(self.hits), self.seed, self.config.get("numbering", EARLIER["numbering"]))

    def accuracy_on(self, target: str) -> FloatArray | None:
        """Return the accuracy on a class mix (td1, local:7, local) `[evaluations]`; None if it is not stored.

        For a single model it is the mean over classes, weighted by the mix.
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
        """Return the file's text: one line per field, without empty optional ones."""
        values = {"format": FORMAT, **{spec.name: getattr(self, spec.name) for spec in fields(self)}}
        values = {key: value for key, value in values.items() if value or key not in _OPTIONAL}
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
        """Read all results of a folder; none if the folder does not exist."""
        return cls(folder, [read_result(path) for path in sorted(folder.glob("*.json"))])

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results.values())

    def __len__(self) -> int:
        return len(self._results)

    def get(self, name: str) -> Result | None:
        return self._results.get(name)

    def line(self, environment: str, method: str, variant: str = "") -> dict[int, Result]:
        """Return one line of a table: seed → result."""
        return dict(sorted(self._lines.get((environment, method, variant), {}).items()))

    def holds(self, run: PlannedRun) -> bool:
        """True if all rounds and measurements of a run are stored, made with the planned settings."""
        found = self.get(run.name)
        if found is None or found.rounds < run.rounds or run_differences(run, found.config, found.branch):
            return False
        return {at for at in run.measured if at <= run.rounds} <= {one["round"] for one in found.measurements}

    def write(self, result: Result) -> bool:
        """Write a result unless a stored one has as many rounds and measurements; return True if written."""
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


def read_result(path: Path) -> Result:
    """Read a result; refuse a damaged file."""
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
    """Refuse columns that do not fit together."""
    columns, rounds = result.evaluated, result.rounds
    require(set(columns) == set(COLUMNS), f"its columns are {', '.join(columns)}")
    lengths = {len(columns[name]) for name in COLUMNS}
    require(len(lengths) == 1, f"its columns have different lengths, {sorted(lengths)}")
    at = np.array(columns["round"], dtype=np.float64)
    require(bool((np.diff(at) > 0).all()), "its evaluated rounds do not ascend")
    require(len(at) == 0 or (at[0] >= 1 and at[-1] <= rounds), f"it has {rounds} rounds but evaluations beyond them")
    accuracy = np.array(columns["accuracy"], dtype=np.float64)
    require(bool(((accuracy >= 0) & (accuracy <= 1)).all()), "an accuracy is not a fraction")
    require(len(result.cohort_skew) == rounds, f"it has {rounds} rounds but {len(result.cohort_skew)} cohort skews")
    # A central run has one client.
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
    for name, figures in result.regret.items():
        require(len(figures) == len(at), f"it has {len(at)} evaluations but {len(figures)} of {name}")
    require(len(result.impact) in (0, clients), f"it has {clients} clients but the impact of {len(result.impact)}")
    for target, accuracies in result.targets.items():
        require(len(accuracies) == len(at), f"it has {len(at)} evaluations but {len(accuracies)} on {target}")
    raw = result.raw_accuracy
    require(len(raw) in (0, len(at)), f"it has {len(at)} evaluations but {len(raw)} of the model before averaging")
    if result.class_accuracy:
        rows = len(result.class_accuracy)
        require(rows == len(at), f"it has {len(at)} evaluations but {rows} of every class")
        require(len(result.shares) == clients, f"it has {clients} clients but the shares of {len(result.shares)}")
