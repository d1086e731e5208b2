"""One line of the list of runs, and its main metric as text, whatever its task."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from covey.task.learning_task import Metric

Kind = Literal["run", "comparison", "ondemand", "fleet"]

KINDS: tuple[Kind, ...] = ("run", "comparison", "ondemand", "fleet")

STATES = ("running", "finished", "stopped", "damaged")


@dataclass(frozen=True)
class RunSummary:
    """One line of the list. Figures that are not known are None."""

    path: str
    """Relative to the folder that was listed, with "/"; "." is that folder itself."""
    kind: Kind
    state: str
    """One of `STATES`; `stopped` runs can be resumed."""
    name: str
    """Method, methods of a comparison, targets of an on-demand job, or address of a fleet."""
    dataset: str | None = None
    environment: str | None = None
    model: str | None = None
    runtime: str | None = None
    clients: int | None = None
    cohort: int | None = None
    seed: int | None = None
    done: int = 0
    """Rounds done, over all runs of a job."""
    rounds: int = 0
    """Rounds planned."""
    accuracy: float | None = None
    """Last accuracy on the test set; of a job, the mean over its runs."""
    score: float | None = None
    """The same of another main metric, where the task has no accuracy."""
    metric: str | None = None
    """Name of that metric."""
    better: str | None = None
    """`higher` or `lower`."""
    loss: float | None = None
    mix_accuracy: float | None = None
    """Of an on-demand job: accuracy on the class mixes that were asked for, mean over targets."""
    used: int | None = None
    """Of an on-demand job: clients that it trains on."""
    epsilon: float | None = None
    """Of an on-demand job: what the clients' answers spent; None without noise."""
    changed: float = 0.0
    """Time of the last change, in seconds since 1970."""
    runs: tuple[str, ...] = ()
    """Paths of the runs of a job, those that have begun."""
    fault: str | None = None
    """What is wrong with a damaged folder."""

    @property
    def main(self) -> float | None:
        """Last main metric, whatever the task."""
        return self.score if self.accuracy is None else self.accuracy

    @property
    def rank(self) -> float | None:
        """The main metric, so that higher is better."""
        return self.main if self.main is None or self.better != "lower" else -self.main

    @property
    def on_demand(self) -> str:
        """What an on-demand job made, in words; empty for others."""
        if self.kind != "ondemand" or self.used is None:
            return ""
        accuracy = [] if self.mix_accuracy is None else [f"{self.mix_accuracy:.1%} on the mix"]
        answers = "no noise in answers" if self.epsilon is None else f"answers with ε = {self.epsilon:g}"
        return ", ".join([*accuracy, f"{self.used:,} clients", answers])

    def as_mapping(self) -> dict[str, Any]:
        """Return the line for JSON."""
        return {**asdict(self), "runs": list(self.runs)}


def listed_metric(line: RunSummary) -> "Metric | None":
    """Return the main metric of a line; None for accuracy, the metric of tasks with classes."""
    if line.metric is None:
        return None
    # Imported late: tasks need torch, and a list of runs that have accuracy does without.
    metric: Metric = import_module("covey.task.run_metric").known_metric(line.metric, line.better != "lower")
    return metric


def score_text(line: RunSummary, share: str = "{:.1f}%", *, named: bool = False) -> str:
    """Return the main metric of a line, shares in the form `share`; `named` says which metric it is."""
    metric = listed_metric(line)
    if line.main is None:
        return "-"
    text = share.format(100 * line.main) if metric is None or metric.share else metric.text(line.main)
    return f"{label_of(line)} {text}" if named else text


def label_of(line: RunSummary) -> str:
    """Return the name of a line's main metric."""
    metric = listed_metric(line)
    return "accuracy" if metric is None else metric.label


def common_label(lines: Iterable[RunSummary]) -> str | None:
    """Return the name of the main metric that all lines with a score share; None if there are several."""
    labels = {label_of(line) for line in lines if line.main is not None}
    return labels.pop() if len(labels) == 1 else None if labels else "accuracy"
