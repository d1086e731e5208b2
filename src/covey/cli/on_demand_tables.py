"""On-demand jobs as tables in the terminal."""

import numpy as np
from rich import box
from rich.table import Table

from covey.cli.terminal import console, say, table_of
from covey.job.on_demand import ComposedTargets, OnDemand
from covey.job.result_text import percent
from covey.page.on_demand_page import PRIVACY_CAPTION, PRIVACY_COLUMNS, job_rows, privacy_rows

_SHOWN = 12
"""Targets whose composition is shown in full."""

_CLASSES = 12
"""Classes of a mix that are shown."""


def show_composed(composed: ComposedTargets) -> None:
    """Print the composed mix beside the target, and the chosen clients with their ratios."""
    for note in composed.notes:
        say(note)
    for wish, composition, notes in composed.targets[:_SHOWN]:
        weight = np.maximum(wish.mix, composition.mix)
        most = np.sort(np.argsort(-weight, kind="stable")[:_CLASSES])
        table = Table(box=box.SIMPLE_HEAD, title=f"Target {wish.name}")
        table.add_column("class")
        for name in ("target", "composed"):
            table.add_column(name, justify="right", no_wrap=True)
        for label in most[weight[most] > 0].tolist():
            table.add_row(composed.class_names[label], f"{wish.mix[label]:.1%}", f"{composition.mix[label]:.1%}")
        console.print(table, highlight=False)
        order = np.argsort(-composition.ratios, kind="stable").tolist()
        who, ratios = composition.clients, composition.ratios
        chosen = [f"{composed.client_name(int(who[at]))} ({ratios[at]:.1%})" for at in order]
        say(
            f"{len(chosen)} of {composed.clients} clients, n·MAE {composition.distance:.2f} from the target: "
            + ", ".join(chosen)
        )
        for note in notes:
            say(note)
    if len(composed.targets) > _SHOWN:
        say(f"{len(composed.targets) - _SHOWN} more targets are not shown.")


def show_job(job: OnDemand) -> None:
    """Print each target's accuracy, before and after."""
    console.print(table_of(job_rows(job)), highlight=False)
    if job.composed.privacy:
        console.print(_privacy_table(job), highlight=False)
    table = Table(box=box.SIMPLE_HEAD, title="Accuracy on the target")
    table.add_column("target")
    for name in ("at the end", "best", "on its test set"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in job.tailored[:_SHOWN]:
        table.add_section()
        table.add_row(one.wanted.name, "", "", f"{one.test_samples:,} samples")
        models = [("base model", one.base), (f"on demand, {len(one.composition.clients)} clients", one.scored)]
        if one.continued is not None:
            models.insert(1, ("base run continued", one.continued))
        for name, scored in models:
            table.add_row(f"  {name}", percent(scored.accuracy), percent(scored.peak), percent(scored.tested))
    console.print(table, highlight=False)
    say(job.verdict)
    for one, (_, _, told) in zip(job.tailored[:_SHOWN], job.composed.targets, strict=False):
        for note in one.notes[len(told) :]:
            say(note)
    for one in job.tailored[:_SHOWN]:
        say(f"Model: {one.model}")
    if len(job.tailored) > _SHOWN:
        say(
            f"and {len(job.tailored) - _SHOWN} more targets; all models are in {job.folder}/target-*, and all figures "
            f"are printed by: covey resume {job.folder} --json"
        )


def _privacy_table(job: OnDemand) -> Table:
    """Return the accuracy of the estimated class shares against ε."""
    table = Table(box=box.SIMPLE_HEAD, title=PRIVACY_CAPTION)
    for name in PRIVACY_COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in privacy_rows(job):
        table.add_row(*row)
    return table
