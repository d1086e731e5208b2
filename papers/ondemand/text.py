"""Text of On-Demand FL's page: what it is about, how it was made, and how its runs differ from the authors'."""

from papers.ondemand.results import OnDemandResults
from papers.page import Part
from papers.prose import Prose
from papers.sentences import made_by
from papers.wording import counted, every_text, joined

PROSE = Prose.beside(__file__)


def introduction(results: OnDemandResults) -> list[Part]:
    """Return the paper's title and the source of the numbers."""
    return [*PROSE.parts("paper", made_by=made_by(results.command, results.scale, results.store))]


def deviations(results: OnDemandResults) -> list[Part]:
    """Return a sentence on each difference from the authors' runs."""
    return [*PROSE.parts("deviations", clients=results.scale.clients_as_targets)]


def setup(results: OnDemandResults) -> list[Part]:
    """Return the settings, and what accuracies, targets and intervals are."""
    scale = results.scale
    often = [
        f"{every_text(task.evaluate_every)} on {task.title} ({every_text(task.evaluate_many_every)} of many models)"
        for task in scale.tasks
    ]
    return [
        *PROSE.parts(
            "setup",
            scale=scale,
            local=scale.local,
            epochs=counted(int(scale.local["epochs"]), "epoch"),
            rounds="; ".join(PROSE("setup-task", task=task) for task in scale.tasks),
            evaluations=joined(often),
        ),
    ]
