"""The card of a model: what it was trained on and how, how well it does, and what protects the data, in Markdown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import torch

import covey
from covey.core.printable_text import printable
from covey.core.records import made_by
from covey.core.round_record import privacy_of
from covey.core.scores import LISTED_CLASSES
from covey.data.columns import Column
from covey.data.dataset import Dataset
from covey.job.job_folder import read_job_file
from covey.job.model_export import PROGRAMS, unit_of
from covey.job.score_text import score_rows
from covey.task.run_metric import main_score, metric_of

if TYPE_CHECKING:
    from covey.job.runs import Run

_OUTPUTS = {
    "multilabel": "a logit for each label: positive if it holds",
    "custom": "what the task's own loss takes",
    "next-token": "a logit for each word that may follow",
}
"""Task → what models for it return; for all others with classes, a logit for each class."""


class _Plan(TypedDict):
    without: NotRequired[list[str]]


class _Job(TypedDict):
    plan: _Plan


def card(run: "Run", exported: Mapping[str, Any], dataset: Dataset) -> str:
    """Return the card of a run's exported model, about which `exported` says file, format, size and round."""
    config, local, done = run.config, run.config.local, exported["round"]
    before = [row for row in run.metrics if row["round"] <= done]
    scored = next((row for row in reversed(before) if main_score(row) is not None), None)
    method = config.method + (f" with {config.trainer.name}" if config.trainer and config.trainer.name != "sgd" else "")
    lines = [
        f"# {Path(exported['file']).name}",
        "",
        f"A model trained by federated learning with Covey {covey.__version__}.",
        "",
        "| | |",
        "|---|---|",
        f"| file | {exported['format']}, {exported['parameters']:,} parameters, {exported['bytes']:,} bytes |",
        f"| model | {_part(config.model.name, config.model.options)} |",
        f"| input | {_input(exported['format'], dataset)} |",
        f"| output | {_output(exported['format'], dataset)} |",
        f"| data | {_part(config.dataset.name, config.dataset.options)} |",
        f"| clients | {config.clients:,}, split by "
        f"{_part(config.environment.name, config.environment.options)}; {config.cohort:,} a round |",
        f"| method | {method} |",
        f"| rounds | {done:,} of {config.rounds:,} |",
        f"| local training | {local.epochs} epochs, batches of {local.batch}, rate {local.rate:g} |",
        f"| seed | {config.seed} |",
    ]
    if left_out := _left_out(run):
        lines.append(f"| left out | {_cell(', '.join(left_out))} |")
    if config.altered or config.attack:
        lines.append("| note | some clients' data or updates were altered on purpose in this run |")
    if dataset.columns:
        lines += ["", "## Columns", "", *_columns(exported["format"], dataset.columns)]
    lines += ["", "## How well it does", ""]
    lines += _scores(scored, dataset.class_names)
    lines += ["", "## Privacy", "", _privacy(privacy_of(before[-1] if before else {})), "", "## Made by", ""]
    command = made_by(run.folder).replace("```", "'''")
    lines += [f"```\n{command}\n```" if command else "A call in Python; the settings are in the run's config.json.", ""]
    return "\n".join(lines)


def _columns(kind: str, columns: Sequence[Column]) -> list[str]:
    """Return how rows of the table become samples; features are counted from 0."""
    where = "" if kind == "state-dict" else " The file's metadata has them as JSON (`columns`)."
    lines = [
        f"A sample is a row of the table, with its columns in this order.{where} `covey predict` scores new rows.",
        "",
        "| features | column | what its values become |",
        "|---|---|---|",
    ]
    at = 0
    for column in columns:
        last = at + column.width - 1
        places = f"{at}" if column.width == 1 else f"{at} to {last}" if column.width else "none"
        lines.append(f"| {places} | {_cell(column.name)} | {_cell(column.rule)} |")
        at += column.width
    return lines


def _left_out(run: "Run") -> list[str]:
    """Return the clients that the on-demand job around a run left out; none for other runs."""
    job = run.folder.resolve().parent / "ondemand.json"
    return list(read_job_file(job, "an on-demand job", _Job)["plan"].get("without", ())) if job.is_file() else []


def _scores(scored: Mapping[str, Any] | None, class_names: Sequence[str]) -> list[str]:
    if scored is None:
        return ["It was not scored: there is no test set, or no round was evaluated."]
    metric = metric_of([scored])
    label, value = metric.label[:1].upper() + metric.label[1:], metric.text(main_score(scored))
    lines = [f"{label} on the test set after round {scored['round']}: {value}."]
    if scored.get("own_accuracy") is not None:
        lines[0] += f" On the clients' own class mixes, on average: {_percent(scored['own_accuracy'])}."
    if more := score_rows(scored):
        lines += ["", f"Also: {'; '.join(f'{_cell(name)} {figure}' for name, figure in more)}."]
    by_class = scored.get("class_accuracy") or []
    if 0 < len(by_class) <= LISTED_CLASSES:
        names = class_names or [str(number) for number in range(len(by_class))]
        lines += ["", "| class | accuracy |", "|---|---|"]
        lines += [f"| {_cell(name)} | {_percent(value)} |" for name, value in zip(names, by_class, strict=True)]
    return lines


def _privacy(found: Mapping[str, Any]) -> str:
    if not found:
        return "No differential privacy: the model may reveal what it was trained on."
    protects = f", which protects each {found['protects']}" if "protects" in found else ""
    return f"Differentially private: ε = {found['epsilon']:.3g} at δ = {found['delta']:g}{protects}."


def _input(kind: str, dataset: Dataset) -> str:
    size = " x ".join(map(str, dataset.shape))
    if kind in PROGRAMS:
        return f"samples of {size} as they are stored (normalised inside)"
    if dataset.x.dtype == torch.int64:
        return f"samples of {size}, numbers of words"
    if kind == "safetensors":
        return f"samples of {size}, normalised by `mean` and `deviation` in the file's metadata (JSON)"
    mean, deviation = _numbers(dataset.mean), _numbers(dataset.deviation)
    return f"samples of {size}, normalised: minus the mean ({mean}), divided by the deviation ({deviation})"


def _output(kind: str, dataset: Dataset) -> str:
    centre, scale = unit_of(dataset)
    if not centre:
        return _OUTPUTS.get(dataset.learns.name, "a logit for each class")
    if kind in PROGRAMS:
        return "each target in its own unit"
    return f"standardised targets: for their own unit, times {_numbers(scale)}, plus {_numbers(centre)}"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.9g}" for value in values)


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _part(name: str, options: Mapping[str, Any]) -> str:
    given = ", ".join(f"{option} = {value}" for option, value in options.items() if value not in (None, ()))
    return _cell(f"{name} ({given})" if given else name)


def _cell(text: str) -> str:
    """Return text for a cell of a table."""
    return printable(text).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
