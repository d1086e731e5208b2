"""Opening of the page: what the method is, what is shown of it, and the commands with their cost."""

from papers.grid import Request
from papers.own.lines import groups
from papers.own.results import OwnResults
from papers.own.scales import OURS, OwnScale
from papers.page import Part, Table
from papers.prose import SHARED, Prose
from papers.sentences import made_by, terminal_means
from papers.wording import counted

PROSE = Prose.beside(__file__)

_START_UP = 1.0
"""Minutes of start-up of a call: compiling, and timing the ways to convolve."""


def opening(results: OwnResults) -> list[Part]:
    """Say how much there is, and how it was made."""
    runs = len(results.store)
    begun = sum(run.method == OURS for run in results.store)
    state = PROSE("some-runs", runs=counted(runs, "run"), ours=begun) if runs else PROSE("no-runs")
    return [
        f"**{state}**",
        *PROSE.parts("method"),
        "## Setup",
        *PROSE.parts(
            "setup",
            made_by=made_by(results.command, results.scale, results.store),
            terminal=terminal_means(results.window),
            which_seeds=SHARED("which-seeds"),
        ),
    ]


def commands(results: OwnResults) -> list[Part]:
    """The groups in order, what each costs, and the commands."""
    scale, rows, total = results.scale, [], 0.0
    for group in groups(scale, Request()):
        minutes = sum(run.cost / _speed(scale, run.environment) for run in group.runs) / 60
        total += minutes
        rows.append([group.title, f"`--only {group.feeds[0]}`", str(len(group.runs)), f"{minutes:.1f}", f"{total:.0f}"])
    columns = ("runs", "group", "number", "minutes", "minutes so far")
    return [*PROSE.parts("commands", start=_START_UP, command=results.command), Table(columns, rows)]


def _speed(scale: OwnScale, environment: str) -> float:
    """Return client-samples a second in lockstep."""
    if environment == "ondemand":
        return scale.task_speed
    if environment in scale.clustered_environments:
        return scale.clustered.speed
    return scale.text.speed if environment in {one.name for one in scale.texts} else scale.skewed.speed


def when_not(results: OwnResults) -> list[Part]:
    """When not to use it."""
    return [*PROSE.parts("when-not")]
